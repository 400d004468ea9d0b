/* SPDX-License-Identifier: Apache-2.0 */
#include "wsync/cancel.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

int ws_cancel_init(struct ws_cancel *c, struct ws_err *err)
{
	__atomic_store_n(&c->set, 0, __ATOMIC_SEQ_CST);
	c->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return c->fd < 0 ? ws_err_errno(err, "eventfd") : 0;
}

void ws_cancel_fini(struct ws_cancel *c)
{
	if (!c || c->fd < 0)
		return;
	close(c->fd);
	c->fd = -1;
}

void ws_cancel_set(struct ws_cancel *c)
{
	const int saved = errno;
	__atomic_store_n(&c->set, 1, __ATOMIC_SEQ_CST);
	if (c->fd >= 0) {
		const unsigned long long one = 1;
		/* A full counter already is readable, so a failed write loses nothing. */
		if (write(c->fd, &one, sizeof one) < 0)
			errno = saved;
	}
	errno = saved;
}

int ws_cancel_fd(const struct ws_cancel *c)
{
	return c ? c->fd : -1;
}

bool ws_cancelled(const struct ws_cancel *c)
{
	return c && __atomic_load_n(&c->set, __ATOMIC_SEQ_CST) != 0;
}
