/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of an endpoint that plays vLLM, over gloo: what the trainer sees, and what becomes of the
 * engine. */
#include "serve_vllm_rank0.h"

static void start_with(const char *fault)
{
	const char *const faults[] = { fault };
	start(&(struct ws_serve_opts){ .lineage = WS_SERVE_VLLM_0_27, .faults = faults,
	                               .n_faults = 1, .slow_ns = 100 * WS_NS_PER_MS });
}

/* The request ends like this. The trainer may notice or not: the kernel may have taken all of its
 * bytes. */
static void update_fails(const char *fault, long status, const char *says)
{
	struct post p;
	struct ws_err err = WS_ERR_INIT;
	start_with(fault);
	form_vllm("");
	post("/start_weight_update", "", 200, "started");
	begin(&p, "POST", "/update_weights", "{\"update_info\":{%s}}", DESCRIBED);
	send_cut(each, 4, &err);
	end(&p, status, says);
	assert_true(serve->vllm->broken);
	assert_false(serve->vllm->active);
	/* the group is of no use, and another one can be formed */
	post("/start_weight_update", "", 200, "started");
	post("/update_weights", "{\"update_info\":{" DESCRIBED "}}", 500,
	     "the group failed before");
	post("/collective_rpc", "{\"method\":\"wsync_leave\"}", 200, "null");
	assert_null(serve->groups);
	tear_down(NULL);
	assert_int_equal(set_up(NULL), 0);
}

RANK0_TEST(an_update_that_is_dropped_breaks_the_model)
{
	update_fails("drop:update_weights:1", -1, "");
	update_fails("drop:wire/payload:1", -1, "");
	update_fails("garbage:wire/payload:1", 500, "Call to collective_rpc method failed: rank 1");
	update_fails("wrong-length:wire/payload:1", 500, "Call to collective_rpc method failed");
}

RANK0_TEST(a_group_that_does_not_form_is_an_exception)
{
	static const char *const faults[] = { "refuse:wire/store:1", "garbage:wire/store:1",
		                              "garbage:wire/connect:1" };
	for (size_t i = 0; i < 3; i++) {
		struct post p;
		start_with(faults[i]);
		assert_int_equal(ws_store_set(store, "/wsync/gloo", "g/g//cpu/", 9, true, NULL), 0);
		begin_vllm_init(&p, "");
		if (i == 2) { /* it waits for an answer to its address */
			await_receiving();
			ws_store_close(store);
			store = NULL;
		}
		end(&p, 500, "Call to collective_rpc method failed: rank 1: ");
		assert_null(serve->groups);
		tear_down(NULL);
		assert_int_equal(set_up(NULL), 0);
	}
}

RANK0_TEST(slow_and_corrupt_updates_are_answered_with_success)
{
	struct post p;
	start_with("slow:update_weights:1");
	form_vllm("");
	post("/start_weight_update", "", 200, "started");
	update_vllm(DESCRIBED, each, 4, 200, "Weights updated");
	assert_checksums();
	tear_down(NULL);
	assert_int_equal(set_up(NULL), 0);
	start_with("flip:update_weights:1:w.b");
	form_vllm("");
	post("/start_weight_update", "", 200, "started");
	update_vllm(DESCRIBED, each, 4, 200, "Weights updated");
	get(&p, "/wsync/journal", 200, "\"corrupted\":\"w.b\"");
}

RUN_TESTS(NULL, NULL)
