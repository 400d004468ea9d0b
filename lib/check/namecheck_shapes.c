/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_shapes.c - tensors with the right name and a wrong shape or dtype, and the arithmetic
 * that explains the difference. */
#include "namecheck_core.h"

#include "dims.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct misfit {
	struct ws_check *c;
	const struct ws_item *item;
	const struct ws_part *part;
	const struct ws_param *param;
	struct ws_text both;  /* "[..] sent, [..] wanted" */
};

static void report_shape(const struct misfit *m, const char *shared, const char *remedy,
                      const char *why)
{
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_SHAPE, .severity = WS_ERROR, .name = m->item->name,
		.param = m->param->name, .rule = ws_check_rule(m->c, m->part), .shared = shared,
		.remedy = remedy,
	};
	ws_report_add(m->c->report, &finding, "%s: %s", m->both.s, why);
}

/* The only axis in which the shapes differ, or -1. */
static int lone_axis(const struct misfit *m)
{
	int axis = -1;
	if (m->item->n_dims != m->part->n_dims)
		return -1;
	for (unsigned d = 0; d < m->part->n_dims; d++) {
		if (m->item->dims[d] == m->part->dims[d])
			continue;
		if (axis >= 0)
			return -1;
		axis = (int)d;
	}
	return axis;
}

static int64_t div_up(int64_t a, int64_t b)
{
	return a / b + (a % b != 0);
}

static bool is_transposed(const struct misfit *m)
{
	const int64_t *a = m->item->dims, *b = m->part->dims;
	if (m->item->n_dims != 2 || m->part->n_dims != 2 || a[0] != b[1] || a[1] != b[0])
		return false;
	report_shape(m, "tensors are transposed: servers want [outputs, inputs]", "transpose them "
	          "while saving, or name them in a {map} with the order of their axes "
	          "(wsync-map(5))", "it is transposed, servers want [outputs, inputs]");
	return true;
}

/* One part has the rows of all parts of its parameter. */
static bool is_whole_param(const struct misfit *m, int axis)
{
	const struct ws_check *c = m->c;
	int64_t rows = 0;
	if (axis != 0 || m->param->n_parts < 2 || m->param->n_parts > 4)
		return false;
	for (size_t i = 0; i < m->param->n_parts; i++)
		rows += c->parts[m->param->first + i].dims[0];
	if (rows != m->item->dims[0])
		return false;
	const struct ws_text parts = ws_text_parts(c->layout, m->param);
	const struct ws_text why = ws_textf("its %" PRId64 " rows are those of %s together", rows,
	                                    parts.s);
	const struct ws_text shared = ws_textf("tensors have the rows of %s together", parts.s);
	report_shape(m, shared.s, "send them apart, or under the name of the fused tensor", why.s);
	return true;
}

/* Trainers pad vocabularies to their own multiples; servers pad again, from the true size. */
static bool is_vocabulary(const struct misfit *m, int axis)
{
	const int64_t sent = m->item->dims[0], rows = m->part->dims[0];
	struct ws_text why;
	if (axis != 0 || m->part->split != WS_SPLIT_VOCAB)
		return false;
	if (sent > rows) {
		int64_t multiple = 0;
		for (int64_t k = 64; k <= 8192 && !multiple; k *= 2)
			if (div_up(rows, k) * k == sent)
				multiple = k;
		why = multiple ? ws_textf("vocab_size is %" PRId64 ", and %" PRId64 " rows behind "
		                          "it pad to a multiple of %" PRId64, rows, sent - rows,
		                          multiple) : ws_textf("vocab_size is %" PRId64 ", and "
		                                               "there are %" PRId64 " rows more",
		                                               rows, sent - rows);
		report_shape(
			m, "tensors have more rows than vocab_size: the padding of the trainer",
			"cut the rows behind vocab_size while saving; servers pad by themselves",
			why.s);
		return true;
	}
	if (sent > 0 && (div_up(rows, 64) * 64) % sent == 0 && rows - sent > 8192)
		return false; /* a rank's share */
	why = ws_textf("vocab_size is %" PRId64 ", and %" PRId64 " rows of it are not there", rows,
	               rows - sent);
	report_shape(m, "tensors have fewer rows than vocab_size", "compare vocab_size of the "
	          "server's config.json with the checkpoint's (tokens were added?)", why.s);
	return true;
}

