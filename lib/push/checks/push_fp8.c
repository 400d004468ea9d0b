/* SPDX-License-Identifier: Apache-2.0 */
/* push_fp8.c - refuses weights that a server would load wrongly, by the table of formats.h, before
 * the pause.
 *
 * The format of each server is detected first: from its own report, and from its config.json if
 * that can be read here or is named with {config}; else from the parameters that it shows
 * (push_probe_scales.c). Then each matrix must be sent as the server keeps it: its release decides
 * how modules_to_not_convert is matched. */
#include "push_protocol.h"
#include "push_state.h"
#include "transform_core.h"
#include "vllm_workers.h"
#include "wsync/tool/formats.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <string.h>

/* ---- servers --------------------------------------------------------------------------------- */

static bool is_vllm(const struct ws_endpoint_info *info)
{
	return ws_lineage_family(info->lineage) == WS_FAMILY_VLLM;
}

void push_find_server_config(struct ws_push *p)
{
	const struct ws_transform_opts *o = p->opts.transform;
	if (o && p->to.known && !p->from.server_config)
		p->from.server_config =
			ws_name_check_quant(p->to.infos, p->opts.n_endpoints, o);
}

/* ---- the plan -------------------------------------------------------------------------------- */

struct sent {
	enum ws_sends format;
	const char *name; /* of a tensor that shows it */
};

static bool is_matrix(const struct ws_plan_tensor *t, char *module)
{
	return ws_format_is_matrix(t->name, t->n_dims, module, PUSH_MODULE);
}

/* The format that says most of the source: that of its codes, else 16 bits. */
static struct sent main_format(const struct push_sends *s)
{
	for (int format = WS_N_SENDS - 1; format > WS_SENDS_OTHER; format--)
		if (s->name[format])
			return (struct sent){ (enum ws_sends)format, s->name[format] };
	return (struct sent){ WS_SENDS_OTHER, s->name[WS_SENDS_OTHER] };
}

/* ---- refusals -------------------------------------------------------------------------------- */

struct server {
	size_t i;
	const struct ws_endpoint_info *info;
	const struct ws_config *config; /* its own, or that of {config}; NULL */
	struct push_sends *sends;
	enum ws_keeps keeps;
	const char *by;
};

static int refuse(const struct server *s, const char *name, const char *why, const char *remedy,
                  bool unknown, struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED, "%s %s; %.200s would be sent", s->info->url, why, name);
	ws_err_hint(err, unknown ? "%s; {allow_unknown} format sends it nevertheless" : "%s",
	            remedy);
	return ws_err_where(err, NULL, s->info->url);
}

static bool allows(const struct ws_push *p)
{
	return (p->opts.allow_unknown & WS_UNKNOWN_FORMAT) != 0;
}

static const char *find_word(const struct ws_endpoint_info *info)
{
	const char *word = ws_format_in_name(info->model_path);
	return word ? word : ws_format_in_name(info->served_model);
}

/* A name is the last that can warn of a server that tells nothing. */
static int check_names_of(struct ws_push *p, const struct server *s, const struct sent *sent,
                          struct ws_err *err)
{
	char why[256];
	const char *word = find_word(s->info);
	if (s->keeps != WS_KEEPS_UNTOLD || sent->format != WS_SENDS_DENSE || !word || allows(p))
		return 0;
	snprintf(why, sizeof why,
	         "does not tell the format of its weights, and its model's name has \"%s\"", word);
	return refuse(s, sent->name, why, "name its checkpoint's config.json with {config}", true,
	              err);
}

/* Of several formats the one that fits worst is kept. */
static void note(struct ws_push *p, const struct server *s, enum ws_sends sends, enum ws_fits fits)
{
	const struct push_format *was = &p->to.endpoints[s->i].format;
	if (was->verdict && was->fits > (unsigned)fits)
		return;
	p->to.endpoints[s->i].format = (struct push_format){
		.fits = fits,
		.keeps = ws_keeps_word(s->keeps), .sends = ws_sends_word(sends), .by = s->by,
		.verdict = fits == WS_FITS_RIGHT                ? "right" :
		           fits == WS_FITS_ASSUMED              ? "assumed" :
		           fits == WS_FITS_UNKNOWN && allows(p) ? "allowed" :
		                                                  "refused",
	};
}

