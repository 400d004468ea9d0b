/* SPDX-License-Identifier: Apache-2.0 */
/* current.h - does a server have the weights that its weight version names?
 *
 * Anybody can set a label, a push of a part sets it too, and a push without --weight-version leaves
 * the one of earlier weights. So a label is believed if the last push of this user to this start of
 * the server sent all of the weights, succeeded, and set it; and it is refused if that push did
 * something else and left it there. If somebody else has set a label since, or no push of this
 * user is known, there is the label alone. */
#ifndef WS_FLEET_CURRENT_H
#define WS_FLEET_CURRENT_H

#include "wsync/tool/fleet.h"
#include "wsync/tool/history.h"

struct fleet_current {
	enum ws_current by;
	uint64_t push;        /* ws_history_push.id of the last push to this server; 0: unknown */
	/* enum ws_require: what that push has established, if nothing denies that it holds. With
	 * WS_CURRENT_BY_LABEL the server may have been restarted since */
	unsigned established;
	char why[256];        /* NOT: the end of "it has weight version V, but "; else "" */
};

/* Reads what the history says about the server at this URL, which reports info->weight_version.
 * has_plan (or NULL) as in ws_fleet_look_opts. */
void fleet_current_judge(const struct ws_history *h, const char *url,
                         const struct ws_endpoint_info *info, ws_fleet_has_plan *has_plan,
                         void *plan_ctx, struct fleet_current *out);

#endif
