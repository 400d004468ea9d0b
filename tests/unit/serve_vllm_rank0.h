/* SPDX-License-Identifier: Apache-2.0 */
/* serve_vllm_rank0.h - an endpoint that plays vLLM with wsync's worker extension, and this program
 * as the trainer. */
#ifndef WS_TEST_SERVE_VLLM_RANK0_H
#define WS_TEST_SERVE_VLLM_RANK0_H

#include "serve_rank0.h"
#include "serve_vllm.h"

static inline void begin_vllm_init(struct post *p, const char *more)
{
	begin(p, "POST", "/init_weight_transfer_engine",
	      "{\"init_info\":{\"master_address\":\"127.0.0.1\",\"master_port\":%u,"
	      "\"rank_offset\":1,\"world_size\":%u%s}}",
	      (unsigned)ws_store_port(store), 1 + serve->opts.tp, more);
}

/* The keys are those of torch: a PrefixStore on a TCPStore, which begins each with a slash. */
static inline void form_vllm(const char *more)
{
	static const char prefix[] = "g/g//cpu/";
	struct ws_err err = WS_ERR_INIT;
	struct post p;
	assert_int_equal(ws_store_set(store, "/wsync/gloo", prefix, strlen(prefix), true, &err), 0);
	begin_vllm_init(&p, more);
	const struct ws_gloo_kv kv = ws_gloo_kv_store(store);
	const struct ws_gloo_opts go = {
		.rank = 0, .size = 1 + serve->opts.tp, .prefix = "/g/g//cpu//0/", .kv = &kv,
		.host = "127.0.0.1",
	};
	if (ws_gloo_open(&go, soon(), &cancel, &gloo, &err))
		fail_msg("%s", err.msg);
	end(&p, 200, "{\"message\":\"Weight transfer initialized\"}");
}

/* Sends the four tensors in n broadcasts; broadcast i has those before ends[i]. */
static inline int send_cut(const size_t *ends, size_t n, struct ws_err *err)
{
	struct ws_span spans[TENSORS];
	struct ws_payload items[TENSORS];
	size_t k = 0;
	for (size_t i = 0; i < TENSORS; i++)
		make_span(&spans[i], i);
	for (size_t i = 0; i < n; i++) {
		items[i] = (struct ws_payload){ 0, &spans[k], ends[i] - k };
		for (; k < ends[i]; k++)
			items[i].length += lengths[k];
	}
	return ws_gloo_send(gloo, items, n, soon(), &cancel, err);
}

#define DESCRIBED \
	"\"names\":[\"w.a\",\"w.b\",\"w.c\",\"w.d\"]," \
	"\"dtype_names\":[\"float32\",\"bfloat16\",\"int64\",\"uint8\"]," \
	"\"shapes\":[[700,100],[3],[],[5]]"

static inline void update_vllm(const char *info, const size_t *ends, size_t n, long status,
                        const char *says)
{
	struct post p;
	struct ws_err err = WS_ERR_INIT;
	begin(&p, "POST", "/update_weights", "{\"update_info\":{%s}}", info);
	if (send_cut(ends, n, &err))
		fail_msg("%s", err.msg);
	end(&p, status, says);
}

static const size_t each[] = { 1, 2, 3, 4 };

#endif
