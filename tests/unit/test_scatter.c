/* SPDX-License-Identifier: Apache-2.0 */
/* What each rank is sent is what it would have, cut element by element. */
#include "rank_shards.h"

#include "scatter.h"
#include "wsync/tool/input.h"

static struct ws_input input;
static struct ws_plan *plan;
static struct ws_layout *layout;
static struct ws_weight_list listing;
static struct ws_scatter *scatter;

/* ---- making one ---- */

static void forget(void)
{
	ws_scatter_free(scatter);
	ws_layout_free(layout);
	ws_plan_free(plan);
	ws_input_close(&input);
	free(listing.items);
	scatter = NULL;
	layout = NULL;
	plan = NULL;
	listing = (struct ws_weight_list){ 0 };
}

static void write_checkpoint(void)
{
	put_text("config.json", moe);
	tensors_free(&checkpoint);
	make_checkpoint(&checkpoint);
	tensors_write(&checkpoint, "model.safetensors");
}

/* As a server of that layout lists them. */
static void list_params(void)
{
	const size_t n = ws_layout_param_count(layout);
	listing.items = calloc(n, sizeof *listing.items);
	assert_non_null(listing.items);
	for (size_t i = 0; i < n; i++) {
		const struct ws_param *p = ws_layout_param(layout, i);
		struct ws_weight *w = &listing.items[listing.n++];
		w->name = p->name;
		w->n_dims = p->n_dims;
		memcpy(w->dims, p->dims, sizeof w->dims);
	}
}

static void open_input(unsigned tp, unsigned ep, const struct ws_plan_opts *opts)
{
	static const char *const paths[] = { "model.safetensors" };
	struct ws_err err = WS_ERR_INIT;
	forget();
	const struct ws_layout_opts sizes = { .tp = tp, .ep = ep };
	if (ws_input_open(&(struct ws_input_opts){ .paths = paths, .n_paths = 1 }, &input, &err) ||
	    ws_plan_make(input.catalog, opts, &plan, &err) ||
	    ws_layout_make(input.family, input.config, &sizes, &layout, &err))
		fail_msg("%s", err.msg);
	list_params();
}

static int make(unsigned senders, struct ws_err *err)
{
	const struct ws_scatter_opts opts = { .layout = layout, .plan = plan, .listing = &listing,
		                              .dtype = WS_DTYPE_BF16, .senders = senders };
	return ws_scatter_make(&opts, &scatter, err);
}

/* ---- reading what is sent ---- */

static uint8_t *read_payload(const struct ws_payload *p)
{
	uint8_t *bytes = malloc(p->length + 1);
	struct ws_err err = WS_ERR_INIT;
	uint64_t at = 0;
	assert_non_null(bytes);
	for (size_t i = 0; i < p->n_spans; i++) {
		const struct ws_span *s = &p->spans[i];
		if (s->fd >= 0) {
			assert_int_equal(pread(s->fd, bytes + at, s->length, (off_t)s->offset),
			                 s->length);
		} else { /* in pieces, as a data plane asks for them */
			for (uint64_t k = 0; k < s->length; k += 100)
				assert_ok(s->fill(s->ctx, k, bytes + at + k,
				                  s->length - k < 100 ? s->length - k : 100, &err),
				          &err);
		}
		at += s->length;
	}
	assert_int_equal(at, p->length);
	return bytes;
}

static bool is_vocab(const char *name)
{
	return strstr(name, "embed_tokens") || strstr(name, "lm_head");
}

static void assert_sent(const struct ws_param *p, unsigned rank,
                        const struct ws_scatter_range *range, const struct ws_payload *payload)
{
	const struct tensor *want = tensors_find(&rank_tensors, p->name);
	const uint64_t row = (uint64_t)elements(want) * ELEMENT / (uint64_t)want->dims[0];
	const uint64_t from = (uint64_t)range->from * row;
	const uint64_t to =
		range->to < 0 ? (uint64_t)want->dims[0] * row : (uint64_t)range->to * row;
	uint8_t *got = read_payload(payload);
	assert_int_equal(payload->length, to - from);
	uint64_t n = payload->length;
	if (is_vocab(p->name)) { /* the oracle pads with other bytes */
		const int64_t left = VOCAB - (int64_t)rank * want->dims[0];
		const int64_t rows = left < 0 ? 0 : left < want->dims[0] ? left : want->dims[0];
		n = (uint64_t)rows * HIDDEN * ELEMENT;
		for (uint64_t i = n; i < payload->length; i++)
			assert_int_equal(got[i], 0);
	}
	if (memcmp(got, want->bytes + from, n))
		fail_msg("%s of rank %u from sender %u differs", p->name, rank, range->sender);
	free(got);
}

