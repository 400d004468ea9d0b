/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_core.h - between the files of the check of names.
 *
 * namecheck.c runs the steps below one after the other; each looks at one kind of trouble
 * and leaves in struct ws_check what the later ones must not say again.
 * namecheck_report.c collects what they say. */
#ifndef WS_CHECK_NAMECHECK_CORE_H
#define WS_CHECK_NAMECHECK_CORE_H

#include "name_index.h"
#include "suggest.h"
#include "wsync/tool/namecheck.h"
#include "wsync/tool/str.h"

enum { WS_CHECK_NAME = 1200 }; /* longest name that is put together for a look-up */
#define WS_NONE SIZE_MAX

/* ---- saying something: namecheck_report.c ---- */

struct ws_report;

struct ws_new_finding {
	enum ws_verdict verdict;
	enum ws_severity severity;
	const char *name, *param, *near, *rule; /* copied; NULL: "" */
	/* What findings of one group have in common, as the plural behind their number ("names
	 * begin with ..."). Findings of equal verdict, severity and `shared` are one group. */
	const char *shared;
	const char *remedy;                     /* of the group; NULL: "" */
	bool follows;                           /* from what other groups say: comes behind them */
};

struct ws_report *ws_report_new(void); /* NULL: out of memory */
void ws_report_free(struct ws_report *r); /* NULL is fine */
/* fmt: the reason, one sentence. Running out of memory shows in ws_report_finish. */
void ws_report_add(struct ws_report *r, const struct ws_new_finding *s, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Orders what was said, and takes the report apart: *out owns it then. */
int ws_report_finish(struct ws_report *r, struct ws_findings *out, struct ws_err *err);

/* ---- the state of one check ---- */

struct ws_check {
	const struct ws_namecheck_opts *opts;
	const struct ws_catalog *items;
	size_t n_items;
	const struct ws_layout *layout;      /* NULL: unknown */
	const struct ws_part *parts;         /* of the layout */
	size_t n_parts;
	const struct ws_weight_list *listing; /* NULL: none that says anything */
	struct ws_names shown;               /* of the listing */
	struct ws_shown *server;             /* listing and layout, related; NULL: not both */
	struct ws_report *report;
	struct ws_suggest *suggest;          /* of parts, or of the listing; made when asked */
	const char **suggest_names;
	size_t n_suggestions;
	const struct ws_item **sent;         /* the items that the caller's choice leaves */
	size_t n_sent;
	size_t n_packed;                     /* that were chosen, too, and are not among these */
	size_t *part_item;                   /* by part: the sent item of its name, or WS_NONE */
	size_t *part_meant;                  /* by part: the one that a wrong name hides */
	bool *part_said;                     /* by part: that it is missing is said already */
	bool *sent_known;                    /* by sent item: has a part, or is left aside */
	struct ws_tied tied[WS_TIED_MAX];    /* to be compared by the caller */
	size_t n_tied;
	struct ws_err *err;
};

/* Is it, or does it belong to, a weight in 4 bits? Then that is said, and the steps do not see
 * it. */
bool ws_check_packed(struct ws_check *c, const struct ws_item *item);

/* Steps. -1: memory, or cancelled; what they find is no failure. */
int ws_check_unknown(struct ws_check *c);  /* sent, and no part has the name */
int ws_check_shapes(struct ws_check *c);   /* shapes and types of what has a part */
int ws_check_missing(struct ws_check *c);  /* parts that nothing is sent for; tied heads */
int ws_check_scales(struct ws_check *c);   /* scales and weights that are not both there */
int ws_check_config(struct ws_check *c);   /* contradictions, and what does not divide */
int ws_check_listing(struct ws_check *c);  /* the layout against what the server shows */
int ws_check_generic(struct ws_check *c);  /* what is sent against what the server shows */
int ws_check_plan(struct ws_check *c);     /* partners in different buckets */
int ws_check_values(struct ws_check *c);   /* reads every tensor */

/* ---- namecheck_tied.c ---- */

/* The i-th name that the embedding may have beside a head of this name; NULL:
 * no more, or it is no head. */
const char *ws_embedding_of(const char *head, unsigned i, char dst[WS_CHECK_NAME]);
/* Checks the head that is this part, and tied to the embedding. */
int ws_check_tied(struct ws_check *c, size_t part);
/* Both are sent, and one memory on the server; of: its name there. */
int ws_check_tied_pair(struct ws_check *c, const struct ws_item *head, const struct ws_item *body,
                       const char *of);

/* ---- shared by them: namecheck_text.c ---- */

struct ws_text {
	char s[640];
};
struct ws_text ws_textf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* "[4096, 2048]", "a scalar". */
struct ws_text ws_text_shape(unsigned n_dims, const int64_t *dims);
/* The name with its numbers taken out: "model.layers.*.mlp.up_proj.weight". */
struct ws_text ws_text_kind(const char *name);
/* The last segment that names a module: "q_proj" of "model.layers.0.self_attn.q_proj.weight". */
struct ws_text ws_text_module(const char *name);
/* "q_proj, k_proj and v_proj": the modules of a parameter's parts, of at most four. */
struct ws_text ws_text_parts(const struct ws_layout *l, const struct ws_param *p);
/* "0 to 3, 7 and 9 to 12" of the n_max flags that are set. */
struct ws_text ws_text_ranges(const bool *flags, size_t n_max);

bool ws_dims_equal(unsigned n, const int64_t *a, unsigned m, const int64_t *b);
/* "x.weight" of "x.weight_scale_inv" and the like; false: not the name of a scale. */
bool ws_scaled_name(const char *name, char *dst, size_t n);
bool ws_dtype_is_fp8(enum ws_dtype d);
bool ws_dtype_is_floating(enum ws_dtype d); /* 16 bits and more */

/* The number of the first segment that is one; -1: none. */
int64_t ws_layer_of(const char *name);
/* Why nobody sends such a parameter of a server; NULL: it is one to be sent. */
const char *ws_own_affair(const char *name);

size_t ws_check_part(const struct ws_check *c, const char *name); /* index, or WS_NONE */
const struct ws_item *ws_check_sent(const struct ws_check *c, const char *name); /* NULL: is not */
/* The nearest part, or, without a layout, name of the listing; NULL: none, or enough asked. */
const char *ws_check_near(struct ws_check *c, const char *name);
const char *ws_check_rule(const struct ws_check *c, const struct ws_part *p);

/* ---- the listing against the layout: namecheck_guess.c, namecheck_listing.c ---- */

struct ws_shown {
	struct ws_check *c;
	const struct ws_layout *layout;  /* the caller's, or `made` */
	struct ws_layout *made;          /* of the sizes shown; NULL: as assumed */
	char prefix[128];                /* of every name shown, and of none in the layout */
	bool sizes_unknown;              /* they are others, and no layout of them was made */
	size_t *param_shown;             /* by param: index in the listing, or WS_NONE */
	size_t *shown_param;             /* by entry of the listing: index of the param */
};

/* Finds prefix and sizes, and says each difference once. -1: memory. */
int ws_shown_guess(struct ws_shown *s);
void ws_shown_fini(struct ws_shown *s);
/* How many entries of the listing have no param of their name and shape, and the first of them. */
size_t ws_shown_unexplained(const struct ws_shown *s, const struct ws_weight **first);
/* Relates the listing's entries to the params of s->layout. -1: memory. */
int ws_shown_relate(struct ws_shown *s);
/* The server's name without the prefix. */
const char *ws_shown_name(const struct ws_shown *s, const char *name);

/* ---- names without a family's rules: namecheck_relate.c ---- */

/* A tensor of the checkpoint, the one it is stacked into, and which of its shares it is. */
struct ws_stacked {
	const char *part, *fused;
	unsigned share, of;             /* a bit, and the bits of all */
};

struct ws_relation {
	size_t shown;                   /* entry of the listing; WS_NONE: none */
	const struct ws_stacked *stack; /* NULL: under its own name */
	bool experts;
};

struct ws_relation ws_relate(const struct ws_check *c, const char *name);
size_t ws_find_shown(const struct ws_check *c, const char *name); /* WS_NONE: is not */
/* "k_proj and v_proj": the shares that are not among these. */
struct ws_text ws_text_lacking(const struct ws_stacked *stack, bool of_experts, unsigned shares);

#endif
