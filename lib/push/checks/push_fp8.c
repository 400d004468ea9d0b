/* SPDX-License-Identifier: Apache-2.0 */
/* push_fp8.c - refuses weights that a server would load wrongly: FP8 codes go to servers that keep
 * FP8, and 16-bit weights to the others. Weights of 4 bits are refused, see check_packed.
 *
 * Servers accept the wrong format, and report success. A server that keeps bf16 copies FP8 codes as
 * numbers, and drops the scales as unknown names. A server that keeps FP8 in blocks casts 16-bit
 * weights to codes, and multiplies them by the old scales. A server that made FP8 of a 16-bit
 * checkpoint (--quantization fp8), or has one scale for each tensor, has rearranged its weights
 * without their loaders. It raises in the middle of the transfer, or gets garbage if a shape fits.
 *
 * So the format of each server is detected first: from its own report, and from its config.json if
 * that can be read here; else from the parameters that it shows (push_probe_scales.c). */
#include "push_state.h"

#include <stdio.h>
#include <string.h>

enum server_quant {
	QUANT_UNKNOWN, /* not known */
	QUANT_DENSE,   /* weights that are not quantized */
	QUANT_BLOCKS,  /* codes, and a scale for each block */
	QUANT_TENSORS, /* codes, and a scale for each tensor */
	QUANT_OWN,     /* codes that it computed from a 16-bit checkpoint when it started */
	/* codes that it makes of the 16-bit weights that it receives (load format flash_rl) */
	QUANT_MAKING,
	QUANT_SOME_FP8, /* codes, with scales of an unknown kind */
	QUANT_SHOWN,    /* like BLOCKS: it showed the scales of a weight */
	QUANT_UNSHOWN,  /* like DENSE: it showed no scales */
	QUANT_OTHER     /* another quantization */
};

static bool is_fp8_name(const char *quantization)
{
	return strstr(quantization, "fp8") || strcmp(quantization, "compressed-tensors") == 0;
}

/* Decides by the name alone; returns `none` for "". */
static enum server_quant quant_by_name(const char *quantization, enum server_quant none)
{
	return !*quantization ? none : is_fp8_name(quantization) ? QUANT_SOME_FP8 : QUANT_OTHER;
}

static enum server_quant find_quant(const struct ws_endpoint_info *info,
                                    const struct ws_config *config)
{
	const struct ws_quant *q = config ? ws_config_quant(config) : NULL;
	const bool fp8 = is_fp8_name(info->quantization);
	if (fp8 && strcmp(info->load_format, "flash_rl") == 0)
		return QUANT_MAKING;
	if (!q || info->quant_override) /* "" means: as in the checkpoint */
		return quant_by_name(info->quantization, QUANT_UNKNOWN);
	if (strcmp(q->method, "fp8") == 0)
		return q->block[0] ? QUANT_BLOCKS : QUANT_TENSORS;
	if (!*q->method && fp8)
		return strcmp(info->quantization, "fp8") ? QUANT_SOME_FP8 : QUANT_OWN;
	return quant_by_name(*q->method ? q->method : info->quantization, QUANT_DENSE);
}

/* *out NULL: no config can be read here. A malformed config counts as missing, not as an error: the
 * operator did not name it. */
static void open_config(const struct ws_endpoint_info *info, struct ws_config **out)
{
	const char *dir = ws_name_check_model_dir(info);
	*out = NULL;
	if (dir && ws_config_open(dir, out, NULL))
		*out = NULL;
}

void push_find_server_config(struct ws_push *p)
{
	const struct ws_transform_opts *o = p->opts.transform;
	if (!o || o->quantize == WS_QUANTIZE_NONE || o->quant)
		return;
	for (size_t i = 0; p->to.known && !p->from.server_config && i < p->opts.n_endpoints; i++) {
		struct ws_config *config;
		open_config(&p->to.infos[i], &config);
		if (config && strcmp(ws_config_quant(config)->method, "fp8") == 0)
			p->from.server_config = config;
		else
			ws_config_free(config);
	}
}

/* ---- the plan -------------------------------------------------------------------------------- */

static bool ends_in(const char *text, size_t n, const char *end)
{
	const size_t k = strlen(end);
	return n >= k && memcmp(text + n - k, end, k) == 0;
}

/* A matrix that all FP8 servers keep in FP8, unless its config excludes the module. */
static bool is_projection(const struct ws_plan_tensor *t, const struct ws_quant *q)
{
	static const char leaf[] = ".weight";
	char module[1024];
	const size_t n = strlen(t->name), front = n - strlen(leaf);
	if (t->n_dims != 2 || !ends_in(t->name, n, leaf) || n >= sizeof module)
		return false;
	if (!ends_in(t->name, front, "_proj") && !ends_in(t->name, front, "_proj_with_mqa"))
		return false;
	memcpy(module, t->name, front);
	module[front] = 0;
	return !q || !ws_quant_skips(q, module);
}

