/* SPDX-License-Identifier: Apache-2.0 */
/* serve_fields.h - members of a JSON body as the servers' web framework takes them: WS_EUSAGE with
 * "body.KEY: reason" in its words when one is missing or of another type. */
#ifndef WS_HTTPD_SERVE_FIELDS_H
#define WS_HTTPD_SERVE_FIELDS_H

#include "wsync/tool/json_read.h"

enum { WS_SERVE_MAX_TEXT = 4096 }; /* of any string, in bytes */

int ws_serve_field_str(const struct ws_json *body, const char *key, bool required, const char **out,
                       struct ws_err *err); /* *out holds the default */
int ws_serve_field_int(const struct ws_json *body, const char *key, int64_t *out,
                       struct ws_err *err); /* required */
int ws_serve_field_bool(const struct ws_json *body, const char *key, bool *out, struct ws_err *err);
/* For readers of other kinds of members. */
int ws_serve_field_invalid(struct ws_err *err, const char *key, const char *reason);
int ws_serve_field_missing(struct ws_err *err, const char *key);

#endif
