/* SPDX-License-Identifier: Apache-2.0 */
/* manifest_fields.h - between manifest_fields.c, which reads, and
 * manifest.c, which judges the whole. */
#ifndef WS_MODEL_MANIFEST_FIELDS_H
#define WS_MODEL_MANIFEST_FIELDS_H

#include "entry.h"
#include "manifest.h"

struct ws_manifest_reader {
	struct ws_scan scan;
	struct ws_manifest *m;
	uint64_t *of; /* of each tensor: its allocation; to free */
	size_t tensors_cap, of_cap;
};

/* The whole text, with offsets as they stand there. */
int ws_manifest_fields(struct ws_manifest_reader *r);

#endif