static const struct ws_plan_tensor *find_codes(const struct ws_plan *plan)
{
	for (size_t i = 0; i < plan->n_tensors; i++)
		if (plan->tensors[i].dtype == WS_DTYPE_F8_E4M3)
			return &plan->tensors[i];
	return NULL;
}

/* Finds a weight packed in 4 bits, by bitsandbytes or by ModelOpt. */
static const struct ws_plan_tensor *find_packed(const struct ws_plan *plan, bool *nvfp4)
{
	for (size_t i = 0; i < plan->n_tensors; i++) {
		const struct ws_plan_tensor *t = &plan->tensors[i];
		*nvfp4 = ends_in(t->name, strlen(t->name), ".weight_scale_2");
		if (*nvfp4 || strstr(t->name, ".quant_state.bitsandbytes__"))
			return t;
	}
	return NULL;
}

static bool is_dense(enum ws_dtype dtype)
{
	return dtype == WS_DTYPE_BF16 || dtype == WS_DTYPE_F16 || dtype == WS_DTYPE_F32 ||
	       dtype == WS_DTYPE_F64;
}

/* For plans without codes. With codes, the check of names finds the weights that lack them. */
static const struct ws_plan_tensor *find_dense(const struct ws_plan *plan,
                                               const struct ws_config *config)
{
	const struct ws_quant *q = config ? ws_config_quant(config) : NULL;
	for (size_t i = 0; i < plan->n_tensors; i++) {
		const struct ws_plan_tensor *t = &plan->tensors[i];
		if (is_dense(t->dtype) && is_projection(t, q))
			return t;
	}
	return NULL;
}

static bool sends_blocks(const struct ws_plan *plan)
{
	for (size_t i = 0; i < plan->n_tensors; i++) {
		const char *name = plan->tensors[i].name;
		if (ends_in(name, strlen(name), ".weight_scale_inv"))
			return true;
	}
	return false;
}

/* ---- refusals -------------------------------------------------------------------------------- */

static int refuse_server(const struct ws_endpoint_info *info, const char *what, const char *hint,
                         struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED, "%s %s", info->url, what);
	ws_err_hint(err, "%s", hint);
	return ws_err_where(err, NULL, info->url);
}

static int refuse_codes(const struct ws_endpoint_info *info, const char *what, struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED,
	           "%s does not keep its weights in FP8 (%s): it would take the codes for numbers, "
	           "drop the scales, and report success",
	           info->url, what);
	ws_err_hint(err, "start it from an FP8 checkpoint, or send what it keeps");
	return ws_err_where(err, NULL, info->url);
}

/* The server can load neither 16-bit weights nor codes. */
static int refuse_anything(const struct ws_endpoint_info *info, enum server_quant quant,
                           struct ws_err *err)
{
	return refuse_server(
		info,
		quant == QUANT_OWN ?
			"made FP8 of its 16-bit checkpoint when it started (--quantization fp8): "
			"its weights lie "
			"transposed and without their loaders, and an update fails in the middle" :
			"keeps FP8 with one scale for each tensor, transposed and without their "
			"loaders: an update fails in the middle",
		"start it from a checkpoint of block FP8 and push with {quantize} fp8, or start it "
		"in 16 bits",
		err);
}

static int check_codes(const struct ws_push *p, const struct ws_endpoint_info *info,
                       enum server_quant quant, struct ws_err *err)
{
	char what[128];
	switch (quant) {
	case QUANT_DENSE:
		return refuse_codes(info, "its config.json has no quantization_config for it", err);
	case QUANT_UNSHOWN:
		return refuse_codes(info, "it shows norms, and no scales of its weights", err);
	case QUANT_OTHER:
		snprintf(what, sizeof what, "its quantization is %s",
		         *info->quantization ? info->quantization : "another by its config.json");
		return refuse_codes(info, what, err);
	case QUANT_OWN:
		return refuse_anything(info, quant, err);
	case QUANT_TENSORS: /* servers patched for it take the scales of whole tensors */
		return sends_blocks(p->from.plan) ? refuse_anything(info, quant, err) : 0;
	case QUANT_MAKING:
		return refuse_server(
			info,
			"makes FP8 of the 16-bit weights that it is sent (load format flash_rl), "
			"with scales of its own: it would take the codes and drop the scales",
			"push without {quantize}, from a 16-bit checkpoint", err);
	default:
		return 0;
	}
}

static int check_dense(const struct ws_push *p, const struct ws_endpoint_info *info,
                       enum server_quant quant, const char *name, struct ws_err *err)
{
	char what[512], says[64];
	if (quant == QUANT_OWN || quant == QUANT_TENSORS)
		return refuse_anything(info, quant, err);
	/* A name alone is a guess, which {verify} none overrides. */
	const bool guess = quant == QUANT_SOME_FP8 && strstr(info->quantization, "fp8");
	if (quant != QUANT_BLOCKS && quant != QUANT_SHOWN &&
	    !(guess && p->opts.verify != WS_VERIFY_NONE))
		return 0;
	snprintf(says, sizeof says,
	         guess                ? "it says %s" :
	         quant == QUANT_SHOWN ? "it shows them" :
	                                "by its config.json",
	         info->quantization);
	snprintf(what, sizeof what,
	         "keeps its weights in FP8 with scales (%s), and %.200s is sent in 16 bits: it "
	         "would cast it, keep the old scales, and report success",
	         says, name);
	return refuse_server(info, what,
	                     guess ? "add {quantize} fp8; {verify} none sends it as it is" :
	                             "add {quantize} fp8",
	                     err);
}

