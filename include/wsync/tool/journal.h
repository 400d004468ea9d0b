/* SPDX-License-Identifier: Apache-2.0 */
/* journal.h - records of unfinished pushes, and the repair of endpoints that dead pushes left.
 *
 * A push keeps a file in the directory `pushes` of its state directory. It is written before
 * the first request to an endpoint and again before each step, so that it lists what may have
 * happened: "paused" is written before the request to pause leaves, "partial" before the first
 * byte of a weight does. It is removed when nothing is left to repair. A killed push leaves it
 * behind, and so does a push that leaves an endpoint with half an update.
 *
 * Records of other users are rejected: a record must be a plain file that belongs to this user and
 * that only this user can write. */
#ifndef WSYNC_JOURNAL_H
#define WSYNC_JOURNAL_H

#include "wsync/cancel.h"
#include "wsync/endpoint.h"
#include "wsync/err.h"
#include "wsync/event.h"
#include "wsync/tool/process.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The update that a push may have left open. Until it ends, the server refuses other updates. */
enum ws_open_update {
	WS_UPDATE_NONE, WS_UPDATE_SESSION, WS_UPDATE_PROCESSING, WS_UPDATE_TWO_PHASE,
	WS_UPDATE_TWO_PHASE_FLAT,
	WS_UPDATE_TRANSFER, /* vLLM's, between start and finish */
	WS_UPDATE_DISK, /* the server knows nothing of it: a checkpoint that waits to be loaded */
	WS_N_OPEN_UPDATES
};

/* A staged update: a server has all of it beside its weights, and loads it when it is asked to
 * complete it. */
enum ws_stage {
	WS_STAGE_NONE,    /* an ordinary push */
	WS_STAGE_SENDING, /* a part is missing */
	WS_STAGE_LAST,    /* everything may have arrived */
	WS_STAGE_DONE,    /* endpoints with an open update have everything */
	WS_STAGE_LOADING  /* they were asked to load it, unless they are untouched */
};

struct ws_journal_staged {
	enum ws_stage stage;
	bool whole, checked;      /* no part was chosen; all names were compared */
	/* of WS_UPDATE_DISK: what the servers will load, and as which format; else "" */
	const char *model_path, *load_format;
	const char *written;      /* the same directory here, if it was written for this; else "" */
	uint64_t written_id;      /* of the files there (disk_files.h); 0: not known */
	bool used;                /* a server was asked to load it: it may be its model */
	unsigned keep;            /* ws_push_opts.disk_keep */
};

struct ws_journal_endpoint {
	const char *url;
	enum ws_phase phase;      /* begun, and perhaps not ended */
	enum ws_endpoint_state state; /* at worst */
	bool paused;              /* perhaps */
	bool grouped;             /* perhaps it is in the group */
	enum ws_open_update open_update;
	const char *version;      /* weight version before, "" unknown */
	uint64_t instance;        /* ws_endpoint_info.instance; 0 unknown */
	bool slept;               /* it had released memory, which the push must wake */
	unsigned asleep;          /* enum ws_memory: still released memory */
	/* enum ws_memory: a request to release or to wake it has been sent, or is about to be, and
	 * its answer is not known (deeds.h) */
	unsigned unsure;
	/* it has all of this push, but is partial: an earlier push is incomplete */
	bool inherited;
	bool sure;                /* instance is unique (WS_IDENTITY_SURE) */
	bool unlabelled;          /* it lacks the push's weight version; if committed, it owes it */
};

struct ws_journal_file {
	const char *path;         /* as it was opened, perhaps relative to `directory` */
	bool in_memory;           /* it names memory of a process, and has no id */
	uint64_t id;              /* ws_source_file_id */
};

struct ws_journal_record {
	struct ws_process process;
	bool ended;               /* the push itself is over, whatever its process does now */
	bool refused;             /* a server refused its weights, or has others than were sent */
	/* No push: wsync-ctl paused the server, or released its memory. It has ended, sent nothing,
	 * and its endpoint is committed, or partial where weights came back without values. */
	bool by_hand;
	int64_t began, updated;   /* seconds since 1970 */
	const char *group;        /* "" none */
	/* The rendezvous address, until all endpoints have answered the request to join; then
	 * "" and 0. */
	const char *master_host;
	uint16_t master_port;
	uint64_t digest;          /* of the plan */
	uint64_t tensors, bytes;  /* of the plan */
	const char *weight_version; /* that the push would set; "" none */
	struct ws_journal_staged staged;
	const char *const *sources;
	size_t n_sources;
	/* files that the push read: of sources, adapters and corrections */
	const struct ws_journal_file *files;
	size_t n_files;
	/* To push again: the working directory and the options that are not about endpoints.
	 * NULL: it was no wsync-push, and cannot be repeated from here. */
	const char *directory;
	const char *const *args;
	size_t n_args;
	struct ws_journal_endpoint *endpoints;
	size_t n_endpoints;
};

