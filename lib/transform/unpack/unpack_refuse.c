/* SPDX-License-Identifier: Apache-2.0 */
/* unpack_refuse.c - known packings that cannot be unpacked. They are refused by name, because a
 * merge into them as if they were numbers would send noise. */
#include "unpack_core.h"

#include <string.h>

static int refuse(const struct ws_item *item, const char *packing, struct ws_err *err)
{
	char text[160];
	ws_err_set(err, WS_EINPUT, "%s (%s) is packed as %s, which is not unpacked", item->name,
	           ws_unpack_describe(item, text, sizeof text), packing);
	return ws_err_hint(
		err, "start from the model that was quantized, or from one in FP8 blocks, NVFP4 or "
		     "bitsandbytes NF4");
}

static bool has(const struct ws_catalog *c, const struct ws_item *item, size_t cut,
                const char *suffix)
{
	return ws_unpack_beside(c, item->name, cut, suffix) != NULL;
}

/* GPTQ has g_idx, the order of its groups; AWQ has none. */
static const char *by_qweight(const struct ws_catalog *c, const struct ws_item *item)
{
	static const char *const parts[] = { ".qweight", ".qzeros", ".scales", ".g_idx" };
	for (size_t i = 0; i < 4; i++) {
		const size_t cut = strlen(parts[i]);
		if (ws_unpack_ends(item->name, parts[i]) && has(c, item, cut, ".qweight"))
			return has(c, item, cut, ".g_idx") ? "GPTQ" : "AWQ";
	}
	return NULL;
}

static const char *by_name(const struct ws_catalog *c, const struct ws_item *item)
{
	if (ws_unpack_ends(item->name, ".weight_packed"))
		return item->dtype == WS_DTYPE_U8 ?
		               "NVFP4 by compressed-tensors (whose global scale divides)" :
		               "int4 by compressed-tensors";
	if (ws_unpack_ends(item->name, ".packed_weight_f32"))
		return "a trainer's own checkpoint";
	if (ws_unpack_ends(item->name, ".W_q"))
		return "HQQ";
	if (has(c, item, 0, ".quant_state.bitsandbytes__fp4"))
		return "FP4 by bitsandbytes";
	return by_qweight(c, item);
}

static const char *by_neighbours(const struct ws_catalog *c, const struct ws_item *item)
{
	const bool weight = ws_unpack_ends(item->name, ".weight");
	if (item->dtype == WS_DTYPE_I8 && weight)
		return has(c, item, 6, "SCB") ? "int8 by bitsandbytes" : "int8";
	if (item->dtype == WS_DTYPE_I32 && weight)
		return "int4 or int8 in words";
	if (item->dtype != WS_DTYPE_U8)
		return NULL;
	if (has(c, item, 0, ".absmax"))
		return "bitsandbytes' 4 bits without a quant_state";
	if (has(c, item, 0, "_scale"))
		return "4 bits with scales and without weight_scale_2";
	if (has(c, item, 0, "_scale_2"))
		return "NVFP4 without weight_scale";
	return weight ? "bytes with nothing beside them that says how" : NULL;
}

static const char *by_type(const struct ws_catalog *c, const struct ws_item *item)
{
	switch (item->dtype) {
	case WS_DTYPE_F8_E4M3:
		return "FP8 without weight_scale_inv or weight_scale";
	case WS_DTYPE_F8_E5M2:
		return "FP8 of the kind E5M2";
	case WS_DTYPE_F8_E4M3FNUZ:
	case WS_DTYPE_F8_E5M2FNUZ:
		return "FP8 of the kind FNUZ";
	case WS_DTYPE_F4:
		return "FP4 elements";
	case WS_DTYPE_F6_E2M3:
	case WS_DTYPE_F6_E3M2:
		return "FP6 elements";
	default:
		return by_neighbours(c, item);
	}
}

int ws_unpack_refuse(const struct ws_catalog *c, const struct ws_item *item, struct ws_err *err)
{
	const char *packing = by_name(c, item);
	if (!packing)
		packing = by_type(c, item);
	return packing ? refuse(item, packing, err) : 0;
}