static int check_format(struct ws_push *p, const struct server *s, const struct sent *sent,
                        struct ws_err *err)
{
	const char *why, *remedy;
	char what[512];
	enum ws_fits fits = ws_format_fits(is_vllm(s->info), s->keeps, sent->format, &why, &remedy);
	/* one parameter that it shows says nothing of the others */
	if (fits == WS_FITS_RIGHT && sent->format != WS_SENDS_OTHER && strcmp(s->by, "names") == 0)
		fits = WS_FITS_ASSUMED;
	note(p, s, sent->format, fits);
	if (fits <= WS_FITS_ASSUMED)
		return check_names_of(p, s, sent, err);
	if (fits == WS_FITS_UNKNOWN && allows(p))
		return 0;
	if (strcmp(s->by, "told") == 0 && *s->info->quantization)
		snprintf(what, sizeof what, "%s (it says %s)", why, s->info->quantization);
	else
		snprintf(what, sizeof what, "%s (%s)", why,
		         strcmp(s->by, "config") == 0 ? "by its config.json" :
		         strcmp(s->by, "names") == 0  ? "by the parameters that it shows" :
		         strcmp(s->by, "option") == 0 ? "by {config}" :
		         strcmp(s->by, "release") == 0 ? "as tried with vLLM 0.32.0" :
		                                        "it says nothing");
	return refuse(s, sent->name, what, remedy, fits == WS_FITS_UNKNOWN, err);
}

/* ---- what a server packed when it started ---------------------------------------------------- */

static bool sends(const struct ws_push *p, const char *end)
{
	for (size_t i = 0; i < p->from.plan->n_tensors; i++)
		if (ws_ends_with(p->from.plan->tensors[i].name, end))
			return true;
	return false;
}

static const char *type_of(const struct ws_config *c)
{
	const char *text = ws_config_text_model_type(c);
	return *text ? text : ws_config_model_type(c);
}

static int packs_again(struct ws_push *p, const struct ws_endpoint_info *info, bool *out,
                       struct ws_err *err)
{
	const char *url = info->url;
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.connect_ns));
	const struct ws_call to = { p->http, &url, 1, until, p->opts.cancel, &info };
	*out = false;
	return info->gloo_worker && info->can.reload ? ws_vllm_packs(&to, out, err) : 0;
}

/* Refuses tensors that a vLLM confirms and does not compute with. */
static int check_copies(struct ws_push *p, const struct server *s, struct ws_err *err)
{
	const bool gpt_oss = sends(p, ".self_attn.sinks") || sends(p, ".experts.gate_up_proj_bias");
	const struct ws_format_model model = {
		.device = s->info->device, .dense = s->keeps == WS_KEEPS_DENSE,
		.type = gpt_oss ? "gpt_oss" : s->config ? type_of(s->config) : "",
		.tied = s->config && ws_config_knows(s->config, "tie_word_embeddings") ?
		                ws_config_tied(s->config) :
		                !sends(p, "lm_head.weight"),
	};
	bool packs = false, asked = false;
	struct server as = *s;
	as.by = "release";
	for (size_t i = 0; is_vllm(s->info) && i < p->from.plan->n_tensors; i++) {
		const struct ws_plan_tensor *t = &p->from.plan->tensors[i];
		as.keeps = ws_format_copy(&model, t->name, t->n_dims);
		if (as.keeps == WS_N_KEEPS)
			continue;
		if (as.keeps != WS_KEEPS_PAST_LOADER && !asked &&
		    packs_again(p, s->info, &packs, err))
			return -1;
		asked = true;
		if (as.keeps == WS_KEEPS_PAST_LOADER || !packs)
			return check_format(p, &as, &(struct sent){ WS_SENDS_DENSE, t->name }, err);
	}
	return 0;
}

/* ---- which modules --------------------------------------------------------------------------- */

static const char own_tensors[] =
	"push a checkpoint that has the matrices of each expert in tensors of their own";

static bool quantizes(const struct ws_push *p)
{
	return p->opts.transform && p->opts.transform->quantize != WS_QUANTIZE_NONE;
}

/* Is this matrix in 16 bits, though the user's list does not have it? */
static bool was_left(const struct ws_push *p, const struct ws_plan_tensor *t, const char *module)
{
	return ws_format_is_dense(t->dtype) &&
	       !(quantizes(p) && ws_select_is_skipped(p->opts.transform, module));
}

/* The quantization of the server; else that of an FP8 source, which knows its exceptions. */
static const struct ws_quant *find_quant(const struct ws_push *p, const struct server *s)
{
	const struct ws_config *source = quantizes(p) ? NULL : p->from.input.config;
	const struct ws_config *c = s->config ? s->config : source;
	return c && *ws_config_quant(c)->method ? ws_config_quant(c) : NULL;
}