struct ws_journal_entry {
	char *path;
	struct ws_err err;        /* WS_OK, or why the file was rejected */
	/* of the process; WS_PROCESS_DEAD also where the push has ended */
	enum ws_process_fate fate;
	struct ws_journal_record record;
	void *priv;
};

struct ws_journal_list {
	struct ws_journal_entry *items; /* the oldest first, rejected files last */
	size_t n;
};

/* Reads the records under this state directory; a missing directory has none. WS_EINPUT: other
 * users can write to it, or own it. */
int ws_journal_list(const char *state_dir, struct ws_journal_list *out, struct ws_err *err);
void ws_journal_list_free(struct ws_journal_list *list); /* NULL is fine */

/* ---- repair ---- */

struct ws_repair_opts {
	struct ws_http *http;
	const char *state_dir;
	bool dry_run;             /* ask, and change nothing */
	bool resume_partial;      /* also resume endpoints with some old and some new weights */
	int64_t timeout_ns;       /* of each request; 0: 10 s */
	ws_deadline until;        /* of all of them; 0: none */
	int64_t lock_wait_ns;     /* of ws_staged_discard */
	const struct ws_cancel *cancel;
};

struct ws_repair_answer {
	struct ws_err err;        /* not reached, refused to continue, or in use; else WS_OK */
	enum ws_endpoint_state state; /* as far as can be known */
	char weight_version[128]; /* as it reports; "": unknown */
	bool busy;                /* another push uses it: it was skipped */
	bool resumed;
	bool paused;              /* it stays paused, as far as can be known */
	unsigned asleep;          /* enum ws_memory: still released, so it stays paused */
	unsigned unsure;          /* the same, if a request to wake it was not obeyed */
	bool left_group;          /* it is no longer in the group */
	bool may_join;            /* it may still process the request to join; it stays recorded */
	bool in_update;           /* it did not answer the request to end its open update */
	bool staged;              /* it keeps a staged update, which is in order */
	bool restarted;           /* another start of the server, which the record is not about */
	bool incomplete;          /* only a push can complete its weights */
	bool unlabelled;          /* its new weights still have the old weight version */
	bool labelled;            /* they have got theirs now */
	bool settled;             /* nothing is left to repair: the record forgets it */
};

/* Repairs all endpoints of one record at once: each leaves the group, and an open update is
 * ended. If the weights of an endpoint are complete, its released memory is woken and it is
 * resumed. What could not be repaired stays in the record. The file is removed with the last
 * endpoint. answers has one for each endpoint of the record, in its order, which stays. 0:
 * nothing is left. Otherwise -1, and *err is WS_EPARTIAL if an endpoint has some old and some
 * new weights or its weights are still released, else the first failure. May be repeated. */
int ws_journal_repair(struct ws_journal_entry *entry, const struct ws_repair_opts *opts,
                      struct ws_repair_answer *answers, struct ws_err *err);

/* Removes these endpoints (n 0: all) from the record, without requests. WS_EREFUSED: the process
 * of the record is still pushing to one of them. */
int ws_journal_forget(struct ws_journal_entry *entry, const char *const *urls, size_t n,
                      struct ws_err *err);

/* Are the files that this push read unchanged, so that it can be repeated? -1: no; *err is
 * WS_EINPUT and names the file that changed. Opens each file. */
int ws_journal_check_source(const struct ws_journal_record *r, struct ws_err *err);

/* Is the record about another start of the server than the one that was detected? Then nothing of
 * it is true any more. */
bool ws_journal_is_other(const struct ws_journal_endpoint *e, const struct ws_endpoint_info *info);
/* Is it about the server at this URL? Also if it was reached by another URL, where its instance is
 * unique. info NULL: not detected, so only URLs are compared. */
bool ws_journal_is_about(const struct ws_journal_endpoint *e, const char *url,
                         const struct ws_endpoint_info *info);

/* What the record knows to be wrong with the weights of this endpoint, as the start of a sentence;
 * NULL: nothing. */
const char *ws_journal_mixture(const struct ws_journal_endpoint *e);

/* Is there anything to repair at this endpoint? */
bool ws_journal_owes(const struct ws_journal_endpoint *e);

#ifdef __cplusplus
}
#endif
#endif
