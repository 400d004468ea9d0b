/* SPDX-License-Identifier: Apache-2.0 */
/* ask_body.h - writes the body of a request for one prompt, or for several. */
#ifndef WS_VERIFY_ASK_BODY_H
#define WS_VERIFY_ASK_BODY_H

#include "ask.h"

/* Writes n prompts from `from` on, as a batch if ask->as says so. A batch of both texts and ids is
 * WS_EUSAGE. */
int ws_ask_write_body(struct ws_buf *body, const struct ws_ask *ask, size_t from, size_t n,
                      struct ws_err *err);

#endif
