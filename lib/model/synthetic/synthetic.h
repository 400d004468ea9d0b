/* SPDX-License-Identifier: Apache-2.0 */
/* synthetic.h - names and shapes of known models, without their weights. */
#ifndef WS_MODEL_SYNTHETIC_H
#define WS_MODEL_SYNTHETIC_H

#include "stream.h"
#include "wsync/tool/source.h"

struct ws_synthetic {
	struct ws_tensor *tensors;
	struct ws_stream *streams; /* one for each tensor */
	size_t n;
	char *names;
};

#define WS_SYNTHETIC_INIT { 0, 0, 0, 0 }

/* spec is MODEL or MODEL:SEED; no seed is seed 0. */
int ws_synthetic_make(const char *spec, struct ws_synthetic *out, struct ws_err *err);
void ws_synthetic_free(struct ws_synthetic *syn); /* NULL is fine */

#endif
