/* SPDX-License-Identifier: Apache-2.0 */
/* group_state.h - struct ws_group, shared by group.c and group_together.c. */
#ifndef WS_GROUP_STATE_H
#define WS_GROUP_STATE_H

#include "group.h"

struct ws_group {
	struct ws_group_opts opts;
	char name[128];
	char host[256];      /* our address in requests to the members */
	char literal[64];    /* host as an address literal, to bind and to publish */
	unsigned world_size;
	struct ws_store *store;
	struct ws_transport *transport;
	bool *joined;        /* per member: it may be in the group, so it must be asked to leave */
	int64_t rest_since;  /* when the last wait in ws_group_together ended; 0: never */
};

#endif
