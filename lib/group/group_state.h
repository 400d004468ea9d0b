/* SPDX-License-Identifier: Apache-2.0 */
/* group_state.h - what group.c and group_together.c share. */
#ifndef WS_GROUP_STATE_H
#define WS_GROUP_STATE_H

#include "group.h"

struct ws_group {
	struct ws_group_opts opts;
	char name[128];
	char host[256];      /* what we advertise */
	char literal[64];    /* the same as an address literal, to bind and to publish */
	unsigned world_size;
	struct ws_store *store;
	struct ws_transport *transport;
	bool *joined;        /* per member: answered init with success */
	int64_t rest_since;  /* when the data plane and the members last came to rest; 0: never */
};

#endif
