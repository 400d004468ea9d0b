/* SPDX-License-Identifier: Apache-2.0 */
/* config_write.h - a config.json for weights that were changed on their way. */
#ifndef WS_NAMES_CONFIG_WRITE_H
#define WS_NAMES_CONFIG_WRITE_H

#include "wsync/tool/buf.h"
#include "wsync/tool/config.h"

/* Appends this config.json with another quantization_config: all its other members are as they were
 * written, to the digit. q->method "": it has none. what names the text in messages;
 * no JSON object: WS_EINPUT. */
int ws_config_requantize(const char *text, size_t n, const char *what, const struct ws_quant *q,
                         struct ws_buf *out, struct ws_err *err);

#endif