/* The sends of a batch, as the receiver at that rank takes them. */
static void assert_batch(size_t b, unsigned rank, unsigned senders, size_t *sent)
{
	struct ws_scatter_sends sends[8];
	size_t next[8] = { 0 };
	struct ws_err err = WS_ERR_INIT;
	for (unsigned s = 0; s < senders; s++)
		assert_int_equal(ws_scatter_sends(scatter, b, s, &sends[s], &err), 0);
	for (size_t i = scatter->batches[b].first;
	     i < scatter->batches[b].first + scatter->batches[b].n; i++) {
		const struct ws_scatter_entry *e = &scatter->entries[i];
		int64_t row = 0;
		for (size_t k = e->first_range; k < e->first_range + e->n_ranges; k++) {
			const struct ws_scatter_range *range = &scatter->ranges[k];
			size_t *at = &next[range->sender];
			while (*at < sends[range->sender].n &&
			       sends[range->sender].items[*at].rank != rank)
				++*at;
			assert_true(*at < sends[range->sender].n);
			assert_int_equal(range->from, row);
			row = range->to;
			assert_sent(e->param, rank, range,
			            &sends[range->sender].items[(*at)++].payload);
		}
		++*sent;
		assert_true(e->layer < 0 ? e->n_ranges == 1 && row == -1 :
		                           row == e->param->dims[0]);
	}
	for (unsigned s = 0; s < senders; s++)
		ws_scatter_sends_free(&sends[s]);
}

/* Everything once, in the order that is announced, and every rank's own. */
static void assert_all_sent(const struct trainer *how, unsigned senders)
{
	size_t sent = 0;
	for (int r = 0; r < how->tp; r++) {
		make_shard(how, r);
		for (size_t b = 0; b < scatter->n_batches; b++)
			assert_batch(b, (unsigned)r, senders, &sent);
	}
	assert_int_equal(sent, rank_tensors.n * (size_t)how->tp);
}

static int leave(void **state)
{
	forget();
	tensors_free(&checkpoint);
	tensors_free(&rank_tensors);
	return scratch_leave(state);
}

#define WITH_FILES(test) TEST_BETWEEN(test, scratch_enter, leave)

WITH_FILES(every_rank_gets_what_it_keeps)
{
	write_checkpoint();
	for (int tp = 1; tp <= 8; tp *= 2)
		for (int ep = 1; ep <= tp && ep <= EXPERTS; ep *= 2) {
			const struct trainer how = {
				.tp = tp, .ep = ep, .fused = true, .vocab = 128
			};
			struct ws_err err = WS_ERR_INIT;
			open_input((unsigned)tp, (unsigned)ep, &(struct ws_plan_opts){ 0 });
			if (make(1, &err))
				fail_msg("tp %d ep %d: %s", tp, ep, err.msg);
			assert_all_sent(&how, 1);
		}
}

WITH_FILES(several_senders_divide_the_experts)
{
	const struct trainer how = { .tp = 2, .ep = 1, .fused = true, .vocab = 128 };
	struct ws_err err = WS_ERR_INIT;
	write_checkpoint();
	for (unsigned senders = 2; senders <= 5; senders++) {
		open_input(2, 1, &(struct ws_plan_opts){ 0 });
		assert_int_equal(make(senders, &err), 0);
		assert_all_sent(&how, senders);
		for (unsigned s = 0; s < senders; s++) {
			size_t n = 0;
			for (size_t i = 0; i < scatter->n_ranges; i++)
				n += scatter->ranges[i].sender == s;
			assert_true(n > 0);
		}
	}
}

/* The sender of that expert. */
static unsigned expert_of(const char *name)
{
	const char *at = strstr(name, ".experts.");
	return at ? (unsigned)atoi(at + 9) : UINT32_MAX;
}

