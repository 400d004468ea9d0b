/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck.c - runs the steps of the check. Contains the small ones: contradictions in the
 * config, sizes that do not divide, and partners in different buckets. */
#include "wsync/tool/namecheck.h"

#include "namecheck_core.h"
#include "wsync/tool/str.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ws_verdict_name(enum ws_verdict v)
{
	static const char *const names[] = {
		[WS_NAME_MISSING] = "missing",         [WS_NAME_UNEXPECTED] = "unexpected",
		[WS_NAME_SHAPE] = "shape",             [WS_NAME_DTYPE] = "dtype",
		[WS_NAME_SCALE_ALONE] = "scale-alone", [WS_NAME_NO_SCALE] = "no-scale",
		[WS_NAME_TWICE] = "twice",             [WS_NAME_PARTIAL] = "partial",
		[WS_NAME_TIED] = "tied",               [WS_NAME_PAIR] = "pair",
		[WS_NAME_DIVISION] = "division",       [WS_NAME_VALUES] = "values",
		[WS_NAME_SERVER] = "server",           [WS_NAME_CONFIG] = "config",
	};
	const unsigned i = (unsigned)v;
	return i < sizeof names / sizeof names[0] ? names[i] : "unknown";
}

const char *ws_severity_name(enum ws_severity s)
{
	return s == WS_NOTE ? "note" : s == WS_WARN ? "warning" : "error";
}

/* ---- contradictions, divisions ---- */

/* If the server reads "true", it drops a head that is sent. */
static void check_tie_flag(struct ws_check *c)
{
	const struct ws_item *head = ws_check_sent(c, "lm_head.weight");
	const bool lost = head && c->layout && ws_layout_tied(c->layout);
	const char *then = lost ? "servers that read \"true\" drop the lm_head.weight that is sent"
	                        : "servers differ in which of them they read";
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_CONFIG, .severity = lost ? WS_ERROR : WS_WARN,
		.name = lost ? head->name : "tie_word_embeddings",
		.remedy = "make both levels of config.json say the same",
	};
	ws_report_add(c->report, &finding, "tie_word_embeddings is one thing in text_config and "
	              "another at the top of config.json: %s", then);
}

static void report_facts(struct ws_check *c)
{
	for (size_t i = 0; i < c->opts->n_facts; i++) {
		const struct ws_server_fact *f = &c->opts->facts[i];
		const struct ws_new_finding finding = { .verdict = WS_NAME_SERVER,
			                      .severity = f->severity,
			                      .name = f->key,
			                      .remedy = f->remedy };
		ws_report_add(c->report, &finding, "%s", f->reason);
	}
}

int ws_check_config(struct ws_check *c)
{
	const struct ws_config *config = c->opts->config;
	report_facts(c);
	if (config && ws_config_disagrees(config, "tie_word_embeddings"))
		check_tie_flag(c);
	for (size_t i = 0; c->layout && i < ws_layout_param_count(c->layout); i++) {
		const struct ws_param *p = ws_layout_param(c->layout, i);
		if (!p->trouble)
			continue;
		const struct ws_text shared = ws_textf("parameters cannot be divided so: %s",
		                                       p->trouble);
		const struct ws_new_finding finding = {
			.verdict = WS_NAME_DIVISION, .severity = WS_ERROR, .name = p->name,
			.param = p->name, .rule = ws_layout_rule(c->layout, p->rule),
			.shared = shared.s,
			.remedy = "choose tp and ep that divide what config.json gives",
		};
		ws_report_add(c->report, &finding, "%s", p->trouble);
	}
	return 0;
}

/* ---- partners ---- */

struct buckets {
	struct ws_names names;
	const struct ws_plan *plan;
};