static bool is_share(const struct misfit *m, int axis)
{
	if (axis < 0 || m->item->dims[axis] <= 0)
		return false;
	const int64_t sent = m->item->dims[axis];
	int64_t full = m->part->dims[axis];
	if (m->part->split == WS_SPLIT_VOCAB && full % sent)
		full = div_up(full, 64) * 64;
	const int64_t k = full / sent;
	if (full % sent || k < 2 || k > 1024 || m->part->split == WS_SPLIT_NONE ||
	    (axis != m->part->axis && m->part->split != WS_SPLIT_VOCAB))
		return false;
	const struct ws_text why = ws_textf("%" PRId64 " = %" PRId64 " / %" PRId64 " %s, the share "
	                                    "of one of %" PRId64 " tensor-parallel ranks", sent,
	                                    full, k, axis == 0 ? "rows" : "columns", k);
	const struct ws_text shared = ws_textf("tensors are the share of one of %" PRId64 " "
	                                       "tensor-parallel ranks", k);
	const struct ws_text remedy = ws_textf("join the files of all ranks with {sharded_tp} tp=%"
	                                       PRId64, k);
	report_shape(m, shared.s, remedy.s, why.s);
	return true;
}

static bool is_heads(const struct misfit *m, int axis)
{
	const struct ws_part *p = m->part;
	if (axis < 0 || axis != p->axis || p->split != WS_SPLIT_HEADS || p->units < 1)
		return false;
	const int64_t size = p->dims[axis] / p->units, sent = m->item->dims[axis];
	if (size < 1 || p->dims[axis] % p->units)
		return false;
	struct ws_text why;
	if (sent % size == 0)
		why = ws_textf("%" PRId64 " heads of %" PRId64 ", and config.json gives %" PRId64
		               " heads of %" PRId64 " = %" PRId64 "%s", sent / size, size, p->units,
		               size, p->dims[axis], sent % p->dims[axis] == 0 &&
		               sent > p->dims[axis]
		               ? "; were they repeated for more ranks than heads?" : "");
	else
		why = ws_textf("%" PRId64 " is no multiple of a head's %" PRId64 ", config.json "
		               "gives %" PRId64 " heads of %" PRId64 " = %" PRId64, sent, size,
		               p->units, size, p->dims[axis]);
	const struct ws_text shared = ws_textf("tensors like %s have another number of heads than "
	                                       "config.json gives", ws_text_kind(p->name).s);
	report_shape(m, shared.s, "compare the config.json of the server with the checkpoint's",
	          why.s);
	return true;
}

static bool is_tensor_scale(const struct ws_part *p)
{
	return ws_ends_with(p->name, ".weight_scale") && p->n_dims == 1 && p->dims[0] == 1;
}

/* Some checkpoints store the one scale as a scalar. */
static bool fits(const struct ws_item *i, const struct ws_part *p)
{
	return ws_dims_equal(i->n_dims, i->dims, p->n_dims, p->dims) ||
	       (ws_ends_with(p->name, "scale") && ws_part_fits(p, i->n_dims, i->dims));
}

/* There is one scale for each block of the weight, ragged edges included. */
static bool is_scale(const struct misfit *m)
{
	char weight[WS_CHECK_NAME];
	const struct ws_config *config = m->c->opts->config;
	const struct ws_quant *q = config ? ws_config_quant(config) : NULL;
	if (!ws_scaled_name(m->part->name, weight, sizeof weight) || !q)
		return false;
	if (is_tensor_scale(m->part)) {
		report_shape(m,
		             "scales are of another scheme: the server keeps one for each tensor",
		             "start the server from a block FP8 checkpoint, or send a checkpoint "
		          "with one scale per tensor",
		          "the server keeps one scale for the whole tensor");
		return true;
	}
	if (q->block[0] < 1 || q->block[1] < 1)
		return false;
	const size_t at = ws_check_part(m->c, weight);
	if (at == WS_NONE || m->c->parts[at].n_dims != 2 || m->part->n_dims != 2)
		return false;
	const int64_t *w = m->c->parts[at].dims, *b = q->block, *a = m->item->dims;
	const bool down = m->item->n_dims == 2 && a[0] == w[0] / b[0] && a[1] == w[1] / b[1];
	const bool one = ws_dims_product(m->item->n_dims, a) == 1;
	int64_t other = 0; /* the block size that gives this count */
	for (int64_t k = 16; m->item->n_dims == 2 && k <= 1024 && !other; k *= 2)
		if (a[0] == div_up(w[0], k) && a[1] == div_up(w[1], k))
			other = k;
	const struct ws_text why = ws_textf("ceil(%" PRId64 " / %" PRId64 ") x ceil(%" PRId64 " / %"
	                                    PRId64 ") = %" PRId64 " x %" PRId64 " blocks%s", w[0],
	                                    b[0], w[1], b[1], m->part->dims[0], m->part->dims[1],
	                                    down ? ", and what is sent was rounded down" : one
	                                    ? ", and one scale is sent for the whole tensor" : other
	                                    ? ws_textf(", and what is sent counts blocks of %"
	                                               PRId64 " x %" PRId64, other, other).s : "");
	const struct ws_text shared = ws_textf("scales do not count the %" PRId64 "x%" PRId64 " "
	                                       "blocks of their weights%s", b[0], b[1], down
	                                       ? ": rounded down at a ragged edge" : "");
	report_shape(m, shared.s,
	             "quantize in the blocks of quantization_config, a ragged edge being "
	             "a block of its own",
	             why.s);
	return true;
}

