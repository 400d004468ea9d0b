/* SPDX-License-Identifier: Apache-2.0 */
/* group_test.h - forms a process group without a push, to test that one forms.
 *
 * The group is over gloo. This process is rank 0 and hosts the store until ws_group_test_leave.
 * Servers know a group by its name until they are asked to leave it (ws_endpoint_destroy_group),
 * also after rank 0 has gone. */
#ifndef WSYNC_GROUP_TEST_H
#define WSYNC_GROUP_TEST_H

#include "wsync/cancel.h"
#include "wsync/endpoint.h"
#include "wsync/err.h"
#include "wsync/event.h"
#include "wsync/log.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ws_group_test_opts {
	const char *const *urls;
	size_t n;
	const char *name;           /* NULL: wsync-<8 hex> */
	const char *master_address; /* NULL: the address this machine uses toward the endpoints */
	uint16_t master_port;       /* 0: any */
	const char *state_dir;      /* has the locks of pushes; NULL: pushes are not kept away */
	struct ws_sink sink;        /* gets WS_EV_WAITING and WS_EV_HANG */
	const struct ws_log *log;
	const struct ws_cancel *cancel;
};

struct ws_group_test_member {
	const char *url;
	unsigned rank_offset, ranks;
	int64_t ns;                 /* from the request to its answer */
};

struct ws_group_test {
	char name[128];
	unsigned world_size;        /* with us */
	struct ws_group_test_member *members; /* as in urls */
	size_t n;
	void *priv;
};

/* Detects the endpoints, and lets all of them join at once. */
int ws_group_test_run(struct ws_http *http, const struct ws_group_test_opts *opts,
                      ws_deadline until, struct ws_group_test **out, struct ws_err *err);
/* Has a peer left? */
bool ws_group_test_broken(const struct ws_group_test *f);
/* Leaves. destroy: asks the endpoints to leave first, until the deadline. NULL is fine. */
void ws_group_test_leave(struct ws_group_test *f, bool destroy, ws_deadline until);

#ifdef __cplusplus
}
#endif
#endif
