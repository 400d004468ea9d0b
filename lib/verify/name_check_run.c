/* SPDX-License-Identifier: Apache-2.0 */
/* name_check_run.c - chooses the layout and the listing to compare an input with, and compares. */
#include "name_check_server.h"

#include "wsync/tool/str.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- layout ---- */

/* Prefers the server's own config, unless the user named one: every source fits the config beside
 * it. */
static const struct ws_config *config_of(const struct ws_input *in,
                                         const struct ws_name_check_target *t)
{
	const struct ws_family *theirs =
		t->config && !in->named ? ws_namemap_find(in->map, t->config) : NULL;
	if (theirs && ws_family_has_params(theirs))
		return t->config;
	return in->config && !(in->fallback && t->config) ? in->config : t->config;
}

/* With the source's config, the server's family may still differ: it may have the same parameters
 * (mistral and llama), or the source does not fit it. */
static const struct ws_family *family_of(const struct ws_input *in,
                                         const struct ws_name_check_target *t)
{
	const struct ws_config *config = config_of(in, t);
	if (config != in->config)
		return ws_namemap_find(in->map, config);
	if (!ws_input_known(in))
		return NULL;
	const struct ws_family *other = name_check_other_family(in, t);
	return other ? other : in->family;
}

static bool has_segment(const char *name, const char *segment)
{
	const size_t n = strlen(segment);
	for (const char *at = name; (at = strstr(at, segment)); at += n)
		if ((at == name || at[-1] == '.') && (at[n] == '.' || !at[n]))
			return true;
	return false;
}

/* Some servers keep shared experts as further routed experts; only their listing shows it. */
static bool fuses_shared(const struct ws_name_check_target *t)
{
	bool experts = false;
	for (size_t i = 0; i < t->listing.n; i++) {
		const char *name = t->listing.items[i].name;
		if (has_segment(name, "shared_experts") || has_segment(name, "shared_expert"))
			return false;
		experts = experts || has_segment(name, "experts");
	}
	return experts;
}

void ws_name_check_unknown(const struct ws_config *config, char *why, size_t n)
{
	if (!config)
		snprintf(why, n, "there is no config.json");
	else
		snprintf(why, n, "no family is known for %s '%.100s' of %.200s",
		         *ws_config_architecture(config) ? "architecture" : "model_type",
		         *ws_config_architecture(config) ? ws_config_architecture(config) :
		                                           ws_config_model_type(config),
		         ws_config_path(config));
}

/* The source's config lacks keys of the server's family: reports that the models differ. */
static int refuse_family(const struct ws_input *in, const struct ws_name_check_target *t,
                         const struct ws_err *why, struct ws_err *err)
{
	char differs[640];
	if (!name_check_model_differs(in, t, differs, sizeof differs))
		return -1;
	ws_err_set(err, WS_EMISMATCH, "%s: %s: %s", t->url, differs, why->msg);
	ws_err_hint(err, "{config} DIR names the server's config.json");
	return ws_err_where(err, NULL, t->url);
}

static int refuse_list(const struct ws_config *config, const struct ws_quant *quant,
                       struct ws_layout **out, struct ws_err *err)
{
	ws_layout_free(*out);
	*out = NULL;
	return ws_err_set(err, WS_EINPUT, "%s: its %zu modules that are not quantized take too "
	                  "long to compare", ws_config_path(config), quant->n_skip);
}

int ws_name_check_layout(const struct ws_input *input, const struct ws_name_check_target *t,
                         struct ws_layout **out, char *why, size_t n, struct ws_err *err)
{
	const struct ws_config *config = config_of(input, t);
	const struct ws_family *family = family_of(input, t);
	const struct ws_layout_opts opts = {
		.tp = t->tp ? t->tp : 1,
		.ep = t->ep ? t->ep : 1,
		.attention_tp = t->attention_tp,
		.fuse_shared = fuses_shared(t),
		.packed_scales = input->packed_scales,
	};
	*out = NULL;
	if (input->why.code && config == input->config) {
		if (why)
			snprintf(why, n, "%s", input->why.msg);
		return 0;
	}
	if (config && family && ws_family_has_params(family)) {
		struct ws_err e = WS_ERR_INIT;
		const struct ws_quant *quant = ws_config_quant(config);
		ws_quant_restart(quant);
		const int rc = ws_layout_make(family, config, &opts, out, &e);
		if (quant && ws_quant_gave_up(quant))
			return refuse_list(config, quant, out, err);
		if (rc == 0)
			return 0;
		/* The user did not name the server's config: an incomplete one is ignored. */
		if (config == t->config && e.code == WS_EINPUT) {
			if (why)
				snprintf(why, n, "%s", e.msg);
			return 0;
		}
		if (err)
			*err = e;
		return e.code == WS_EINPUT && family != input->family ?
		               refuse_family(input, t, &e, err) :
		               -1;
	}
	if (why)
		ws_name_check_unknown(config, why, n);
	return 0;
}

