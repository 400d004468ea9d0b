/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl.h"

#include "run.h"

#include "wsync/tool/staged.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

const char *record_fate(const struct ws_journal_entry *e)
{
	static const char *const names[] = { "dead", "alive", "elsewhere" };
	return e->err.code ? "unreadable" : e->record.ended ? "ended" : names[e->fate];
}

char *record_age(char *dst, size_t n, int64_t since)
{
	const int64_t age = time(NULL) - since;
	const long long s = age > 0 ? age : 0;
	if (s < 120)
		snprintf(dst, n, "%lld s", s);
	else if (s < 2 * 3600)
		snprintf(dst, n, "%lld min", s / 60);
	else
		snprintf(dst, n, "%lld h", s / 3600);
	return dst;
}

void record_read(const struct ctl_job *job, struct ws_journal_list *list)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_buf dir;
	*list = (struct ws_journal_list){ 0 };
	ws_buf_init(&dir, 4095);
	/* Without a state directory there are no records. */
	if (run_state_dir(job->cfg->state_dir, &dir, &err) == 0 &&
	    ws_journal_list(ws_buf_str(&dir), list, &err))
		ui_warn(job->ui, NULL, "%s", err.msg);
	for (size_t i = 0; i < list->n; i++)
		if (list->items[i].err.code)
			ui_warn(job->ui, NULL, "%s", list->items[i].err.msg);
	ws_buf_free(&dir);
}

struct record_at record_at(const struct ctl_job *job, size_t i)
{
	const bool known = job->to.infos && !job->to.errs[i].code && job->to.infos[i].info_path;
	return (struct record_at){ job->to.urls[i], known ? &job->to.infos[i] : NULL };
}

void record_put_pause(struct ws_jw *w, const struct ws_journal_entry *e)
{
	if (!e) {
		ws_jw_null(w, "paused_by");
		return;
	}
	ws_jw_object(w, "paused_by");
	ws_jw_int(w, "pid", e->record.process.pid);
	ws_jw_str(w, "host", e->record.process.host);
	ws_jw_str(w, "process", record_fate(e));
	ws_jw_bool(w, "by_hand", e->record.by_hand);
	ws_jw_int(w, "began", e->record.began);
	ws_jw_int(w, "updated", e->record.updated);
	ws_jw_str(w, "file", e->path);
	ws_jw_end_object(w);
}

void record_say_pause(struct ui *ui, const char *url, const struct ws_journal_entry *e)
{
	char ago[32];
	record_age(ago, sizeof ago, e->record.updated);
	if (e->record.by_hand) {
		ui_say(ui, "%s: paused by wsync-ctl %s ago (process %lld on %s): "
		       "wsync-ctl resume\n", url, ago, (long long)e->record.process.pid,
		       ui_text(e->record.process.host));
		return;
	}
	const char *what = e->record.ended || e->fate == WS_PROCESS_DEAD
	                           ? ", which has ended: run wsync-ctl repair"
	                   : e->fate == WS_PROCESS_ELSEWHERE ? ", which is not visible from here"
	                                                     : ", which is still running";
	ui_say(ui, "%s: paused by a push %s ago (process %lld on %s)%s\n", url,
	       ago, (long long)e->record.process.pid, ui_text(e->record.process.host), what);
}

void record_say_pauses(struct ctl_job *job, const struct ws_journal_list *list)
{
	for (size_t i = 0; i < job->to.n; i++) {
		const struct record_at at = record_at(job, i);
		const struct ws_known k = ws_known(list, at.url, at.info);
		if (k.paused)
			record_say_pause(job->ui, job->to.urls[i], k.paused);
	}
}

/* The staged update at endpoint i of the job. NULL: none, or a restart has ended it. */
static const struct ws_journal_entry *staged_at(const struct ctl_job *job, size_t i)
{
	size_t k = 0;
	const struct ws_journal_entry *e = ws_staged_at(job->records, job->to.urls[i], &k);
	const bool lost = e && !job->to.errs[i].code &&
	                  ws_staged_lost(&e->record.endpoints[k], &job->to.infos[i]);
	return lost ? NULL : e;
}

void record_put_staged(struct ws_jw *w, const struct ctl_job *job, size_t i)
{
	const struct ws_journal_entry *e = staged_at(job, i);
	if (!e) {
		ws_jw_null(w, "staged");
		return;
	}
	const struct ws_journal_record *r = &e->record;
	ws_jw_object(w, "staged");
	ws_jw_bool(w, "complete", r->staged.stage >= WS_STAGE_DONE);
	ws_jw_str(w, "weight_version", *r->weight_version ? r->weight_version : NULL);
	ws_jw_hex64(w, "digest", r->digest);
	ws_jw_uint(w, "bytes", r->bytes);
	ws_jw_int(w, "pid", r->process.pid);
	ws_jw_str(w, "host", r->process.host);
	ws_jw_str(w, "process", record_fate(e));
	ws_jw_int(w, "updated", r->updated);
	ws_jw_str(w, "file", e->path);
	ws_jw_end_object(w);
}

void record_say_staged(struct ctl_job *job)
{
	for (size_t i = 0; i < job->to.n; i++) {
		char ago[32];
		const struct ws_journal_entry *e = staged_at(job, i);
		if (!e)
			continue;
		const struct ws_journal_record *r = &e->record;
		const char *version = r->weight_version;
		const long long pid = (long long)r->process.pid;
		if (r->staged.stage >= WS_STAGE_DONE)
			ui_say(job->ui,
			       "%s: an update%s%s%s was staged %s ago (process %lld on %s): "
			       "wsync-ctl complete loads it\n",
			       job->to.urls[i], *version ? " (weight version " : "",
			       ui_text(version), *version ? ")" : "",
			       record_age(ago, sizeof ago, r->updated), pid,
			       ui_text(r->process.host));
		else
			ui_say(job->ui, "%s: process %lld on %s %s\n", job->to.urls[i], pid,
			       ui_text(r->process.host),
			       e->fate == WS_PROCESS_DEAD ?
			               "was staging an update there, and died: wsync-ctl repair" :
			               "is staging an update there");
	}
}
