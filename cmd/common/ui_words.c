/* SPDX-License-Identifier: Apache-2.0 */
/* ui_words.c - replaces the fields that the library's sentences name, "{bucket_ns}" (err.h), by the
 * options of the programs, "--bucket-timeout". */
#include "ui.h"

#include <stdio.h>
#include <string.h>

/* tests/cli/layers.bats compares both tables with the library's sentences and with the options. */
static const struct {
	const char *field, *option;
} renamed[] = {
	{ "adapter_partial", "lora-partial" }, { "adapters", "lora" },
	{ "admin_api_key", "admin-api-key-file" },
	{ "api_key", "api-key-file" },         { "bucket_ns", "bucket-timeout" },
	{ "canaries", "canary" },              { "connect_ns", "connect-timeout" },
	{ "endpoints", "endpoint" },           { "format", "load-format" },
	{ "init_ns", "init-timeout" },         { "ipc_by_ordinal", "ipc-device" },
	{ "limits", "max-difference" },        { "lock_wait_ns", "lock-wait" },
	{ "nccl_library", "nccl-lib" },        { "sender_lock", "lock" },
	{ "sharded_tp", "sharded" },           { "timeout_ns", "timeout" },
	{ "write_dir", "write" },
};
/* Fields of the same names, but for "_". */
static const char *const alike[] = {
	"allow-older", "allow-unknown", "require", "api-key-file", "asleep", "backend",
	"bucket-size", "ca-file",
	"config", "device", "disk-dir", "disk-path", "dry-run", "ep", "exclude", "flush",
	"flush-first", "gpu", "group-name", "headers-only", "include", "keep", "like",
	"lineage", "map",
	"master-address", "master-port", "min-coverage", "min-endpoints", "model",
	"nccl-from", "on-partial", "only-stale", "packed-scales", "pause", "pool",
	"prompts", "protocol", "quantize", "registry", "reset", "round", "scratch",
	"sender", "shared-gpu", "skip-modules", "stage", "state-dir", "tokens", "tp",
	"transform-on", "trust-values", "twice", "two-phase", "ue8m0", "unpack", "verify",
	"weight-version",
};

static bool is_alike(const char *option, const char *field, size_t n)
{
	size_t i = 0;
	while (i < n && option[i] && field[i] == (option[i] == '-' ? '_' : option[i]))
		i++;
	return i == n && !option[i];
}

const char *ui_option(const char *field, size_t n)
{
	for (size_t i = 0; i < sizeof renamed / sizeof renamed[0]; i++)
		if (strlen(renamed[i].field) == n && memcmp(renamed[i].field, field, n) == 0)
			return renamed[i].option;
	for (size_t i = 0; i < sizeof alike / sizeof alike[0]; i++)
		if (is_alike(alike[i], field, n))
			return alike[i];
	return NULL;
}

static const char *const *user_words; /* NULL-terminated, or NULL */
static const char *user_line = "";
static size_t user_line_len; /* the program may put NULs between its fields */

void ui_words_typed(const char *const *words)
{
	user_words = words;
}

void ui_words_read(const char *line, size_t n)
{
	user_line = line;
	user_line_len = n;
}

/* Does the user's own text have these n bytes, "{pause}"? Then they are not the library's. */
static bool is_typed(const char *at, size_t n, const char *bytes, size_t len)
{
	const char *const *w = user_words;
	while (w && *w && !memmem(*w, strlen(*w), at, n))
		w++;
	return (w && *w) || memmem(bytes, len, at, n);
}

/* A path that looks like a template stays unchanged: "/ckpt/{model}", "{model}/ckpt". */
static bool is_word(const char *text, const char *at, size_t n, const char *bytes, size_t len)
{
	return (at == text || at[-1] == ' ' || at[-1] == '(') && at[n] && at[n + 1] != '/' &&
	       !is_typed(at, n + 1, bytes, len);
}

const char *ui_words_but(const char *text, const char *bytes, size_t len)
{
	enum { ROOM = UI_BUFFER_SIZE };
	if (!strchr(text, '{'))
		return text;
	char *const dst = ui_buffer();
	size_t used = 0;
	for (const char *at = text; *at && used + 1 < ROOM;) {
		const size_t n = *at == '{' ? strcspn(at, "}") : 0;
		const char *option = NULL;
		if (n && is_word(text, at, n, bytes, len))
			option = ui_option(at + 1, n - 1);
		if (option)
			used += (size_t)snprintf(dst + used, ROOM - used, "--%s", option);
		else
			dst[used++] = *at;
		at += option ? n + 1 : 1;
	}
	dst[used < ROOM ? used : ROOM - 1] = 0;
	return dst;
}

const char *ui_words(const char *text)
{
	return ui_words_but(text, user_line, user_line_len);
}

void ui_json_words(struct ws_jw *w, const char *key, const char *sentence)
{
	ui_json_text(w, key, sentence ? ui_words(sentence) : NULL);
}
