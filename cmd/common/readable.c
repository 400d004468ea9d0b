/* SPDX-License-Identifier: Apache-2.0 */
/* readable.c - which servers have weights that can be read? */
#include "run.h"
#include "targets.h"

#include "wsync/tool/deeds.h"

#include <stdlib.h>

static const int64_t ASK_NS = 10 * WS_NS_PER_S;

bool targets_readable(const struct targets *t, size_t i, const char *state_dir, struct ws_err *err)
{
	struct ws_journal_list list = { 0 };
	struct ws_buf dir;
	const bool known = t->infos && !t->errs[i].code;
	const struct ws_endpoint_info *info = known ? &t->infos[i] : NULL;
	ws_buf_init(&dir, 4095);
	if (run_state_dir(state_dir, &dir, NULL) == 0)
		(void)ws_journal_list(ws_buf_str(&dir), &list, NULL);
	const struct ws_known k = ws_known(&list, t->urls[i], info);
	const bool readable = ws_known_readable(&k, info);
	if (!readable) {
		ws_err_set(err, WS_EREFUSED, "%s: %s, and to read them may crash it", t->urls[i],
		           ws_known_memory(&k, info));
		ws_err_hint(err, k.unsure ? "restart the server" :
		                            "first run wsync-ctl wake, or push with --asleep "
		                            "recorded");
		ws_err_where(err, NULL, t->urls[i]);
	}
	ws_journal_list_free(&list);
	ws_buf_free(&dir);
	return readable;
}

int targets_check_readable(struct targets *t, const char *state_dir, ws_deadline until,
                           struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT; /* who reads an endpoint finds it out again */
	if (!t->infos &&
	    targets_probe(t, ws_deadline_min(until, ws_deadline_in(ASK_NS)), &why) && !t->infos)
		return ws_oom(err);
	for (size_t i = 0; i < t->n; i++)
		if (!targets_readable(t, i, state_dir, err))
			return -1;
	return 0;
}
