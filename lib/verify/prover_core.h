/* SPDX-License-Identifier: Apache-2.0 */
/* prover_core.h - shared by prover.c (predictions), prover_possible.c (what they can
 * prove), prover_compare.c (verdicts) and prover_certain.c (which kinds are certain, and what a
 * wrong checksum may be). */
#ifndef WS_VERIFY_PROVER_CORE_H
#define WS_VERIFY_PROVER_CORE_H

#include "job.h"
#include "prover.h"
#include "verify_kind.h"
#include "wsync/tool/predict.h"

/* One parameter at one rank. */
struct prover_cell {
	enum ws_predict_state state;
	char checksum[WS_CHECKSUM_TEXT], rewritten[WS_CHECKSUM_TEXT]; /* as in predict.h */
	char *why;                /* if opaque */
	uint64_t bytes;
	bool constant;            /* all numbers are equal */
};

/* The checksum of a parameter that could not be proven, at the first server that reported one. */
struct prover_unproven {
	uint64_t value;           /* as in struct ws_checksum */
	const struct ws_endpoint_info *at; /* NULL: none yet */
};

/* Predictions for servers of one kind. */
struct prover_table {
	const struct ws_name_check_target *target; /* of the first of these servers */
	struct ws_layout *layout;
	struct ws_predict *predict;
	enum ws_checksum_fn fn;
	enum ws_dtype dtype;      /* WS_DTYPE_COUNT: unknown */
	bool own_config;          /* the config is the server's, not the source's */
	unsigned tp;
	size_t n_params, n_kinds;
	uint32_t *kinds;          /* of each param: its number among the kinds */
	uint32_t *of_kind;        /* of each kind: a param */
	struct prover_cell *cells; /* param * tp + rank */
	struct prover_unproven *unproven; /* likewise; NULL: none yet */
	bool *scope;              /* of each param: it is compared */
	size_t *tied;             /* params in scope that use the memory of another one */
	size_t n_tied;
	uint64_t strange;         /* bytes of the plan's tensors that go to no parameter */
};

struct prover_server {
	struct prover_table *table; /* NULL: not added */
	const struct ws_endpoint_info *info;
	const struct ws_name_check_target *target;
	struct ws_checksums before; /* no ranks: unknown */
};

struct ws_prover {
	struct ws_prover_opts opts;
	struct prover_server *servers;
	struct prover_table *tables; /* room for one per server */
	size_t n, n_tables;
	struct ws_parallel work;
	uint64_t bytes, total;    /* atomic: hashed so far; to hash */
};

/* Every rank has all of it: rank 0's prediction is that of all. */
bool prover_is_replicated(const struct ws_layout *l, const struct ws_param *param);
bool prover_has_experts(const struct ws_layout *l, const struct ws_param *param);
const struct prover_cell *prover_cell(const struct prover_table *t, size_t param, unsigned rank);

/* "model.layers.*.mlp.experts.w13_weight bfloat16": the kind of a param, with the dtype that the
 * config gives it. Returns kind. */
enum { PROVER_KIND_MAX = WS_KIND_MAX + 32 };
const char *prover_kind(const struct prover_table *t, size_t param, char kind[PROVER_KIND_MAX]);
double prover_percent(uint64_t proven, uint64_t all); /* rounded down to one decimal place */
/* Is that enough for min_coverage? */
bool prover_suffices(const struct ws_prover *p, uint64_t proven, uint64_t all);

/* WS_EREFUSED: nothing can be proven there, and why. */
int prover_refuse(const struct ws_endpoint_info *info, const char *why, struct ws_err *err);
/* prover_possible.c. -1: the checksums can prove nothing of these tensors. */
int prover_check_any(const struct prover_table *t, const struct ws_endpoint_info *info,
                     struct ws_err *err);

/* ---- prover_certain.c ---- */

/* Sets seen[kind] for the kinds that are certain at this server: a parameter of it is equal in
 * *sums, or was equal in an earlier run. */
void prover_certain(const struct ws_prover *p, const struct prover_server *s,
                    const struct ws_checksums *sums, bool *seen);
/* Is an unequal checksum of this parameter a difference? May read it from the files that the server
 * started from, once for each kind: tried[kind]. */
bool prover_accuses(const struct ws_prover *p, const struct prover_server *s, size_t param,
                    unsigned rank, const struct ws_checksum *found, bool *seen, bool *tried);
void prover_remember(const struct ws_prover *p, const struct prover_server *s, const bool *seen);
/* What the server may have instead: "it is the slice of rank 1"; "" unknown. May read the
 * parameter once more. */
void prover_cause(const struct prover_server *s, size_t param, const struct ws_checksum_rank *at,
                  const struct ws_checksum *found, char *dst, size_t n);
/* Its item by name, in items that are sorted by name; NULL: none. */
const struct ws_checksum *prover_find(const struct ws_checksum_rank *rank, const char *name);
/* The tensor-parallel rank of a rank of the reply. */
unsigned prover_tp_rank(const struct prover_table *t, const struct ws_checksum_rank *rank);
/* Is it one of the two? Both as in predict.h. */
bool prover_gives(const char *checksum, const char *rewritten, const struct ws_checksum *found);
bool prover_same(const struct prover_cell *cell, const struct ws_checksum *found);

#endif
