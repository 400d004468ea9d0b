/* SPDX-License-Identifier: Apache-2.0 */
/* select.c - which tensors become FP8: matrices X.weight that the server keeps as FP8.
 *
 * FP8 checkpoints list the exceptions (modules_to_not_convert: the head, routers, norms); then the
 * list decides, as in xorl. But published lists lack embeddings, and lists written by hand
 * ("lm_head") even lack routers. No server keeps these in FP8, whatever its list says, so they are
 * never quantized. The user's skip list only adds exceptions. */
#include "transform_core.h"

#include "wsync/tool/str.h"
#include "wsync/tool/config.h"
#include "wsync/tool/formats.h"

#include <string.h>

enum { MOST_OF_A_NAME = 1024 };

/* xorl's rule for servers without a list, the experts of Mixtral's form, and DeepSeek V3.2's
 * indexer. */
bool ws_select_is_known(const char *module)
{
	static const char *const linear[] = { ".in_proj_qkv", ".in_proj_z", ".in_proj_b",
		                              ".in_proj_a" };
	if (ws_format_is_whole(module))
		return false;
	if (ws_ends_with(module, ".indexer.wq_b") || ws_ends_with(module, ".indexer.wk"))
		return true;
	if (ws_ends_with(module, "_proj") || ws_ends_with(module, "_proj_with_mqa"))
		return true;
	if (strstr(module, ".experts.") && (ws_ends_with(module, ".w1") ||
	                                    ws_ends_with(module, ".w2") ||
	                                    ws_ends_with(module, ".w3")))
		return true;
	for (size_t i = 0; strstr(module, ".linear_attn.") && i < sizeof linear / sizeof *linear;
	     i++)
		if (ws_ends_with(module, linear[i]))
			return true;
	return false;
}

bool ws_select_is_skipped(const struct ws_transform_opts *o, const char *module)
{
	const struct ws_quant skip = { .method = "", .skip = o->skip, .n_skip = o->n_skip };
	for (size_t i = 0; i < o->n_skip; i++)
		if (ws_glob_match(o->skip[i], module))
			return true;
	return ws_quant_skips(&skip, module);
}

bool ws_select_fp8(const struct ws_transform_opts *o, const char *name, unsigned n_dims)
{
	static const char leaf[] = ".weight";
	char module[MOST_OF_A_NAME];
	const size_t n = strlen(name);
	if (o->quantize == WS_QUANTIZE_NONE || n_dims != 2 || !ws_ends_with(name, leaf) ||
	    n >= sizeof module)
		return false;
	memcpy(module, name, n + 1);
	module[n - strlen(leaf)] = 0;
	if (ws_format_is_whole(module) || ws_select_is_skipped(o, module))
		return false;
	return o->quant && o->quant->n_skip ? !ws_quant_skips(o->quant, module) :
	                                      ws_select_is_known(module);
}
