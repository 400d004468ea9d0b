/* SPDX-License-Identifier: Apache-2.0 */
/* lora_place.c - finds the target of a delta in the base: the tensor of its name, or its rows in a
 * fused tensor. A delta of a fused tensor is cut into slices for the parts that the base has.
 *
 * A delta is two factors with strides, so slicing and transposing change offsets and strides, and
 * move no elements. */
#include "lora_bind.h"

#include "name_index.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = WS_LORA_MAX_NAME + 64, CANDIDATES = 4, MOST_EXPERTS = 1 << 16 };

/* ---- names ---- */

/* The k-th name that the base may use for it; NULL: there is no such name. */
static const char *candidate(const struct ws_binder *b, const struct ws_lora_name *name,
                             const char *suffix, int k, char buf[MAX_NAME])
{
	char plain[MAX_NAME];
	const bool headless = k >= 2, renamed = k % 2;
	if ((headless && !name->headless) || (renamed && !b->adapter->family))
		return NULL;
	const int n = snprintf(plain, sizeof plain, "%s%s%s", headless ? "model." : "", name->text,
	                       suffix);
	if (n < 0 || (size_t)n >= sizeof plain)
		return NULL;
	if (renamed)
		return ws_family_rename(b->adapter->family, plain, buf, MAX_NAME);
	return memcpy(buf, plain, (size_t)n + 1);
}

static const struct ws_item *find_item(const struct ws_binder *b, const struct ws_lora_name *name,
                                       const char *suffix)
{
	char buf[MAX_NAME];
	for (int k = 0; k < CANDIDATES; k++) {
		const char *text = candidate(b, name, suffix, k, buf);
		const struct ws_item *item = text ? ws_catalog_find(b->base, text) : NULL;
		if (text && !item) /* it was trained on the source as it is */
			item = ws_catalog_find_renamed(b->base, text);
		if (item)
			return item;
	}
	return NULL;
}

static const struct ws_part *find_part(const struct ws_binder *b, const struct ws_lora_name *name,
                                       const char *suffix)
{
	char buf[MAX_NAME];
	for (int k = 0; b->layout && k < CANDIDATES; k++) {
		const char *text = candidate(b, name, suffix, k, buf);
		const struct ws_part *part = text ? ws_layout_find_part(b->layout, text) : NULL;
		if (part)
			return part;
	}
	return NULL;
}

struct fused {
	const struct ws_param *param;
	int64_t groups; /* of rows that alternate */
};

static bool find_fused(const struct ws_binder *b, const struct ws_lora_name *name,
                       const char *suffix, unsigned n_dims, struct fused *out)
{
	char buf[MAX_NAME];
	for (int k = 0; b->layout && k < CANDIDATES; k++) {
		const char *text = candidate(b, name, suffix, k, buf);
		const struct ws_alias *alias =
			text ? ws_layout_find_alias(b->layout, text, 0) : NULL;
		out->param = text ? ws_layout_find_param(b->layout, text) : NULL;
		out->groups = 1;
		if (!out->param && alias) {
			out->param = ws_layout_param(b->layout, alias->param);
			out->groups = alias->groups > 0 ? alias->groups : 1;
		}
		if (out->param && out->param->n_dims == n_dims && !out->param->trouble)
			return true;
	}
	return false;
}

/* ---- changes ---- */

static struct ws_delta rows_of(const struct ws_delta *d, int64_t from, int64_t n)
{
	struct ws_delta part = *d;
	part.b_at += (uint64_t)(from * d->b_row);
	part.rows = n;
	return part;
}

static struct ws_delta turned(const struct ws_delta *d)
{
	struct ws_delta t = *d;
	t.a = d->b, t.a_at = d->b_at, t.a_row = d->b_col, t.a_col = d->b_row;
	t.b = d->a, t.b_at = d->a_at, t.b_row = d->a_col, t.b_col = d->a_row;
	t.rows = d->cols, t.cols = d->rows;
	return t;
}

static struct ws_delta of_expert(const struct ws_stack *s, int64_t e)
{
	struct ws_delta d = s->first;
	d.a_at += (uint64_t)(e * s->a_step);
	d.b_at += (uint64_t)(e * s->b_step);
	return d;
}

static int add(struct ws_binder *b, const struct ws_item *target, const struct ws_delta *d,
               int64_t row, const struct ws_item *replaced, struct ws_err *err)
{
	const size_t order = b->bound.n;
	struct ws_bound *x = ws_list_add(b->arena, &b->bound, sizeof *x);
	if (!x)
		return ws_oom(err);
	*x = (struct ws_bound){ .target = target, .replaced = replaced, .order = order };
	if (d) {
		x->delta = *d;
		x->delta.row = row;
		b->n_deltas++;
	}
	return 1;
}

