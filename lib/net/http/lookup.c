/* SPDX-License-Identifier: Apache-2.0 */
/* lookup.c - getaddrinfo with a deadline.
 *
 * The system's resolver has no deadline: a silent name server takes 30 s for each name. So a
 * thread resolves the name, and the caller stops waiting at its deadline. Literals need no
 * thread. The last of the two, thread or caller, frees the shared state. */

#include "sock.h"
#include "job.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct lookup {
	char name[WS_HOST_MAX], service[8];
	struct addrinfo hints;
	struct addrinfo *list;
	int rc, system_errno;
	int done;           /* an eventfd */
	atomic_bool left;   /* one of the two has left */
};

/* localhost is loopback even without an entry in /etc/hosts (RFC 6761), as in bare containers. */
static void resolve(struct lookup *l)
{
	l->rc = getaddrinfo(l->name[0] ? l->name : NULL, l->service, &l->hints, &l->list);
	if (l->rc && ws_host_is_localhost(l->name)) {
		l->hints.ai_family = AF_INET;
		l->rc = getaddrinfo("127.0.0.1", l->service, &l->hints, &l->list);
	}
	l->system_errno = errno;
}

static void leave(struct lookup *l)
{
	if (!atomic_exchange(&l->left, true))
		return;
	if (l->list)
		freeaddrinfo(l->list);
	if (l->done >= 0)
		close(l->done);
	free(l);
}

static void *lookup_thread(void *ctx)
{
	struct lookup *l = ctx;
	const uint64_t one = 1;
	resolve(l);
	if (write(l->done, &one, sizeof one) < 0)
		l->rc = EAI_SYSTEM; /* cannot happen: the eventfd is not full */
	leave(l);
	return NULL;
}

static int start(struct lookup *l, struct ws_err *err)
{
	pthread_t thread;
	l->done = eventfd(0, EFD_CLOEXEC);
	if (l->done < 0)
		return ws_err_errno(err, "eventfd");
	if (ws_thread_start(&thread, lookup_thread, l, err))
		return -1;
	pthread_detach(thread);
	return 0;
}

static int lookup_result(struct lookup *l, struct addrinfo **out)
{
	const int rc = l->rc;
	*out = l->list;
	l->list = NULL;
	errno = l->system_errno;
	return rc;
}

static int wait_for(struct lookup *l, ws_deadline until, const struct ws_cancel *cancel, int *rc,
                    struct addrinfo **out, struct ws_err *err)
{
	char what[WS_HOST_MAX + 32];
	snprintf(what, sizeof what, "resolve host '%s'", l->name);
	if (ws_sock_wait(l->done, POLLIN, until, cancel, what, err)) {
		leave(l);
		return -1;
	}
	*rc = lookup_result(l, out);
	leave(l);
	return 0;
}

int ws_host_lookup(const char *name, const char *service, const struct addrinfo *hints,
                   ws_deadline until, const struct ws_cancel *cancel, int *rc,
                   struct addrinfo **out, struct ws_err *err)
{
	struct addrinfo literal = *hints;
	literal.ai_flags |= AI_NUMERICHOST;
	*out = NULL;
	*rc = getaddrinfo(name[0] ? name : NULL, service, &literal, out);
	if (*rc != EAI_NONAME)
		return 0;
	struct lookup *l = calloc(1, sizeof *l);
	if (!l)
		return ws_oom(err);
	snprintf(l->name, sizeof l->name, "%s", name);
	snprintf(l->service, sizeof l->service, "%s", service);
	l->hints = *hints;
	if (start(l, err)) {
		atomic_store(&l->left, true);
		leave(l);
		return ws_err_wrap(err, "resolve host '%s'", name);
	}
	return wait_for(l, until, cancel, rc, out, err);
}
