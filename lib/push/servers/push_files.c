/* SPDX-License-Identifier: Apache-2.0 */
/* push_files.c - checks that this process may open as many descriptors as the push needs.
 *
 * Without this check the errors would mislead: a connection that cannot be opened looks like a
 * server that is down. A connection that cannot be accepted keeps a group and its servers waiting
 * until the deadline. */
#include "push_protocol.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

/* Per endpoint: a lock, and a connection for each of the first requests. Per rank: a connection to
 * the store and one for bytes. Spare: a log, an epoll, a directory that is synced. */
enum { PER_ENDPOINT = 4, PER_RANK = 2, SPARE = 24 };

/* The lowest free descriptor: the kernel always returns the lowest one. */
static rlim_t in_use(rlim_t limit)
{
	const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return limit;
	close(fd);
	return (rlim_t)fd;
}

static int check_limit(const struct ws_push *p, rlim_t more, struct ws_err *err)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == RLIM_INFINITY)
		return 0;
	const rlim_t need = in_use(limit.rlim_cur) + more + SPARE;
	if (need <= limit.rlim_cur)
		return 0;
	unsigned long long enough = 256;
	while (enough < need)
		enough *= 2;
	ws_err_set(err, WS_ESYSTEM,
	           "%zu endpoint%s about %llu open files, and this process may have %llu",
	           p->opts.n_endpoints, p->opts.n_endpoints == 1 ? " needs" : "s need",
	           (unsigned long long)need, (unsigned long long)limit.rlim_cur);
	return ws_err_hint(err, "start it where it may have more: ulimit -n %llu", enough);
}

static bool joins(const struct ws_push *p)
{
	return !p->opts.dry_run && !p->protocol->groupless;
}

int push_check_files(const struct ws_push *p, struct ws_err *err)
{
	const rlim_t each = joins(p) ? PER_ENDPOINT + PER_RANK : PER_ENDPOINT;
	return p->to.known /* and the endpoints are connected */ ? 0 :
	                                         check_limit(p, p->opts.n_endpoints * each, err);
}

int push_check_ranks_files(const struct ws_push *p, struct ws_err *err)
{
	rlim_t ranks = 0;
	if (p->link.group || !joins(p))
		return 0;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		ranks += p->to.members[i].ranks;
	return check_limit(p, ranks * PER_RANK, err);
}
