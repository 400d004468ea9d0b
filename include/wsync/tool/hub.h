/* SPDX-License-Identifier: Apache-2.0 */
/* hub.h - snapshots in this machine's cache of the Hugging Face Hub. Nothing is downloaded.
 *
 *   CACHE/models--ORG--NAME/refs/REF          a file: the name of a commit
 *   CACHE/models--ORG--NAME/snapshots/COMMIT/ links to files in models--ORG--NAME/blobs
 *
 * CACHE is $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE, else $HF_HOME/hub, else
 * ${XDG_CACHE_HOME:-~/.cache}/huggingface/hub. */
#ifndef WSYNC_HUB_H
#define WSYNC_HUB_H

#include "wsync/err.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Does the path begin with "hf:"? Such a path never names a file of that name. */
bool ws_hub_is(const char *path);

/* *dir: the directory of the snapshot that "hf:ORG/NAME[@REVISION]" names; the caller frees it. A
 * revision is a ref (default: main), a commit, or at least 7 hex digits that begin one commit only.
 * Without a revision and without refs/main: the only snapshot. WS_EUSAGE: no such name can exist.
 * WS_EINPUT: it is not in the cache. */
int ws_hub_resolve(const char *spec, char **dir, struct ws_err *err);

/* The snapshot of "ORG/NAME" (or "NAME", as of old models) at this revision, NULL: as above. The
 * caller frees it. NULL: it is not in the cache, or this is not the name of a repository. */
char *ws_hub_find(const char *repo, const char *revision);

/* Fails if the directory is that of a repository in a cache (models--ORG--NAME), whose snapshots
 * are one level below; the hint names them. */
int ws_hub_check_root(const char *dir, struct ws_err *err);

/* For a file that is missing: sets a hint if the path is in a snapshot, or names a repository that
 * is in the cache. Returns whether it did. */
bool ws_hub_hint(const char *path, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
