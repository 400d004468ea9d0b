/* SPDX-License-Identifier: Apache-2.0 */
/* flags.h - compares the settings of a trainer and a server that change computed numbers.
 *
 * The same weights give other numbers if the head, the router or the KV cache has another
 * precision, or attention another kernel. Servers report their settings in /server_info; the
 * trainer's side is a JSON object or KEY=VALUE pairs. Three cases are distinguished: the server
 * has another value, does not report the setting, or chose the value automatically without
 * reporting it. */
#ifndef WSYNC_FLAGS_H
#define WSYNC_FLAGS_H

#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/err.h"
#include "wsync/tool/json_read.h"
#include "wsync/tool/namecheck.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Values as text: "true", "8", "fa3", "null"; of arrays and objects only "[...]" and "{...}". */
struct ws_setting {
	char *key;   /* the server's name */
	char *given; /* the name as written: "router_fp32" */
	char *value;
	/* added by ws_settings_add: a setting that no server knows is then an error */
	bool asked;
};

struct ws_settings {
	struct ws_setting *items; /* owned, in the order of the input */
	size_t n;
};

/* Both add settings, or replace the value of a present key. Trainers' names become the server's,
 * '-' in keys becomes '_'. A file holds one JSON object of texts, numbers, true, false and null:
 * WS_EINPUT otherwise. A pair is "KEY=VALUE": WS_EUSAGE otherwise. */
int ws_settings_read(struct ws_settings *s, const char *path, struct ws_err *err);
int ws_settings_add(struct ws_settings *s, const char *pair, struct ws_err *err);
/* Adds the members of an object. strict: composite values and doubled keys are WS_EINPUT. */
int ws_settings_take(struct ws_settings *s, const struct ws_json *object, bool strict,
                     const char *what, struct ws_err *err);
void ws_settings_free(struct ws_settings *s);

struct ws_call;
/* Reads the endpoints' settings. outs[i] is filled if errs[i].code is WS_OK; free all of outs. */
int ws_endpoint_settings(const struct ws_call *to, struct ws_settings *outs, struct ws_err *errs,
                         struct ws_err *err);

enum ws_flag_verdict {
	WS_FLAG_EQUAL,
	WS_FLAG_DIFFERENT,
	WS_FLAG_ABSENT,  /* the server does not report this setting */
	WS_FLAG_CHOSEN,  /* the server chose the value automatically and does not report it */
	WS_FLAG_UNSHOWN, /* a trainer's setting that no server reports */
	WS_FLAG_VERDICTS
};
/* "equal", "different", "absent", "chosen", "unshown" */
const char *ws_flag_verdict_name(enum ws_flag_verdict verdict);

struct ws_flag {
	const char *key, *given;        /* borrowed, as the next two */
	const char *expected, *found;   /* NULL: absent */
	enum ws_flag_verdict verdict;
	enum ws_severity severity;      /* WS_NOTE if equal */
	char reason[512];               /* "" if equal */
};

struct ws_flags_report {
	struct ws_flag *items;          /* owned; in the order of the wanted settings */
	size_t n;
	size_t count[WS_FLAG_VERDICTS];
	size_t compared;                /* that the server reports, or is known to have off */
	size_t errors;                  /* 0: the answer is yes, if anything was compared */
};

/* The report borrows from both, which must outlive it. */
int ws_flags_compare(const struct ws_settings *want, const struct ws_settings *have,
                     struct ws_flags_report *out, struct ws_err *err);
/* Compares two servers: every relevant setting that one of them reports. The first server has the
 * wanted values. */
int ws_flags_between(const struct ws_settings *one, const struct ws_settings *other,
                     struct ws_flags_report *out, struct ws_err *err);
void ws_flags_report_free(struct ws_flags_report *r);

#ifdef __cplusplus
}
#endif
#endif