/* ---- the run ---- */

static void append(struct ws_name_check_run *a, const char *text)
{
	const size_t used = strlen(a->against);
	snprintf(a->against + used, sizeof a->against - used, "%s%s", used ? " and " : "", text);
}

static void say_against(struct ws_name_check_run *a, const struct ws_input *input,
                        const struct ws_name_check_target *t, bool listed)
{
	char text[1024], sizes[64] = "";
	if (a->layout) {
		const struct ws_layout_opts *l = ws_layout_options(a->layout);
		int used = l->ep > 1 ? snprintf(sizes, sizeof sizes, ", ep %u", l->ep) : 0;
		if (t->attention_tp && t->attention_tp != l->tp)
			snprintf(sizes + used, sizeof sizes - (size_t)used, ", attention tp %u",
			         t->attention_tp);
		snprintf(text, sizeof text, "%s at tp %u%s by %.512s", a->family, l->tp, sizes,
		         ws_config_path(config_of(input, t)));
		append(a, text);
	}
	if (listed) {
		if (*t->listed)
			snprintf(text, sizeof text, "%zu names of %.600s", t->listing.n, t->listed);
		else
			snprintf(text, sizeof text, "what %.600s listed before", t->url);
		append(a, text);
	}
}

/* True if the listing can be used, else *why. A server without a model lists received tensors
 * only. */
static bool is_listed(const struct ws_name_check_target *t, const char **why)
{
	if (!*t->listed)
		*why = t->unlisted;
	else if (t->listing.received)
		*why = "the endpoint lists only what it received";
	else if (t->listing.n == 0)
		*why = "the endpoint lists nothing";
	else
		return true;
	return false;
}

/* Has an endpoint without a model received all of these tensors before, in their shapes? It takes
 * any name, so this confirms only names that fit the rules. */
static bool is_received(const struct ws_name_check_run *a)
{
	return a->layout && a->found.received && a->found.received == a->found.sent;
}

/* False if only the source's own config was used: every source fits it. */
static bool is_confirmed(const struct ws_name_check_run_opts *o,
                         const struct ws_name_check_target *t, bool listed)
{
	return !*t->url || listed || o->input->named || config_of(o->input, t) == t->config;
}

/* Parts beside the text model. */
static bool has_parts(const struct ws_config *c)
{
	static const char *const others[] = { "vision_config", "audio_config",
		                              "vision_tower_config" };
	bool parts = false;
	for (size_t i = 0; c && i < sizeof others / sizeof others[0]; i++)
		parts |= ws_config_knows(c, others[i]);
	return parts;
}

/* The rules of a text model, found by model_type or in text_config, are not those of a model that
 * is more than it, or has another head. why: the model's own are not known; "": they are. */
static void find_other_model(const struct ws_name_check_run_opts *o,
                             const struct ws_name_check_target *t, char *why, size_t n)
{
	const struct ws_namemap *map = o->input->map;
	const struct ws_config *c = config_of(o->input, t);
	const char *own = c ? ws_config_architecture(c) : "",
		   *type = c ? ws_config_model_type(c) : "", *word = *own ? own : type;
	const bool parts = has_parts(c);
	if (*t->architecture && strcmp(t->architecture, own) &&
	    !ws_namemap_covers(map, t->architecture, t->model_type))
		snprintf(why, n, "no rules are known for architecture '%.100s', which the server "
		         "runs", t->architecture);
	else if (!c || (!*own && !parts && !*type) ||
	         ((*own || !parts) && ws_namemap_covers(map, own, type)))
		*why = '\0';
	else if (parts)
		snprintf(why, n, "%.100s of %.200s is a model with several parts, whose names at "
		         "servers are not known", *word ? word : "text_config", ws_config_path(c));
	else
		snprintf(why, n, "no rules are known for %s '%.100s' of %.200s",
		         *own ? "architecture" : "model_type", word, ws_config_path(c));
}

