/* SPDX-License-Identifier: Apache-2.0 */
/* From made evidence to the likely cause: each row of the table, and what stands before what. */
#include "test.h"
#include "wsync/clock.h"
#include "wsync/tool/hang.h"

enum { MAX = 8 };

struct scene {
	struct ws_hang h;
	struct ws_hang_endpoint endpoints[MAX];
	struct ws_hang_rank ranks[MAX];
	struct ws_hang_peer peers[MAX];
};

static const char *const urls[] = { "http://a:1", "http://b:1", "http://c:1" };

/* n endpoints of so many ranks each, waited for, everything else empty. */
static struct scene *scene(enum ws_hang_wait wait, size_t n, unsigned ranks)
{
	static struct scene s;
	memset(&s, 0, sizeof s);
	s.h = (struct ws_hang){ .end = WS_HANG_DEADLINE,
		                .wait = wait,
		                .phase = WS_PHASE_INIT,
		                .waited_ns = 10 * WS_NS_PER_S,
		                .field = "init_ns",
		                .group = "wsync-1",
		                .backend = "gloo",
		                .address = "10.0.0.1",
		                .port = 4711,
		                .endpoints = s.endpoints,
		                .n_endpoints = n,
		                .ranks = s.ranks,
		                .n_ranks = n * ranks,
		                .world_size = (unsigned)n * ranks + 1,
		                .peers = s.peers };
	for (size_t i = 0; i < n; i++)
		s.endpoints[i] = (struct ws_hang_endpoint){
			.url = urls[i],
			.rank_offset = (unsigned)i * ranks + 1,
			.n_ranks = ranks,
			.request = WS_HANG_SENT,
			.route = "POST /init_weights_update_group",
			.request_ns = 10 * WS_NS_PER_S,
			.front = WS_HANG_ANSWERS,
			.health = WS_HANG_ANSWERS,
			.health_status = 200,
		};
	for (size_t r = 0; r < n * ranks; r++)
		s.ranks[r] = (struct ws_hang_rank){ .endpoint = r / ranks, .link = WS_HANG_APART };
	return &s;
}

/* Ranks from..to (numbers of the group) have come so far. */
static void come(struct scene *s, size_t from, size_t to, enum ws_hang_store store,
                 enum ws_hang_link link)
{
	for (size_t r = from; r <= to; r++) {
		s->ranks[r - 1].store = store;
		s->ranks[r - 1].link = link;
		s->h.joined++;
	}
}

static struct scene *moving(size_t n, unsigned ranks)
{
	struct scene *s = scene(WS_HANG_MOVING, n, ranks);
	come(s, 1, n * ranks, WS_HANG_ASKED, WS_HANG_LINKED);
	s->h.phase = WS_PHASE_TRANSFER;
	s->h.field = "bucket_ns";
	snprintf(s->h.what, sizeof s->h.what, "bucket 3 of 9");
	s->h.bucket = 2;
	s->h.buckets = 9;
	s->h.bytes = 1 << 20;
	for (size_t r = 1; r <= n * ranks; r *= 2)
		s->ranks[r - 1].due = s->ranks[r - 1].taken = s->h.bytes;
	return s;
}

static void expect(struct scene *s, const char *cause, const char *likely)
{
	static const char *const facts[] = { "{who}", "{address}", "{port}", "{group}",
		                             "{peer}", "{key}", "{still}", "{starved}",
		                             "{waited}", "{ifname}", "{longer}" };
	ws_hang_find_cause(&s->h);
	if (strcmp(s->h.cause, cause) || !strstr(s->h.likely, likely))
		print_error("cause %s, likely: %s\n", s->h.cause, s->h.likely);
	assert_string_equal(s->h.cause, cause);
	assert_non_null(strstr(s->h.likely, likely));
	assert_true(s->h.remedy[0]);
	/* what is left in braces are fields of options */
	for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
		assert_true(!strstr(s->h.likely, facts[i]) && !strstr(s->h.remedy, facts[i]));
}

static void told(const struct scene *s, const char *part)
{
	struct ws_buf text;
	ws_buf_init(&text, 65536);
	ws_hang_tell(&s->h, &text);
	if (!strstr(ws_buf_str(&text), part))
		print_error("facts: %s\n", ws_buf_str(&text));
	assert_non_null(strstr(ws_buf_str(&text), part));
	ws_buf_free(&text);
}

static void told_briefly(const struct scene *s, const char *whole)
{
	struct ws_buf text;
	ws_buf_init(&text, 65536);
	ws_hang_tell_briefly(&s->h, &text);
	assert_string_equal(ws_buf_str(&text), whole);
	ws_buf_free(&text);
}

