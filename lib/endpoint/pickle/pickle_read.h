/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_read.h - what the two files share that make a bucket of a pickle's values. */
#ifndef WS_ENDPOINT_PICKLE_READ_H
#define WS_ENDPOINT_PICKLE_READ_H

#include "pickle_bucket.h"
#include "pickle_machine.h"

/* One dimension of bytes next to each other, and how many. */
bool pickle_is_flat(const struct pickle *p, const struct pickle_value *size,
                    const struct pickle_value *stride, uint64_t *n);

/* The arguments, where v rebuilds a tensor in a GPU's memory; else NULL. */
const struct pickle_value *pickle_cuda_args(const struct pickle *p, const struct pickle_value *v);
int pickle_read_cuda(const struct pickle *p, const struct pickle_value *args,
                     struct ws_pickle_bucket *out, struct ws_err *err);

#endif
