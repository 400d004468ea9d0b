/* SPDX-License-Identifier: Apache-2.0 */
/* round.h - a round of several senders that take turns: its step, and the senders that have had a
 * turn.
 *
 *   {"id":"7","senders":3,"had":[1,3],"begun":1763800000,"pid":4711,"host":"n3","parts":"..."}
 *
 * parts lists the tensors that these turns have sent (parts.h). A round is kept in a file beside
 * the lock file (push_round.c). That file may have any content. */
#ifndef WS_PUSH_ROUND_H
#define WS_PUSH_ROUND_H

#include "parts.h"
#include "wsync/tool/buf.h"
#include "wsync/tool/json_read.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* WS_ROUND_TEXT: for a round with parts, where an escaped byte takes two bytes. */
enum { WS_ROUND_SENDERS = 1024, WS_ROUND_ID = 1025, WS_ROUND_TEXT = 2 * WS_PARTS_TEXT + 32 * 1024 };

struct ws_round {
	unsigned senders;                /* 0: no round */
	bool had[WS_ROUND_SENDERS + 1];  /* had a turn: [1..senders] */
	char id[WS_ROUND_ID];            /* printable; "": not known */
	int64_t begun;                   /* seconds since 1970; 0: not known */
	int64_t pid;
	char host[65];
};

/* Invalid text gives no round (senders 0), and invalid parts give no parts. text[n] is NUL. The
 * caller frees *parts; parts NULL: they are skipped. */
void ws_round_read(const char *text, size_t n, struct ws_round *out, struct ws_parts *parts);
/* Writes the object as the whole text. parts NULL: omits them. */
void ws_round_write(struct ws_jw *w, const struct ws_round *r, const struct ws_parts *parts);

unsigned ws_round_count(const struct ws_round *r); /* senders that had a turn */
bool ws_round_is_half(const struct ws_round *r);   /* some had a turn, but not all */
/* another sender than this one had a turn */
bool ws_round_has_others(const struct ws_round *r, unsigned sender);
/* True if id and number of senders are equal. An unknown id equals no id. */
bool ws_round_is(const struct ws_round *r, const char *id, unsigned senders);
/* begins the round: by this process, now */
void ws_round_begin(struct ws_round *r, const char *id, unsigned senders);

/* "round 7 of 3 senders (begun 13 min ago by process 4711 on trainer3)" */
void ws_round_describe(const struct ws_round *r, char *dst, size_t n);
/* "senders 1 and 3 had a turn, sender 2 had none"; names at most 8 of each. */
void ws_round_list(const struct ws_round *r, char *dst, size_t n);

#endif