static void shape_of(const struct ws_binder *b, const struct ws_item *item, int64_t *rows,
                     int64_t *cols)
{
	if (b->shape) {
		b->shape(b->ctx, item, rows, cols);
		return;
	}
	*rows = 1;
	*cols = item->n_dims ? item->dims[item->n_dims - 1] : 1;
	for (unsigned i = 0; i + 1 < item->n_dims; i++)
		*rows *= item->dims[i];
}

static int misfit(const struct ws_delta *d, const char *target, int64_t rows, int64_t cols,
                  struct ws_err *err)
{
	ws_err_set(err, WS_EINPUT,
	           "adapter: '%s' and '%s' make a change of %lld x %lld, but '%s' is %lld x %lld",
	           ws_quote(d->a->name).text, ws_quote(d->b->name).text, (long long)d->rows,
	           (long long)d->cols, ws_quote(target).text, (long long)rows, (long long)cols);
	return ws_err_hint(err,
	                   "the adapter was made for another model, or for this one with another "
	                   "vocabulary");
}

/* Are a delta's rows the target's columns? */
enum turn { STRAIGHT, ACROSS, BY_SHAPE };

/* Turns the delta if it has to be. False: no fit; a square one fits in no way by its shape. */
static bool fit(struct ws_delta *d, int64_t rows, int64_t cols, enum turn turn)
{
	if (turn == BY_SHAPE && d->rows == d->cols)
		return false;
	if (turn == ACROSS || (turn == BY_SHAPE && d->rows != rows))
		*d = turned(d);
	return d->rows == rows && d->cols == cols;
}

static bool is_one_of(const char *name, const char *const *list, size_t n)
{
	for (size_t i = 0; name && i < n; i++)
		if (strcmp(name, list[i]) == 0)
			return true;
	return false;
}
#define ONE_OF(name, list) is_one_of(name, list, sizeof(list) / sizeof *(list))

static int unknown_axes(const struct ws_delta *d, const char *target, struct ws_err *err)
{
	ws_err_set(err, WS_EINPUT,
	           "adapter: whether '%s', which '%s' changes, has its inputs or its outputs first "
	           "is not known without the model's config.json",
	           ws_quote(target).text, ws_quote(d->a->name).text);
	return ws_err_hint(err, "{config} DIR names it");
}

/* ---- matrices ---- */

/* The layers that are Transformers' Conv1D, with their inputs first; all others are linear. */
static const char *const conv1d_types[] = { "gpt2",      "openai-gpt", "imagegpt",
	                                    "decision_transformer", "clvp", "clvp_decoder" };
static const char *const conv1d_layers[] = { "c_attn", "q_attn", "c_proj", "c_fc" };

static bool may_be_conv1d(const char *target)
{
	char module[MAX_NAME];
	const char *end = strrchr(target, '.');
	snprintf(module, sizeof module, "%.*s", end ? (int)(end - target) : 0, target);
	const char *leaf = strrchr(module, '.');
	return ONE_OF(leaf ? leaf + 1 : module, conv1d_layers);
}

/* fan_in_fan_out is not asked: PEFT sets it to what the layer is. */
static int turn_matrix(const struct ws_binder *b, const struct ws_item *item,
                       const struct ws_stack *s, enum turn *out, struct ws_err *err)
{
	static const char head[] = "lm_head.weight";
	const size_t n = strlen(item->name), end = sizeof head - 1;
	*out = STRAIGHT;
	if (s->param)
		return 0;
	if (s->embedding) /* a head under an embedding's names is linear */
		*out = n >= end && strcmp(item->name + n - end, head) == 0 ? STRAIGHT : ACROSS;
	else if (may_be_conv1d(item->name) && !b->adapter->type)
		return unknown_axes(&s->first, item->name, err);
	else if (may_be_conv1d(item->name) && ONE_OF(b->adapter->type, conv1d_types))
		*out = ACROSS;
	return 0;
}

static int add_whole(struct ws_binder *b, const struct ws_item *item, const struct ws_stack *s,
                     struct ws_err *err)
{
	struct ws_delta d = s->first;
	int64_t rows, cols;
	enum turn turn;
	shape_of(b, item, &rows, &cols);
	if (turn_matrix(b, item, s, &turn, err))
		return -1;
	if (!fit(&d, rows, cols, turn))
		return misfit(&d, item->name, rows, cols, err);
	return add(b, item, &d, 0, NULL, err);
}