/* A model of text and images, say, has other names for its text model at servers than in
 * checkpoints, in ways that only a family's rules can tell: the names are not compared. */
static bool is_composed(const struct ws_name_check_run_opts *o,
                        const struct ws_name_check_target *t)
{
	static const char *const words[] = { "visual", "vision", "language_model", "audio" };
	if (!has_parts(config_of(o->input, t)))
		return false;
	for (size_t i = 0; i < ws_catalog_count(o->input->catalog); i++)
		for (size_t k = 0; k < sizeof words / sizeof words[0]; k++)
			if (strstr(ws_catalog_item(o->input->catalog, i)->name, words[k]))
				return true;
	return false;
}

/* Nothing is compared, but what is left out is counted. */
static int skip_composed(const struct ws_namecheck_opts *check, const char *why,
                         struct ws_name_check_run *out)
{
	snprintf(out->why, sizeof out->why, "%s", why);
	ws_layout_free(out->layout);
	out->layout = NULL;
	ws_namecheck_left_out(check, &out->found);
	ws_tied_find(check, &out->found);
	return 0;
}

static const char servers_config[] = "{config} DIR names the server's config.json";

/* Fills at most two facts. model has n bytes for the text of one of them. */
static size_t find_facts(const struct ws_name_check_run_opts *o,
                         const struct ws_name_check_target *t, const struct ws_family *family,
                         char *model, size_t n, struct ws_server_fact *facts)
{
	size_t found = 0;
	if (config_of(o->input, t) != o->input->config)
		return 0;
	if (*t->differs)
		facts[found++] = (struct ws_server_fact){ WS_ERROR, t->differs_key, t->differs,
			                                  servers_config };
	if (!name_check_model_differs(o->input, t, model, n))
		return found;
	const size_t used = strlen(model);
	if (family)
		snprintf(model + used, n - used, ": names are compared with %s",
		         ws_family_name(family));
	facts[found++] = (struct ws_server_fact){ WS_WARN, "model_type", model, servers_config };
	return found;
}

/* The names of this family are not known, but those of its norms, by which it was measured. */
static int refuse_sizes(const struct ws_name_check_target *t, struct ws_err *err)
{
	ws_err_set(err, WS_EMISMATCH, "%s: %s", t->url, t->differs);
	ws_err_hint(err, "%s", servers_config);
	return ws_err_where(err, NULL, t->url);
}

/* Errors by the rules of another model are still errors; no errors by them are no proof. */
static void judge(const struct ws_name_check_run_opts *o, const struct ws_name_check_target *t,
                  bool listed, const char *foreign, struct ws_name_check_run *out)
{
	const bool ruled = out->layout && !*foreign;
	out->by_list = listed || t->listed_before || (ruled && is_received(out));
	out->checked = out->by_list || (ruled && is_confirmed(o, t, listed));
	out->own_config = ruled && !out->checked;
	say_against(out, o->input, t, out->by_list);
}

/* ---- by a reference ---- */

static struct ws_reference *reference_of(struct ws_input *in, const struct ws_name_check_target *t)
{
	const bool its = in->like_named || (*t->start && strcmp(in->like_of, t->start) == 0);
	return in->like.n && its ? &in->like : NULL;
}

/* The first size that the server's config.json and that of the reference give otherwise; NULL. */
static const char *other_size(const struct ws_reference *like, const struct ws_name_check_target *t,
                              int64_t *its, int64_t *servers)
{
	static const char *const sizes[] = { "num_hidden_layers", "hidden_size", "vocab_size",
		                             "intermediate_size", "num_attention_heads",
		                             "num_key_value_heads", "num_experts",
		                             "n_routed_experts", "num_local_experts" };
	for (size_t i = 0; like->config && t->config && i < sizeof sizes / sizeof *sizes; i++)
		if (ws_config_int(like->config, sizes[i], its) &&
		    ws_config_int(t->config, sizes[i], servers) && *its != *servers)
			return sizes[i];
	return NULL;
}

