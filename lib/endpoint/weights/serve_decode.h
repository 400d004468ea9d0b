/* SPDX-License-Identifier: Apache-2.0 */
/* serve_decode.h - decodes and checks requests for groups and for weights, with the servers'
 * defaults and error messages. */
#ifndef WS_ENDPOINT_SERVE_DECODE_H
#define WS_ENDPOINT_SERVE_DECODE_H

#include "serve_fault.h"
#include "serve_http.h"
#include "serve_weights.h"
#include "wsync/tool/json_read.h"

#include <stdbool.h>

struct ws_serve;
struct ws_serve_load;           /* serve_model.h */

struct ws_serve_init {
	const char *address, *group, *backend; /* borrowed from the JSON, as below */
	uint16_t port;
	unsigned rank_offset, world_size;
	bool vllm;                  /* keys of the store as vLLM's workers use them */
	const void *nccl_id;        /* 128 bytes; NULL: it comes from the store */
};

struct ws_serve_update {
	const char *group, *version, *load_format; /* version and load_format may be NULL */
	bool flush, abort_all, flattened, free_kv_cache;
	bool nccl;                  /* the group is NCCL, which supports other types than gloo */
	bool from_files;            /* from a checkpoint: no broadcast limits the types */
	bool staged;                /* the ranks' bytes are compared, even if they are not kept */
	struct ws_serve_slot *slots;
	size_t n;
	/* NULL: flattened, or one broadcast for each tensor; else broadcast i has the tensors
	 * before slot cuts[i], which are not in a broadcast before it */
	const size_t *cuts;
	size_t n_cuts;
	uint64_t bytes;
	enum ws_serve_fault_kind fault;
	struct ws_serve_load *load; /* receives the bytes; NULL: the slots' data do */
};

/* WS_EUSAGE: a validation error, answered in FastAPI's shape. */
int ws_serve_decode_init(const struct ws_json *body, struct ws_serve_init *out, struct ws_err *err);
int ws_serve_decode_update(const struct ws_json *body, enum ws_serve_lineage lineage,
                           struct ws_serve_update *out, struct ws_err *err);
/* Decodes the fields common to updates: flush_cache; load_format, in this set of lineages; and the
 * fields of WS_HAS_UPDATE_VERSION. */
int ws_serve_decode_options(const struct ws_json *body, enum ws_serve_lineage lineage,
                            unsigned load_format, struct ws_serve_update *u, struct ws_err *err);
void ws_serve_update_fini(struct ws_serve_update *u);

/* Several buckets, received one after the other and loaded together. */
struct ws_serve_buckets {
	struct ws_serve_update all;      /* owns the slots */
	struct ws_serve_update *buckets; /* each refers to a part of the slots */
	size_t n;
	uint8_t *block;                  /* memory of all tensors; NULL: only hashes are kept */
	int64_t announced;               /* num_buckets */
};
/* Decodes "buckets" and "num_buckets", or one bucket: names, dtypes, shapes. None is no error. */
int ws_serve_decode_buckets(const struct ws_json *body, struct ws_serve_buckets *out,
                            struct ws_err *err);
/* Checks the buckets, and allocates memory for all. */
int ws_serve_stage_buckets(const struct ws_serve *s, struct ws_serve_buckets *b,
                           struct ws_err *err);
void ws_serve_buckets_fini(struct ws_serve_buckets *b);

/* *out is NULL if the list is not required, and absent or null. */
int ws_serve_field_list(const struct ws_json *body, const char *key, bool required,
                        const struct ws_json **out, struct ws_err *err);
int ws_serve_decode_lists(const struct ws_json *body, struct ws_serve_update *u,
                          struct ws_err *err);
/* Checks by torch and the loader that need only the request, before any byte is received. */
int ws_serve_check_init(const struct ws_serve *s, const struct ws_serve_init *in,
                        struct ws_err *err);
int ws_serve_check_update(const struct ws_serve *s, struct ws_serve_update *u, struct ws_err *err);
/* Checks after the bytes have arrived. check_views is for flattened updates: can torch create a
 * view of each tensor? check_load: also, has no shape changed? */
int ws_serve_check_views(const struct ws_serve_update *u, struct ws_err *err);
int ws_serve_check_load(const struct ws_serve *s, const struct ws_serve_update *u,
                        struct ws_err *err);

#endif
