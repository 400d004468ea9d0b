/* SPDX-License-Identifier: Apache-2.0 */
#include "serve_strict.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

static void refuse(struct ws_serve_strict *s, const char *why)
{
	if (!s->why)
		s->why = why;
}

/* In the raw head two NULs, of CR and LF, follow a line. The byte after the first one is in the
 * head too: the empty line follows the last header. */
static void check_end(struct ws_serve_strict *s, const char *end)
{
	if (s->raw && end[1])
		refuse(s, "A line does not end with CR LF");
	if (end > s->end)
		s->end = end;
}

void ws_serve_strict_line(struct ws_serve_strict *s, const char *method, const char *url,
                          const char *version)
{
	s->http11 = version && strcmp(version, "HTTP/1.1") == 0;
	if (!s->http11 && (!version || strcmp(version, "HTTP/1.0") != 0)) {
		refuse(s, "The version is not HTTP/1.1 or HTTP/1.0");
		return;
	}
	s->begin = method;
	if (s->raw && url != method + strlen(method) + 1)
		refuse(s, "The request line has more than one blank");
	if (s->raw)
		check_end(s, version + strlen(version));
}

static bool is_token(const char *name)
{
	size_t n = 0;
	while (name[n] && (isalnum((unsigned char)name[n]) || strchr("!#$%&'*+-.^_`|~", name[n])))
		n++;
	return n && !name[n];
}

static bool has_control(const char *value)
{
	for (; *value; value++)
		if (((unsigned char)*value < ' ' && *value != '\t') || *value == 0x7f)
			return true;
	return false;
}

/* A folded header was moved, or its name was extended over the place of its value. */
static bool is_one_line(const char *name, const char *value)
{
	const char *at = name + strlen(name) + 1;
	while (at < value && (*at == ' ' || *at == '\t'))
		at++;
	return at == value;
}

void ws_serve_strict_header(struct ws_serve_strict *s, const char *name, const char *value)
{
	if (!value || !is_token(name)) {
		refuse(s, "A header has no name, or a blank before its colon");
		return;
	}
	if (has_control(value))
		refuse(s, "A header has a control character");
	if (s->raw && !is_one_line(name, value))
		refuse(s, "A header continues on the next line");
	else if (s->raw)
		check_end(s, value + strlen(value));
	if (strcasecmp(name, "Host") == 0) {
		s->n_hosts++;
		const char *past = value + strcspn(value, " \t,/\\@?#");
		if (past[strspn(past, " \t")]) /* blanks at the end belong to no value */
			refuse(s, "Host is not a host");
	} else if (strcasecmp(name, "Content-Length") == 0) {
		s->n_lengths++;
	} else if (strcasecmp(name, "Transfer-Encoding") == 0) {
		s->n_lengths++;
		s->chunked = strcasecmp(value, "chunked") == 0;
		s->endless = s->endless || !s->chunked;
	}
}

const char *ws_serve_strict_end(struct ws_serve_strict *s, size_t size)
{
	enum { TWO_LINE_ENDS = 4 };
	if (s->n_lengths > 1)
		refuse(s, "More than one of Content-Length and Transfer-Encoding");
	if (s->endless)
		refuse(s, "Transfer-Encoding is not chunked");
	if (s->chunked && !s->http11)
		refuse(s, "HTTP/1.0 has no Transfer-Encoding");
	if (s->n_hosts > 1 || (s->http11 && !s->n_hosts))
		refuse(s, s->n_hosts ? "More than one Host" : "No Host");
	if (s->raw && size && s->end && size != (size_t)(s->end - s->begin) + TWO_LINE_ENDS)
		refuse(s, "The empty line after the headers does not end with CR LF");
	return s->why;
}
