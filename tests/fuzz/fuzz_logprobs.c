/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever a saved answer holds is refused or agrees with itself. */
#include "wsync/logprobs.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct ws_logprobs l;
	struct ws_logprobs_diff d[WS_LOGPROB_PARTS];
	struct ws_err err = WS_ERR_INIT;
	if (ws_logprobs_parse((const char *)data, size, "answer", &l, &err)) {
		if (err.code != WS_EINPUT || l.part[WS_PREFILL].ids || l.part[WS_DECODE].ids)
			abort();
		return 0;
	}
	ws_logprobs_compare(&l, &l, d);
	for (unsigned p = 0; p < WS_LOGPROB_PARTS; p++)
		if (d[p].diverges || d[p].max > 0 || d[p].same != l.part[p].n || d[p].tokens > d[p].same)
			abort();
	ws_logprobs_free(&l);
	return 0;
}
