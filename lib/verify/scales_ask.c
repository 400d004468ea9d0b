/* SPDX-License-Identifier: Apache-2.0 */
/* scales_ask.c - checks the scales of a running server.
 *
 * A server lists names and shapes of rank 0, and returns numbers of some parameters by their
 * checkpoint names. It does not return FP8 codes, so each scale is checked with the largest code:
 * a block of a trained weight has a value near it. */
#include "wsync/tool/scales.h"

#include "endpoint_weights.h"
#include "scales_core.h"

#include "wsync/tool/name_check_run.h"
#include "wsync/tool/namemap.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 100, MOST_NUMBERS = 1 << 16, MOST_PARTS = 8 };

struct asking {
	const struct ws_scales_ask_opts *opts;
	struct ws_http *http;
	struct ws_scales_report *report;
	struct ws_scales_notes notes;
	struct ws_endpoint_info info;
	struct ws_name_check_target target;
	const struct ws_config *config;
	struct ws_quant quant;
	const struct ws_weight **sorted; /* the listing by name */
	const char **names;              /* the scales to sample */
	size_t n_names;
	size_t shown, refused;
	char refusal[256];               /* the first refusal */
};

/* ---- the list ---- */

static int by_name(const void *a, const void *b)
{
	return strcmp((*(const struct ws_weight *const *)a)->name,
	              (*(const struct ws_weight *const *)b)->name);
}

static const struct ws_weight *find(const struct asking *a, const char *name, size_t cut,
                                    const char *suffix)
{
	char other[4096 + 64];
	const struct ws_weight key = { .name = other }, *at = &key;
	snprintf(other, sizeof other, "%.*s%s", (int)(strlen(name) - cut), name, suffix);
	const struct ws_weight **found =
		bsearch(&at, a->sorted, a->target.listing.n, sizeof *a->sorted, by_name);
	return found ? *found : NULL;
}

/* The length by which a scale's name exceeds its weight's; 0: not a scale. */
static size_t scale_suffix(const char *name)
{
	if (ws_unpack_ends(name, "_scale_inv"))
		return strlen("_scale_inv");
	return ws_unpack_ends(name, ".weight_scale") || ws_unpack_ends(name, "_weight_scale") ?
	               strlen("_scale") :
	               0;
}

static unsigned bits_of(const struct ws_weight *w)
{
	enum ws_dtype dtype;
	return ws_dtype_from_torch(w->dtype, &dtype) ? ws_dtype_bits(dtype) : 0;
}

/* Each part of a fused parameter may end with a block of its own. */
static bool fits(int64_t scales, int64_t n, int64_t block)
{
	const int64_t least = n / block + (n % block != 0);
	return scales >= least && scales <= least + MOST_PARTS;
}

static void judge_shape(struct asking *a, const struct ws_weight *w, const struct ws_weight *s,
                        size_t order)
{
	const int64_t *block = a->quant.block;
	const unsigned n = w->n_dims;
	if (!block[0] || w->shapeless || s->shapeless || n < 2)
		return;
	if (!strcmp(s->dtype, "int32") || !strcmp(s->dtype, "uint8")) {
		ws_scales_say(&a->notes, order, WS_SCALES_UE8M0, WS_WARN, s->name,
		              "the server keeps scales as %s: it made packed exponents (UE8M0) of "
		              "them, and does not understand float32 any more",
		              s->dtype);
		return;
	}
	if (s->n_dims != n || !fits(s->dims[n - 2], w->dims[n - 2], block[0]) ||
	    !fits(s->dims[n - 1], w->dims[n - 1], block[1]))
		ws_scales_say(&a->notes, order, WS_SCALES_SHAPE, WS_ERROR, s->name,
		              "it has %" PRId64 " x %" PRId64
		              " scales, which are no blocks of %" PRId64 " x %" PRId64
		              " of %" PRId64 " x %" PRId64,
		              s->n_dims > 1 ? s->dims[s->n_dims - 2] : 1,
		              s->n_dims ? s->dims[s->n_dims - 1] : 1, block[0], block[1],
		              w->dims[n - 2], w->dims[n - 1]);
}