WITH_FILES(an_expert_comes_from_who_has_it)
{
	static struct ws_senders have[1024];
	const struct trainer how = { .tp = 2, .ep = 1, .fused = true, .vocab = 128 };
	struct ws_err err = WS_ERR_INIT;
	write_checkpoint();
	open_input(2, 1, &(struct ws_plan_opts){ 0 });
	assert_true(plan->n_tensors < 1024);
	memset(have, 0, sizeof have);
	for (size_t i = 0; i < plan->n_tensors; i++) {
		const unsigned e = expert_of(plan->tensors[i].name);
		ws_senders_add(&have[i], e == UINT32_MAX ? 2 : 1 - e % 2); /* crosswise */
	}
	struct ws_scatter_opts opts = { .layout = layout, .plan = plan, .listing = &listing,
		                        .dtype = WS_DTYPE_BF16, .senders = 3, .have = have };
	assert_int_equal(ws_scatter_make(&opts, &scatter, &err), 0);
	assert_all_sent(&how, 3);
	assert_int_equal(scatter->entries[0].n_ranges, 4);
	for (size_t i = 0; i < scatter->n_ranges; i++) {
		const struct ws_scatter_range *r = &scatter->ranges[i];
		assert_int_equal(r->sender, r->to < 0 ? 2 : 1 - r->from % 2);
	}
	/* A parameter of two owners goes from neither, and two ranks'
	 * experts at one place are one's. */
	for (size_t i = 0; i < plan->n_tensors; i++)
		if (strstr(plan->tensors[i].name, "layers.0.self_attn.k_proj"))
			have[i] = (struct ws_senders){ { 1 } };
	ws_scatter_free(scatter);
	scatter = NULL;
	assert_fails_with(ws_scatter_make(&opts, &scatter, &err), &err, WS_EREFUSED,
	                  "parameter model.layers.0.self_attn.qkv_proj.weight must be sent whole, "
	                  "but no sender has all of its tensors");
	open_input(2, 2, &(struct ws_plan_opts){ 0 });
	memset(have, 0, sizeof have);
	for (size_t i = 0; i < plan->n_tensors; i++) {
		const unsigned e = expert_of(plan->tensors[i].name);
		ws_senders_add(&have[i], e == UINT32_MAX || e < 2 ? 0 : 1);
	}
	opts.layout = layout;
	opts.plan = plan;
	assert_fails_with(ws_scatter_make(&opts, &scatter, &err), &err, WS_EREFUSED,
	                  "parameter model.layers.1.mlp.experts.w13_weight: no one sender has all "
	                  "of what the ranks keep of expert 0");
}

WITH_FILES(experts_go_first_and_the_rest_by_fifty)
{
	struct ws_err err = WS_ERR_INIT;
	write_checkpoint();
	open_input(2, 1, &(struct ws_plan_opts){ 0 });
	assert_int_equal(make(1, &err), 0);
	assert_int_equal(scatter->n_batches, 2);
	assert_int_equal(scatter->batches[0].n, 2);
	assert_int_equal(scatter->entries[0].layer, 1);
	assert_string_equal(scatter->entries[1].param->name,
	                    "model.layers.1.mlp.experts.w2_weight");
	assert_int_equal(scatter->batches[1].n, scatter->n_entries - 2);
	uint64_t bytes = 0;
	for (int r = 0; r < 2; r++) {
		make_shard(&(struct trainer){ .tp = 2, .ep = 1, .fused = true, .vocab = 128 }, r);
		for (size_t i = 0; i < rank_tensors.n; i++)
			bytes += (uint64_t)elements(&rank_tensors.v[i]) * ELEMENT;
	}
	assert_int_equal(scatter->batches[0].bytes + scatter->batches[1].bytes, bytes);
}

static void assert_refused(const char *words)
{
	struct ws_err err = WS_ERR_INIT;
	assert_fails(make(1, &err), &err, WS_EREFUSED, words);
}

WITH_FILES(what_would_hang_is_refused)
{
	static const char *const k_proj[] = { "*k_proj*" }, *const attention[] = {
		"*layers.0.self_attn.*"
	};
	struct ws_err err = WS_ERR_INIT;
	write_checkpoint();
	open_input(2, 1, &(struct ws_plan_opts){ .exclude = k_proj, .n_exclude = 1 });
	assert_refused("parameter model.layers.0.self_attn.qkv_proj.weight must be sent whole, but "
	               "model.layers.0.self_attn.k_proj.weight is not sent");
	open_input(2, 1, &(struct ws_plan_opts){ .include = k_proj, .n_include = 1 });
	assert_refused("must be sent whole");
	open_input(2, 1, &(struct ws_plan_opts){ 0 });
	listing.n--;
	assert_refused("the server has no parameter");
	listing.n++;
	listing.items[0].dims[0]++;
	assert_refused("has another shape than its config");
	listing.items[0].dims[0]--;
	assert_int_equal(make(1, &err), 0); /* it was these alone */
	open_input(2, 1, &(struct ws_plan_opts){ .include = attention, .n_include = 1 });
	assert_int_equal(make(1, &err), 0);
	assert_int_equal(scatter->n_entries, 5);
}

RUN_TESTS(NULL, NULL)
