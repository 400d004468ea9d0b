/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_core.h - shared by the files of the name check.
 *
 * namecheck.c runs the steps below in order. Each step looks for one kind of error and records in
 * struct ws_check what later steps must not report again. namecheck_report.c collects the
 * findings. */
#ifndef WS_CHECK_NAMECHECK_CORE_H
#define WS_CHECK_NAMECHECK_CORE_H

#include "name_index.h"
#include "suggest.h"
#include "wsync/tool/namecheck.h"
#include "wsync/tool/str.h"

enum { WS_CHECK_NAME = 1200 }; /* longest name that is built for a look-up */
#define WS_NONE SIZE_MAX

struct ws_text {
	char s[640];
};

/* ---- reporting: namecheck_report.c ---- */

struct ws_report;

struct ws_new_finding {
	enum ws_verdict verdict;
	enum ws_severity severity;
	const char *name, *param, *near, *rule; /* copied; NULL is "" */
	/* The plural sentence of a group, behind the count ("names begin with ..."). Findings of
	 * equal verdict, severity and `shared` form one group. */
	const char *shared;
	const char *remedy;                     /* of the group; NULL is "" */
	/* a consequence of other groups: sorted behind them */
	bool follows;
	bool leads;                             /* explains others: sorted before them */
};

struct ws_report *ws_report_new(void); /* NULL: out of memory */
void ws_report_free(struct ws_report *r); /* NULL is fine */
/* fmt: the reason, one sentence. ws_report_finish reports out of memory. */
void ws_report_add(struct ws_report *r, const struct ws_new_finding *s, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Sorts the findings and moves them to *out, which owns them from then on. */
int ws_report_finish(struct ws_report *r, struct ws_findings *out, struct ws_err *err);

/* ---- modules ---- */

/* The parameters of a server by the module that holds them: "...mlp.experts" of
 * "...mlp.experts.w13_weight". */
struct ws_modules {
	size_t *of;   /* by parameter: its module */
	bool *gets;   /* by module: something is sent for it that makes the server load it anew */
	size_t n;
};

/* ---- the state of one check ---- */

struct ws_check {
	const struct ws_namecheck_opts *opts;
	const struct ws_catalog *items;
	size_t n_items;
	const struct ws_layout *layout;      /* NULL: unknown */
	const struct ws_part *parts;         /* of the layout */
	size_t n_parts;
	const struct ws_weight_list *listing; /* NULL: none, or one that proves nothing */
	struct ws_names shown;               /* of the listing */
	/* the listing matched with the layout; NULL: one of the two is missing */
	struct ws_shown *server;
	struct ws_report *report;
	/* of part names or listing names; made when first needed */
	struct ws_suggest *suggest;
	const char **suggest_names;
	size_t n_suggestions;
	const struct ws_item **sent;         /* the items that the caller's globs choose */
	size_t n_sent;
	/* chosen items that are packed in 4 bits and not in `sent` */
	size_t n_packed;
	size_t *part_item;                   /* by part: the sent item of its name, or WS_NONE */
	size_t *part_meant;                  /* by part: the item sent for it under a wrong name */
	bool *part_reported;                     /* by part: already reported as missing */
	bool *sent_known;                    /* by sent item: has a part, or servers ignore it */
	bool *part_left;                     /* by part: a fused item of the source left it out */
	struct ws_modules modules;           /* with whole_modules */
	struct ws_left_out left_out[WS_LEFT_OUT_MAX];
	size_t n_left_out, needed;
	size_t received;
	bool has_draft;                      /* something is sent for parts of a draft model */
	struct ws_tied tied[WS_TIED_MAX];    /* heads for the caller to compare */
	size_t n_tied;
	struct ws_err *err;
};

/* True for a weight in 4 bits and for its companions. Reports it; the steps skip these items. */
bool ws_check_packed(struct ws_check *c, const struct ws_item *item);

/* Steps. -1 only for out of memory or a cancel; findings are no failure. */
int ws_check_unknown(struct ws_check *c);  /* sent names without a part */
int ws_check_shapes(struct ws_check *c);   /* shapes and dtypes of items that have a part */
int ws_check_missing(struct ws_check *c);  /* parts for which nothing is sent; tied heads */
int ws_check_scales(struct ws_check *c);   /* scales without weights, and the reverse */
int ws_check_config(struct ws_check *c);   /* contradictions; sizes that do not divide */
int ws_check_listing(struct ws_check *c);  /* compares the layout with the listing */
int ws_check_received(struct ws_check *c); /* shapes of tensors that the endpoint has already */
int ws_check_generic(struct ws_check *c);  /* compares sent items with the listing, without rules */
int ws_check_plan(struct ws_check *c);     /* partners in different buckets */
int ws_check_values(struct ws_check *c);   /* reads every tensor */

/* ---- namecheck_left_out.c ---- */

bool ws_check_chosen(const struct ws_check *c, const char *name);
/* Counts the items that the globs leave out, and marks the parts of fused ones. */
void ws_check_count_left(struct ws_check *c);
/* Counts a tensor that the server needs and that has this name. True: it is left out. */
bool ws_check_need(struct ws_check *c, const char *name);
/* May it be missing? "left out by {exclude}", "sent by another sender"; NULL: it may not. */
const char *ws_check_may_lack(const struct ws_check *c, const char *name);

/* ---- namecheck_modules.c ---- */

/* names: of the parameters of the layout, or of the listing. */
int ws_modules_make(struct ws_check *c, const char *(*name)(const struct ws_check *c, size_t i),
                    size_t n);
void ws_modules_fini(struct ws_modules *m);
/* Something is sent for parameter i. */
void ws_modules_send(struct ws_check *c, size_t i, const char *name);
/* Nothing, or only a part, is sent for parameter i: does its server lose it? */
bool ws_modules_torn(const struct ws_check *c, size_t i, const char *name);
/* "model.layers.0.mlp.experts" */
struct ws_text ws_text_of_module(const char *param);

/* ---- namecheck_tied.c ---- */

/* Checks a part that is a head tied to the embedding. */
int ws_check_tied(struct ws_check *c, size_t part);
/* Heads and embeddings of which the caller's globs leave out one, after an adapter's change. */
int ws_check_tied_choice(struct ws_check *c);
/* Checks a head and an embedding that share memory on the server. of: the embedding's name
 * there. */
int ws_check_tied_pair(struct ws_check *c, const struct ws_item *head, const struct ws_item *body,
                       const char *of);

/* ---- shared by them: namecheck_text.c ---- */

struct ws_text ws_textf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* "[4096, 2048]", "a scalar". */
struct ws_text ws_text_shape(unsigned n_dims, const int64_t *dims);
/* The words for what the tensors are compared with. */
const char *ws_text_gives(const struct ws_check *c);   /* "config.json gives" */
const char *ws_text_lacks(const struct ws_check *c);   /* "config.json does not give" */
const char *ws_text_by(const struct ws_check *c);      /* "by config.json" */
const char *ws_text_compare(const struct ws_check *c); /* "compare the config.json of ..." */
/* The name with its numbers replaced: "model.layers.*.mlp.up_proj.weight". */
struct ws_text ws_text_kind(const char *name);
/* The last segment that names a module: "q_proj" in "model.layers.0.self_attn.q_proj.weight". */
struct ws_text ws_text_module(const char *name);
/* "q_proj, k_proj and v_proj": the modules of a parameter's parts, of at most four. */
struct ws_text ws_text_parts(const struct ws_layout *l, const struct ws_param *p);
/* "0 to 3, 7 and 9 to 12" of the n_max flags that are set. */
struct ws_text ws_text_ranges(const bool *flags, size_t n_max);

bool ws_dims_equal(unsigned n, const int64_t *a, unsigned m, const int64_t *b);
/* Writes "x.weight" for "x.weight_scale_inv" and the like. False: not the name of a scale. */
bool ws_scaled_name(const char *name, char *dst, size_t n);
bool ws_dtype_is_fp8(enum ws_dtype d);
bool ws_dtype_is_floating(enum ws_dtype d); /* 16 bits and more */

/* The first segment that is a number: the layer. -1: none. */
int64_t ws_layer_of(const char *name);
/* Why a checkpoint has no tensor for this server parameter. NULL: it should have one. */
const char *ws_server_only(const char *name);
/* The same for what vLLM has computed of the weights it had loaded, and lists as a parameter of its
 * own: absorbed projections, scales of what it quantized itself. Formats are compared elsewhere. */
const char *ws_vllm_only(const struct ws_check *c, const struct ws_weight *w);

size_t ws_check_part(const struct ws_check *c, const char *name); /* index, or WS_NONE */
/* NULL: not sent */
const struct ws_item *ws_check_sent(const struct ws_check *c, const char *name);
/* The most similar name of the layout, or of the listing without a layout. NULL: none, or too many
 * look-ups so far. */
const char *ws_check_near(struct ws_check *c, const char *name);
const char *ws_check_rule(const struct ws_check *c, const struct ws_part *p);

/* ---- the listing against the layout: namecheck_guess.c, namecheck_listing.c ---- */

struct ws_shown {
	struct ws_check *c;
	const struct ws_layout *layout;  /* the caller's, or `made` */
	struct ws_layout *made;          /* made for the sizes of the listing; NULL: not needed */
	char prefix[128];                /* all listed names have it, no name of the layout does */
	bool sizes_unknown;              /* sizes differ, and no layout could be made for them */
	size_t *param_shown;             /* by param: index in the listing, or WS_NONE */
	size_t *shown_param;             /* by entry of the listing: index of the param */
};

/* Finds the prefix and the real sizes, and reports each difference once. -1: out of memory. */
int ws_shown_guess(struct ws_shown *s);
void ws_shown_fini(struct ws_shown *s);
/* Counts listing entries without a parameter of their name and shape; *first is the first of
 * them. */
size_t ws_shown_unexplained(const struct ws_shown *s, const struct ws_weight **first);
/* Matches listing entries with the params of s->layout. -1: out of memory. */
int ws_shown_relate(struct ws_shown *s);
/* The server's name without the prefix. */
const char *ws_shown_name(const struct ws_shown *s, const char *name);

/* ---- names without a family's rules: namecheck_relate.c ---- */

/* A checkpoint tensor, the fused tensor that contains it, and which share of it. */
struct ws_stacked {
	const char *part, *fused;
	unsigned share, of;             /* one bit, and the bits of all shares */
};

struct ws_relation {
	size_t shown;                   /* entry of the listing; WS_NONE: none */
	const struct ws_stacked *stack; /* NULL: the tensor has its own name on the server */
	bool experts;
};

struct ws_relation ws_relate(const struct ws_check *c, const char *name);
size_t ws_find_shown(const struct ws_check *c, const char *name); /* WS_NONE: not listed */
/* May the shares of this listed parameter be missing that are not in `shares`? By its own name, and
 * by those of the checkpoint tensors that it is made of, of n_experts experts. */
bool ws_relate_may_lack(const struct ws_check *c, const char *name, unsigned shares,
                        int64_t n_experts);
/* The shares that are not in `shares`: "k_proj and v_proj". */
struct ws_text ws_text_lacking(const struct ws_stacked *stack, bool of_experts, unsigned shares);

#endif
