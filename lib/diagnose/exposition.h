/* SPDX-License-Identifier: Apache-2.0 */
/* exposition.h - Prometheus' text format, version 0.0.4, onto a ws_buf.
 *
 *   # HELP name what it is
 *   # TYPE name gauge
 *   name{label="value",...} number
 *
 * The samples of a name stand together behind its head. Base units: seconds, bytes. */
#ifndef WS_DIAGNOSE_EXPOSITION_H
#define WS_DIAGNOSE_EXPOSITION_H

#include "wsync/tool/buf.h"

#include <stdbool.h>
#include <stdint.h>

/* Label values are foreign: escaped; what is not UTF-8, and control characters, become U+FFFD. */
struct ws_label {
	const char *name, *value; /* value NULL: the label is left out */
};

struct ws_exposition {
	struct ws_buf *out; /* borrowed; errors are collected there (ws_buf_check) */
	const char *name;   /* of the samples that follow */
};

/* type: "gauge", "counter". */
void ws_exposition_head(struct ws_exposition *x, const char *name, const char *type,
                        const char *help);
/* labels (NULL: none) end with a name that is NULL. */
void ws_exposition_uint(struct ws_exposition *x, const struct ws_label *labels, uint64_t value);
/* exact */
void ws_exposition_seconds(struct ws_exposition *x, const struct ws_label *labels, int64_t ns);
/* Head and the only sample, without labels. */
void ws_exposition_one(struct ws_exposition *x, const char *name, const char *help, uint64_t value);
void ws_exposition_one_seconds(struct ws_exposition *x, const char *name, const char *help,
                               int64_t ns);

#endif
