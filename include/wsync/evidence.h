/* SPDX-License-Identifier: Apache-2.0 */
/* evidence.h - what a push has established of one server, and the words that this allows.
 *
 * lib/push/push_evidence.c fills it from the replies that established each fact, and
 * ws_evidence_word returns the only words of success that programs print. */
#ifndef WSYNC_EVIDENCE_H
#define WSYNC_EVIDENCE_H

#include "wsync/endpoint.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which server has answered as the last request of the push. */
enum ws_identity_end {
	WS_END_UNKNOWN,    /* it was not asked */
	WS_END_SAME,       /* the server that was detected at first */
	WS_END_OTHER,      /* it was restarted, or another server has its address */
	WS_END_UNANSWERED,
	WS_END_UNTOLD      /* it answered, and nothing tells two starts of it apart */
};
const char *ws_identity_end_name(enum ws_identity_end end); /* "same", "other", ... */
/* "sure", "weak", "none" */
const char *ws_identity_strength_name(enum ws_identity_strength strength);

/* With what the names and shapes were compared. */
enum ws_names_by {
	WS_NAMES_BY_NOTHING,
	WS_NAMES_BY_LIST,       /* the tensors that the server lists */
	WS_NAMES_BY_RULES,      /* those that rules derive from the server's configuration */
	WS_NAMES_BY_OWN_CONFIG, /* the same, of the configuration beside the source */
	WS_NAMES_BY_REFERENCE   /* those of a checkpoint that the server can be started from */
};
/* "nothing", "list", "rules", "own-config", "reference" */
const char *ws_names_by_name(enum ws_names_by by);

struct ws_evidence {
	struct ws_identity identity;
	enum ws_identity_end end;
	enum ws_server_family family;
	/* what shows that the weights of this push stayed, where the identity is not sure */
	bool group_alive;           /* its process group lived at the end */
	bool label_set, label_read; /* it reports our weight version, and reported another before */
	enum ws_names_by names;
	char against[96];           /* of the names: "qwen3 at tp 2"; "" */
	bool names_ok;              /* nothing was missing */
	bool values_read;           /* no NaN and no infinity; false: not all values were read */
	bool whole;                 /* it acknowledged everything that was sent */
	bool closed;                /* and the update has ended */
	/* of its own parameters, in bytes of all ranks; all 0: it reports no checksums */
	uint64_t proven, opaque, not_sent;
	size_t different;           /* parameters that have other bytes than were sent */
	bool proven_by_readback;    /* the tensors themselves, not its checksums, were compared */
	/* what it keeps and what was sent (formats.h): right, assumed or allowed; NULL: not
	 * established. by: told, config, names, option. Static text */
	struct ws_evidence_format {
		const char *keeps, *sends, *verdict, *by;
	} format;
	struct ws_caches caches;
	/* "none", "old", "sent" (all of it), "untold"; NULL: not established */
	const char *draft;
	const char *adapters;       /* "none", "kept": it may have some; NULL: not reported */
	bool asleep;                /* at the end */
	bool staged;                /* it has all of it, and has not loaded it */
};

/* What may be said of a server, the strongest that holds. */
enum ws_evidence_word {
	WS_WORD_NONE,         /* it does not have these weights, as far as is known */
	WS_WORD_STAGED,       /* it has them beside its weights */
	WS_WORD_ACKNOWLEDGED, /* it confirmed all of them; whether it still has them is not known */
	WS_WORD_COMMITTED,    /* and it is the server that has confirmed them */
	WS_N_WORDS
};
enum ws_evidence_word ws_evidence_word(const struct ws_evidence *e);
const char *ws_evidence_word_name(enum ws_evidence_word word); /* "committed", ... */

#ifdef __cplusplus
}
#endif
#endif
