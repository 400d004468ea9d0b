/* SPDX-License-Identifier: Apache-2.0 */
/* reference.h - a checkpoint that a server can be started from, by its headers: what the server's
 * loader accepts, for any architecture.
 *
 * It is read from the checkpoint itself, or from the lines that wsync-list-weights {headers_only}
 * has saved of it. */
#ifndef WSYNC_REFERENCE_H
#define WSYNC_REFERENCE_H

#include "wsync/tool/config.h"
#include "wsync/tool/layout.h"
#include "wsync/tool/listing.h"
#include "wsync/tool/source.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ws_reference {
	char name[640];                  /* as the user named it, or where it was found */
	const struct ws_tensor *tensors; /* owned */
	size_t n;
	struct ws_config *config; /* beside it; NULL: none */
	/* private */
	struct ws_layout *layout; /* see ws_reference_layout */
	const struct ws_family *generic;
	struct ws_source *source; /* NULL: saved lines */
	struct ws_tensor *made;   /* of saved lines */
	struct ws_weight_list list;
};

/* path: a directory, index or file as in ws_source_open, a config.json with a checkpoint beside
 * it, or a file of saved lines. generic: as in ws_layout_like. WS_EINPUT: it is no checkpoint, or
 * lacks layers that its config.json has. */
int ws_reference_open(const char *path, const struct ws_family *generic, struct ws_reference *out,
                      struct ws_err *err);
/* Is there a checkpoint at this path, or beside this config.json? */
bool ws_reference_at(const char *path);
/* ws_layout_like of it, made when it is first needed. NULL: err says why. */
const struct ws_layout *ws_reference_layout(struct ws_reference *r, struct ws_err *err);
/* Has the source the same tensors, of the same shapes and dtypes? */
bool ws_reference_same(const struct ws_reference *r, const struct ws_source *s);
void ws_reference_close(struct ws_reference *r); /* NULL and all zero are fine */
bool ws_reference_has(const struct ws_reference *r, const char *name);
/* Do the two share a file? A source is no reference for itself. */
bool ws_reference_is(const struct ws_reference *r, const struct ws_source *s);
/* The time of the newest change of its files, in ns since 1970; 0: not known. */
uint64_t ws_reference_changed(const struct ws_reference *r);

/* The config beside a source, or that of a synthetic model; *out NULL: it has none. */
int ws_source_config(const struct ws_source *s, struct ws_config **out, struct ws_err *err);
/* Appends its text; nothing: it has none. */
int ws_source_config_text(const struct ws_source *s, struct ws_buf *out, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
