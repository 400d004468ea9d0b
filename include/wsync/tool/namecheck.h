/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck.h - will every parameter of that server get exactly the right bytes?
 *
 * Servers answer "success" to names that they do not know. So what is to be sent (a catalog) is
 * held against what the server has: the layout derived from its config, the listing that it
 * shows, or both. Findings are facts about one name each; findings with the same reason are
 * grouped, so that 40,000 wrong prefixes are one line and not 40,000. */
#ifndef WSYNC_NAMECHECK_H
#define WSYNC_NAMECHECK_H

#include "wsync/cancel.h"
#include "wsync/tool/catalog.h"
#include "wsync/tool/listing.h"
#include "wsync/tool/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ws_verdict {
	WS_NAME_MISSING,      /* a parameter, or part of one, that nothing is sent for */
	/* sent, and the server has no place for it: silently dropped or refused */
	WS_NAME_UNEXPECTED,
	WS_NAME_SHAPE,
	WS_NAME_DTYPE,
	WS_NAME_SCALE_ALONE,  /* a scale without its weight */
	WS_NAME_NO_SCALE,     /* a quantized weight without its scale */
	WS_NAME_TWICE,        /* the same bytes of a parameter from two tensors */
	WS_NAME_PARTIAL,      /* a fused parameter of which a part is missing; says which */
	WS_NAME_TIED,         /* a tied head sent instead of, or differing from, the embedding */
	WS_NAME_PAIR,         /* partners that the plan puts into different buckets */
	WS_NAME_DIVISION,     /* heads, dimensions or FP8 blocks that tp or ep does not divide */
	WS_NAME_VALUES,       /* --scan: all zero, NaN, infinite */
	WS_NAME_SERVER,       /* what the server shows of itself is not what the config gives */
	WS_NAME_CONFIG,       /* config.json contradicts itself */
	WS_NAME_VERDICTS
};
const char *ws_verdict_name(enum ws_verdict v); /* "missing", "scale-alone", ... */

/* An error means wrong or stale weights; a warning is worth reading; a note explains something
 * that looks odd and is right (a skipped next-token layer). Only errors make the answer no. */
enum ws_severity { WS_NOTE, WS_WARN, WS_ERROR };
const char *ws_severity_name(enum ws_severity s); /* "note", "warning", "error" */

struct ws_finding {
	enum ws_verdict verdict;
	enum ws_severity severity;
	const char *name;         /* the tensor sent, or the one that should be */
	const char *param;        /* the runtime parameter concerned; "" none */
	const char *near;         /* "did you mean": the nearest name on the other side; "" none */
	const char *rule;         /* the family's rule that applied; "" none */
	/* one sentence, with both shapes and the arithmetic where they matter */
	const char *reason;
	size_t group;
};

struct ws_finding_group {
	enum ws_verdict verdict;
	enum ws_severity severity;
	const char *reason;       /* what they have in common */
	const char *remedy;       /* "" none */
	size_t first, n;          /* findings[first .. first+n) */
};

/* A head and the embedding that it is tied to, both sent. */
struct ws_tied {
	const struct ws_item *head, *body; /* of the catalog that was checked */
};
enum { WS_TIED_MAX = 4 };

struct ws_findings;
struct ws_namecheck_opts;
/* Lists the heads of a model of which nothing but its config.json is known,
 * which says that they are tied. */
void ws_tied_find(const struct ws_namecheck_opts *opts, struct ws_findings *out);
/* Compares every element. WS_EMISMATCH: they differ, and the sentence says what would be lost. */
int ws_tied_check(const struct ws_tied *t, const struct ws_cancel *cancel, struct ws_err *err);

struct ws_findings {
	struct ws_finding *items; /* by group, groups by severity and size */
	size_t n;
	struct ws_finding_group *groups;
	size_t n_groups;
	size_t count[WS_NAME_VERDICTS];  /* findings of each kind, notes included */
	size_t errors, warnings, notes;
	/* what was compared: items, runtime params, checkpoint names */
	size_t sent, params, parts;
	struct ws_tied tied[WS_TIED_MAX]; /* with tied_later: not compared yet */
	size_t n_tied;
	void *priv;
};

/* What a server tells or shows of its model, and the config contradicts. */
struct ws_server_fact {
	enum ws_severity severity;
	const char *key;          /* of config.json: "model_type" */
	const char *reason;       /* one sentence */
	const char *remedy;
};

struct ws_namecheck_opts {
	const struct ws_catalog *items;
	const struct ws_layout *layout;       /* of the server; NULL: its config is not known */
	const struct ws_weight_list *listing; /* NULL: it shows none */
	/* the layout's; without one: whose skip rules hold; NULL */
	const struct ws_family *family;
	const struct ws_config
		*config; /* the layout's; for contradictions, and with the family to make
	                  * a layout of the sizes that a listing turns out to be of; NULL */
	const struct ws_server_fact *facts;   /* become findings of their own */
	size_t n_facts;
	const struct ws_plan *plan;           /* for partners and buckets; NULL */
	/* globs, as of ws_plan_opts: an item that they leave out */
	const char *const *include;
	size_t n_include;                     /* is not sent, and nothing is said of it */
	const char *const *exclude;
	size_t n_exclude;
	bool tp_known; /* the server itself said the layout's tp: shapes that only
	                * another tp explains are those of another model */
	/* the caller chose tensors: what is missing is a note */
	bool subset;
	bool scan;                            /* read every tensor */
	/* tied heads are not compared but listed, for ws_tied_check */
	bool tied_later;
	const struct ws_cancel *cancel;       /* while reading tensors; NULL */
};

/* 0: the check was done, whatever it found. Without layout and listing there is nothing to hold the
 * names against: WS_EUSAGE. A listing of what was received says nothing, and is not looked at.
 * Findings own their strings. */
int ws_namecheck(const struct ws_namecheck_opts *opts, struct ws_findings *out, struct ws_err *err);
void ws_findings_free(struct ws_findings *f); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
