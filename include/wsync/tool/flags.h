/* SPDX-License-Identifier: Apache-2.0 */
/* flags.h - do a trainer and a server compute alike? Their settings side by side.
 *
 * The same weights give other numbers where the head, the router or the cache of keys and values
 * has another precision, or attention another kernel. Servers show what they were started with
 * in /server_info; the trainer's side is a JSON object or KEY=VALUE pairs. A setting that a
 * server does not show is told apart from one that it has otherwise, and from one that it chose
 * by itself without saying what it took. */
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
	char *key;   /* the server's word for it */
	char *given; /* as it was written: "router_fp32" */
	char *value;
	/* by ws_settings_add: one that no server knows is an error, not another matter */
	bool asked;
};

struct ws_settings {
	struct ws_setting *items; /* owned, in the order of coming */
	size_t n;
};

/* Each adds to what is there, or puts another value for the same key. Words of trainers become the
 * server's, '-' in keys becomes '_'. A file holds one JSON object of texts, numbers, true, false
 * and null: WS_EINPUT otherwise. A pair "KEY=VALUE": WS_EUSAGE when it is none. */
int ws_settings_read(struct ws_settings *s, const char *path, struct ws_err *err);
int ws_settings_add(struct ws_settings *s, const char *pair, struct ws_err *err);
/* Adds the members of an object. strict: composite values and doubled keys are WS_EINPUT. */
int ws_settings_take(struct ws_settings *s, const struct ws_json *object, bool strict,
                     const char *what, struct ws_err *err);
void ws_settings_free(struct ws_settings *s);

struct ws_call;
/* What endpoints show. outs[i] is filled where errs[i].code is WS_OK; free every one of them. */
int ws_endpoint_settings(const struct ws_call *to, struct ws_settings *outs, struct ws_err *errs,
                         struct ws_err *err);

enum ws_flag_verdict {
	WS_FLAG_EQUAL,
	WS_FLAG_DIFFERENT,
	WS_FLAG_ABSENT,  /* the server shows no such setting */
	WS_FLAG_CHOSEN,  /* the server took what it found best and shows no more than that */
	WS_FLAG_UNSHOWN, /* the trainer's alone: no server shows it */
	WS_FLAG_VERDICTS
};
/* "equal", "different", "absent", "chosen", "unshown" */
const char *ws_flag_verdict_name(enum ws_flag_verdict verdict);

struct ws_flag {
	const char *key, *given;        /* borrowed, as the next two */
	const char *expected, *found;   /* NULL: absent */
	enum ws_flag_verdict verdict;
	enum ws_severity severity;      /* of an equal one a note */
	char reason[512];               /* "" of an equal one */
};

struct ws_flags_report {
	struct ws_flag *items;          /* owned; in the order of what is wanted */
	size_t n;
	size_t count[WS_FLAG_VERDICTS];
	size_t compared;                /* that the server shows, or is known to have off */
	size_t errors;                  /* 0: the answer is yes, where anything was compared */
};

/* Borrows from both, which have to outlive it. */
int ws_flags_compare(const struct ws_settings *want, const struct ws_settings *have,
                     struct ws_flags_report *out, struct ws_err *err);
/* Two servers: every setting that matters and that one of them shows. The first is what is
 * wanted. */
int ws_flags_between(const struct ws_settings *one, const struct ws_settings *other,
                     struct ws_flags_report *out, struct ws_err *err);
void ws_flags_report_free(struct ws_flags_report *r);

#ifdef __cplusplus
}
#endif
#endif
