/* SPDX-License-Identifier: Apache-2.0 */
/* serve_journal.h - the journal: requests and their results. */
#ifndef WS_ENDPOINT_SERVE_JOURNAL_H
#define WS_ENDPOINT_SERVE_JOURNAL_H

#include "wsync/tool/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_serve;

enum { WS_SERVE_MAX_ROUTES = 96 }; /* calls are counted by route */

enum ws_serve_tri { WS_TRI_NONE, WS_TRI_FALSE, WS_TRI_TRUE };

/* The record of one request. Strings are copies, cut if they are too long. */
struct ws_serve_note {
	char method[8], path[64];
	unsigned status;          /* 0: not answered yet, or never */
	int64_t at_ns, ns;        /* since the endpoint started; duration */
	enum ws_serve_tri flush;  /* of an update: flush_cache; NONE: not an update */
	char fault[16];
	char group[128];
	char mode[12];
	char load_format[24];
	char weight_version[64];
	char corrupted[160];      /* the first tensor that a fault changed */
	uint64_t tensors, bytes, duplicates;
	bool model;               /* an update of a model: the following are counted */
	uint64_t loaded, ignored;
	char *ignored_names;      /* the first ones, each ends with a NUL; owned; or NULL */
	size_t ignored_len;
	char message[192];
};

struct ws_serve_journal {
	/* blocks of a fixed size, so that notes never move */
	struct ws_serve_note **blocks;
	size_t n;
	uint64_t omitted;         /* requests beyond the limit, or without memory */
	uint64_t calls[WS_SERVE_MAX_ROUTES];
	/* Totals over successful receives. */
	uint64_t updates, flushes, failed_flushes, tensors, bytes, duplicates, loaded, ignored;
	size_t distinct;
	uint64_t handles; /* handles of other processes' memory that were opened */
};

/* Call begin and end under the lock. begin returns the place for end; SIZE_MAX: not recorded. */
size_t ws_serve_journal_begin(struct ws_serve_journal *j, const struct ws_serve_note *note);
/* Takes ownership of note->ignored_names. */
void ws_serve_journal_end(struct ws_serve_journal *j, size_t place,
                          const struct ws_serve_note *note);
void ws_serve_journal_fini(struct ws_serve_journal *j);
void ws_serve_journal_write(struct ws_serve *s, struct ws_buf *out); /* takes the lock */

#endif