static int check_module(const struct ws_push *p, const struct server *s,
                        const struct ws_plan_tensor *t, const char *module, struct ws_err *err)
{
	const struct ws_quant *q = find_quant(p, s);
	const bool codes = t->dtype == WS_DTYPE_F8_E4M3, left = was_left(p, t, module);
	if (!codes && (!left || (!q && !quantizes(p))))
		return 0;
	if (codes && q && s->config &&
	    !push_scales_fit(s->sends, t, q->block, p->from.input.packed_scales))
		return refuse(s, t->name, "expects blocks of its weight_block_size, and the "
		              "scales are of other blocks",
		              "{quantize} fp8 makes blocks of its size from 16 bits", false, err);
	if (q && !ws_quant_agrees(q, module))
		return allows(p) ? 0 : refuse(s, t->name, "does not tell how its release matches "
		                              "modules_to_not_convert, which decides whether a "
		                              "module is FP8",
		                              "write whole names of modules into the list", true,
		                              err);
	const bool skips = q && ws_quant_skips(q, module);
	if (codes && skips)
		return refuse(s, t->name,
		              "keeps this module in 16 bits, by its list of modules, and FP8 codes "
		              "are sent", "push to it alone, with {quantize} fp8", false, err);
	if (left && !skips && !ws_format_is_expert(t->name, t->n_dims) &&
	    !ws_select_is_known(module))
		return allows(p) ? 0 : refuse(s, t->name, "does not say that it keeps this module "
		                              "in 16 bits", quantizes(p) ?
		                              "{skip_modules} says which it keeps so" :
		                              "push a checkpoint that has it in FP8", true, err);
	return left && !skips ?
	               refuse(s, t->name, "keeps this module in FP8, and 16 bits are sent",
	                      ws_format_is_expert(t->name, t->n_dims) ? own_tensors :
	                                                                "push to it alone",
	                      false, err) :
	               0;
}

/* Names are looked up in the list of a server; a list may be made so that this costs much. */
static int check_work(const struct ws_push *p, const struct ws_quant *q, struct ws_err *err)
{
	if (!q || !ws_quant_gave_up(q))
		return 0;
	return ws_err_set(err, WS_EINPUT, "config.json: %zu modules that are not quantized are too "
	                  "many for %zu tensors", q->n_skip, p->from.plan->n_tensors);
}