static void judge_listed(struct asking *a, const struct ws_weight *x, size_t order)
{
	const size_t cut = scale_suffix(x->name);
	a->report->tensors++;
	if (cut) {
		const struct ws_weight *w = find(a, x->name, cut, "");
		if (!w)
			ws_scales_say(&a->notes, order, WS_SCALES_PAIR, WS_ERROR, x->name,
			              "a scale without its weight");
		else if (bits_of(w) > 8 && strcmp(w->dtype, "int32"))
			ws_scales_say(&a->notes, order, WS_SCALES_PAIR, WS_ERROR, x->name,
			              "a scale of a weight that is %s",
			              w->dtype);
		else
			judge_shape(a, w, x, order);
		return;
	}
	if (strncmp(x->dtype, "float8_e4m3", 11) || ws_unpack_ends(x->name, "_scale"))
		return;
	a->report->quantized++;
	if (!find(a, x->name, 0, "_scale_inv") && !find(a, x->name, 0, "_scale"))
		ws_scales_say(&a->notes, order, WS_SCALES_PAIR, WS_ERROR, x->name,
		              "%s codes without a scale", x->dtype);
}

static int judge_list(struct asking *a, struct ws_err *err)
{
	const struct ws_weight_list *l = &a->target.listing;
	a->sorted = calloc(l->n + 1, sizeof *a->sorted);
	if (!a->sorted)
		return ws_oom(err);
	for (size_t i = 0; i < l->n; i++)
		a->sorted[i] = &l->items[i];
	if (l->n)
		qsort(a->sorted, l->n, sizeof *a->sorted, by_name);
	for (size_t i = 0; i < l->n; i++)
		judge_listed(a, &l->items[i], i + 1);
	return 0;
}

/* ---- numbers ---- */

/* Takes the checkpoint's names if the layout is known, else those that the server lists. */
static int name_scales(struct asking *a, const struct ws_layout *layout, struct ws_err *err)
{
	const struct ws_weight_list *l = &a->target.listing;
	const size_t n = layout ? ws_layout_part_count(layout) : l->n;
	a->names = calloc(n + 1, sizeof *a->names);
	if (!a->names)
		return ws_oom(err);
	for (size_t i = 0; i < n; i++) {
		const char *name = layout ? ws_layout_part(layout, i)->name : l->items[i].name;
		if (scale_suffix(name))
			a->names[a->n_names++] = name;
	}
	return 0;
}

static void judge_numbers(struct asking *a, const char *name, size_t order,
                          const struct ws_values *v)
{
	struct ws_scale_values values = { .n = 0 };
	for (size_t i = 0; i < v->n; i++)
		ws_scale_values_add(&values, (float)v->numbers[i], 1, -1);
	ws_scale_values_judge(&values, name, order, &a->notes);
	a->report->scales += values.n;
	a->shown += v->n > 0;
}

static int ask_numbers(struct asking *a, const char *name, size_t order, struct ws_err *err)
{
	struct ws_values v = { .numbers = NULL };
	struct ws_err why = WS_ERR_INIT;
	const struct ws_call to = { a->http, &a->opts->url, 1,
		                    a->opts->until, a->opts->cancel, NULL };
	ws_endpoint_get_weights(&to, name, ROWS, MOST_NUMBERS, &v, &why, err);
	if (why.code == WS_OK && ws_values_empty(&v, a->info.dp_size))
		ws_err_set(&why, WS_EREFUSED, "the answers are empty");
	if (why.code == WS_OK)
		judge_numbers(a, name, order, &v);
	else if (!a->refused++)
		snprintf(a->refusal, sizeof a->refusal, "%.200s", why.msg);
	ws_values_free(&v);
	if (why.code == WS_OK || why.code == WS_EREFUSED) {
		if (err)
			*err = (struct ws_err)WS_ERR_INIT;
		return 0;
	}
	return -1;
}