/* A rank that has no share of a tensor may save it without elements. */
static bool is_empty(const struct misfit *m)
{
	if (ws_dims_product(m->item->n_dims, m->item->dims) != 0 ||
	    ws_dims_product(m->part->n_dims, m->part->dims) == 0)
		return false;
	report_shape(m, "tensors are empty: saved by one rank of ZeRO-3 or FSDP, which does not "
	             "have them", "gather the weights before saving (a full state dict)",
	             "empty: saved by one rank of ZeRO-3 or FSDP, which does not have it");
	return true;
}

static void check_shape(struct misfit *m)
{
	const struct ws_item *i = m->item;
	const struct ws_part *p = m->part;
	const int axis = lone_axis(m);
	m->both = ws_textf("%.200s sent, %.200s wanted", ws_text_shape(i->n_dims, i->dims).s,
	                   ws_text_shape(p->n_dims, p->dims).s);
	if (is_empty(m) || is_scale(m) || is_vocabulary(m, axis) || is_whole_param(m, axis) ||
	    is_share(m, axis) || is_heads(m, axis) || is_transposed(m))
		return;
	const bool same =
		ws_dims_product(i->n_dims, i->dims) == ws_dims_product(p->n_dims, p->dims);
	const char *gives = ws_text_gives(m->c);
	const struct ws_text shared = ws_textf("tensors like %s have another shape than %s",
	                                       ws_text_kind(i->name).s, gives);
	const struct ws_text why =
		same      ? ws_textf("as many elements, in another arrangement") :
		axis == 0 ? ws_textf("other rows than %s", gives) :
		axis > 0  ? ws_textf("other columns than %s", gives) :
		            ws_textf("%s another shape", gives);
	report_shape(m, shared.s, ws_text_compare(m->c), why.s);
}

/* ---- types ---- */

static void report_dtype(const struct misfit *m, enum ws_severity severity, const char *shared,
                      const char *remedy, const char *why)
{
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_DTYPE, .severity = severity, .name = m->item->name,
		.param = m->param->name, .rule = ws_check_rule(m->c, m->part), .shared = shared,
		.remedy = remedy,
	};
	ws_report_add(m->c->report, &finding, "%s", why);
}

static const char *type_name(enum ws_dtype d)
{
	const char *torch = ws_dtype_torch(d);
	return *torch ? torch : ws_dtype_safetensors(d);
}

/* For parts whose dtype must match exactly. */
static void check_exact(const struct misfit *m)
{
	const enum ws_dtype sent = m->item->dtype, want = m->part->dtype;
	char weight[WS_CHECK_NAME];
	/* Some releases store scales in bfloat16; the quantizer rounded them deliberately. */
	if (ws_dtype_is_floating(sent) && ws_scaled_name(m->part->name, weight, sizeof weight))
		return;
	const char *a = type_name(sent), *b = type_name(want);
	if (ws_dtype_is_fp8(want) && ws_dtype_is_floating(sent)) {
		const struct ws_text shared = ws_textf("weights are sent in %s, and the server "
		                                       "keeps %s with scales: it would convert "
		                                       "them without", a, b);
		const struct ws_text why = ws_textf("%s sent, and the server keeps %s with scales: "
		                                    "it would convert without them", a, b);
		report_dtype(m, WS_ERROR, shared.s,
		          "add {quantize} fp8, or quantize the checkpoint as the server's "
		          "quantization_config says, scales included",
		          why.s);
	} else if (ws_dtype_is_floating(want) && ws_dtype_is_floating(sent)) {
		const bool loses = ws_dtype_bits(sent) < ws_dtype_bits(want);
		const struct ws_text shared = ws_textf("tensors are sent in %s, and the server "
		                                       "keeps %s%s", a, b, loses ? ": bits are lost"
		                                       : "");
		const struct ws_text why = ws_textf("%s sent, and the server keeps %s%s", a, b,
		                                    loses ? ": bits are lost that it had" : "");
		report_dtype(m, WS_WARN, shared.s, "save them in the type that the model was "
		          "published in", why.s);
	} else {
		const struct ws_text shared = ws_textf("tensors are sent in %s, and the server "
		                                       "keeps %s", a, b);
		report_dtype(m, WS_ERROR, shared.s, "save them in the type that the model was "
		          "published in", ws_textf("%s sent, and the server keeps %s", a, b).s);
	}
}