/* Adds a delta to the rows of a fused tensor of the base. */
static int add_to_fused(struct ws_binder *b, const struct ws_part *part, const struct ws_delta *d,
                        struct ws_err *err)
{
	const struct ws_param *param = ws_layout_param(b->layout, part->param);
	const struct ws_item *item = ws_catalog_find(b->base, param->name);
	struct ws_box from, to;
	int64_t rows, cols;
	if (!item || part->transposed || part->n_dims != 2)
		return 0;
	ws_layout_place(b->layout, part, 0, &from, &to);
	const unsigned last = to.n_dims - 1;
	if (last < 1 || last > 2)
		return 0;
	if (d->rows != part->dims[0] || d->cols != part->dims[1])
		return misfit(d, part->name, part->dims[0], part->dims[1], err);
	const int64_t row = last == 2 ? to.at[0] * param->dims[1] + to.at[1] : to.at[0];
	shape_of(b, item, &rows, &cols);
	if (row + d->rows > rows || d->cols != cols)
		return misfit(d, item->name, rows, cols, err);
	return add(b, item, d, row, NULL, err);
}

/* Adds rows [at, at + n) of the delta of a fused tensor to one part of that tensor. */
static int add_slice(struct ws_binder *b, const struct ws_item *item, const struct ws_delta *d,
                     int64_t at, int64_t n, int64_t groups, struct ws_err *err)
{
	int64_t rows, cols;
	shape_of(b, item, &rows, &cols);
	if (rows != n || cols != d->cols || at % groups || n % groups || d->rows % groups) {
		const struct ws_delta part = rows_of(d, at, n);
		return misfit(&part, item->name, rows, cols, err);
	}
	for (int64_t g = 0; g < groups; g++) {
		const struct ws_delta part =
			rows_of(d, g * (d->rows / groups) + at / groups, n / groups);
		if (add(b, item, &part, g * (n / groups), NULL, err) < 0)
			return -1;
	}
	return 1;
}

/* The base has the parts of a fused tensor, and the delta is of the whole tensor. */
static int add_to_parts(struct ws_binder *b, const struct fused *f, const struct ws_stack *s,
                        bool turn, struct ws_err *err)
{
	int rc = 0;
	for (size_t i = 0; i < f->param->n_parts; i++) {
		const struct ws_part *part = ws_layout_part(b->layout, f->param->first + i);
		const struct ws_item *item = ws_catalog_find(b->base, part->name);
		struct ws_box from, to;
		if (!item || part->transposed)
			continue;
		ws_layout_place(b->layout, part, 0, &from, &to);
		const unsigned axis = to.n_dims == 3;
		struct ws_delta d = of_expert(s, axis && s->n > 1 ? to.at[0] : 0);
		if (turn)
			d = turned(&d);
		if (add_slice(b, item, &d, to.at[axis], to.size[axis], f->groups, err) < 0)
			return -1;
		rc = 1;
	}
	return rc;
}

int ws_lora_place_matrix(struct ws_binder *b, const struct ws_lora_name *module,
                         const struct ws_stack *s, struct ws_err *err)
{
	const struct ws_item *item = find_item(b, module, ".weight");
	if (item)
		return add_whole(b, item, s, err);
	const struct ws_part *part = find_part(b, module, ".weight");
	if (part) {
		const int rc = add_to_fused(b, part, &s->first, err);
		if (rc)
			return rc;
	}
	struct fused f;
	if (!find_fused(b, module, ".weight", 2, &f))
		return 0;
	const struct ws_delta *d = &s->first;
	if (d->rows != f.param->dims[0] || d->cols != f.param->dims[1])
		return misfit(d, f.param->name, f.param->dims[0], f.param->dims[1], err);
	return add_to_parts(b, &f, s, false, err);
}

/* ---- stacks over experts ---- */

bool ws_lora_stack_dims(struct ws_binder *b, const struct ws_lora_name *tensor, int64_t dims[3])
{
	const struct ws_item *item = find_item(b, tensor, "");
	struct fused f;
	if (item && item->n_dims == 3)
		memcpy(dims, item->dims, 3 * sizeof *dims);
	else if (!item && find_fused(b, tensor, "", 3, &f))
		memcpy(dims, f.param->dims, 3 * sizeof *dims);
	else
		return false;
	return true;
}

/* Stacks whose class in Transformers says is_transposed, which is what PEFT asks. */
static const char *const transposed_types[] = { "gpt_oss", "aria", "aria_text",
	                                        "openai_privacy_filter" };

/* stored: the base has the stack itself, and not its parts. */
static enum turn turn_stack(const struct ws_binder *b, const struct ws_lora_name *tensor,
                            const struct ws_stack *s, bool stored)
{
	const struct ws_part *part = stored ? find_part(b, tensor, "") : NULL;
	if (s->axes_in_order)
		return stored ? ACROSS : BY_SHAPE;
	if (!stored)
		return STRAIGHT;
	if (part)
		return part->transposed ? ACROSS : STRAIGHT;
	if (ONE_OF(b->adapter->type, transposed_types))
		return ACROSS;
	return s->param && b->adapter->type ? STRAIGHT : BY_SHAPE;
}