/* Servers pack weights of 4 bits at startup or load them packed, and keep them in an order of their
 * own. A server of unknown or other quantization may get nvfp4; bitsandbytes only with {verify}
 * none. */
static int check_packed(const struct ws_push *p, const struct ws_endpoint_info *info,
                        enum server_quant quant, const char *name, bool nvfp4, struct ws_err *err)
{
	char what[512];
	const bool guess = quant == QUANT_UNKNOWN || quant == QUANT_OTHER;
	if (guess && (nvfp4 || p->opts.verify == WS_VERIFY_NONE))
		return 0;
	snprintf(what, sizeof what,
	         "is not known to take weights packed in 4 bits, as %.200s is sent: it would "
	         "refuse them in the middle, or copy the codes as numbers",
	         name);
	return refuse_server(
		info, what,
		guess ? "{unpack} sends them in 16 bits; {verify} none sends them as they are" :
			"{unpack} sends them in 16 bits, {quantize} fp8 for a server in FP8",
		err);
}

static int check_scale_format(const struct ws_endpoint_info *info, const struct ws_config *config,
                              struct ws_err *err)
{
	if (config && strcmp(ws_config_quant(config)->scale_fmt, "ue8m0") == 0)
		return 0;
	ws_err_set(err, WS_EREFUSED,
	           "%s is not known to want scales that are powers of two: its config.json %s",
	           info->url, config ? "has no \"scale_fmt\": \"ue8m0\"" : "cannot be read here");
	return ws_err_where(err, NULL, info->url);
}

static void warn_of_scales(struct ws_push *p, const struct ws_endpoint_info *info,
                           const struct ws_config *config)
{
	const struct ws_transform_opts *o = p->opts.transform;
	if (o && o->quantize == WS_QUANTIZE_FP8 && !o->ue8m0 && !o->packed_scales &&
	    config && strcmp(ws_config_quant(config)->scale_fmt, "ue8m0") == 0)
		push_warn(p, info->url,
		          "its config.json says \"scale_fmt\": \"ue8m0\": it expects scales that "
		          "are powers of two, which {ue8m0} makes");
}

/* A server logs an error if a requested parameter is missing. So 16-bit weights are pushed without
 * this request, unless the model's name contains fp8. */
static bool is_worth_asking(const struct ws_push *p, const struct ws_endpoint_info *info)
{
	if (find_codes(p->from.plan))
		return sends_blocks(p->from.plan);
	return strcasestr(info->model_path, "fp8") || strcasestr(info->served_model, "fp8");
}

static int ask_for_scales(struct ws_push *p, const struct ws_endpoint_info *info,
                          enum server_quant *quant, struct ws_err *err)
{
	enum push_probed shown;
	if (*quant != QUANT_UNKNOWN || info->keeps_anything || p->opts.verify == WS_VERIFY_NONE ||
	    !is_worth_asking(p, info))
		return 0;
	if (push_probe_scales(p, info, &shown, err))
		return -1;
	*quant = shown == PROBED_SCALES    ? QUANT_SHOWN :
	         shown == PROBED_NO_SCALES ? QUANT_UNSHOWN :
	                                     *quant;
	return 0;
}

static int check_one(struct ws_push *p, const struct ws_endpoint_info *info,
                     const struct ws_config *config, struct ws_err *err)
{
	const struct ws_transform_opts *o = p->opts.transform;
	enum server_quant quant = find_quant(info, config);
	if (o && o->quantize != WS_QUANTIZE_NONE && o->ue8m0 &&
	    check_scale_format(info, config, err))
		return -1;
	warn_of_scales(p, info, config);
	bool nvfp4;
	const struct ws_plan_tensor *packed = find_packed(p->from.plan, &nvfp4);
	if (packed && check_packed(p, info, quant, packed->name, nvfp4, err))
		return -1;
	if (ask_for_scales(p, info, &quant, err))
		return -1;
	if (find_codes(p->from.plan))
		return check_codes(p, info, quant, err);
	const struct ws_plan_tensor *dense = find_dense(p->from.plan, config);
	return dense ? check_dense(p, info, quant, dense->name, err) : 0;
}

int push_check_fp8(struct ws_push *p, struct ws_err *err)
{
	int rc = 0;
	for (size_t i = 0; p->to.known && i < p->opts.n_endpoints && rc == 0; i++) {
		struct ws_config *config;
		open_config(&p->to.infos[i], &config);
		rc = check_one(p, &p->to.infos[i], config, err);
		ws_config_free(config);
	}
	return rc;
}