static int sample(struct asking *a, struct ws_err *err)
{
	const size_t n = a->n_names < a->opts->samples ? a->n_names : a->opts->samples;
	for (size_t i = 0; i < n; i++) {
		const size_t at = i * a->n_names / n;
		if (ask_numbers(a, a->names[at], at + 1, err))
			return -1;
	}
	return 0;
}

/* ---- all of it ---- */

static void say_unseen(struct asking *a)
{
	const char *url = a->opts->url;
	if (!*a->target.listed)
		ws_scales_say(&a->notes, 0, WS_SCALES_UNSEEN, WS_NOTE, url,
		              "names and shapes were not checked: %s", a->target.unlisted);
	else if (!a->config)
		ws_scales_say(
			&a->notes, 0, WS_SCALES_UNSEEN, WS_NOTE, url,
			"shapes were not compared with a block "
			"size, and names in the checkpoint are not known: there is no config.json");
	ws_scales_say(&a->notes, 1, WS_SCALES_UNSEEN, WS_NOTE, url,
	              "the first rows of %zu of %zu tensors of "
	              "scales were checked%s%s; codes are not shown by servers",
	              a->shown, a->n_names, a->refused ? ", others were refused: " : "",
	              a->refusal);
}

static int make_layout(struct asking *a, struct ws_namemap **map, struct ws_layout **layout,
                       struct ws_err *err)
{
	const struct ws_layout_opts opts = { .tp = a->target.tp ? a->target.tp : 1,
		                             .ep = a->target.ep,
		                             .attention_tp = a->target.attention_tp };
	if (!a->config)
		return 0;
	if (ws_namemap_open(NULL, map, err))
		return -1;
	const struct ws_family *f = ws_namemap_find(*map, a->config);
	if (f && ws_family_has_params(f) && ws_layout_make(f, a->config, &opts, layout, NULL))
		*layout = NULL; /* the server's list is still known */
	return 0;
}

static int read_scales(struct asking *a, struct ws_err *err)
{
	struct ws_namemap *map = NULL;
	struct ws_layout *layout = NULL;
	int rc = make_layout(a, &map, &layout, err);
	if (!rc)
		rc = judge_list(a, err) || name_scales(a, layout, err) || sample(a, err) ? -1 : 0;
	if (!rc && !a->shown && !*a->target.listed)
		rc = ws_err_set(err, WS_EREFUSED,
		                "%s: it shows neither its parameters nor numbers of scales: %s",
		                a->opts->url, a->target.unlisted);
	if (!rc)
		say_unseen(a);
	ws_layout_free(layout);
	ws_namemap_close(map);
	return rc;
}

static int meet(struct asking *a, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	const struct ws_call to = { a->http, &a->opts->url, 1,
		                    a->opts->until, a->opts->cancel, NULL };
	if (ws_endpoint_probe_all(&to, &a->info, &why, err) ||
	    ws_name_check_ask(a->http, &a->info, 1, false, a->opts->until, a->opts->cancel,
	                      &a->target, err))
		return -1;
	a->config = a->opts->config ? a->opts->config : a->target.config;
	a->quant = a->config ? *ws_config_quant(a->config) : (struct ws_quant){ .method = "" };
	if (a->opts->block[0] > 0 && a->opts->block[1] > 0)
		memcpy(a->quant.block, a->opts->block, sizeof a->quant.block);
	return 0;
}

int ws_scales_ask(struct ws_http *http, const struct ws_scales_ask_opts *opts,
                  struct ws_scales_report *out, struct ws_err *err)
{
	struct asking a = { .opts = opts, .http = http, .report = out };
	*out = (struct ws_scales_report){ .findings = NULL };
	ws_scales_notes_begin(&a.notes, out);
	int rc = meet(&a, err) || read_scales(&a, err) ? -1 : 0;
	if (ws_scales_notes_end(&a.notes, rc ? NULL : err))
		rc = -1;
	ws_name_check_target_free(&a.target);
	free(a.sorted);
	free(a.names);
	if (rc)
		ws_scales_report_free(out);
	return rc;
}