/* ---- forming ---- */

/* Ranks of whom nobody knows which they are. */
static void come_nameless(struct scene *s, size_t n)
{
	s->h.joined = (unsigned)n;
	s->h.n_peers = n;
	for (size_t i = 0; i < n; i++)
		s->peers[i] =
			(struct ws_hang_peer){ .joined = true, .connected = true, .asked = true };
}

static const struct forming {
	size_t endpoints;
	unsigned ranks;
	const char *backend;
	struct { size_t from, to; enum ws_hang_store store; enum ws_hang_link link; } come[2];
	size_t answered;              /* endpoints whose request was answered */
	const char *cause, *likely, *remedy, *brief;
} formings[] = {
	/* nobody came to a good address */
	{ 2, 2, "gloo", .cause = "store-unreached", .likely = "10.0.0.1 port 4711",
	  .remedy = "{init_ns} gives it longer", .brief = "waiting 10 s for ranks 1, 2 of "
	  "http://a:1; ranks 3, 4 of http://b:1: not at the store" },
	{ 2, 4, "gloo", { { 1, 5, WS_HANG_ASKED, WS_HANG_APART },
	                  { 8, 8, WS_HANG_ASKED, WS_HANG_APART } },
	  .cause = "missing-ranks", .likely = "but not ranks 6, 7 of http://b:1",
	  .brief = "waiting 10 s for ranks 6, 7 of http://b:1: not at the store" },
	{ 3, 2, "gloo", { { 1, 4, WS_HANG_ASKED, WS_HANG_APART } }, .cause = "missing-endpoint",
	  .likely = "no process of http://c:1 has", .remedy = "10.0.0.1 port 4711" },
	{ 1, 2, "gloo", { { 1, 1, WS_HANG_JOINED, WS_HANG_APART },
	                  { 2, 2, WS_HANG_ASKED, WS_HANG_APART } },
	  .cause = "not-published", .likely = "published a gloo address" },
	{ 1, 2, "nccl", { { 1, 1, WS_HANG_JOINED, WS_HANG_APART },
	                  { 2, 2, WS_HANG_ASKED, WS_HANG_APART } },
	  .cause = "id-not-asked", .likely = "bound to its device" },
	{ 1, 2, "nccl", { { 1, 2, WS_HANG_ASKED, WS_HANG_LINK_UNKNOWN } }, .cause = "data-plane",
	  .likely = "communicator", .remedy = "NCCL_SOCKET_IFNAME" },
	/* the group stands, and an answer is missing */
	{ 2, 1, "gloo", { { 1, 2, WS_HANG_ASKED, WS_HANG_LINKED } }, 1, "after-forming",
	  "but http://b:1 has not answered", .brief = "waiting 10 s for http://b:1: "
	  "POST /init_weights_update_group sent, no answer" },
};

TEST(who_has_come_so_far_tells_the_cause)
{
	for (size_t i = 0; i < sizeof formings / sizeof *formings; i++) {
		const struct forming *f = &formings[i];
		struct scene *s = scene(WS_HANG_FORMING, f->endpoints, f->ranks);
		strcpy(s->h.backend, f->backend);
		for (size_t k = 0; k < 2 && f->come[k].from; k++)
			come(s, f->come[k].from, f->come[k].to, f->come[k].store, f->come[k].link);
		for (size_t k = 0; k < f->answered; k++) {
			s->endpoints[k].request = WS_HANG_ANSWERED;
			s->endpoints[k].status = 200;
		}
		expect(s, f->cause, f->likely);
		if (f->remedy)
			assert_non_null(strstr(s->h.remedy, f->remedy));
		if (f->brief)
			told_briefly(s, f->brief);
	}
}

TEST(nobody_came_to_a_loopback_address)
{
	struct scene *s = scene(WS_HANG_FORMING, 1, 2);
	s->h.loopback = true;
	strcpy(s->h.address, "127.0.0.1");
	expect(s, "loopback", "told to connect to 127.0.0.1");
	assert_non_null(strstr(s->h.remedy, "{master_address}"));
	told(s, "0 of 2 ranks have joined group wsync-1 (gloo) at 127.0.0.1 port 4711");
	told(s, "not at the store: ranks 1, 2 of http://a:1");
}

TEST(of_an_endpoint_whose_ranks_are_not_told_apart_some_are_missing)
{
	struct scene *s = scene(WS_HANG_FORMING, 1, 4);
	strcpy(s->h.backend, "nccl");
	s->endpoints[0].unnamed = 3;
	come_nameless(s, 3);
	expect(s, "missing-ranks", "but not some ranks of http://a:1");
	told(s, "not known which: 3 of the 4 ranks of http://a:1");
}