/* Servers convert to the type of their weights, which is usually that of the checkpoint. */
static void check_like(const struct misfit *m)
{
	const enum ws_dtype sent = m->item->dtype, want = m->part->dtype;
	const char *a = type_name(sent), *b = type_name(want);
	const bool overflows = want == WS_DTYPE_F16 && sent == WS_DTYPE_BF16;
	if (overflows && m->c->opts->dtype_told)
		return;
	const bool rounds = ws_dtype_bits(sent) > ws_dtype_bits(want);
	const struct ws_text why = ws_textf(
		"%s sent, and the reference has %s%s", a, b,
		overflows ? ": large numbers become infinite" :
		rounds    ? ": the server rounds them" :
		            ": bits are lost that it had");
	const struct ws_text shared = ws_textf(
		"tensors are sent in %s, and the reference has %s%s", a, b,
		overflows ? ": large numbers become infinite" :
		rounds    ? ": the server rounds them" :
		            ": bits are lost that it had");
	report_dtype(m, overflows ? WS_ERROR : rounds ? WS_NOTE : WS_WARN, shared.s,
	             rounds ? NULL : "save them in the type that the model was published in",
	             why.s);
}

static void check_dtype(const struct misfit *m)
{
	const enum ws_dtype sent = m->item->dtype;
	if (ws_layout_is_like(m->c->layout) && ws_dtype_is_floating(sent) &&
	    ws_dtype_is_floating(m->part->dtype))
		check_like(m);
	else if (m->part->exact && sent != m->part->dtype) {
		check_exact(m);
	} else if (!m->part->exact && !ws_dtype_is_floating(sent)) {
		const char *a = type_name(sent);
		const bool fp8 = ws_dtype_is_fp8(sent);
		const struct ws_text shared = ws_textf("weights are sent in %s, and the server "
		                                       "keeps them unquantized%s", a, fp8
		                                       ? ": it would copy them without their scales"
		                                       : "");
		const struct ws_text why = ws_textf("%s sent, and the server keeps this "
		                                    "unquantized%s", a, fp8
		                                    ? ": it would copy it without its scale" : "");
		report_dtype(m, WS_ERROR, shared.s, "send unquantized weights, or start the server "
		          "from a checkpoint that is quantized alike", why.s);
	}
}

/* ---- endpoints without a model ---- */

static void check_received(struct ws_check *c, const struct ws_item *item,
                           const struct ws_weight *w)
{
	if (w->shapeless)
		return;
	c->received++;
	if (ws_dims_equal(item->n_dims, item->dims, w->n_dims, w->dims))
		return;
	const struct ws_text shared = ws_textf("tensors like %.300s have another shape than those "
	                                       "that the endpoint has received under their names",
	                                       ws_text_kind(item->name).s);
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_SHAPE, .severity = WS_ERROR, .name = item->name,
		.param = w->name, .shared = shared.s,
		.remedy = "push the model that it has, or start the endpoint again",
	};
	ws_report_add(c->report, &finding, "%.200s sent, and the endpoint has received %.200s "
	              "under this name, and keeps this shape", ws_text_shape(item->n_dims,
	              item->dims).s, ws_text_shape(w->n_dims, w->dims).s);
}

int ws_check_received(struct ws_check *c)
{
	const struct ws_weight_list *l = c->opts->listing;
	struct ws_names names;
	size_t twice[2];
	if (!l || !l->received)
		return 0;
	if (ws_names_init(&names, l->items, sizeof *l->items, l->n, twice, c->err) < 0)
		return -1;
	for (size_t i = 0; i < c->n_sent; i++) {
		const struct ws_weight *w = ws_names_find(&names, c->sent[i]->name);
		if (w)
			check_received(c, c->sent[i], w);
	}
	ws_names_fini(&names);
	return 0;
}

int ws_check_shapes(struct ws_check *c)
{
	for (size_t i = 0; i < c->n_parts; i++) {
		const struct ws_part *p = &c->parts[i];
		if (c->part_item[i] == WS_NONE)
			continue;
		struct misfit m = { .c = c, .item = c->sent[c->part_item[i]], .part = p,
			            .param = ws_layout_param(c->layout, p->param) };
		if (!fits(m.item, p))
			check_shape(&m);
		else if (m.item->dtype != p->dtype)
			check_dtype(&m);
	}
	return 0;
}
