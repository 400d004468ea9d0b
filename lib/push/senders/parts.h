/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h - which tensors the turns of a round have sent, to which servers, and which tensors are
 * left for other senders.
 *
 * As text, servers first, then tensors by name, a line each:
 *
 *   @INSTANCE URL    a server, and the instance that was seen there (instance.h), in 16 hex digits
 *   +K REST          a tensor that was sent
 *   -K REST          a tensor that no sender has sent, but that is in a sender's source and not in
 *                    its --exclude
 *
 * A name is the first K bytes of the name in the line before, then REST. */
#ifndef WS_PUSH_PARTS_H
#define WS_PUSH_PARTS_H

#include "wsync/tool/buf.h"
#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WS_PARTS_TEXT = 16 << 20 };

struct ws_part_tensor {
	char *name;
	bool sent;
};

struct ws_part_server {
	char *url;
	uint64_t instance; /* 0: not known */
};

struct ws_parts { /* all zero: empty */
	struct ws_part_tensor *tensors;
	struct ws_part_server *servers;
	size_t n_tensors, n_servers;
};

/* WS_EINPUT: the text is not understood, and *out is empty. "" has no parts. */
int ws_parts_read(const char *text, size_t n, struct ws_parts *out, struct ws_err *err);
/* On failure it sets out->failed. Merge the names first. */
void ws_parts_write(const struct ws_parts *p, struct ws_buf *out);
void ws_parts_free(struct ws_parts *p); /* leaves *p empty */

int ws_parts_add(struct ws_parts *p, const char *name, bool sent, struct ws_err *err);
/* Call it after the last ws_parts_add. Sorts the names and removes duplicates; a tensor that any
 * sender has sent stays sent. */
void ws_parts_merge(struct ws_parts *p);
/* Returns how many tensors no sender has sent; *first is the first of them. */
size_t ws_parts_left(const struct ws_parts *p, const char **first);

int ws_parts_set_server(struct ws_parts *p, const char *url, uint64_t instance, struct ws_err *err);
/* Finds the server at this URL, or at another URL of the same endpoint (ws_endpoint_same). NULL: no
 * turn has sent anything to it. */
const struct ws_part_server *ws_parts_server(const struct ws_parts *p, const char *url);

#endif