TEST(whose_are_missing_is_not_known_where_endpoints_share_an_address)
{
	struct scene *s = scene(WS_HANG_FORMING, 2, 2);
	strcpy(s->h.backend, "nccl");
	s->h.loose = 3;
	come_nameless(s, 3);
	s->endpoints[0].request = WS_HANG_ANSWERED;
	expect(s, "not-taken-up", "and http://b:1 has not answered");
	told_briefly(s, "waiting 10 s for 1 more ranks at 10.0.0.1 port 4711: 3 of 4 have come");
}

TEST(a_rank_came_and_left)
{
	struct scene *s = scene(WS_HANG_FORMING, 1, 4);
	come(s, 1, 4, WS_HANG_ASKED, WS_HANG_APART);
	s->ranks[2].store = WS_HANG_LEFT;
	expect(s, "rank-left", "rank 3 of http://a:1");
}

TEST(another_sender_has_not_come)
{
	struct scene *s = scene(WS_HANG_FORMING, 1, 3);
	s->endpoints[0].n_ranks = 2;
	s->endpoints[0].rank_offset = 2;
	s->endpoints[1].url = "the senders";
	s->ranks[0].endpoint = 1;
	come(s, 2, 3, WS_HANG_ASKED, WS_HANG_APART);
	expect(s, "missing-sender", "rank 1 of the senders");
	told(s, "not at the store: rank 1 of the senders");
}

TEST(somebody_asks_for_another_group)
{
	struct scene *s = scene(WS_HANG_FORMING, 1, 1);
	s->h.joined = 1;
	s->h.n_peers = 1;
	s->peers[0] = (struct ws_hang_peer){ .address = "10.0.0.9:5",
		                             .joined = true,
		                             .connected = true,
		                             .foreign = true,
		                             .waits_for = "/old/old//cpu//0/0" };
	expect(s, "other-group", "10.0.0.9:5 waits for \"/old/old//cpu//0/0\"");
	told(s, "of another group");
}

TEST(eager_ones_and_lazy_ones_wait_for_each_other)
{
	struct scene *s = scene(WS_HANG_FORMING, 3, 2);
	strcpy(s->h.backend, "nccl");
	come(s, 1, 2, WS_HANG_JOINED, WS_HANG_APART);
	come(s, 3, 6, WS_HANG_ASKED, WS_HANG_APART);
	s->endpoints[0].request = WS_HANG_ANSWERED;
	s->endpoints[0].status = 200;
	expect(s, "mixed-joining", "(eager) by http://b:1, http://c:1, and");
	/* Who is whose is not known where they share an address. */
	s = scene(WS_HANG_FORMING, 2, 1);
	strcpy(s->h.backend, "nccl");
	s->h.loose = 2;
	come_nameless(s, 2);
	s->peers[1].asked = false;
	s->endpoints[1].request = WS_HANG_ANSWERED;
	s->endpoints[1].status = 200;
	expect(s, "mixed-joining", "http://a:1");
	s->endpoints[1].status = 400; /* it has refused, and waits for nobody */
	expect(s, "id-not-asked", "bound to its device");
	s->endpoints[1].status = 200;
	s->peers[0].asked = false; /* the other one is late, and may be of either kind */
	expect(s, "id-not-asked", "bound to its device");
	strcpy(s->h.backend, "gloo");
	expect(s, "not-published", "published a gloo address");
}

TEST(all_met_and_did_not_connect)
{
	struct scene *s = scene(WS_HANG_FORMING, 1, 3);
	come(s, 1, 2, WS_HANG_ASKED, WS_HANG_LINKED);
	come(s, 3, 3, WS_HANG_ASKED, WS_HANG_APART);
	expect(s, "data-plane", "rank 3 of http://a:1");
	assert_non_null(strstr(s->h.remedy, "GLOO_SOCKET_IFNAME"));
	strcpy(s->h.backend, "nccl");
	s->ranks[0].link = s->ranks[1].link = WS_HANG_APART;
	s->ranks[2].store = WS_HANG_ASKED;
	ws_hang_find_cause(&s->h);
	assert_string_equal(s->h.cause, "data-plane");
}

/* ---- whatever is waited for ---- */

