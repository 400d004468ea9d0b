/* SPDX-License-Identifier: Apache-2.0 */
/* ctl.h - what the commands of wsync-ctl share. */
#ifndef WSYNC_CMD_CTL_H
#define WSYNC_CMD_CTL_H

#include "opt.h"
#include "table.h"
#include "targets.h"
#include "ui.h"

#include "wsync/endpoint.h"
#include "wsync/tool/journal.h"

enum { CTL_NO_TIMEOUT = -1 }; /* none was given */

struct ctl_config {
	struct opt_common common;
	unsigned mode;    /* enum ws_pause_mode */
	unsigned lineage; /* enum ws_lineage */
	const char *tags; /* of memory; NULL: all */
	int64_t timeout_ns, wait_ns;
	const char *master_address; /* of a group, as are these */
	uint64_t master_port;
	bool keep;
	const char *state_dir; /* of a repair, as are these */
	bool again, dry_run, resume_partial, assume_dead, forget;
};

struct ctl_job {
	const struct ctl_config *cfg;
	struct ui *ui;
	struct targets to; /* of a repair: none where all are meant */
	ws_deadline until; /* of --timeout; without it WS_FOREVER */
	/* shown with the answers, where who paused an endpoint matters; or NULL */
	const struct ws_journal_list *records;
};

/* The commands: ctx is a ctl_job. */
int ctl_info(void *ctx, const struct opt_args *args, struct ws_err *err);
int ctl_health(void *ctx, const struct opt_args *args, struct ws_err *err);
int ctl_pause(void *ctx, const struct opt_args *args, struct ws_err *err);
int ctl_resume(void *ctx, const struct opt_args *args, struct ws_err *err);
int ctl_flush(void *ctx, const struct opt_args *args, struct ws_err *err);
int ctl_repair(void *ctx, const struct opt_args *args, struct ws_err *err);
int ctl_sleep(void *ctx, const struct opt_args *args, struct ws_err *err);
int ctl_init_group(void *ctx, const struct opt_args *args, struct ws_err *err);
int ctl_destroy_group(void *ctx, const struct opt_args *args, struct ws_err *err);
int ctl_wake(void *ctx, const struct opt_args *args, struct ws_err *err);
int ctl_version(void *ctx, const struct opt_args *args, struct ws_err *err);

/* targets_probe, with --lineage. */
int ctl_ask(struct ctl_job *job, struct ws_err *err);
/* The label of the weights, told to all. */
int ctl_set_version(struct ctl_job *job, const char *version, struct ws_err *err);
/* What failed, as members of an endpoint's line. */
void ctl_put_failure(struct ws_jw *w, const struct ws_err *err);
/* The failure of a single endpoint is the error of the run, which says it. */
void ctl_print_unless_said(struct ctl_job *job, const struct table *t, enum ws_code first);

/* ---- record.c: what pushes have written down, in words ---- */

/* "dead", "alive", "elsewhere", "ended" or "unreadable". */
const char *record_fate(const struct ws_journal_entry *e);
/* "42 s", "7 min", "3 h" */
char *record_age(char *dst, size_t n, int64_t since);

/* The records of this user's pushes; none where there is no state directory. What cannot be read
 * is warned about. Freed by the caller. */
void record_read(const struct ctl_job *job, struct ws_journal_list *list);
/* The last push that may have left this endpoint paused, or NULL. No server says whether it is. */
const struct ws_journal_entry *record_of_pause(const struct ws_journal_list *list, const char *url);
/* Writes that push as member "paused_by" of the open object; null: no push paused it. */
void record_put_pause(struct ws_jw *w, const struct ws_journal_entry *e);
/* And as a line: who paused url, when, and what helps. */
void record_say_pause(struct ui *ui, const char *url, const struct ws_journal_entry *e);
/* One for each endpoint of the job that a push has left paused. */
void record_say_pauses(struct ctl_job *job, const struct ws_journal_list *list);

/* ---- again.c: a recorded push, run once more ---- */

/* Runs the wsync-push that lies beside this program, in the directory of the record, to these
 * endpoints, and waits for it. *status is its exit status. With --json it prints nothing: stdout
 * is ours. -1: it could not be run, or was killed, or the record cannot be repeated (WS_EINPUT).
 * The job's deadline is the push's --timeout; one that goes on in spite of it is killed. */
int again_run(const struct ctl_job *job, const struct ws_journal_record *rec,
              const char *const *urls, size_t n, int *status, struct ws_err *err);

#endif