static size_t bucket_of(const struct buckets *b, const char *name)
{
	const struct ws_plan_tensor *t = ws_names_find(&b->names, name);
	if (!t)
		return WS_NONE;
	const size_t at = (size_t)(t - b->plan->tensors);
	size_t lo = 0, hi = b->plan->n_buckets;
	while (hi - lo > 1) {
		const size_t mid = lo + (hi - lo) / 2;
		if (b->plan->buckets[mid].first <= at)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

/* "...q_a_proj.weight" of "...kv_a_proj_with_mqa.weight". */
static bool latent_partner(const char *name, char *dst, size_t n)
{
	static const char half[] = ".kv_a_proj_with_mqa.";
	const char *p = strstr(name, half);
	return p && (size_t)snprintf(dst, n, "%.*s.q_a_proj.%s", (int)(p - name), name,
	                             p + sizeof half - 1) < n;
}

static void check_pair(struct ws_check *c, const struct buckets *b, const char *name,
                       const char *partner, enum ws_severity severity, const char *shared)
{
	const size_t i = bucket_of(b, name), k = bucket_of(b, partner);
	if (i == WS_NONE || k == WS_NONE || i == k)
		return;
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_PAIR, .severity = severity, .name = name, .near = partner,
		.shared = shared, .remedy = "make {bucket_size} larger, or send both in one source",
	};
	ws_report_add(c->report, &finding, "in bucket %zu, and %s in bucket %zu: %s", i, partner, k,
	              strchr(shared, ':') + 2);
}

static void check_partners(struct ws_check *c, const struct buckets *b, const char *name)
{
	char partner[WS_CHECK_NAME];
	if (latent_partner(name, partner, sizeof partner))
		check_pair(c, b, name, partner, WS_ERROR, "pairs of q_a_proj and "
		           "kv_a_proj_with_mqa are in different buckets: loaders pair them within "
		           "one request and lose the first");
	if (!ws_scaled_name(name, partner, sizeof partner))
		return;
	if (strstr(name, ".kv_b_proj."))
		check_pair(c, b, name, partner, WS_ERROR, "scales of kv_b_proj are in other "
		           "buckets than their weights: loaders make w_kc and w_vc of both at each "
		           "request");
	else
		check_pair(c, b, name, partner, WS_WARN, "scales are in other buckets than their "
		           "weights: between the requests the server has new and old ones");
}

int ws_check_plan(struct ws_check *c)
{
	struct buckets b = { .plan = c->opts->plan };
	size_t twice[2];
	if (!b.plan || !b.plan->n_buckets)
		return 0;
	if (ws_names_init(&b.names, b.plan->tensors, sizeof *b.plan->tensors, b.plan->n_tensors,
	                  twice, c->err) < 0)
		return -1;
	for (size_t i = 0; i < b.plan->n_tensors; i++)
		check_partners(c, &b, b.plan->tensors[i].name);
	ws_names_fini(&b.names);
	return 0;
}

/* ---- running it ---- */

const struct ws_item *ws_check_sent(const struct ws_check *c, const char *name)
{
	const struct ws_item *item = ws_catalog_find(c->items, name);
	return item && ws_check_chosen(c, name) ? item : NULL;
}

/* The shapes in the listing decide: the layout is made again for their sizes. */
static int relate_server(struct ws_check *c, struct ws_shown *server)
{
	c->report = ws_report_new();
	if (!c->report)
		return ws_oom(c->err);
	if (!c->layout || !c->listing || !c->listing->n)
		return 0;
	*server = (struct ws_shown){ .c = c, .layout = c->layout };
	c->server = server;
	if (ws_shown_guess(server))
		return -1;
	c->layout = server->layout;
	return 0;
}

static int begin(struct ws_check *c)
{
	size_t twice[2];
	c->n_items = ws_catalog_count(c->items);
	c->n_parts = c->layout ? ws_layout_part_count(c->layout) : 0;
	c->parts = c->n_parts ? ws_layout_part(c->layout, 0) : NULL;
	c->sent = calloc(c->n_items + 1, sizeof(const struct ws_item *));
	c->sent_known = calloc(c->n_items + 1, sizeof *c->sent_known);
	c->part_item = malloc((c->n_parts + 1) * sizeof *c->part_item);
	c->part_meant = malloc((c->n_parts + 1) * sizeof *c->part_meant);
	c->part_reported = calloc(c->n_parts + 1, sizeof *c->part_reported);
	c->part_left = calloc(c->n_parts + 1, sizeof *c->part_left);
	if (!c->sent || !c->sent_known || !c->part_item || !c->part_meant ||
	    !c->part_reported || !c->part_left)
		return ws_oom(c->err);
	for (size_t i = 0; i < c->n_parts; i++)
		c->part_item[i] = c->part_meant[i] = WS_NONE;
	for (size_t i = 0; i < c->n_items; i++) {
		const struct ws_item *item = ws_catalog_item(c->items, i);
		if (!ws_check_chosen(c, item->name))
			continue;
		if (ws_check_packed(c, item)) {
			c->n_packed++;
			continue;
		}
		const size_t part = ws_check_part(c, item->name);
		if (part != WS_NONE) {
			c->part_item[part] = c->n_sent;
			c->has_draft |= c->parts[part].draft;
			c->sent_known[c->n_sent] = true;
		}
		c->sent[c->n_sent++] = item;
	}
	ws_check_count_left(c);
	return c->listing && ws_names_init(&c->shown, c->listing->items, sizeof *c->listing->items,
	                                   c->listing->n, twice, c->err) < 0 ? -1 : 0;
}

static void end(struct ws_check *c)
{
	if (c->server)
		ws_shown_fini(c->server);
	ws_names_fini(&c->shown);
	ws_suggest_free(c->suggest);
	ws_report_free(c->report);
	free(c->suggest_names);
	free(c->sent);
	free(c->sent_known);
	free(c->part_item);
	free(c->part_meant);
	free(c->part_reported);
	free(c->part_left);
	ws_modules_fini(&c->modules);
}

static int run_steps(struct ws_check *c)
{
	static int (*const steps[])(struct ws_check *) = {
		ws_check_config, ws_check_unknown, ws_check_shapes, ws_check_missing,
		ws_check_listing,
	};
	for (size_t i = 0; c->layout && i < sizeof steps / sizeof steps[0]; i++)
		if (steps[i](c))
			return -1;
	if (!c->layout && (ws_check_config(c) || (c->listing && ws_check_generic(c))))
		return -1;
	if (ws_check_tied_choice(c) || ws_check_received(c) || ws_check_scales(c))
		return -1;
	return ws_check_plan(c) || ws_check_values(c) ? -1 : 0;
}

int ws_namecheck(const struct ws_namecheck_opts *opts, struct ws_findings *out, struct ws_err *err)
{
	struct ws_check c = { .opts = opts, .items = opts->items, .layout = opts->layout, .err =
	                      err };
	*out = (struct ws_findings){ 0 };
	if (!opts->layout && !opts->listing)
		return ws_err_set(err, WS_EUSAGE, "names: cannot compare: neither the server's "
		                  "config nor a list of its parameters is known");
	/* An endpoint without a model lists only received tensors: others may be missing. */
	c.listing = opts->listing && !opts->listing->received ? opts->listing : NULL;
	struct ws_shown server;
	int rc = relate_server(&c, &server);
	if (!rc)
		rc = begin(&c);
	if (!rc)
		rc = run_steps(&c);
	if (!rc)
		rc = ws_report_finish(c.report, out, err);
	out->sent = c.n_sent + c.n_packed;
	memcpy(out->tied, c.tied, sizeof out->tied);
	out->n_tied = c.n_tied;
	memcpy(out->left_out, c.left_out, sizeof out->left_out);
	out->n_left_out = c.n_left_out;
	out->needed = c.needed;
	out->received = c.received;
	out->parts = c.n_parts;
	out->params = c.layout ? ws_layout_param_count(c.layout) : c.listing ? c.listing->n : 0;
	end(&c);
	return rc;
}

static int check_same(struct ws_check *c, struct ws_findings *out)
{
	if (begin(c) || ws_check_config(c))
		return -1;
	ws_tied_find(c->opts, out);
	for (size_t i = 0; !c->opts->tied_later && i < out->n_tied; i++)
		if (ws_check_tied_pair(c, out->tied[i].head, out->tied[i].body,
		                       out->tied[i].body->name))
			return -1;
	return ws_check_plan(c) || ws_check_values(c) ? -1 : 0;
}

int ws_namecheck_same(const struct ws_namecheck_opts *opts, struct ws_findings *out,
                      struct ws_err *err)
{
	struct ws_check c = { .opts = opts, .items = opts->items, .err = err };
	*out = (struct ws_findings){ 0 };
	c.report = ws_report_new();
	int rc = c.report ? check_same(&c, out) : ws_oom(err);
	if (!rc)
		rc = ws_report_finish(c.report, out, err);
	out->sent = out->parts = out->params = out->needed = c.n_sent;
	end(&c);
	return rc;
}
