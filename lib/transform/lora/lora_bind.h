/* SPDX-License-Identifier: Apache-2.0 */
/* lora_bind.h - finds the targets in the base for a delta of a given name. */
#ifndef WS_TRANSFORM_LORA_BIND_H
#define WS_TRANSFORM_LORA_BIND_H

#include "lora_priv.h"

struct ws_bound {
	const struct ws_item *target;
	const struct ws_item *replaced; /* NULL: the delta applies */
	struct ws_delta delta;
	size_t order;
};

struct ws_binder {
	struct ws_adapter *adapter;
	const struct ws_catalog *base;
	const struct ws_layout *layout; /* may be NULL */
	ws_shape_fn *shape;
	void *ctx;
	struct ws_arena *arena;         /* of the result */
	struct ws_list bound;           /* of struct ws_bound */
	struct ws_list left_over;       /* of const struct ws_item * */
	size_t n_deltas;
};

struct ws_lora_name {
	const char *text;
	bool headless;
};

/* The delta of one matrix, or of the matrix of each expert: rows are outputs, columns inputs. */
struct ws_stack {
	struct ws_delta first;
	int64_t a_step, b_step; /* from one expert to the next, in elements; 0: shared */
	int64_t n;              /* experts; 1: one delta for all of them */
	bool axes_in_order;     /* rows are the inputs, or what the second axis is */
	bool param;             /* of target_parameters */
	bool embedding;
};

/* 1: bound; 0: the base has no such name; -1: error. */
int ws_lora_place_matrix(struct ws_binder *b, const struct ws_lora_name *module,
                         const struct ws_stack *s, struct ws_err *err);
int ws_lora_place_stack(struct ws_binder *b, const struct ws_lora_name *tensor,
                        const struct ws_stack *s, struct ws_err *err);
int ws_lora_place_tensor(struct ws_binder *b, const struct ws_lora_name *tensor,
                         const struct ws_item *item, struct ws_err *err);
/* The shape of a stack of this name in the base or the layout: experts, outputs, inputs, or
 * experts, inputs, outputs. False: no such stack. */
bool ws_lora_stack_dims(struct ws_binder *b, const struct ws_lora_name *tensor, int64_t dims[3]);
/* Can s be the change of that stack, by its shape? */
bool ws_lora_stack_fits(struct ws_binder *b, const struct ws_lora_name *tensor,
                        const struct ws_stack *s);

/* WS_EINPUT: a module of modules_to_save that the base has is missing in the adapter's file. */
int ws_lora_check_saved(const struct ws_binder *b, struct ws_err *err);
/* Counts the modules of the base to which the config gives factors, and the file does not. */
void ws_lora_count_lacking(const struct ws_binder *b, struct ws_bindings *out);

#endif
