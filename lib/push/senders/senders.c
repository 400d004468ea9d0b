/* SPDX-License-Identifier: Apache-2.0 */
/* senders.c - values of any length in a store, and their encoding.
 *
 *   KEY        the length in bytes, in decimal; set last
 *   KEY/0 ...  the bytes, in pieces
 *
 * A word is eight bytes, little endian. A text is a word with its length, then its bytes. */
#include "senders.h"

#include "senders_wire.h"
#include "wsync/tool/str.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 4 << 20, VALUE_MAX = 192 << 20 };

/* ---- keys and values ------------------------------------------------------------------------- */

void ws_senders_key(char key[WS_SENDERS_KEY], unsigned i, const char *what)
{
	snprintf(key, WS_SENDERS_KEY, WS_STORE_SENDER "%u/%s", i, what);
}

void ws_senders_share_key(char key[WS_SENDERS_KEY], unsigned i)
{
	snprintf(key, WS_SENDERS_KEY, "wsync/share/%u", i);
}

int ws_senders_put(const struct ws_gloo_kv *kv, const char *key, const struct ws_buf *value,
                   ws_deadline until, struct ws_err *err)
{
	char name[WS_SENDERS_KEY + 24];
	if (ws_buf_check(value, key, err))
		return -1;
	for (size_t at = 0, k = 0; at < value->len; at += PIECE, k++) {
		const size_t n = value->len - at < PIECE ? value->len - at : PIECE;
		snprintf(name, sizeof name, "%s/%zu", key, k);
		if (kv->set(kv->ctx, name, value->data + at, n, until, err))
			return -1;
	}
	const int n = snprintf(name, sizeof name, "%zu", value->len);
	return kv->set(kv->ctx, key, name, (size_t)n, until, err);
}

int ws_senders_get(const struct ws_gloo_kv *kv, const char *key, ws_deadline until,
                   const struct ws_cancel *cancel, struct ws_buf *value, struct ws_err *err)
{
	char name[WS_SENDERS_KEY + 24];
	uint64_t length = 0;
	ws_buf_reset(value);
	if (kv->get(kv->ctx, key, until, cancel, value, err))
		return -1;
	if (ws_parse_uint(ws_buf_str(value), 0, VALUE_MAX, "length", &length, NULL))
		return ws_err_set(err, WS_EDATA, "store: %s has an invalid length", key);
	ws_buf_reset(value);
	for (size_t k = 0; value->len < length; k++) {
		const size_t before = value->len;
		snprintf(name, sizeof name, "%s/%zu", key, k);
		if (kv->get(kv->ctx, name, until, cancel, value, err))
			return -1;
		if (value->len == before || value->len > length)
			return ws_err_set(err, WS_EDATA,
			                  "store: %s has another length than announced", key);
	}
	return 0;
}

/* ---- words and texts ------------------------------------------------------------------------- */

void ws_senders_put_word(struct ws_buf *out, uint64_t value)
{
	const uint64_t wire = htole64(value);
	ws_buf_add(out, &wire, sizeof wire);
}

void ws_senders_put_text(struct ws_buf *out, const char *text)
{
	ws_senders_put_word(out, strlen(text));
	ws_buf_puts(out, text);
}

static bool read_bytes(struct ws_senders_cursor *c, void *dst, size_t n)
{
	c->bad = c->bad || n > c->left;
	if (c->bad)
		return false;
	memcpy(dst, c->at, n);
	c->at += n;
	c->left -= n;
	return true;
}

uint64_t ws_senders_word(struct ws_senders_cursor *c, uint64_t most)
{
	uint64_t wire = 0;
	if (read_bytes(c, &wire, sizeof wire) && le64toh(wire) <= most)
		return le64toh(wire);
	c->bad = true;
	return 0;
}

void ws_senders_text(struct ws_senders_cursor *c, char *dst, size_t n)
{
	const size_t length = (size_t)ws_senders_word(c, n - 1);
	dst[0] = 0;
	if (!read_bytes(c, dst, length))
		return;
	dst[length] = 0;
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)dst[i] < 0x20 || dst[i] == 0x7f)
			c->bad = true;
	if (c->bad)
		dst[0] = 0;
}

/* ---- the end --------------------------------------------------------------------------------- */

void ws_senders_write_end(struct ws_buf *out, const struct ws_err *why)
{
	char text[sizeof why->hint];
	ws_senders_put_word(out, why->code);
	ws_senders_put_text(out, ws_printable(text, sizeof text, why->msg, strlen(why->msg)));
	ws_senders_put_text(out, ws_printable(text, sizeof text, why->hint, strlen(why->hint)));
}

int ws_senders_read_end(const void *bytes, size_t n, struct ws_err *err)
{
	struct ws_senders_cursor c = { bytes, n, false };
	struct ws_err said = WS_ERR_INIT;
	said.code = (enum ws_code)ws_senders_word(&c, WS_ECANCELLED);
	ws_senders_text(&c, said.msg, sizeof said.msg);
	ws_senders_text(&c, said.hint, sizeof said.hint);
	if (c.bad || c.left)
		return ws_err_set(err, WS_EDATA,
		                  "store: cannot read how the push ended at another sender");
	if (said.code == WS_OK)
		return 0;
	if (said.code == WS_ECANCELLED) /* that sender was cancelled, this process was not */
		said.code = WS_EDATA;
	if (err)
		*err = said;
	return -1;
}
