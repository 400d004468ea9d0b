/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_weights.h - reads the weights of endpoints (names, checksums, values) and runs the
 * actions of /weights_checker. As in endpoint.h, a call sends its requests to all endpoints at
 * once. */
#ifndef WS_CLIENT_ENDPOINT_WEIGHTS_H
#define WS_CLIENT_ENDPOINT_WEIGHTS_H

#include "wsync/endpoint.h"
#include "wsync/tool/checksums.h"
#include "wsync/tool/listing.h"

/* Checks that each rank of the server, 0 to n-1, is there once (once per data-parallel replica). If
 * not, fails with WS_EREFUSED and names the ranks that are missing or too many. */
int ws_checksums_whole(const struct ws_checksums *c, const struct ws_endpoint_info *info,
                       struct ws_err *err);

/* Lists the names in the checksums of all ranks, sorted, each once, without shapes. Names of a
 * draft model ("draft.") are left out. For servers without /list_weights. */
int ws_endpoint_checker_names(struct ws_http *http, const char *url, ws_deadline until,
                              const struct ws_cancel *cancel, struct ws_weight_list *out,
                              struct ws_err *err);

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

/* Actions of /weights_checker, to find out whether an update writes every weight. Reset overwrites
 * every parameter with random numbers. */
enum ws_weights_action { WS_WEIGHTS_SNAPSHOT, WS_WEIGHTS_RESET, WS_WEIGHTS_COMPARE };
/* "snapshot", "reset_tensors", "compare" */
const char *ws_weights_action_name(enum ws_weights_action action);
/* A compare that finds differences is WS_EREFUSED with the server's message. */
int ws_endpoint_weights_action(const struct ws_call *to, enum ws_weights_action action,
                               struct ws_endpoint_answer *answers, struct ws_err *err);

#endif
