/* SPDX-License-Identifier: Apache-2.0 */
/* senders_wire.h - words of eight bytes, little endian, and texts that follow their length.
 * senders.c, senders_list.c and senders_share.c read and write them. */
#ifndef WS_PUSH_SENDERS_WIRE_H
#define WS_PUSH_SENDERS_WIRE_H

#include "wsync/tool/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void ws_senders_put_word(struct ws_buf *out, uint64_t value);
void ws_senders_put_text(struct ws_buf *out, const char *text);

struct ws_senders_cursor {
	const uint8_t *at;
	size_t left;
	/* the text ended early or has an invalid value; all later words are 0 */
	bool bad;
};

/* A word of at most `most`. */
uint64_t ws_senders_word(struct ws_senders_cursor *c, uint64_t most);
/* A text of at most n - 1 bytes without control characters, into dst. */
void ws_senders_text(struct ws_senders_cursor *c, char *dst, size_t n);

#endif
