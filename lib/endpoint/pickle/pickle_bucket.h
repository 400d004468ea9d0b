/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_bucket.h - reads a bucket of tensors from a pickle of the form that pickle.h describes.
 *
 * The reader knows only the names that are listed there, and builds nothing but the bucket. */
#ifndef WS_ENDPOINT_PICKLE_BUCKET_H
#define WS_ENDPOINT_PICKLE_BUCKET_H

#include "pickle.h"

/* A bucket's bytes in GPU memory, as the pickle names them; nothing of it is checked. */
struct ws_pickle_memory {
	const unsigned char *handle; /* 64 bytes inside what was read; NULL: not on a GPU */
	const unsigned char *event;  /* likewise: what to wait for first; NULL: nothing */
	const char *counter;         /* likewise: the file of its readers' counter, without NUL */
	size_t counter_len;          /* 0: none */
	int64_t counter_at;          /* which of them */
	uint64_t at;
	char uuid[64];               /* as it was written; "": by its number */
	int64_t ordinal;
};

struct ws_pickle_bucket {
	/* one after the other in the bytes; owned, and so are their names, in `names` */
	struct ws_pickle_tensor *tensors;
	size_t n;
	const uint8_t *bytes;             /* inside what was read; NULL: in memory of a GPU */
	struct ws_pickle_memory memory;
	uint64_t length;
	char *names;
};

/* data may be any bytes: WS_EINPUT where it is no such pickle. The bucket points into it. */
int ws_pickle_read(const void *data, size_t n, struct ws_pickle_bucket *out, struct ws_err *err);
void ws_pickle_free(struct ws_pickle_bucket *b);

#endif
