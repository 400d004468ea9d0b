/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever saved answers hold is refused or agrees with itself. */
#include "wsync/tool/logprobs.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void compare_with_itself(const struct ws_logprobs *l)
{
	const struct ws_logprobs_limits exact = WS_LOGPROBS_NO_LIMITS;
	struct ws_logprobs_diff d[WS_LOGPROB_PARTS], sum = { 0 };
	char why[200];
	ws_logprobs_compare(l, l, d);
	for (unsigned p = 0; p < WS_LOGPROB_PARTS; p++) {
		ws_logprobs_sum(&sum, &d[p]);
		if (d[p].diverges || d[p].max > 0 || d[p].same != l->part[p].n ||
		    d[p].tokens > d[p].same ||
		    !ws_logprobs_within(&d[p], (enum ws_logprob_part)p, &exact, why, sizeof why))
			abort();
	}
	if (sum.max > 0 || sum.missing || sum.tokens != d[0].tokens + d[1].tokens)
		abort();
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct ws_logprobs_list list;
	struct ws_logprobs l;
	struct ws_err err = WS_ERR_INIT;
	if (ws_logprobs_parse_all((const char *)data, size, "answer", &list, &err)) {
		if (err.code != WS_EINPUT || list.items)
			abort();
	}
	for (size_t i = 0; i < list.n; i++)
		compare_with_itself(&list.items[i]);
	if (!ws_logprobs_parse((const char *)data, size, "answer", &l, &err) && list.n != 1)
		abort();
	else if (l.part[WS_PREFILL].ids && list.n)
		compare_with_itself(&l);
	for (size_t i = 1; i < list.n; i++) {
		struct ws_logprobs_diff d[WS_LOGPROB_PARTS];
		ws_logprobs_compare(&list.items[0], &list.items[i], d);
	}
	ws_logprobs_free(&l);
	ws_logprobs_list_free(&list);
	return 0;
}
