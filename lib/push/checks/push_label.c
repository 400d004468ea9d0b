/* SPDX-License-Identifier: Apache-2.0 */
/* push_label.c - with --verify hash: did an endpoint have the weight version of this push already,
 * but other bytes? The checksums of the endpoint before and after the push are compared, whatever
 * their algorithm is. */
#include "push_protocol.h"

#include <stdlib.h>
#include <string.h>

static bool is_asked(const struct ws_push *p, size_t i)
{
	return p->from.weight_version && push_can(p, i)->checksums && !push_may_lack_values(p, i) &&
	       strcmp(p->to.infos[i].weight_version, p->from.weight_version) == 0;
}

int push_label_begin(struct ws_push *p, struct ws_err *err)
{
	const size_t n = p->opts.n_endpoints;
	push_call_new(p);
	for (size_t i = 0; p->opts.verify == WS_VERIFY_HASH && i < n; i++)
		if (is_asked(p, i))
			push_call_add(p, i);
	const size_t asked = p->to.call.n;
	if (!asked)
		return 0;
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	const struct ws_call to = push_call_made(p, until, p->opts.cancel);
	struct ws_err why = WS_ERR_INIT;
	p->checks.before = calloc(n, sizeof *p->checks.before);
	struct ws_checksums *sums = calloc(asked, sizeof *sums);
	if (!p->checks.before || !sums) {
		free(sums);
		return ws_oom(err);
	}
	/* An endpoint that does not answer is no failure here: it is asked again afterwards. */
	if (ws_endpoint_checksums(&to, sums, p->to.errs, &why) && why.code == WS_ECANCELLED) {
		free(sums);
		*err = why;
		return -1;
	}
	for (size_t k = 0; k < asked; k++)
		if (p->to.errs[k].code == WS_OK)
			p->checks.before[p->to.call.index[k]] = sums[k];
	free(sums);
	return 0;
}

/* Are there tensors of one name with different checksums? Both come from the same server, so they
 * have one order. */
static bool differ(const struct ws_checksums *a, const struct ws_checksums *b)
{
	for (size_t r = 0; r < a->n_ranks && r < b->n_ranks; r++)
		for (size_t k = 0; k < a->ranks[r].n && k < b->ranks[r].n; k++)
			if (strcmp(a->ranks[r].items[k].name, b->ranks[r].items[k].name) == 0 &&
			    strcasecmp(a->ranks[r].items[k].text, b->ranks[r].items[k].text) != 0)
				return true;
	return false;
}

void push_label_compare(struct ws_push *p, size_t i, const struct ws_checksums *now)
{
	if (p->checks.before && differ(&p->checks.before[i], now))
		push_warn(p, p->to.endpoints[i].url,
		          "it had weight version %s before this push, but other bytes",
		          p->from.weight_version);
}

void push_label_end(struct ws_push *p)
{
	for (size_t i = 0; p->checks.before && i < p->opts.n_endpoints; i++)
		ws_checksums_free(&p->checks.before[i]);
	free(p->checks.before);
	p->checks.before = NULL;
}