static int refuse_other(const struct ws_reference *like, const struct ws_name_check_target *t,
                        struct ws_err *err)
{
	int64_t its, servers;
	const char *size = other_size(like, t, &its, &servers);
	if (size)
		ws_err_set(err, WS_EINPUT, "%s has %s %" PRId64 ", and the server was started from "
		           "%.300s, which has %" PRId64, like->name, size, its,
		           ws_config_path(t->config), servers);
	else
		ws_err_set(err, WS_EINPUT, "%s is of %.90s, and the server runs %.90s", like->name,
		           ws_config_architecture(like->config), t->architecture);
	ws_err_hint(err, "{like} names a checkpoint that the server can be started from");
	return ws_err_where(err, NULL, t->url);
}

static bool is_other(const struct ws_reference *like, const struct ws_name_check_target *t)
{
	int64_t its, servers;
	return like->config && (other_size(like, t, &its, &servers) ||
	                        ws_input_is_other(like->config, t->architecture, t->model_type));
}

static size_t count_shapes(const struct ws_findings *f)
{
	size_t n = 0;
	for (size_t i = 0; i < f->n; i++)
		n += f->items[i].severity == WS_ERROR && f->items[i].verdict == WS_NAME_SHAPE;
	return n;
}

/* What a server lists may have names that no rule relates with those of its checkpoint, but the
 * sizes of those that are related are its own. */
static int compare_list(const struct ws_namecheck_opts *check, struct ws_name_check_run *out,
                        struct ws_err *err)
{
	struct ws_namecheck_opts o = *check;
	struct ws_findings f;
	o.layout = NULL;
	o.plan = NULL;
	o.scan = false;
	if (ws_namecheck(&o, &f, err)) {
		ws_findings_free(&f);
		return -1;
	}
	if (count_shapes(&f)) {
		ws_findings_free(&out->found);
		out->found = f;
	} else {
		ws_findings_free(&f);
	}
	return 0;
}

static void say_reference(struct ws_name_check_run *out, const struct ws_input *in,
                          const struct ws_reference *like)
{
	char text[800];
	const size_t rules = in->related.n_rules;
	snprintf(text, sizeof text, "%zu tensors of %s (%zu renaming%s)", like->n,
	         like->name, rules, rules == 1 ? "" : "s");
	append(out, text);
}

static void confirm(struct ws_name_check_run *out, const struct ws_input *in,
                    const struct ws_reference *like)
{
	out->by_reference = true;
	const size_t most = sizeof out->related / sizeof *out->related;
	for (size_t i = 0; i < in->related.n_rules && i < most; i++) {
		struct ws_name_check_related *r = &out->related[out->n_related++];
		snprintf(r->from, sizeof r->from, "%s", in->related.rules[i].from);
		snprintf(r->to, sizeof r->to, "%s", in->related.rules[i].to);
		r->names = in->related.rules[i].names;
	}
	out->layered = true;
	out->checked = true;
	out->own_config = false;
	*out->why = '\0';
	say_reference(out, in, like);
}

/* Only what does not depend on names is left to be checked. */
static int compare_same(const struct ws_name_check_run_opts *o,
                        const struct ws_namecheck_opts *check, struct ws_name_check_run *out,
                        struct ws_err *err)
{
	if (ws_namecheck_same(check, &out->found, err))
		return -1;
	confirm(out, o->input, &o->input->like);
	return 0;
}

/* With rules and a reference both must hold; what the rules find comes first. */
static int compare_like(const struct ws_name_check_run_opts *o, struct ws_reference *like,
                        const struct ws_namecheck_opts *check, struct ws_name_check_run *out,
                        struct ws_err *err)
{
	struct ws_namecheck_opts by = *check;
	struct ws_findings f;
	by.layout = ws_reference_layout(like, err);
	if (!by.layout)
		return -1;
	by.listing = NULL;
	by.config = like->config ? like->config : check->config;
	if (out->layout) {
		by.plan = NULL;
		by.facts = NULL;
		by.n_facts = 0;
		by.scan = false;
	}
	if (ws_namecheck(&by, &f, err)) {
		ws_findings_free(&f);
		return -1;
	}
	if (!out->layout || f.errors || !out->found.n) {
		ws_findings_free(&out->found);
		out->found = f;
	} else {
		ws_findings_free(&f);
	}
	if (!out->found.needed && !out->layout) {
		snprintf(out->why, sizeof out->why, "%.200s has no tensor that a server needs",
		         like->name);
		return 0;
	}
	confirm(out, o->input, like);
	return !out->layout && check->listing && !check->listing->received && !f.errors ?
	               compare_list(check, out, err) :
	               0;
}

