/* SPDX-License-Identifier: Apache-2.0 */
/* scales_pair.c - checks names, shapes, types and the config, before any number is read.
 *
 *   X.weight with X.weight_scale_inv    blocks: quant_method fp8 with a weight_block_size
 *   X.weight with X.weight_scale        one number, one for each row, or one for each block
 *   X.weight with .weight_scale and .weight_scale_2; X with .absmax, .quant_map and .quant_state:
 *                                       see unpack.h
 *
 * A server looks for the name that its config implies, and silently drops the other one. */
#include "scales_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool is_8_bits(enum ws_dtype dtype)
{
	return dtype == WS_DTYPE_F8_E4M3 || dtype == WS_DTYPE_F8_E5M2 ||
	       dtype == WS_DTYPE_F8_E4M3FNUZ || dtype == WS_DTYPE_F8_E5M2FNUZ;
}

/* Length of the suffix in the name of a scale; 0: not the name of a scale. */
static size_t scale_suffix(const char *name)
{
	static const char *const suffixes[] = { "_scale_inv", "_scale" };
	if (ws_unpack_ends(name, suffixes[0]))
		return strlen(suffixes[0]);
	return ws_unpack_ends(name, ".weight_scale") ? strlen(suffixes[1]) : 0;
}

/* "model.layers.0.mlp.up_proj" */
static const char *module_of(const char *name, char *dst, size_t n)
{
	const size_t len = strlen(name),
		     cut = ws_unpack_ends(name, ".weight") ? strlen(".weight") : 0;
	snprintf(dst, n, "%.*s", (int)(len - cut), name);
	return dst;
}

/* ---- scales ---- */

static void judge_lone_scale(struct ws_scales *s, const struct ws_item *item, size_t cut,
                             size_t order)
{
	const struct ws_item *codes = ws_unpack_beside(s->opts->items, item->name, cut, "");
	const int n = (int)(strlen(item->name) - cut);
	char text[160];
	if (!codes && !ws_unpack_beside(s->opts->items, item->name, cut, "_packed"))
		ws_scales_say(&s->notes, order, WS_SCALES_PAIR, WS_ERROR, item->name,
		              "a scale without its weight: there is no %.*s", n, item->name);
	else if (codes && ws_dtype_bits(codes->dtype) > 8 && codes->dtype != WS_DTYPE_I32)
		ws_scales_say(&s->notes, order, WS_SCALES_PAIR, WS_ERROR, item->name,
		              "a scale of a weight that is not quantized: %s is %s",
		              codes->name, ws_unpack_describe(codes, text, sizeof text));
}

static void judge_scale_type(struct ws_scales *s, const struct ws_packed *p, size_t order)
{
	const struct ws_item *scale = p->parts[0];
	if (p->packing != WS_PACK_FP8 || scale->dtype == WS_DTYPE_F32)
		return;
	if (scale->dtype == WS_DTYPE_F8_E8M0)
		ws_scales_say(&s->notes, order, WS_SCALES_DTYPE, WS_NOTE, scale->name,
		              "scales are exponents "
		              "(float8_e8m0fnu); the server must keep this type");
	else
		ws_scales_say(&s->notes, order, WS_SCALES_DTYPE, WS_WARN, scale->name,
		              "scales are %s: servers keep float32, and codes that were made with "
		              "more exact scales are off by the rounding",
		              ws_dtype_torch(scale->dtype));
}

/* ---- the config ---- */

static bool is_fp8_config(const struct ws_quant *q)
{
	return strcmp(q->method, "fp8") == 0;
}

static void judge_scale_name(struct ws_scales *s, const struct ws_packed *p, size_t order)
{
	const struct ws_item *scale = p->parts[0];
	const bool inverse = ws_unpack_ends(scale->name, "_scale_inv");
	const bool blocks = s->quant.block[0] > 0;
	if (p->packing != WS_PACK_FP8 || !is_fp8_config(&s->quant) || inverse == blocks)
		return;
	ws_scales_say(&s->notes, order, WS_SCALES_NAME, WS_ERROR, scale->name,
	              blocks ? "the config has a weight_block_size: a server looks for "
	                       "weight_scale_inv, and drops this" :
	                       "the config has no weight_block_size: a server looks for "
	                       "weight_scale, and drops this");
}

