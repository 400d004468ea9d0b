/* SPDX-License-Identifier: Apache-2.0 */
/* ctl.h - shared by the commands of wsync-ctl. */
#ifndef WSYNC_CMD_CTL_H
#define WSYNC_CMD_CTL_H

#include "naming.h"
#include "opt.h"
#include "table.h"
#include "targets.h"
#include "transforming.h"
#include "ui.h"

#include "wsync/endpoint.h"
#include "wsync/tool/deeds.h"
#include "wsync/tool/fleet.h"
#include "wsync/tool/journal.h"

enum { CTL_NO_TIMEOUT = -1 }; /* --timeout was not given */

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
	bool force;      /* of resume */
	bool watch;      /* of status */
	uint64_t min_endpoints, min_coverage; /* of ready, wait; 0: not given */
	bool again, dry_run, resume_partial, assume_dead, forget;
	const char *weight_version; /* of a completion, ready and wait, as are these */
	bool allow_older;
	unsigned flush, verify;     /* index 0 is the default */
	int64_t lock_wait_ns;
	struct naming naming;
	struct transforming transforming;
};

struct ctl_job {
	const struct ctl_config *cfg;
	struct ui *ui;
	struct targets to; /* repair, complete, discard: empty means all recorded endpoints */
	ws_deadline until; /* of --timeout; without it WS_FOREVER */
	/* to show which push paused an endpoint; or NULL */
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
int ctl_complete(void *ctx, const struct opt_args *args, struct ws_err *err);
int ctl_discard(void *ctx, const struct opt_args *args, struct ws_err *err);
int ctl_ready(void *ctx, const struct opt_args *args, struct ws_err *err);
int ctl_wait(void *ctx, const struct opt_args *args, struct ws_err *err);
int ctl_status(void *ctx, const struct opt_args *args, struct ws_err *err);
int ctl_version(void *ctx, const struct opt_args *args, struct ws_err *err);

/* targets_probe, with --lineage. */
int ctl_ask(struct ctl_job *job, struct ws_err *err);
/* Sets the weight version of all endpoints. */
int ctl_set_version(struct ctl_job *job, const char *version, struct ws_err *err);
/* Writes the failure as members of an endpoint's line. */
void ctl_put_failure(struct ws_jw *w, const struct ws_err *err);
/* Prints the table, unless a single endpoint failed: the run's error reports that. */
void ctl_print_unless_said(struct ctl_job *job, const struct table *t, enum ws_code first);

/* Reads the registry again, if the endpoints are from there. */
int ctl_follow(struct ctl_job *job, struct ws_err *err);

/* ---- ready.c ---- */

/* Looks at all endpoints; with a source among args at their bytes, too. The caller frees *views,
 * also after an error. warns: about records that cannot be read. */
int ready_look(struct ctl_job *job, const struct opt_args *args, bool warns,
               struct ws_fleet_view **views, struct ws_err *err);
/* Writes members of an endpoint's line. */
void ready_put(struct ws_jw *w, const struct ws_fleet_view *v);
enum ui_color ready_color(const struct ws_fleet_view *v);

/* ---- record.c: reads and prints the records of pushes ---- */

/* A server: records of its earlier starts are not about it. info NULL: it was not detected. */
struct record_at {
	const char *url;
	const struct ws_endpoint_info *info;
};
/* Endpoint i of the job. */
struct record_at record_at(const struct ctl_job *job, size_t i);

/* "dead", "alive", "elsewhere", "ended" or "unreadable". */
const char *record_fate(const struct ws_journal_entry *e);
/* "42 s", "7 min", "3 h" */
char *record_age(char *dst, size_t n, int64_t since);

/* Reads the records of this user's pushes. Without a state directory the list is empty. Warns about
 * unreadable records. The caller frees the list. */
void record_read(const struct ctl_job *job, struct ws_journal_list *list);
/* Adds the member "paused_by" to the open object: the push or wsync-ctl that has paused an
 * endpoint. e NULL: none has. */
void record_put_pause(struct ws_jw *w, const struct ws_journal_entry *e);
/* Prints that push as a line: the process that paused url, when, and the remedy. */
void record_say_pause(struct ui *ui, const char *url, const struct ws_journal_entry *e);
/* Prints such a line for each endpoint of the job that a push has left paused. */
void record_say_pauses(struct ctl_job *job, const struct ws_journal_list *list);
/* For a job with records whose endpoints were detected: writes the update that is staged at
 * endpoint i as member "staged" of the open object; null: none. */
void record_put_staged(struct ws_jw *w, const struct ctl_job *job, size_t i);
/* Prints a line for each endpoint of the job that has a staged update. */
void record_say_staged(struct ctl_job *job);

/* ---- again.c: a recorded push, run once more ---- */

/* Runs the wsync-push that lies beside this program, in the directory of the record, to these
 * endpoints, and waits for it. *status is its exit status. With --json it prints nothing: stdout
 * is ours. -1: it could not be run, or was killed, or the record cannot be repeated (WS_EINPUT).
 * The job's deadline is the push's --timeout; a push that exceeds it is killed. */
int again_run(const struct ctl_job *job, const struct ws_journal_record *rec,
              const char *const *urls, size_t n, int *status, struct ws_err *err);

#endif
