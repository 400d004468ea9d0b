/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_weights.h - reads the weights of endpoints (names, checksums, values) and runs the
 * actions of /weights_checker. As in endpoint.h, a call sends its requests to all endpoints at
 * once. */
#ifndef WS_CLIENT_ENDPOINT_WEIGHTS_H
#define WS_CLIENT_ENDPOINT_WEIGHTS_H

#include "wsync/endpoint.h"
#include "wsync/tool/buf.h"
#include "wsync/tool/checksums.h"
#include "wsync/tool/listing.h"

/* Checks that each rank of the server, 0 to n-1, is there once (once per data-parallel replica). If
 * not, fails with WS_EREFUSED and names the ranks that are missing or too many. */
int ws_checksums_whole(const struct ws_checksums *c, const struct ws_endpoint_info *info,
                       struct ws_err *err);

/* Lists, for each server, the names in the checksums of all ranks, sorted, each once, without
 * shapes. Names of a draft model ("draft.") are left out. For servers without /list_weights.
 * outs[i] is the caller's to free, and empty where errs[i] is set. -1: *err is the first
 * failure. */
int ws_endpoint_checker_names(const struct ws_call *to, struct ws_weight_list *outs,
                              struct ws_err *errs, struct ws_err *err);

/* Numbers in nested arrays of equal lengths. With data-parallel ranks there is one dimension more
 * than the tensor has. Infinite numbers may be NaN here: JSON cannot express them. */
struct ws_values {
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS + 1];
	double *numbers;          /* owned; n numbers, the last index runs fastest */
	size_t n;
};

/* Reads the first `rows` rows of the parameter with this checkpoint name from each endpoint. More
 * than `most` numbers is WS_EREFUSED; many servers and models refuse the request, too. outs[i] is
 * filled where errs[i].code is WS_OK; free every one of them in any case. */
int ws_endpoint_get_weights(const struct ws_call *to, const char *name, uint64_t rows, size_t most,
                            struct ws_values *outs, struct ws_err *errs, struct ws_err *err);
/* True if a server of dp_size did not return the parameter. With one replica SGLang answers 400 in
 * this case; with more it answers 200 and one null per replica. An empty list also counts. */
bool ws_values_empty(const struct ws_values *v, unsigned dp_size);
void ws_values_free(struct ws_values *v); /* NULL is fine */

/* The route of its checksums. */
const char *ws_endpoint_checker_route(enum ws_server_family family);

/* POST /weights_checker, which overwrites parameters with random numbers: bodies[i] is the request
 * to to->urls[i], {"action": "reset_tensors", "skip_tensor_list"}. */
int ws_endpoint_reset_weights(const struct ws_call *to, const struct ws_buf *bodies,
                              struct ws_endpoint_answer *answers, struct ws_err *err);

#endif
