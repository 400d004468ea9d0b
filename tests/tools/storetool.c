/* SPDX-License-Identifier: Apache-2.0 */
/* storetool.c - a store on the command line, for tests with real torch processes.
 *
 *   storetool serve WORLD_SIZE GROUP      hosts a store on 127.0.0.1 and prints its port
 *   storetool client PORT EPOCH           sends requests to a store
 *
 * Both then take one command per line on stdin and answer each with one line of JSON: "text", or
 * "error" with its "code" and "hint". Values are text. */
#include "store.h"

#include "wsync/tool/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 4 };

static ws_deadline soon(const char *seconds)
{
	return ws_deadline_in((int64_t)(strtod(*seconds ? seconds : "20", NULL) * 1e9));
}

static void answer(int rc, const struct ws_err *err, const char *text)
{
	struct ws_buf line;
	struct ws_jw w;
	ws_buf_init(&line, 0);
	ws_jw_init(&w, &line);
	ws_jw_object(&w, NULL);
	ws_jw_str(&w, rc ? "error" : "text", rc ? err->msg : text);
	if (rc)
		ws_jw_str(&w, "code", ws_code_name(err->code));
	if (rc)
		ws_jw_str(&w, "hint", err->hint);
	ws_jw_end_object(&w);
	puts(ws_buf_str(&line));
	fflush(stdout);
	ws_buf_free(&line);
}

static int split(char *line, const char *words[MAX_WORDS + 1])
{
	int n = 0;
	char *save = NULL;
	for (char *w = strtok_r(line, " \n", &save); w && n < MAX_WORDS;
	     w = strtok_r(NULL, " \n", &save))
		words[n++] = w;
	for (int i = n; i <= MAX_WORDS; i++)
		words[i] = "";
	return n;
}

static void print_report(struct ws_store *s, struct ws_buf *out)
{
	struct ws_store_report r;
	if (ws_store_report(s, &r, NULL))
		return;
	ws_buf_printf(out, "joined=%u refused=%u", r.joined, r.refused);
	for (size_t i = 0; i < r.n_peers; i++) {
		const struct ws_store_peer *p = &r.peers[i];
		ws_buf_printf(out, " %c%s%s:rank=%d%s%s", p->epoch, p->joined ? "+" : "-",
		              p->connected ? "" : "gone", p->rank, *p->waits_for ? ":" : "",
		              p->waits_for);
	}
	ws_store_report_fini(&r);
}

static void serve_command(struct ws_store *s, const char *const *w)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_buf out;
	int rc = 0;
	ws_buf_init(&out, 0);
	if (strcmp(w[0], "set") == 0) {
		rc = ws_store_set(s, w[1], w[2], strlen(w[2]), strcmp(w[3], "once") == 0, &err);
	} else if (strcmp(w[0], "get") == 0) {
		rc = ws_store_get(s, w[1], soon(w[2]), NULL, &out, &err);
	} else if (strcmp(w[0], "report") == 0) {
		print_report(s, &out);
	} else if (strcmp(w[0], "trouble") == 0) {
		rc = ws_store_trouble(s, &err);
	} else if (strcmp(w[0], "gloo") == 0) {
		struct ws_store_gloo g;
		rc = ws_store_wait_gloo(s, soon(w[1]), NULL, &g, &err);
		if (rc == 0)
			ws_buf_printf(&out, "%s %c", g.prefix, g.epoch);
	} else {
		rc = ws_err_set(&err, WS_EUSAGE, "no such command");
	}
	answer(rc, &err, ws_buf_str(&out));
	ws_buf_free(&out);
}

static void client_command(struct ws_store_client *c, const char *const *w)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_buf out;
	const ws_deadline until = soon("20");
	int64_t number = 0;
	bool yes = false;
	int rc;
	ws_buf_init(&out, 0);
	if (strcmp(w[0], "set") == 0) {
		rc = ws_store_client_set(c, w[1], w[2], strlen(w[2]), until, &err);
	} else if (strcmp(w[0], "get") == 0) {
		rc = ws_store_client_get(c, w[1], soon(w[2]), NULL, &out, &err);
	} else if (strcmp(w[0], "wait") == 0) {
		rc = ws_store_client_wait(c, &w[1], 1, soon(w[2]), NULL, &err);
	} else if (strcmp(w[0], "check") == 0) {
		rc = ws_store_client_check(c, &w[1], w[2][0] ? 2 : 1, until, &yes, &err);
		ws_buf_puts(&out, yes ? "yes" : "no");
	} else if (strcmp(w[0], "delete") == 0) {
		rc = ws_store_client_delete(c, w[1], until, &yes, &err);
		ws_buf_puts(&out, yes ? "yes" : "no");
	} else if (strcmp(w[0], "add") == 0) {
		rc = ws_store_client_add(c, w[1], strtoll(w[2], NULL, 10), until, &number, &err);
		ws_buf_printf(&out, "%" PRId64, number);
	} else {
		rc = ws_err_set(&err, WS_EUSAGE, "no such command");
	}
	answer(rc, &err, ws_buf_str(&out));
	ws_buf_free(&out);
}

static int serve(const char *world_size, const char *group)
{
	const struct ws_store_opts opts = { .host = "127.0.0.1",
	                                    .world_size = (unsigned)strtoul(world_size, NULL, 10),
	                                    .group = *group ? group : NULL };
	struct ws_store *s = NULL;
	struct ws_err err = WS_ERR_INIT;
	char line[1024], port[16];
	const char *words[MAX_WORDS + 1];
	const int rc = ws_store_open(&opts, &s, &err);
	snprintf(port, sizeof port, "%u", rc ? 0 : ws_store_port(s));
	answer(rc, &err, port);
	while (rc == 0 && fgets(line, sizeof line, stdin))
		if (split(line, words))
			serve_command(s, words);
	ws_store_close(s);
	return rc ? 1 : 0;
}

static int client(const char *port, const char *epoch)
{
	const struct ws_store_client_opts opts = { .host = "127.0.0.1", .epoch = epoch[0],
	                                           .port = (uint16_t)strtoul(port, NULL, 10) };
	struct ws_store_client *c = NULL;
	struct ws_err err = WS_ERR_INIT;
	char line[1024];
	const char *words[MAX_WORDS + 1];
	const int rc = ws_store_connect(&opts, soon("20"), NULL, &c, &err);
	answer(rc, &err, "");
	while (rc == 0 && fgets(line, sizeof line, stdin))
		if (split(line, words))
			client_command(c, words);
	ws_store_disconnect(c);
	return rc ? 1 : 0;
}

int main(int argc, char **argv)
{
	if (argc >= 4 && strcmp(argv[1], "serve") == 0)
		return serve(argv[2], argv[3]);
	if (argc >= 4 && strcmp(argv[1], "client") == 0)
		return client(argv[2], argv[3]);
	fputs("usage: storetool serve WORLD_SIZE GROUP | storetool client PORT EPOCH\n", stderr);
	return 2;
}
