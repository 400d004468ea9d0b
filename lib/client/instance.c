/* SPDX-License-Identifier: Apache-2.0 */
/* instance.c - identifies one start of a server. */
#include "instance.h"

#include "hash.h"
#include "wsync/tool/buf.h"

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

uint64_t ws_instance_of(const struct ws_json *server_info)
{
	static const char *const keys[] = { "random_seed", "startup_time", "host", "port" };
	/* vLLM draws it at the start. */
	const struct ws_json *drawn =
		ws_json_get(ws_json_get(server_info, "vllm_config"), "instance_id");
	struct ws_buf text;
	uint64_t hash = 0;
	if (ws_json_get_int(server_info, "tokenizer_worker_num", 1) > 1)
		return 0;
	ws_buf_init(&text, TEXT_MAX);
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		const struct ws_json *node = ws_json_get(server_info, keys[i]);
		if (ws_json_type(node) != WS_JSON_NULL)
			add_text(&text, node, 0);
	}
	if (ws_json_string(drawn) && *ws_json_string(drawn))
		add_text(&text, drawn, 0);
	if (text.len && ws_buf_check(&text, "server_info", NULL) == 0)
		hash = ws_hash64(text.data, text.len);
	ws_buf_free(&text);
	return hash;
}
