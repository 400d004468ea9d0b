/* SPDX-License-Identifier: Apache-2.0 */
/* serve_strict.h - finds requests that two HTTP parsers may read differently, so that a proxy and
 * this server never disagree about what was requested, and where it ends.
 *
 * libmicrohttpd 1.0 refuses most of them. Older releases accept lines that end with a bare LF or
 * CR, blanks before a colon, and folded headers; they also keep the head where it was received and
 * replace the ends of its lines by NULs. `raw` says so: then the bytes between the parts are
 * checked too. */
#ifndef WS_HTTPD_SERVE_STRICT_H
#define WS_HTTPD_SERVE_STRICT_H

#include <stdbool.h>
#include <stddef.h>

struct ws_serve_strict {
	bool raw;
	const char *why;    /* the first reason to refuse the request; NULL: none */
	const char *begin;  /* of the request line */
	const char *end;    /* of the last line, at its NUL */
	bool http11;
	bool chunked;       /* the body has no length */
	bool endless;       /* the end of the body cannot be found */
	unsigned n_hosts, n_lengths;
};

void ws_serve_strict_line(struct ws_serve_strict *s, const char *method, const char *url,
                          const char *version);
/* Call it for each header, in any order. */
void ws_serve_strict_header(struct ws_serve_strict *s, const char *name, const char *value);
/* size: bytes of the head, with the empty line; 0: unknown. Returns s->why. */
const char *ws_serve_strict_end(struct ws_serve_strict *s, size_t size);

#endif
