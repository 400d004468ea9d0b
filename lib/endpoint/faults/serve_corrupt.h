/* SPDX-License-Identifier: Apache-2.0 */
/* serve_corrupt.h - fault "corrupt": weights that come whole and are something else afterwards.
 *
 * What can go wrong between a receive that succeeds and the parameters of a model does
 * so in memory, whatever way the bytes came: so one place does all of it, after the
 * load and before the answer. */
#ifndef WS_ENDPOINT_SERVE_CORRUPT_H
#define WS_ENDPOINT_SERVE_CORRUPT_H

#include "serve_core.h"

/* "HOW[,KEY=VALUE]...", of a fault whose text is given for messages. */
int ws_serve_corrupt_parse(const char *text, const char *spec, struct ws_serve_fault *f,
                           struct ws_err *err);
/* Can this endpoint be corrupted so? */
int ws_serve_corrupt_check(const struct ws_serve *s, const struct ws_serve_fault *f,
                           struct ws_err *err);

/* The tensors of one request. In the scheduler, all three. */
struct ws_serve_victims;
/* Before they are loaded: remembers what there is under these names, of the checkpoint or of the
 * server. *out NULL: nobody will ask. fault NULL: none is due. */
int ws_serve_corrupt_begin(struct ws_serve *s, const struct ws_serve_fault *fault,
                           const char *const *names, size_t n, struct ws_serve_victims **out,
                           struct ws_err *err);
/* When they are: does what is due, and notes the first tensor that changed. Takes v (NULL is
 * fine). */
void ws_serve_corrupt_end(struct ws_serve *s, struct ws_serve_victims *v,
                          struct ws_serve_note *note);
void ws_serve_corrupt_free(struct ws_serve_victims *v); /* NULL is fine: the load failed */

#endif