/* ---- the run ---- */

/* What is known without a reference. 1: nothing was compared. */
static int compare_known(const struct ws_name_check_run_opts *o,
                         const struct ws_name_check_target *t,
                         const struct ws_namecheck_opts *check, const char *foreign,
                         const char *unknown, struct ws_name_check_run *out, struct ws_err *err)
{
	const char *unlisted = "";
	const bool listed = is_listed(t, &unlisted);
	if (!out->layout && !check->listing) {
		if (*t->differs && config_of(o->input, t) == o->input->config)
			return refuse_sizes(t, err);
		snprintf(out->why, sizeof out->why, "%s%s%.200s", unknown,
		         *unlisted ? ", and " : "", unlisted);
		ws_namecheck_left_out(check, &out->found);
		if (o->tied_later)
			ws_tied_find(check, &out->found);
		judge(o, t, false, foreign, out);
		return 0;
	}
	if (ws_namecheck(check, &out->found, err))
		return -1;
	out->layered = out->layout && check->family;
	if (!out->layout && !listed && o->tied_later)
		ws_tied_find(check, &out->found);
	judge(o, t, listed, foreign, out);
	if (!out->checked)
		snprintf(out->why, sizeof out->why, "%s%s%.200s",
		         *foreign     ? foreign :
		         !out->layout ? unknown :
		         t->unused    ? t->unused :
		                        "the server's config.json cannot be read here",
		         *unlisted ? ", and " : "", unlisted);
	return 0;
}

static void forget_layout(struct ws_namecheck_opts *check, struct ws_name_check_run *out)
{
	ws_layout_free(out->layout);
	out->layout = NULL;
	check->layout = NULL;
}

static int compare_with(const struct ws_name_check_run_opts *o,
                        const struct ws_name_check_target *t, struct ws_reference *like,
                        struct ws_namecheck_opts *check, const char *unknown,
                        struct ws_name_check_run *out, struct ws_err *err)
{
	char foreign[384] = "";
	if (like && is_other(like, t)) {
		if (o->input->like_named)
			return refuse_other(like, t, err);
		like = NULL;
	}
	find_other_model(o, t, foreign, sizeof foreign);
	if (like && (*foreign || !out->layout || o->input->unruled)) {
		forget_layout(check, out);
		return compare_like(o, like, check, out, err);
	}
	if (*foreign && is_composed(o, t))
		return skip_composed(check, foreign, out);
	if (compare_known(o, t, check, foreign, unknown, out, err))
		return -1;
	/* The tensors of a transform are not those of a checkpoint. */
	return like && !out->found.errors && !o->input->transform ?
	               compare_like(o, like, check, out, err) :
	               0;
}

/* Names are related to the reference of the first server that has one. Another server that was
 * started from elsewhere has its own, and the names must fit that one. */
static int compare(const struct ws_name_check_run_opts *o, const struct ws_name_check_target *t,
                   struct ws_namecheck_opts *check, const char *unknown,
                   struct ws_name_check_run *out, struct ws_err *err)
{
	struct ws_reference own = { .n = 0 }, *like = reference_of(o->input, t);
	char why[512] = "";
	const bool opened =
		!like && ws_input_open_found(o->input, &t->found, &own, why, sizeof why);
	const int rc = compare_with(o, t, opened ? &own : like, check, unknown, out, err);
	if (*why)
		snprintf(out->unused, sizeof out->unused, "%s", why);
	ws_reference_close(&own);
	return rc;
}

/* The source has the tensors of the reference, all of them are sent, and the server shows nothing
 * of itself that has to be compared too. */
static bool is_same(const struct ws_name_check_run_opts *o, const struct ws_name_check_target *t)
{
	const struct ws_reference *like = reference_of(o->input, t);
	return like && o->input->same && !t->config && !o->n_include && !o->n_exclude &&
	       !o->elsewhere && !*t->listed && !is_other(like, t);
}

