/* SPDX-License-Identifier: Apache-2.0 */
/* flags_compare.c - settings that are wanted against settings that are there.
 *
 * Words are compared as people mean them: None is null, True is true, bf16 is bfloat16. A switch
 * that a server does not know counts as off. */
#include "settings.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *ws_flag_verdict_name(enum ws_flag_verdict verdict)
{
	static const char *const names[] = { "equal", "different", "absent", "chosen", "unshown" };
	return (unsigned)verdict < WS_FLAG_VERDICTS ? names[verdict] : "unknown";
}

/* ---- values ---- */

static bool is_null(const char *v)
{
	return !*v || !strcasecmp(v, "null") || !strcasecmp(v, "none");
}

static bool is_off(const char *v)
{
	return is_null(v) || !strcasecmp(v, "false");
}

static const char *full_dtype(const char *v)
{
	static const char *const short_for[][2] = {
		{ "bf16", "bfloat16" }, { "fp16", "float16" },  { "half", "float16" },
		{ "fp32", "float32" },  { "float", "float32" },
	};
	if (!strncmp(v, "torch.", 6))
		v += 6;
	for (size_t i = 0; i < sizeof short_for / sizeof *short_for; i++)
		if (!strcmp(v, short_for[i][0]))
			return short_for[i][1];
	return v;
}

static bool is_same(enum ws_setting_kind kind, const char *a, const char *b)
{
	if (kind == WS_SETTING_SWITCH && is_off(a) && is_off(b))
		return true;
	if (is_null(a) || is_null(b))
		return is_null(a) && is_null(b);
	if (kind == WS_SETTING_DTYPE)
		return !strcmp(full_dtype(a), full_dtype(b));
	if (!strcasecmp(a, "true") || !strcasecmp(a, "false"))
		return !strcasecmp(a, b);
	return !strcmp(a, b);
}

/* ---- one setting ---- */

static enum ws_flag_verdict flag_verdict(const struct ws_setting_known *k, const char *want,
                                  const char *have)
{
	if (k && !k->key)
		return WS_FLAG_UNSHOWN;
	if (!have)
		return WS_FLAG_ABSENT;
	if (is_same(k ? k->kind : WS_SETTING_WORD, want, have))
		return WS_FLAG_EQUAL;
	return k && k->chosen && (is_null(have) || !strcmp(have, "auto")) ? WS_FLAG_CHOSEN :
	                                                                    WS_FLAG_DIFFERENT;
}

/* What a file says of other matters is no mistake; what was asked for by name is one. */
static enum ws_severity weigh(const struct ws_flag *f, const struct ws_setting_known *k, bool asked)
{
	switch (f->verdict) {
	case WS_FLAG_DIFFERENT:
		return WS_ERROR;
	case WS_FLAG_ABSENT:
		return (k && is_off(f->expected)) || (!k && !asked) ? WS_NOTE : WS_ERROR;
	case WS_FLAG_CHOSEN:
		return WS_WARN;
	default:
		return WS_NOTE;
	}
}

static void explain(struct ws_flag *f, const struct ws_setting_known *k)
{
	char want[96], have[96] = "";
	const char *meaning = k ? k->meaning : NULL;
	ws_printable(want, sizeof want, f->expected, strlen(f->expected));
	if (f->found)
		ws_printable(have, sizeof have, f->found, strlen(f->found));
	if (f->verdict == WS_FLAG_DIFFERENT)
		snprintf(f->reason, sizeof f->reason, "wanted %s, has %s", want, have);
	else if (f->verdict == WS_FLAG_ABSENT)
		snprintf(f->reason, sizeof f->reason,
		         "wanted %s, and the server shows no such setting%s", want,
		         f->severity != WS_NOTE ? "" :
		         k                      ? ": it is off" :
		                                  ": it is left out");
	else if (f->verdict == WS_FLAG_CHOSEN)
		snprintf(f->reason, sizeof f->reason,
		         "wanted %s, has %s: the server chose, and does not say what", want, have);
	else if (f->verdict == WS_FLAG_UNSHOWN)
		snprintf(f->reason, sizeof f->reason, "the trainer has %s, and no server shows it",
		         want);
	if (*f->reason && meaning)
		snprintf(f->reason + strlen(f->reason), sizeof f->reason - strlen(f->reason),
		         " (%s)", meaning);
}

static void compare_one(const struct ws_setting *want, const struct ws_setting *have,
                        struct ws_flags_report *r)
{
	static const char nothing[] = "null";
	const struct ws_setting *named = want ? want : have;
	const struct ws_setting_known *k = ws_setting_know(named->key);
	struct ws_flag *f = &r->items[r->n++];
	*f = (struct ws_flag){ .key = named->key,
		               .given = named->given,
		               .expected = want ? want->value : nothing,
		               .found = have ? have->value : NULL };
	f->verdict = flag_verdict(k, f->expected, f->found);
	f->severity = weigh(f, k, want && want->asked);
	explain(f, k);
	r->compared += f->verdict != WS_FLAG_UNSHOWN && (f->verdict != WS_FLAG_ABSENT || k);
	r->count[f->verdict]++;
	r->errors += f->severity == WS_ERROR;
}

/* ---- all of them ---- */

static int make_room(struct ws_flags_report *r, size_t n, struct ws_err *err)
{
	*r = (struct ws_flags_report){ .items = calloc(n ? n : 1, sizeof *r->items) };
	return r->items ? 0 : ws_oom(err);
}

int ws_flags_compare(const struct ws_settings *want, const struct ws_settings *have,
                     struct ws_flags_report *out, struct ws_err *err)
{
	if (make_room(out, want->n, err))
		return -1;
	for (size_t i = 0; i < want->n; i++)
		compare_one(&want->items[i], ws_setting_find(have, want->items[i].key), out);
	return 0;
}

int ws_flags_between(const struct ws_settings *one, const struct ws_settings *other,
                     struct ws_flags_report *out, struct ws_err *err)
{
	if (make_room(out, ws_settings_n_known, err))
		return -1;
	for (size_t i = 0; i < ws_settings_n_known; i++) {
		const char *key = ws_settings_known[i].key;
		const struct ws_setting *a = key ? ws_setting_find(one, key) : NULL;
		const struct ws_setting *b = key ? ws_setting_find(other, key) : NULL;
		if (a || b)
			compare_one(a, b, out);
	}
	return 0;
}

void ws_flags_report_free(struct ws_flags_report *r)
{
	free(r->items);
	*r = (struct ws_flags_report){ 0 };
}
