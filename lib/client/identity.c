/* SPDX-License-Identifier: Apache-2.0 */
/* identity.c - see identity.h. */
#include "identity.h"

#include "hash.h"
#include "wsync/tool/buf.h"
#include "wsync/tool/str.h"

#include <string.h>

enum { TEXT_MAX = 16 << 10, DEPTH_MAX = 4 };

/* Appends a value as text. Equal values give equal text. The members of objects and arrays
 * follow. */
static void add_text(struct ws_buf *text, const struct ws_json *node, int depth)
{
	const char *string = ws_json_string(node);
	double number = 0;
	ws_buf_printf(text, "%s=%d:", ws_json_key(node), (int)ws_json_type(node));
	if (string)
		ws_buf_puts(text, string);
	else if (ws_json_double(node, &number))
		ws_buf_printf(text, "%.17g", number);
	ws_buf_puts(text, "\n");
	for (const struct ws_json *m = depth < DEPTH_MAX ? ws_json_first(node) : NULL; m;
	     m = ws_json_next(m))
		add_text(text, m, depth + 1);
}

/* The hash of these members of a reply that are there; 0: none is. */
static uint64_t hash_of(const struct ws_json *root, const char *const *keys, size_t n)
{
	struct ws_buf text;
	uint64_t hash = 0;
	ws_buf_init(&text, TEXT_MAX);
	for (size_t i = 0; i < n; i++) {
		const struct ws_json *node = ws_json_get(root, keys[i]);
		if (ws_json_type(node) != WS_JSON_NULL)
			add_text(&text, node, 0);
	}
	if (text.len && ws_buf_check(&text, "server_info", NULL) == 0)
		hash = ws_hash64(text.data, text.len);
	ws_buf_free(&text);
	return hash;
}

/* ---- vLLM ---- */

/* The server's clock in ns, and not the five random letters of an older vLLM. */
static bool is_clock(uint64_t id)
{
	return id > UINT64_C(1000000000) * WS_NS_PER_S && id < INT64_MAX;
}

/* A clock stays a number that can be compared with a date. Other text becomes a hash that is_clock
 * does not take for one. */
static uint64_t id_of(const char *text)
{
	uint64_t n = 0;
	return ws_parse_uint(text, 1, INT64_MAX, "id", &n, NULL) ?
	               ws_hash64(text, strlen(text)) | UINT64_C(1) << 63 :
	               n;
}

/* Its processes report the same host and port. */
static void read_vllm(const struct ws_json *config, struct ws_identity *out)
{
	const struct ws_json *parallel = ws_json_get(config, "parallel_config");
	const char *id = ws_json_get_string(config, "instance_id", "");
	const int64_t rank = ws_json_get_int(parallel, "_api_process_rank", 0);
	const int64_t all = ws_json_get_int(parallel, "_api_process_count", 1);
	if (!*id || rank < 0 || rank > UINT16_MAX || all < 1 || all > UINT16_MAX)
		return;
	out->strength = WS_IDENTITY_SURE;
	out->processes = (unsigned)all;
	out->seen[0].rank = (unsigned)rank;
	out->seen[0].id = id_of(id);
	out->n = 1;
	out->unique = is_clock(out->seen[0].id);
}

/* ---- SGLang ---- */

static void read_sglang(const struct ws_json *root, struct ws_identity *out)
{
	static const char *const keys[] = { "random_seed", "startup_time", "host", "port" };
	const bool timed = ws_json_type(ws_json_get(root, "startup_time")) == WS_JSON_OBJECT;
	const bool drawn = ws_json_type(ws_json_get(root, "random_seed")) != WS_JSON_NULL;
	if (ws_json_get_int(root, "tokenizer_worker_num", 1) > 1 || (!timed && !drawn))
		return;
	out->seen[0].id = hash_of(root, keys, sizeof keys / sizeof *keys);
	out->processes = out->n = out->seen[0].id != 0;
	out->unique = timed;
	out->strength = !out->n ? WS_IDENTITY_NONE : timed ? WS_IDENTITY_SURE : WS_IDENTITY_WEAK;
}

void ws_identity_read(const struct ws_json *server_info, int64_t date, struct ws_identity *out)
{
	const struct ws_json *config = ws_json_get(server_info, "vllm_config");
	*out = (struct ws_identity){ .since = date * WS_NS_PER_S };
	if (ws_json_type(config) == WS_JSON_OBJECT)
		read_vllm(config, out);
	else
		read_sglang(server_info, out);
}

uint64_t ws_identity_number(const struct ws_identity *id)
{
	uint64_t ids[WS_IDENTITY_PROCESSES] = { 0 };
	if (id->n == 0 || id->n != id->processes)
		return 0;
	if (id->n == 1)
		return id->seen[0].id;
	for (unsigned i = 0; i < id->n; i++)
		if (id->seen[i].rank < id->n)
			ids[id->seen[i].rank] = id->seen[i].id;
	return ws_hash64(ids, id->n * sizeof *ids);
}

/* ---- comparing ---- */

/* A process that was not seen before is one of the same start if it began before the server first
 * answered. Its id is its clock, in ns; a Date is rounded down to seconds. Once all processes
 * should have answered, a new one may as well be that of another server that began earlier. */
static enum ws_identity_match judge_new(const struct ws_identity *known, uint64_t id)
{
	const uint64_t first = (uint64_t)known->since + WS_NS_PER_S;
	return !known->since || !is_clock(id) ? WS_IDENTITY_UNTOLD :
	       id > first                 ? WS_IDENTITY_OTHER :
	       known->closed              ? WS_IDENTITY_UNTOLD :
	                                    WS_IDENTITY_SAME;
}

enum ws_identity_match ws_identity_compare(struct ws_identity *known,
                                           const struct ws_identity *now)
{
	enum ws_identity_match all = WS_IDENTITY_SAME;
	if (!known->n || !now->n)
		return WS_IDENTITY_UNTOLD;
	if (known->processes != now->processes || known->strength != now->strength)
		return WS_IDENTITY_OTHER;
	for (unsigned k = 0; k < now->n; k++) {
		unsigned i = 0;
		while (i < known->n && known->seen[i].rank != now->seen[k].rank)
			i++;
		const enum ws_identity_match one =
			i == known->n ? judge_new(known, now->seen[k].id) :
			known->seen[i].id == now->seen[k].id ? WS_IDENTITY_SAME :
			                                       WS_IDENTITY_OTHER;
		if (one == WS_IDENTITY_OTHER)
			return one;
		all = one == WS_IDENTITY_SAME ? all : one;
		if (i == known->n && i < WS_IDENTITY_PROCESSES && !known->closed)
			known->seen[known->n++] = now->seen[k];
	}
	return all;
}
