/* SPDX-License-Identifier: Apache-2.0 */
/* relate.h - the names that the tensors of a source have at a reference, where the two spell them
 * otherwise.
 *
 * Names of one kind differ by their numbers only: "model.layers.*.mlp.up_proj.weight". A kind is
 * renamed as a whole, by other segments in one place ("model.language_model" for
 * "language_model.model"), and only to a kind of the reference that nothing else is sent for, that
 * has the same numbers and shapes, and the same module at its end. */
#ifndef WS_MODEL_RELATE_H
#define WS_MODEL_RELATE_H

#include "wsync/tool/reference.h"
#include "wsync/tool/related.h"

/* family: its renames come first. like: of the reference. known: the layout of its rules, whose
 * names need no relation; NULL. WS_EINPUT: several relations explain the names, and the message has
 * them as rules. */
int ws_relate_source(const struct ws_source *s, const struct ws_family *family,
                     const struct ws_layout *known, const struct ws_layout *like,
                     struct ws_related *out, struct ws_err *err);
void ws_related_free(struct ws_related *r); /* all zero is fine */

#endif