/* The same names and sizes can be those of two models. */
static bool is_other_source(const struct ws_input *in, char *dst, size_t n)
{
	const char *ours = in->config ? ws_config_architecture(in->config) : "",
		   *its = in->like.config ? ws_config_architecture(in->like.config) : "";
	if (!in->like.n || !*ours || !*its || !strcmp(ours, its) ||
	    !strcmp(ours, ws_config_text_architecture(in->like.config)) ||
	    !strcmp(ws_config_text_architecture(in->config), its))
		return false;
	snprintf(dst, n, "the source is of %.90s, and the reference %.200s of %.90s", ours,
	         in->like.name, its);
	return true;
}

/* A reference that was found and is not used is told. */
static void add_unused(struct ws_name_check_run *out)
{
	const size_t used = strlen(out->why);
	if (*out->unused && !out->checked)
		snprintf(out->why + used, sizeof out->why - used, "%s%.300s", used ? "; " : "",
		         out->unused);
}

int ws_name_check_run(const struct ws_name_check_run_opts *o, const struct ws_name_check_target *t,
                      struct ws_name_check_run *out, struct ws_err *err)
{
	const struct ws_family *family = family_of(o->input, t);
	char unknown[384] = "";
	const char *unlisted = "";
	*out = (struct ws_name_check_run){ 0 };
	const bool same = is_same(o, t);
	if (!same &&
	    ws_name_check_layout(o->input, t, &out->layout, unknown, sizeof unknown, err))
		return -1;
	const bool shown = is_listed(t, &unlisted) ||
	                   (*t->listed && t->listing.received && t->listing.n);
	snprintf(out->family, sizeof out->family, "%s",
	         ws_family_name(family ? family : ws_namemap_generic(o->input->map)));
	char model[768];
	struct ws_server_fact facts[3];
	struct ws_namecheck_opts check = {
		.facts = facts,
		.n_facts = find_facts(o, t, family, model, sizeof model, facts),
		.items = o->input->catalog,
		.layout = out->layout,
		.listing = shown ? &t->listing : NULL,
		.family = family ? family : o->input->family,
		.config = config_of(o->input, t),
		.plan = o->plan,
		.include = o->include,
		.n_include = o->n_include,
		.exclude = o->exclude,
		.n_exclude = o->n_exclude,
		.tp_known = *t->url && t->tp,
		.elsewhere = o->elsewhere,
		.elsewhere_ctx = o->elsewhere_ctx,
		.whole_modules = t->whole_modules,
		.keeps_biases = t->keeps_biases,
		.dtype_told = t->dtype_told,
		.scan = o->scan,
		.tied_later = o->tied_later,
		.cancel = o->cancel,
	};
	char other[512];
	if (is_other_source(o->input, other, sizeof other))
		facts[check.n_facts++] = (struct ws_server_fact){
			WS_WARN, "architectures", other, "{like} names another" };
	snprintf(out->unused, sizeof out->unused, "%s", o->input->like_unused);
	if (same ? compare_same(o, &check, out, err) : compare(o, t, &check, unknown, out, err)) {
		ws_name_check_run_free(out);
		return -1;
	}
	add_unused(out);
	return 0;
}

void ws_name_check_run_free(struct ws_name_check_run *a)
{
	if (!a)
		return;
	ws_findings_free(&a->found);
	ws_layout_free(a->layout);
	*a = (struct ws_name_check_run){ 0 };
}

/* ---- several ---- */

static bool has_tied(const struct ws_findings *f, const struct ws_tied *t)
{
	for (size_t i = 0; i < f->n_tied; i++)
		if (f->tied[i].head == t->head && f->tied[i].body == t->body)
			return true;
	return false;
}

/* Servers of one source have the same pairs. */
static void add_tied(struct ws_findings *sum, const struct ws_findings *one)
{
	for (size_t i = 0; i < one->n_tied && sum->n_tied < WS_TIED_MAX; i++)
		if (!has_tied(sum, &one->tied[i]))
			sum->tied[sum->n_tied++] = one->tied[i];
}

void ws_name_check_take_left_out(struct ws_findings *sum, const struct ws_findings *one)
{
	if (sum->n_left_out && one->needed <= sum->needed)
		return;
	memcpy(sum->left_out, one->left_out, sizeof sum->left_out);
	sum->n_left_out = one->n_left_out;
	sum->needed = one->needed;
}

