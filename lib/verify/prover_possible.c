/* SPDX-License-Identifier: Apache-2.0 */
/* prover_possible.c - how much the checksums of a server can prove: by the names and shapes of the
 * tensors, before anything is sent or hashed. */
#include "prover_core.h"

#include <stdio.h>
#include <string.h>

bool prover_suffices(const struct ws_prover *p, uint64_t proven, uint64_t all)
{
	const unsigned must = p->opts.min_coverage ? p->opts.min_coverage : 100;
	return (unsigned __int128)proven * 100 >= (unsigned __int128)all * must;
}

/* 99.97 is not 100. */
double prover_percent(uint64_t proven, uint64_t all)
{
	return all ? (double)(uint64_t)((unsigned __int128)proven * 1000 / all) / 10 : 0;
}

/* What the checksums can prove at most, by the names and shapes of the tensors. */
struct possible {
	uint64_t all, can;
	char first[1024]; /* the first that they cannot, and why; "": none */
};

static void find_possible(const struct prover_table *t, struct possible *x)
{
	uint64_t bytes;
	char why[256];
	*x = (struct possible){ .all = t->strange };
	for (size_t i = 0; i < t->n_params; i++) {
		const struct ws_param *param = ws_layout_param(t->layout, i);
		if (!t->scope[i])
			continue;
		const bool known = ws_predict_can(t->predict, i, 0, why, &bytes);
		x->all += bytes || known ? bytes : 1;
		x->can += known ? bytes : 0;
		if (!known && !x->first[0])
			snprintf(x->first, sizeof x->first, ", the first %.400s: %.250s",
			         param->name, why);
	}
}

int ws_prover_check(const struct ws_prover *p, size_t i, struct ws_err *err)
{
	const struct prover_server *s = &p->servers[i];
	struct possible x;
	find_possible(s->table, &x);
	if (prover_suffices(p, x.can, x.all))
		return 0;
	ws_err_set(err, WS_EREFUSED,
	           "%s: its checksums can prove at most %.1f %% of the bytes of these tensors%s",
	           s->info->url, prover_percent(x.can, x.all), x.first);
	ws_err_hint(err, "{min_coverage} sets how much must be proven (100)");
	return ws_err_where(err, NULL, s->info->url);
}

int prover_check_any(const struct prover_table *t, const struct ws_endpoint_info *info,
                     struct ws_err *err)
{
	struct possible x;
	find_possible(t, &x);
	return x.can ? 0 :
	       prover_refuse(info, x.first[0] ? x.first + strlen(", the first ") :
	                                        "no tensor goes to a known parameter", err);
}
