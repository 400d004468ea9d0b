/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_machine.h - the stack machine that runs a pickle, without calling any function.
 *
 * The result is a tree of values that describe Python's objects. A call is kept as its function,
 * whose name must be allowed, and its arguments. The number of values is limited. */
#ifndef WS_ENDPOINT_PICKLE_MACHINE_H
#define WS_ENDPOINT_PICKLE_MACHINE_H

#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pickle_kind {
	PICKLE_NONE, PICKLE_BOOL, PICKLE_INT, PICKLE_BIG, /* BIG: an integer beyond 64 bits */
	PICKLE_STR, PICKLE_BYTES, PICKLE_GLOBAL,
	PICKLE_TUPLE, PICKLE_LIST, PICKLE_DICT, /* DICT: keys and values in turn */
	PICKLE_CALL, PICKLE_OBJECT, PICKLE_PERSISTENT
	/* CALL: function, argument tuple; OBJECT: class, state; PERSISTENT: the id */
};

enum { PICKLE_NOTHING = UINT32_MAX };

struct pickle_value {
	enum pickle_kind kind;
	uint32_t first, last;  /* cells of a container, or PICKLE_NOTHING */
	uint32_t n;
	int64_t integer;       /* of an INT or BOOL */
	const char *text;      /* into the pickle; of a GLOBAL: the module */
	size_t len;
	const char *name;      /* of a GLOBAL */
	size_t name_len;
};

struct pickle_cell {
	uint32_t value, next;
};

struct pickle_vector {
	void *items;
	size_t n, cap;
};

struct pickle {
	const uint8_t *data;
	size_t len, at;
	struct pickle_vector values, cells, stack, marks, memo;
	uint32_t result;
};

/* Runs to the first STOP; p->at is the byte after it. Call pickle_close even after a failure. */
int pickle_run(struct pickle *p, const void *data, size_t len, struct ws_err *err);
void pickle_close(struct pickle *p);

const struct pickle_value *pickle_at(const struct pickle *p, uint32_t value);
/* Returns child i, or NULL. */
const struct pickle_value *pickle_child(const struct pickle *p, const struct pickle_value *v,
                                        uint32_t i);
/* Returns the value of a key of a DICT, or NULL. */
const struct pickle_value *pickle_get(const struct pickle *p, const struct pickle_value *v,
                                      const char *key);
bool pickle_same(const char *text, size_t len, const char *word);
bool pickle_is_str(const struct pickle_value *v, const char *text);
bool pickle_is_global(const struct pickle_value *v, const char *module, const char *name);
/* Returns the arguments if v is a call of this function, else NULL. */
const struct pickle_value *pickle_call_of(const struct pickle *p, const struct pickle_value *v,
                                          const char *module, const char *name);

/* ---- shared by pickle_read.c, pickle_read_cuda.c and pickle_read_vllm.c ---- */

struct ws_pickle_bucket; /* pickle_bucket.h */
struct ws_pickle_tensor; /* pickle.h */
int pickle_bad(const char *why, struct ws_err *err);
/* Whether the tensor has one dimension and is contiguous. *n: its length in bytes. */
bool pickle_is_flat(const struct pickle *p, const struct pickle_value *size,
                    const struct pickle_value *stride, uint64_t *n);

/* Returns the arguments if v is a call that rebuilds a tensor in GPU memory, else NULL. */
const struct pickle_value *pickle_cuda_args(const struct pickle *p, const struct pickle_value *v);
int pickle_read_cuda(const struct pickle *p, const struct pickle_value *args,
                     struct ws_pickle_bucket *out, struct ws_err *err);
/* The same of a tensor of any type and shape, which is written to t. */
int pickle_read_cuda_tensor(const struct pickle *p, const struct pickle_value *args,
                            struct ws_pickle_bucket *out, struct ws_pickle_tensor *t,
                            struct ws_err *err);
int pickle_read_shape(const struct pickle *p, const struct pickle_value *shape,
                      struct ws_pickle_tensor *t, struct ws_err *err);
int pickle_read_dtype(const struct pickle_value *v, struct ws_pickle_tensor *t, struct ws_err *err);

#endif