TEST(what_was_seen_of_a_server_comes_first)
{
	struct scene *s = scene(WS_HANG_FORMING, 2, 1);
	s->endpoints[1].front = s->endpoints[1].health = WS_HANG_SILENT;
	expect(s, "server-stopped", "http://b:1 takes connections and answers nothing");
	told(s, "http://b:1: POST /init_weights_update_group sent, no answer in 10.00 s, "
	        "/model_info is not answered now");
	s->endpoints[1].front = s->endpoints[1].health = WS_HANG_REFUSED;
	s->endpoints[1].request = WS_HANG_BROKEN;
	expect(s, "server-gone", "at http://b:1 any more");
}

TEST(no_connection_and_a_request_that_is_not_read)
{
	struct scene *s = scene(WS_HANG_ANSWER, 1, 0);
	s->endpoints[0].request = WS_HANG_CONNECTING;
	s->h.phase = WS_PHASE_CONNECT;
	expect(s, "no-route", "no connection to http://a:1");
	s->endpoints[0].request = WS_HANG_SENDING;
	s->h.phase = WS_PHASE_TRANSFER;
	expect(s, "slow-request", "http://a:1 had not read");
}

TEST(an_answer_by_phase)
{
	static const struct {
		enum ws_phase phase;
		const char *cause;
	} cases[] = {
		{ WS_PHASE_CONNECT, "starting" }, { WS_PHASE_PAUSE, "busy" },
		{ WS_PHASE_FLUSH, "flushing" },   { WS_PHASE_VERIFY, "checksums" },
		{ WS_PHASE_RESUME, "busy" },      { WS_PHASE_DESTROY, "busy" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct scene *s = scene(WS_HANG_ANSWER, 2, 0);
		s->endpoints[0].request = WS_HANG_ANSWERED;
		s->h.phase = cases[i].phase;
		expect(s, cases[i].cause, "http://b:1");
		told(s, "1 other endpoint was not waited for");
	}
}

TEST(our_own_work_and_nothing_at_all)
{
	struct scene *s = scene(WS_HANG_OURSELVES, 1, 0);
	s->endpoints[0].request = WS_HANG_ANSWERED;
	expect(s, "own-work", "our own work");
	s = scene(WS_HANG_ANSWER, 1, 0);
	s->endpoints[0].request = WS_HANG_NO_REQUEST;
	s->h.field = NULL;
	expect(s, "unknown", "nothing");
	assert_null(strstr(s->h.remedy, "longer"));
}

/* ---- moving ---- */

TEST(the_source_is_slow)
{
	struct scene *s = moving(1, 2);
	s->ranks[0].taken = s->ranks[1].taken = 1000;
	s->h.starved_ns = 8 * WS_NS_PER_S;
	expect(s, "source-slow", "for 8.00 s of 10.00 s");
	told(s, "our source had no bytes ready for 8.00 s");
	s->h.starved_ns = WS_NS_PER_S;
	s->h.still_ns = 9 * WS_NS_PER_S;
	expect(s, "stalled", "for 9.00 s");
}

TEST(a_rank_takes_nothing_a_part_or_slowly)
{
	struct scene *s = moving(2, 2);
	s->ranks[3].taken = 0;
	expect(s, "not-receiving", "rank 4 of http://b:1");
	told(s, "rank 4 of http://b:1 took nothing; the others that we feed took all");
	told_briefly(
		s,
		"waiting 10 s for rank 4 of http://b:1: took nothing of 1.00 MiB, bucket 3 of 9");
	s->ranks[3].taken = 4096;
	s->h.still_ns = 6 * WS_NS_PER_S;
	expect(s, "stalled", "rank 4 of http://b:1, and then, for 6.00 s");
	s->h.still_ns = WS_NS_PER_S / 10;
	expect(s, "slow-wire", "rank 4 of http://b:1");
	assert_non_null(strstr(s->h.remedy, "{bucket_ns}"));
	s->ranks[3].link = WS_HANG_LINK_LOST;
	expect(s, "link-broke", "rank 4 of http://b:1");
}

TEST(all_is_taken_and_not_answered)
{
	struct scene *s = moving(2, 1);
	s->endpoints[0].request = WS_HANG_ANSWERED;
	s->endpoints[1].buckets = 2;
	expect(s, "loading", "http://b:1 has all of it");
	told(s, "2 of 9 answered before");
	s->h.flush = true;
	expect(s, "flushing", "http://b:1");
	s->endpoints[0].request = WS_HANG_BROKEN; /* and b waits for its ranks */
	expect(s, "link-broke", "http://a:1 broke the connection");
}

TEST(bytes_come_through_another_server)
{
	struct scene *s = moving(3, 1);
	s->endpoints[0].request = s->endpoints[1].request = WS_HANG_ANSWERED;
	expect(s, "downstream", "http://c:1, which gets them from ranks of other servers");
}

RUN_TESTS(NULL, NULL)