/* The table decides for all weights together; modules may differ. */
static int check_modules(const struct ws_push *p, const struct server *s, struct ws_err *err)
{
	char module[PUSH_MODULE];
	const struct ws_quant *q = find_quant(p, s);
	int rc = 0;
	for (size_t i = 0; !rc && i < p->from.plan->n_tensors; i++) {
		const struct ws_plan_tensor *t = &p->from.plan->tensors[i];
		rc = is_matrix(t, module) ? check_module(p, s, t, module, err) : 0;
	}
	return check_work(p, q, err) || rc ? -1 : 0;
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

/* A model's name does not say that it is FP8 (DeepSeek-V3), so every server is asked that does not
 * tell. Reading released memory may crash it. */
static int ask_for_scales(struct ws_push *p, struct server *s, struct ws_err *err)
{
	enum push_probed shown;
	const enum ws_sends sends = main_format(s->sends).format;
	if (s->keeps != WS_KEEPS_UNTOLD ||
	    (sends != WS_SENDS_DENSE && sends != WS_SENDS_FP8_BLOCKS) ||
	    p->to.endpoints[s->i].asleep & WS_MEMORY_WEIGHTS)
		return 0;
	if (push_probe_scales(p, s->info, &shown, err))
		return -1;
	if (shown == PROBED_NOTHING)
		return 0;
	s->keeps = shown == PROBED_SCALES ? WS_KEEPS_FP8_BLOCKS : WS_KEEPS_DENSE;
	s->by = "names";
	return 0;
}

static void find_keeps(struct server *s, bool own)
{
	const struct ws_format_server told = {
		.vllm = is_vllm(s->info), .quantization = s->info->quantization,
		.told = s->info->quant_told,
		.load_format = s->info->load_format, .override = s->info->quant_override,
		.quant = s->config ? ws_config_quant(s->config) : NULL,
	};
	s->keeps = ws_format_kept(&told);
	s->by = !s->config || s->info->quant_override ? "told" : own ? "config" : "option";
}

/* Servers keep some float32 tensors in float32, such as a router, so that of these the first matrix
 * decides. NULL: none is sent as it is. */
static bool is_cast(const struct ws_plan_tensor *t, enum ws_dtype keeps, const char *matrix)
{
	if (!ws_format_is_dense(t->dtype) || t->dtype == keeps)
		return false;
	return t->dtype == WS_DTYPE_BF16 || t->dtype == WS_DTYPE_F16 ||
	       (matrix && strcmp(t->name, matrix) == 0);
}

/* Servers cast floats to their own type when they load them. Of several types that of the largest
 * numbers is named. */
static void warn_of_cast(struct ws_push *p, const struct ws_endpoint_info *info,
                         const struct push_endpoint *e, const char *matrix)
{
	enum ws_dtype sent = e->type;
	for (size_t i = 0; i < p->from.plan->n_tensors; i++) {
		const struct ws_plan_tensor *t = &p->from.plan->tensors[i];
		if (is_cast(t, e->type, matrix) && (sent == e->type || t->dtype == WS_DTYPE_BF16))
			sent = t->dtype;
	}
	if (sent != e->type)
		push_warn(p, info->url, "%s is sent, and it keeps %s: it casts the weights%s",
		          ws_dtype_torch(sent), ws_dtype_torch(e->type),
		          sent == WS_DTYPE_F32 || sent == WS_DTYPE_F64 ?
		                  ", and twice the bytes or more are sent" :
		          e->type == WS_DTYPE_F16 ? ", and those above 65504 become infinite" :
		                                    ", which have fewer digits then");
}

/* All formats of codes must fit; 16 bits beside them are judged module by module. */
static int check_formats(struct ws_push *p, const struct server *s, struct ws_err *err)
{
	const struct sent main = main_format(s->sends);
	p->to.endpoints[s->i].format = (struct push_format){ 0 };
	if (main.format <= WS_SENDS_DENSE)
		return check_format(p, s, &main, err);
	for (int f = WS_SENDS_DENSE + 1; f < WS_N_SENDS; f++) {
		const struct sent sent = { (enum ws_sends)f, s->sends->name[f] };
		if (sent.name && check_format(p, s, &sent, err))
			return -1;
	}
	return 0;
}

static int check_one(struct ws_push *p, size_t i, const struct ws_config *config, bool own,
                     struct push_sends *sends, struct ws_err *err)
{
	struct server s = { .i = i, .info = &p->to.infos[i], .config = config, .sends = sends };
	const struct ws_transform_opts *o = p->opts.transform;
	if (o && o->quantize != WS_QUANTIZE_NONE && o->ue8m0 &&
	    check_scale_format(s.info, own ? config : NULL, err))
		return -1;
	warn_of_scales(p, s.info, own ? config : NULL);
	struct push_endpoint *e = &p->to.endpoints[i];
	e->type = ws_name_check_dtype(s.info, own ? config : NULL);
	e->has_type = ws_format_is_dense(e->type);
	find_keeps(&s, own);
	push_sends_find(sends, config ? ws_config_quant(config) : NULL);
	if (check_work(p, config ? ws_config_quant(config) : NULL, err))
		return -1;
	if (s.info->keeps_anything && !*s.info->quantization && !own && !find_word(s.info)) {
		p->to.endpoints[i].format =
			(struct push_format){ "anything", "any", "right", "told", WS_FITS_RIGHT };
		return 0;
	}
	if (ask_for_scales(p, &s, err))
		return -1;
	const struct sent sent = main_format(sends);
	if (check_formats(p, &s, err) || check_copies(p, &s, err))
		return -1;
	if (e->has_type && e->type != WS_DTYPE_F32)
		warn_of_cast(p, s.info, e, sent.format == WS_SENDS_DENSE ? sent.name : NULL);
	const bool blocks = s.keeps == WS_KEEPS_FP8_BLOCKS || s.keeps == WS_KEEPS_FP8;
	return blocks && sent.format == WS_SENDS_FP8_BLOCKS ? check_modules(p, &s, err) : 0;
}

int push_check_fp8(struct ws_push *p, struct ws_err *err)
{
	struct push_sends sends;
	int rc = push_sends_open(p->from.plan, &sends, err);
	for (size_t i = 0; p->to.known && i < p->opts.n_endpoints && rc == 0; i++) {
		struct ws_config *config = ws_name_check_config(&p->to.infos[i]);
		const bool own = config != NULL;
		if (!own && p->opts.config && ws_config_open(p->opts.config, &config, NULL))
			config = NULL;
		if (config)
			ws_config_set_rules(config, ws_quant_rules(is_vllm(&p->to.infos[i]),
			                                           p->to.infos[i].version));
		push_note_draft(p, i);
		push_note_adapters(p, i);
		rc = check_one(p, i, config, own, &sends, err);
		ws_config_free(config);
	}
	push_sends_close(&sends);
	return rc;
}

const char *push_format_note(const struct ws_push *p)
{
	const char *note = NULL;
	for (size_t i = 0; p->to.known && i < p->opts.n_endpoints; i++) {
		const struct push_format *f = &p->to.endpoints[i].format;
		if (f->verdict && strcmp(f->verdict, "allowed") == 0 &&
		    strcmp(f->by, "release") == 0)
			return "a part of the server's weights stays old, allowed by "
			       "{allow_unknown}";
		if (f->verdict && strcmp(f->verdict, "allowed") == 0)
			return "format not known, allowed by {allow_unknown}";
		if (f->verdict && strcmp(f->verdict, "assumed") == 0)
			note = strcmp(f->by, "names") == 0 ?
			               "format assumed by one parameter that the server shows" :
			       strcmp(f->keeps, "untold") ?
			               "kind of FP8 scales not told by the server, assumed" :
			               "format not told by the server, 16 bits assumed";
	}
	return note;
}
