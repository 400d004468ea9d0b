/* SPDX-License-Identifier: Apache-2.0 */
/* exposition.h - writes Prometheus' text format, version 0.0.4, to a ws_buf.
 *
 *   # HELP name description
 *   # TYPE name gauge
 *   name{label="value",...} number
 *
 * All samples of a metric follow its head lines. Base units: seconds, bytes. */
#ifndef WS_DIAGNOSE_EXPOSITION_H
#define WS_DIAGNOSE_EXPOSITION_H

#include "wsync/tool/buf.h"

#include <stdbool.h>
#include <stdint.h>

/* Values may be foreign: they are escaped; invalid UTF-8 and characters that are not shown become
 * U+FFFD. */
struct ws_label {
	const char *name, *value; /* value NULL: the label is left out */
};

struct ws_exposition {
	struct ws_buf *out; /* borrowed; also keeps the error (ws_buf_check) */
	const char *name;   /* metric of the samples that follow */
};

/* type: "gauge", "counter". */
void ws_exposition_head(struct ws_exposition *x, const char *name, const char *type,
                        const char *help);
/* The list of labels ends with a NULL name. NULL: no labels. */
void ws_exposition_uint(struct ws_exposition *x, const struct ws_label *labels, uint64_t value);
/* Writes ns as seconds, with nine decimals. */
void ws_exposition_seconds(struct ws_exposition *x, const struct ws_label *labels, int64_t ns);
/* Writes the head lines and a single sample without labels. */
void ws_exposition_one(struct ws_exposition *x, const char *name, const char *help, uint64_t value);
void ws_exposition_one_seconds(struct ws_exposition *x, const char *name, const char *help,
                               int64_t ns);

#endif
