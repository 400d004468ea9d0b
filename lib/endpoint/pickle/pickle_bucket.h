/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_bucket.h - reads a bucket of tensors from a pickle of the form that pickle.h describes.
 *
 * The reader accepts only the names listed in pickle.h, and creates only the bucket. */
#ifndef WS_ENDPOINT_PICKLE_BUCKET_H
#define WS_ENDPOINT_PICKLE_BUCKET_H

#include "pickle.h"

/* The place of a bucket's bytes in GPU memory, as in the pickle; the values are not verified. */
struct ws_pickle_memory {
	const unsigned char *handle; /* 64 bytes inside the pickle; NULL: not on a GPU */
	const unsigned char *event;  /* likewise: event to wait for first; NULL: no event */
	const char *counter;         /* likewise: file of the counter of readers, without NUL */
	size_t counter_len;          /* 0: no counter */
	int64_t counter_at;          /* index of the counter in the file */
	uint64_t at;
	char uuid[64];               /* of the GPU, as in the pickle; "": use ordinal */
	int64_t ordinal;
};

struct ws_pickle_bucket {
	/* in the order of their bytes; owned; `names` owns their names */
	struct ws_pickle_tensor *tensors;
	size_t n;
	const uint8_t *bytes;             /* inside the pickle; NULL: in GPU memory */
	struct ws_pickle_memory memory;
	uint64_t length;
	char *names;
};

/* What vLLM's workers unpickle of "ipc_handles_pickled" (pickle.h), for the worker of one GPU. Each
 * item has memory, bytes and length. If it is not packed, it also has tensors: one, without a
 * name. */
struct ws_pickle_shared {
	bool packed;                     /* one item for all tensors */
	struct ws_pickle_bucket *items;  /* owned; they point into the pickle */
	size_t n;
};
/* uuid: as in the pickle. n_names: length of a list. with_function: in the form of vLLM 0.18 to
 * 0.20. WS_EINPUT if data is no such pickle, or has nothing for that GPU. */
int ws_pickle_read_shared(const void *data, size_t n, const char *uuid, size_t n_names,
                          bool with_function, struct ws_pickle_shared *out, struct ws_err *err);
void ws_pickle_free_shared(struct ws_pickle_shared *s);

/* data may be any bytes; WS_EINPUT if it is not such a pickle. The bucket points into data. */
int ws_pickle_read(const void *data, size_t n, struct ws_pickle_bucket *out, struct ws_err *err);
void ws_pickle_free(struct ws_pickle_bucket *b);

#endif
