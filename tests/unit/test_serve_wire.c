/* SPDX-License-Identifier: Apache-2.0 */
/* An endpoint that misbehaves on the wire, and in its answers: what its peers see of it. */
#include "serve_rank0.h"

static struct ws_serve_opts with(const char *const *fault)
{
	return (struct ws_serve_opts){ .faults = fault,
		                       .n_faults = 1,
		                       .slow_ns = 300 * WS_NS_PER_MS };
}

/* Forms the group as rank 0; the outcome is told, not asserted. */
static int try_form(struct post *p, struct ws_err *err)
{
	begin_init(p);
	const struct ws_gloo_kv kv = ws_gloo_kv_store(store);
	const struct ws_gloo_opts go = { .rank = 0, .size = 2, .prefix = "/g/g//cpu//0/", .kv = &kv,
		                         .host = "127.0.0.1" };
	return ws_gloo_open(&go, ws_deadline_in(WS_NS_PER_S), &cancel, &gloo, err);
}

/* What rank 0 meets, and then leaves: its store goes, and the endpoint's init ends by that. */
static void join_fails(const char *fault, const char *ours, const char *theirs)
{
	const char *const faults[] = { fault };
	const struct ws_serve_opts opts = with(faults);
	struct ws_err err = WS_ERR_INIT;
	struct post p;
	start(&opts);
	const int rc = try_form(&p, &err);
	if (!rc || !strstr(err.msg, ours))
		fail_msg("%s: '%s' lacks '%s'", fault, err.msg, ours);
	ws_gloo_close(gloo);
	gloo = NULL;
	ws_store_close(store);
	store = NULL;
	end(&p, 400, theirs);
	assert_null(serve->groups);
	ws_serve_stop(serve);
	serve = NULL;
}

RANK0_TEST(a_store_that_meets_garbage_goes_on_without_that_rank)
{
	static const char *const kinds[] = { "refuse", "hang", "drop", "garbage", "wrong-length" };
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
		char fault[64], theirs[64];
		snprintf(fault, sizeof fault, "%s:wire/store:1", kinds[i]);
		snprintf(theirs, sizeof theirs, "fault %s", kinds[i]);
		join_fails(fault, "deadline", theirs);
	}
}

RANK0_TEST(an_address_that_is_none_is_found_out)
{
	join_fails("garbage:wire/connect:1", "what rank 1 published", "fault garbage");
	join_fails("wrong-length:wire/connect:1", "cut short", "fault wrong-length");
	join_fails("hang:wire/connect:1", "deadline", "fault hang");
}

/* Is our error `ours`? Else it is that of the connection. */
static bool payload_fails(const char *fault, const char *ours)
{
	const char *const faults[] = { fault };
	const struct ws_serve_opts opts = with(faults);
	struct ws_err err = WS_ERR_INIT;
	struct post p;
	start(&opts);
	form();
	begin(&p, "POST", "/update_weights_from_distributed", "{%s,\"flush_cache\":false}",
	      tensors);
	if (send_tensors(&err) == 0)
		fail_msg("%s: nobody noticed", fault);
	const bool found = strstr(err.msg, ours);
	if (!found && !strstr(err.msg, "closed its connection"))
		fail_msg("%s: '%s' lacks '%s'", fault, err.msg, ours);
	end(&p, 400, "Failed to update parameter online");
	return found;
}

/* The rank closes its connection at once. Bytes of ours that it has not read make that a reset,
 * which may overtake its last message: then once more. */
RANK0_TEST(a_length_that_is_wrong_is_found_out)
{
	bool found = false;
	for (int i = 0; i < 10 && !found; i++) {
		if (i > 0) {
			tear_down(state);
			set_up(state);
		}
		found = payload_fails("wrong-length:wire/payload:1",
		                      "rank 1 expects 6 bytes for item 3, which has 5");
	}
	assert_true(found);
}

RANK0_TEST(garbage_among_the_bytes_is_found_out)
{
	assert_true(payload_fails("garbage:wire/payload:1", "message"));
}

RANK0_TEST(a_connection_may_break_among_the_bytes)
{
	static const char *const faults[] = { "drop:wire/payload:1" };
	const struct ws_serve_opts opts = with(faults);
	struct ws_err err = WS_ERR_INIT;
	struct post p;
	start(&opts);
	form();
	begin(&p, "POST", "/update_weights_from_distributed", "{%s,\"flush_cache\":false}",
	      tensors);
	send_tensors(&err); /* the kernel may have taken it all */
	end(&p, -1, "");
}

RANK0_TEST(a_receiver_that_hangs_is_waited_for_until_the_deadline)
{
	static const char *const faults[] = { "hang:wire/payload:1" };
	const struct ws_serve_opts opts = with(faults);
	struct ws_err err = WS_ERR_INIT;
	struct post p;
	start(&opts);
	serve->opts.receive_ns = 500 * WS_NS_PER_MS;
	form();
	begin(&p, "POST", "/update_weights_from_distributed", "{%s,\"flush_cache\":false}",
	      tensors);
	send_tensors(&err); /* the kernel may have taken it all */
	end(&p, 400, "fault hang");
}

RUN_TESTS(NULL, NULL)