void ws_name_check_run_add(struct ws_name_check_run *sum, const struct ws_name_check_run *one)
{
	struct ws_findings *f = &sum->found;
	add_tied(f, &one->found);
	ws_name_check_take_left_out(f, &one->found);
	if (!*sum->family) {
		sum->checked = one->checked;
		sum->layered = one->layered;
		sum->by_list = one->by_list;
		sum->by_reference = one->by_reference;
		memcpy(sum->unused, one->unused, sizeof sum->unused);
		memcpy(sum->why, one->why, sizeof sum->why);
		memcpy(sum->against, one->against, sizeof sum->against);
		memcpy(sum->family, one->family, sizeof sum->family);
	}
	sum->own_config = sum->own_config || one->own_config;
	sum->layered = sum->layered && one->layered;
	sum->by_list = sum->by_list && one->by_list;
	sum->by_reference = sum->by_reference && one->by_reference;
	if (one->n_related) {
		memcpy(sum->related, one->related, sizeof sum->related);
		sum->n_related = one->n_related;
	}
	if (sum->checked && !one->checked) { /* it must hold for all endpoints */
		sum->checked = false;
		memcpy(sum->why, one->why, sizeof sum->why);
	}
	for (size_t v = 0; v < WS_NAME_VERDICTS; v++)
		f->count[v] += one->found.count[v];
	f->errors += one->found.errors;
	f->warnings += one->found.warnings;
	f->notes += one->found.notes;
	f->sent = one->found.sent > f->sent ? one->found.sent : f->sent;
	f->params = one->found.params > f->params ? one->found.params : f->params;
	f->parts = one->found.parts > f->parts ? one->found.parts : f->parts;
}

/* Errors are sorted first. A missing name is usually the consequence of another finding, a wrong
 * name, so the other finding is preferred. */
static const struct ws_finding_group *find_cause(const struct ws_findings *f)
{
	for (size_t i = 0; i < f->n_groups && f->groups[i].severity == WS_ERROR; i++)
		if (f->groups[i].verdict != WS_NAME_MISSING)
			return &f->groups[i];
	return &f->groups[0];
}

/* Makes one error of all findings, for the logs of scripts. */
static void blame(const struct ws_name_check_run *a, const struct ws_name_check_target *t,
                  struct ws_err *err)
{
	const struct ws_finding_group *g = find_cause(&a->found);
	const struct ws_finding *f = &a->found.items[g->first];
	ws_err_set(err, WS_EMISMATCH, "%s%s%zu error%s in the names, the first: %s: %s", t->url,
	           *t->url ? ": " : "", a->found.errors, a->found.errors == 1 ? "" : "s", f->name,
	           f->reason);
	if (*f->near && f->verdict == WS_NAME_UNEXPECTED && g->n == 1)
		ws_err_hint(err, "did you mean %s?%s%s", f->near, *g->remedy ? " " : "", g->remedy);
	else if (*g->remedy)
		ws_err_hint(err, "%s", g->remedy);
	if (*t->url)
		ws_err_where(err, NULL, t->url);
}

static bool came_before(const struct ws_name_check_target *targets, size_t i)
{
	for (size_t k = 0; k < i; k++)
		if (ws_name_check_same(&targets[k], &targets[i]))
			return true;
	return false;
}

static size_t count_alike(const struct ws_name_check_target *targets, size_t i, size_t n)
{
	size_t alike = 0;
	for (size_t k = i + 1; k < n; k++)
		alike += ws_name_check_same(&targets[i], &targets[k]);
	return alike;
}

int ws_name_check_run_all(const struct ws_name_check_run_opts *o,
                          const struct ws_name_check_target *targets, size_t n,
                          const struct ws_sink *sink, struct ws_name_check_run *sum,
                          struct ws_err *err)
{
	struct ws_err first = WS_ERR_INIT;
	*sum = (struct ws_name_check_run){ 0 };
	for (size_t i = 0; i < n; i++) {
		struct ws_name_check_run one;
		if (came_before(targets, i))
			continue;
		if (ws_name_check_run(o, &targets[i], &one, err))
			return -1;
		const struct ws_event ev = { .type = WS_EV_NAMES,
			                     .names = { .url = targets[i].url,
			                                .run = &one,
			                                .alike = count_alike(targets, i, n) } };
		if (sink->event)
			sink->event(sink->ctx, &ev);
		if (one.found.errors && !first.code)
			blame(&one, &targets[i], &first);
		ws_name_check_run_add(sum, &one);
		ws_name_check_run_free(&one);
	}
	if (first.code && err)
		*err = first;
	return first.code ? -1 : 0;
}
