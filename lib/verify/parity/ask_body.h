/* SPDX-License-Identifier: Apache-2.0 */
/* ask_body.h - what a request for one prompt, or for several, says. */
#ifndef WS_VERIFY_ASK_BODY_H
#define WS_VERIFY_ASK_BODY_H

#include "ask.h"

/* n prompts from `from` on; a batch where ask->as says so. A batch is of texts or of
 * ids: mixed, it is WS_EUSAGE. */
int ws_ask_write_body(struct ws_buf *body, const struct ws_ask *ask, size_t from, size_t n,
                      struct ws_err *err);

#endif
