/* SPDX-License-Identifier: Apache-2.0 */
/* journal_staged.c - finds the records of staged updates. */
#include "wsync/tool/staged.h"

struct ws_journal_entry *ws_staged_at(const struct ws_journal_list *list, const char *url,
                                      size_t *endpoint)
{
	for (size_t i = list->n; i-- > 0;) {
		const struct ws_journal_record *r = &list->items[i].record;
		for (size_t k = 0; !list->items[i].err.code && k < r->n_endpoints; k++) {
			if (!r->staged.stage || !r->endpoints[k].open_update ||
			    !ws_endpoint_same(r->endpoints[k].url, url))
				continue;
			*endpoint = k;
			return &list->items[i];
		}
	}
	return NULL;
}

bool ws_staged_can(const struct ws_journal_endpoint *e)
{
	return e->open_update == WS_UPDATE_TWO_PHASE ||
	       e->open_update == WS_UPDATE_TWO_PHASE_FLAT || e->open_update == WS_UPDATE_DISK;
}

bool ws_staged_waits(const struct ws_journal_record *r, const struct ws_journal_endpoint *e)
{
	const enum ws_stage stage = r->staged.stage;
	return ws_staged_can(e) && (stage == WS_STAGE_DONE ||
	                            (stage == WS_STAGE_LOADING && e->state == WS_UNTOUCHED));
}

bool ws_journal_is_other(const struct ws_journal_endpoint *e, const struct ws_endpoint_info *info)
{
	return e->instance && info && info->instance && e->instance != info->instance;
}

bool ws_journal_is_about(const struct ws_journal_endpoint *e, const char *url,
                         const struct ws_endpoint_info *info)
{
	if (ws_journal_is_other(e, info))
		return false;
	if (ws_endpoint_same(e->url, url))
		return true;
	return e->sure && info && info->identity.strength == WS_IDENTITY_SURE &&
	       e->instance == info->instance;
}

bool ws_staged_strange(const struct ws_journal_endpoint *e, const struct ws_endpoint_info *info)
{
	return e->open_update == WS_UPDATE_DISK && ws_journal_is_other(e, info);
}

int ws_staged_refuse_strange(const char *url, struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED, "%s: it is another start of the server, or another server, "
	           "than the update was staged for", url);
	ws_err_hint(err, "stage it again: wsync-ctl discard -e %s, then wsync-push SOURCE --stage",
	            url);
	return ws_err_where(err, NULL, url);
}

bool ws_staged_lost(const struct ws_journal_endpoint *e, const struct ws_endpoint_info *info)
{
	return e->open_update != WS_UPDATE_DISK && ws_journal_is_other(e, info);
}