static void judge_quantized(struct ws_scales *s, const struct ws_packed *p, size_t order)
{
	char module[4096];
	if (s->quant.method[0] &&
	    ws_quant_skips(&s->quant, module_of(p->weight->name, module, sizeof module)))
		ws_scales_say(&s->notes, order, WS_SCALES_CONFIG, WS_ERROR, p->weight->name,
		              "it is %s, and the config's modules_to_not_convert says that it is "
		              "not quantized: a server takes the codes for weights",
		              ws_packing_name(p->packing));
	judge_scale_name(s, p, order);
}

/* An unquantized weight where a server keeps 8 bits: the server casts it, and keeps its old
 * scale. */
static void judge_plain(struct ws_scales *s, const struct ws_item *item, size_t order)
{
	char module[4096];
	const struct ws_part *part =
		s->opts->layout ? ws_layout_find_part(s->opts->layout, item->name) : NULL;
	if (!is_fp8_config(&s->quant) || item->n_dims < 2 || ws_dtype_bits(item->dtype) < 16)
		return;
	if (part && part->dtype == WS_DTYPE_F8_E4M3 && part->exact)
		ws_scales_say(
			&s->notes, order, WS_SCALES_CONFIG, WS_ERROR, item->name,
			"it is %s, but a server "
			"with this config keeps FP8 and would cast the weight without a scale",
			ws_dtype_torch(item->dtype));
	else if (!part && ws_unpack_ends(item->name, "_proj.weight") &&
	         !ws_quant_skips(&s->quant, module_of(item->name, module, sizeof module)))
		ws_scales_say(&s->notes, order, WS_SCALES_CONFIG, WS_WARN, item->name,
		              "it is %s, and the config's modules_to_not_convert does not name it",
		              ws_dtype_torch(item->dtype));
}

void ws_scales_config(struct ws_scales *s, size_t n_quantized)
{
	const struct ws_config *c = s->opts->config;
	if (!c)
		ws_scales_say(&s->notes, 0, WS_SCALES_UNSEEN, WS_NOTE, "config.json",
		              "there is none, so the choice "
		              "of quantized modules was not checked");
	else if (n_quantized && !s->quant.method[0])
		ws_scales_say(
			&s->notes, 0, WS_SCALES_CONFIG, WS_ERROR, ws_config_path(c),
			"it has no "
			"quantization_config: a server takes the codes of %zu tensors for weights",
			n_quantized);
	else if (!n_quantized && s->quant.method[0])
		ws_scales_say(&s->notes, 0, WS_SCALES_CONFIG, WS_WARN, ws_config_path(c),
		              "its quantization_config "
		              "says %.40s, but no tensor has a known quantization",
		              s->quant.method);
}

/* ---- pairs ---- */

/* Suffixes of the tensors that belong to 4-bit codes. */
static const char *const parts_of_4_bits[] = { "_scale_2",       ".quant_state.bitsandbytes__nf4",
	                                       ".absmax",        ".quant_map",
	                                       ".nested_absmax", ".nested_quant_map" };

/* Length of such a suffix; 0: the name has none of them. */
static size_t part_suffix(const char *name)
{
	for (size_t i = 0; i < sizeof parts_of_4_bits / sizeof *parts_of_4_bits; i++)
		if (ws_unpack_ends(name, parts_of_4_bits[i]))
			return strlen(parts_of_4_bits[i]);
	return 0;
}

/* Parts without codes are reported once: for the first part in the list that exists. */
static bool is_first_part(const struct ws_scales *s, const char *name, size_t cut)
{
	if (ws_unpack_beside(s->opts->items, name, cut, "_scale"))
		return false; /* judge_lone_scale reports the scale */
	for (size_t i = 0; i < sizeof parts_of_4_bits / sizeof *parts_of_4_bits; i++)
		if (ws_unpack_beside(s->opts->items, name, cut, parts_of_4_bits[i]))
			return ws_unpack_ends(name, parts_of_4_bits[i]);
	return false;
}

static bool has(const struct ws_scales *s, const struct ws_item *item, const char *suffix)
{
	return ws_unpack_part(s->opts->items, item->name, suffix) != NULL;
}

/* Reports 4-bit codes with missing or unfit parts, and parts without codes; false: item is
 * neither. */
