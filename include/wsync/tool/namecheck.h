/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck.h - checks that every parameter of a server gets exactly the right bytes.
 *
 * Servers answer "success" to names that they do not know. So the tensors to send (a catalog)
 * are compared with the server's: the layout derived from its config, the listing of its
 * weights, or both. A finding is a fact about one name; findings with the same cause form a
 * group, so that 40,000 wrong prefixes are one line. */
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
	WS_NAME_MISSING,      /* a parameter, or part of one, for which nothing is sent */
	/* sent, but unknown to the server: silently dropped or refused */
	WS_NAME_UNEXPECTED,
	WS_NAME_SHAPE,
	WS_NAME_DTYPE,
	WS_NAME_SCALE_ALONE,  /* a scale without its weight */
	WS_NAME_NO_SCALE,     /* a quantized weight without its scale */
	WS_NAME_TWICE,        /* the same bytes of a parameter from two tensors */
	WS_NAME_PARTIAL,      /* a fused parameter with a missing part */
	WS_NAME_TIED,         /* a tied head without the embedding, or different from it */
	WS_NAME_PAIR,         /* partners in different buckets */
	WS_NAME_DIVISION,     /* heads, dimensions or FP8 blocks that tp or ep does not divide */
	WS_NAME_VALUES,       /* --scan: all zero, NaN, infinite */
	WS_NAME_SERVER,       /* the server's listing contradicts its config */
	WS_NAME_CONFIG,       /* config.json contradicts itself */
	WS_NAME_VERDICTS
};
const char *ws_verdict_name(enum ws_verdict v); /* "missing", "scale-alone", ... */

/* An error means wrong or stale weights. A note explains something unusual that is right (a
 * skipped next-token layer). The check fails on errors only. */
enum ws_severity { WS_NOTE, WS_WARN, WS_ERROR };
const char *ws_severity_name(enum ws_severity s); /* "note", "warning", "error" */

struct ws_finding {
	enum ws_verdict verdict;
	enum ws_severity severity;
	const char *name;         /* the tensor sent, or the missing one */
	const char *param;        /* the runtime parameter; "" none */
	const char *near;         /* the nearest name on the other side; "" none */
	const char *rule;         /* the family's rule that applied; "" none */
	/* one sentence, with both shapes and the arithmetic where they matter */
	const char *reason;
	size_t group;
};

struct ws_finding_group {
	enum ws_verdict verdict;
	enum ws_severity severity;
	const char *reason;       /* the common cause */
	const char *remedy;       /* "" none */
	size_t first, n;          /* findings[first .. first+n) */
};

/* A head and the embedding that it is tied to, if both are sent. */
struct ws_tied {
	const struct ws_item *head, *body; /* of the catalog that was checked */
};
enum { WS_TIED_MAX = 4 };

/* What one {exclude}, or all {include} together, leave out. */
struct ws_left_out {
	const char *option;        /* "include", "exclude" */
	const char *const *globs;  /* of the caller's options; n_globs of them */
	size_t n_globs;
	size_t tensors;            /* of the source */
	size_t needed;             /* of the tensors that the server needs */
};
enum { WS_LEFT_OUT_MAX = 16 };     /* the last entry stands for all further globs */

struct ws_findings;
struct ws_namecheck_opts;
/* Lists the tied heads of a model of which only the config.json is known. */
void ws_tied_find(const struct ws_namecheck_opts *opts, struct ws_findings *out);
/* Compares every element. WS_EMISMATCH: they differ; the message names the loss. */
int ws_tied_check(const struct ws_tied *t, const struct ws_cancel *cancel, struct ws_err *err);

struct ws_findings {
	struct ws_finding *items; /* by group, groups by severity and size */
	size_t n;
	struct ws_finding_group *groups;
	size_t n_groups;
	size_t count[WS_NAME_VERDICTS];  /* findings of each kind, with notes */
	size_t errors, warnings, notes;
	/* compared numbers of items, runtime params, checkpoint names */
	size_t sent, params, parts;
	struct ws_tied tied[WS_TIED_MAX]; /* with tied_later: not compared yet */
	size_t n_tied;
	struct ws_left_out left_out[WS_LEFT_OUT_MAX];
	size_t n_left_out;
	size_t needed;            /* tensors that the server needs, the left out ones included;
	                           * 0: unknown, and so is what was left out of them */
	size_t received;          /* compared with tensors that the endpoint has received before */
	void *priv;
};

/* A fact about the server's model that contradicts the config. */
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
	/* the layout's; without a layout, the family whose skip rules apply; NULL */
	const struct ws_family *family;
	const struct ws_config
		*config; /* the layout's; for contradictions, and with the family to make
	                  * a layout of the sizes that a listing turns out to be of; NULL */
	const struct ws_server_fact *facts;   /* each becomes a finding */
	size_t n_facts;
	const struct ws_plan *plan;           /* for partners and buckets; NULL */
	/* Globs as in ws_plan_opts, for both sides: a tensor of the source that they leave out is
	 * not sent, and a tensor that the server needs may be missing if they leave out its
	 * name. */
	const char *const *include;
	size_t n_include;
	const char *const *exclude;
	size_t n_exclude;
	/* the server reported tp itself: shapes that fit another tp only are those of another
	 * model */
	bool tp_known;
	/* Does another sender send the tensor of this name? NULL: there is no other sender. */
	bool (*elsewhere)(const void *ctx, const char *name);
	const void *elsewhere_ctx;
	/* A module that gets only a part loses the rest (vLLM), so that is an error even if the
	 * rest was left out, or is sent by another sender. */
	bool whole_modules;
	/* of them: biases keep their values when the weights beside them come (vLLM 0.32) */
	bool keeps_biases;
	/* the server says what it keeps its weights in: that of a reference is not its own */
	bool dtype_told;
	bool scan;                            /* read every tensor */
	/* list tied heads for ws_tied_check instead of comparing them */
	bool tied_later;
	const struct ws_cancel *cancel;       /* while reading tensors; NULL */
};

/* Returns 0 if the check ran, whatever it found. WS_EUSAGE: neither layout nor listing. A
 * listing of received tensors (of an endpoint without a model) is compared by shapes only. Findings
 * own their strings. */
int ws_namecheck(const struct ws_namecheck_opts *opts, struct ws_findings *out, struct ws_err *err);
/* The same for items that are the tensors of a reference, none of which is left out. */
int ws_namecheck_same(const struct ws_namecheck_opts *opts, struct ws_findings *out,
                      struct ws_err *err);
void ws_findings_free(struct ws_findings *f); /* NULL is fine */
/* Counts what the globs leave out of the source, where nothing is compared. */
void ws_namecheck_left_out(const struct ws_namecheck_opts *opts, struct ws_findings *out);

#ifdef __cplusplus
}
#endif
#endif
