/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_p2p.h - plain sends and receives between two ranks of a gloo group, as torch's isend,
 * irecv and batch_isend_irecv make them.
 *
 * torch's tag is the slot of the message, and its default is 0: that one alone is spoken. Between
 * two ranks, the k-th send of one is the k-th receive of the other, and that is all that matches
 * them; so both must list their transfers in the same order. Collectives of the group may run
 * before and after, and count separately. */
#ifndef WS_NET_GLOO_P2P_H
#define WS_NET_GLOO_P2P_H

#include "gloo.h"

struct ws_gloo_transfer {
	unsigned peer;
	bool receive;              /* else send */
	/* sent: file spans by sendfile, others made as they are needed */
	struct ws_payload payload;
	struct ws_gloo_sink sink;  /* received */
};

/* All of them at once, in both directions and with every peer. Returns when all that is received is
 * here and the kernel has taken what is sent. After a failure the group is of no further use. */
int ws_gloo_exchange(struct ws_gloo *g, const struct ws_gloo_transfer *transfers, size_t n,
                     ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err);

#endif