static bool say_why_4_bits(struct ws_scales *s, const struct ws_item *item, size_t order,
                           const struct ws_err *why)
{
	const size_t cut = part_suffix(item->name);
	const bool nf4 = has(s, item, ".quant_state.bitsandbytes__nf4"),
		   absmax = has(s, item, ".absmax");
	const bool one = has(s, item, "_scale"), two = has(s, item, "_scale_2");
	if (cut) { /* if the codes exist, they are reported instead */
		if (!ws_unpack_beside(s->opts->items, item->name, cut, "") &&
		    is_first_part(s, item->name, cut))
			ws_scales_say(&s->notes, order, WS_SCALES_PAIR, WS_ERROR, item->name, "%s",
			              why->msg);
		return true;
	}
	if (ws_unpack_ends(item->name, ".input_scale"))
		return ws_unpack_beside(s->opts->items, item->name, strlen(".input_scale"),
		                        ".weight") != NULL;
	if (!nf4 && (item->dtype != WS_DTYPE_U8 || !(absmax || one || two)))
		return false;
	const bool whole = nf4 ? absmax && has(s, item, ".quant_map") : one && two;
	ws_scales_say(&s->notes, order, whole ? WS_SCALES_SHAPE : WS_SCALES_PAIR, WS_ERROR,
	              item->name, "%s", why->msg);
	return true;
}

/* Reports why the scales of a tensor could not be understood, with a severity. */
static int say_why(struct ws_scales *s, const struct ws_item *item, size_t order,
                   const struct ws_err *why, struct ws_err *err)
{
	const struct ws_item *inverse = ws_unpack_part(s->opts->items, item->name, "_scale_inv");
	const struct ws_item *scale = ws_unpack_part(s->opts->items, item->name, "_scale");
	const struct ws_item *any = inverse ? inverse : scale;
	if (why->code != WS_EINPUT) {
		*err = *why;
		return -1;
	}
	if (say_why_4_bits(s, item, order, why))
		return 0;
	if (!any && is_8_bits(item->dtype))
		ws_scales_say(&s->notes, order, WS_SCALES_PAIR, WS_ERROR, item->name,
		              "%s codes without a scale: there is no %s_scale_inv, nor %s_scale",
		              ws_dtype_torch(item->dtype), item->name, item->name);
	else if (!any || item->dtype != WS_DTYPE_F8_E4M3)
		ws_scales_say(&s->notes, order, WS_SCALES_UNSEEN,
		              is_8_bits(item->dtype) ? WS_WARN : WS_NOTE, item->name,
		              "not checked: %s", why->msg);
	else
		ws_scales_say(&s->notes, order,
		              inverse && scale ? WS_SCALES_PAIR :
		              ws_unpack_is_float(any->dtype) && any->dtype != WS_DTYPE_F8_E4M3 ?
		                                 WS_SCALES_SHAPE :
		                                 WS_SCALES_DTYPE,
		              WS_ERROR, item->name, "%s%s%s%s", why->msg, why->hint[0] ? " (" : "",
		              why->hint, why->hint[0] ? ")" : "");
	return 0;
}

static bool is_part_of_codes(struct ws_scales *s, const struct ws_item *item, size_t cut)
{
	const struct ws_item *codes =
		cut ? ws_unpack_beside(s->opts->items, item->name, cut, "") : NULL;
	return codes && ws_dtype_bits(codes->dtype) <= 8;
}

int ws_scales_pair(struct ws_scales *s, const struct ws_item *item, size_t order,
                   struct ws_scales_task *out, struct ws_err *err)
{
	const size_t cut = scale_suffix(item->name);
	struct ws_err why = WS_ERR_INIT;
	struct ws_packed p;
	if (cut) {
		if (!is_part_of_codes(s, item, cut))
			judge_lone_scale(s, item, cut, order);
		return 0;
	}
	if (ws_packed_find(s->opts->items, item, s->quant.block[0] ? &s->quant : NULL, &p, &why))
		return say_why(s, item, order, &why, err);
	if (!p.weight)
		return 0;
	if (p.packing == WS_PACK_NONE) {
		judge_plain(s, item, order);
	} else {
		judge_scale_type(s, &p, order);
		judge_quantized(s, &p, order);
	}
	*out = (struct ws_scales_task){ .item = item, .packed = p, .order = order };
	return 1;
}