bool ws_lora_stack_fits(struct ws_binder *b, const struct ws_lora_name *tensor,
                        const struct ws_stack *s)
{
	struct ws_delta d = s->first;
	int64_t dims[3];
	const bool stored = find_item(b, tensor, "") != NULL;
	const enum turn turn = turn_stack(b, tensor, s, stored);
	if (!ws_lora_stack_dims(b, tensor, dims) || (s->n == 1 && turn == ACROSS))
		return false; /* of one expert PEFT adds the change as it is */
	if (turn == BY_SHAPE && d.rows == d.cols) /* whoever places it says why it cannot */
		return d.rows == dims[1] && d.cols == dims[2];
	return fit(&d, dims[1], dims[2], turn);
}

/* Every matrix gets a delta of its own, so the number that a file claims has a limit. */
static int check_experts(const struct ws_stack *s, int64_t experts, const char *target,
                         struct ws_err *err)
{
	if (experts > MOST_EXPERTS)
		return ws_err_set(err, WS_EINPUT,
		                  "adapter: '%s' is a stack of %lld matrices; up to %d are taken",
		                  ws_quote(target).text, (long long)experts, MOST_EXPERTS);
	if (s->n == 1 || s->n == experts)
		return 0;
	return ws_err_set(err, WS_EINPUT,
	                  "adapter: '%s' and '%s' are of %lld experts, but '%s' has %lld",
	                  ws_quote(s->first.a->name).text, ws_quote(s->first.b->name).text,
	                  (long long)s->n, ws_quote(target).text, (long long)experts);
}

static int add_to_stack(struct ws_binder *b, const struct ws_lora_name *tensor,
                        const struct ws_item *item, const struct ws_stack *s, struct ws_err *err)
{
	const enum turn turn = turn_stack(b, tensor, s, true);
	if (item->n_dims != 3)
		return 0;
	if (check_experts(s, item->dims[0], item->name, err))
		return -1;
	if (turn == BY_SHAPE && s->first.rows == s->first.cols)
		return unknown_axes(&s->first, item->name, err);
	for (int64_t e = 0; e < item->dims[0]; e++) {
		struct ws_delta d = of_expert(s, s->n > 1 ? e : 0);
		if (!fit(&d, item->dims[1], item->dims[2], turn))
			return misfit(&d, item->name, item->dims[1], item->dims[2], err);
		if (add(b, item, &d, e * item->dims[1], NULL, err) < 0)
			return -1;
	}
	return 1;
}

int ws_lora_place_stack(struct ws_binder *b, const struct ws_lora_name *tensor,
                        const struct ws_stack *s, struct ws_err *err)
{
	const struct ws_item *item = find_item(b, tensor, "");
	struct fused f;
	if (item)
		return add_to_stack(b, tensor, item, s, err);
	if (!find_fused(b, tensor, "", 3, &f))
		return 0;
	struct ws_delta d = s->first;
	const int64_t rows = f.param->dims[1], cols = f.param->dims[2];
	const enum turn turn = turn_stack(b, tensor, s, false);
	if (check_experts(s, f.param->dims[0], f.param->name, err))
		return -1;
	if (turn == BY_SHAPE && rows == cols)
		return ws_err_set(err, WS_EINPUT,
		                  "adapter: '%s' changes square matrices, and PEFT before 0.19 "
		                  "did not save their orientation",
		                  ws_quote(d.a->name).text);
	if (!fit(&d, rows, cols, turn))
		return misfit(&d, f.param->name, rows, cols, err);
	return add_to_parts(b, &f, s, d.a != s->first.a, err);
}

/* ---- whole tensors ---- */

static bool same_shape(const struct ws_binder *b, const struct ws_item *target,
                       const struct ws_item *item)
{
	int64_t rows, cols;
	if (target->n_dims == item->n_dims &&
	    memcmp(target->dims, item->dims, item->n_dims * sizeof *item->dims) == 0)
		return true;
	if (!b->shape || item->n_dims != 2)
		return false;
	shape_of(b, target, &rows, &cols); /* decoded shape of a quantized base */
	return rows == item->dims[0] && cols == item->dims[1];
}

int ws_lora_place_tensor(struct ws_binder *b, const struct ws_lora_name *tensor,
                         const struct ws_item *item, struct ws_err *err)
{
	const struct ws_item *target = find_item(b, tensor, "");
	if (!target)
		return 0;
	if (same_shape(b, target, item))
		return add(b, target, NULL, 0, item, err);
	ws_err_set(err, WS_EINPUT,
	           "adapter tensor '%s' was trained in place of '%s' and has another shape",
	           ws_quote(item->name).text, ws_quote(target->name).text);
	return ws_err_hint(
		err, "a vocabulary that grew in training needs a server with the grown model");
}
