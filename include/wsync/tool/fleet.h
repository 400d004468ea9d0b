/* SPDX-License-Identifier: Apache-2.0 */
/* fleet.h - many endpoints, some of which come and go: which of them may get traffic, which lack
 * the weights, and pushes to those alone. */
#ifndef WSYNC_FLEET_H
#define WSYNC_FLEET_H

#include "wsync/endpoint.h"
#include "wsync/push.h"
#include "wsync/tool/journal.h"
#include "wsync/tool/verify.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- which endpoints are ready ---- */

/* Why an endpoint is not ready: the first reason in this order. First come those for which it lacks
 * the weights, as far as is known. */
enum ws_ready {
	WS_READY,
	WS_READY_UNREACHED, /* it did not answer */
	/* a record of this user says that it has some old and some new weights, or none */
	WS_READY_PARTIAL,
	WS_READY_HELD,      /* a record of this user says that a push has paused it */
	WS_READY_VERSION,   /* it has another weight version, or reports none */
	/* it has the version, and the last push of this user has left other weights or a part */
	WS_READY_STALE,
	WS_READY_BYTES,     /* its checksums are not those of the source */
	WS_READY_UNPROVEN,  /* they could not be compared, or prove too little */
	WS_READY_PAUSED,    /* it has the weights, and reports that it is paused or sleeps */
	WS_READY_UNHEALTHY, /* it has the weights, and GET /health failed */
	WS_N_READY
};
bool ws_ready_lacks(enum ws_ready ready); /* the weights, or it was not reached */
const char *ws_ready_name(enum ws_ready ready); /* "ready", "unreached", ... */

/* What shows that an endpoint has the weights that its weight version names. */
enum ws_current {
	WS_CURRENT_UNTOLD,   /* nothing: it reports no version, or did not answer */
	WS_CURRENT_BY_LABEL, /* the version alone */
	/* the last push of this user to this start of the server sent all of the weights, and set
	 * the version */
	WS_CURRENT_BY_RECORD,
	WS_CURRENT_BY_PROOF, /* checksums of all of its bytes */
	WS_CURRENT_NOT,      /* that push has left other weights, or a part */
	WS_N_CURRENT
};
const char *ws_current_name(enum ws_current current); /* "label", "record", "proof", else NULL */

/* Would the caller push this plan to this server? 1: yes; 0: no; -1: not known. */
typedef int ws_fleet_has_plan(void *ctx, const struct ws_endpoint_info *info, uint64_t digest);

struct ws_fleet_view {
	const char *url;          /* borrowed from the options */
	enum ws_ready ready;
	char why[640];            /* one sentence; "": it is ready */
	struct ws_err err;        /* of WS_READY_UNREACHED, else WS_OK */
	struct ws_endpoint_info info; /* unless it was not reached */
	double coverage;          /* percent of the bytes that were proven; < 0: none */
	size_t not_covered;       /* its tensors that the globs left out of the proof */
	enum ws_current current;  /* of info.weight_version, also where no version is asked for */
	/* enum ws_require: by the proof, or by the last push, if it may still hold. BY_LABEL: the
	 * server does not report which start of it answers */
	unsigned established;
	uint64_t push;            /* id of the last push of this user to it; 0: unknown */
	/* A record of this user says so, whatever `ready` is: it has some old and some new weights,
	 * or released ones; a push that is over has left it paused. */
	bool mixed, held;
	bool paused;              /* it says so */
	bool unreadable;          /* its weights are released, or may be */
};

struct ws_fleet_look_opts {
	struct ws_http *http;
	const char *const *endpoints;
	size_t n_endpoints;
	enum ws_lineage lineage;  /* unknown: detect it */
	const char *weight_version; /* NULL: any */
	bool health;              /* ask for it */
	/* compare checksums of endpoints that lack nothing otherwise: all but the endpoints and
	 * the samples; NULL: do not */
	const struct ws_verify_opts *proof;
	const char *state_dir;    /* of the records; NULL: none */
	ws_fleet_has_plan *has_plan; /* NULL: any plan of all weights will do */
	void *plan_ctx;
	/* The requests of a look are sent in up to three steps. A step takes at most step_ns, and
	 * half of the time left before `until`. So an endpoint that hangs in one step leaves time
	 * for the next step of the others. `proof` has its own limits. */
	int64_t step_ns;
	ws_deadline until;
	struct ws_sink sink;      /* gets a warning about a record that cannot be read */
	const struct ws_cancel *cancel;
};

/* Asks all endpoints at once, and reads the records last: a push that began meanwhile is seen.
 * views: room for n_endpoints. -1: cancelled, a system error, or the records cannot be read. */
int ws_fleet_look(const struct ws_fleet_look_opts *opts, struct ws_fleet_view *views,
                  struct ws_err *err);

/* ---- pushes ---- */

/* Called once the canaries have the weights, and are resumed. -1: it failed; WS_EMISMATCH: the
 * answer is no. */
typedef int ws_canary_check(void *ctx, const char *const *urls, size_t n, const char *version,
                            ws_deadline until, struct ws_err *err);

struct ws_fleet_opts {
	struct ws_push_opts push; /* with all endpoints */
	/* Push to those alone for which ws_ready_lacks is true with the weight version, or of which
	 * `require` is not established. WS_EUNKNOWN: a push had established it of an endpoint that
	 * may have been restarted since, so another push would not help. With WS_VERIFY_HASH their
	 * checksums are compared, too. */
	bool only_stale;
	/* Leave out endpoints that cannot be reached, as long as so many have the weights in the
	 * end; 0: all must be reached */
	size_t min_endpoints;
	/* The first so many of the endpoints get the weights first. If the check fails, the others
	 * get none. 0: none */
	size_t canaries;
	ws_canary_check *check;   /* with canaries */
	void *check_ctx;
};

struct ws_fleet; /* opaque; one thread */

/* All that opts points to must outlive the fleet. Sends no request yet. */
int ws_fleet_open(const struct ws_fleet_opts *opts, struct ws_fleet **out, struct ws_err *err);
/* Replaces the endpoints for the next run: new ones join a new group. They are borrowed until the
 * next call. */
int ws_fleet_set_endpoints(struct ws_fleet *f, const char *const *urls, size_t n,
                           struct ws_err *err);
/* As ws_push_run. The result lists all endpoints. 0: all have the weights, but for those that
 * min_endpoints allows to leave out. */
int ws_fleet_run(struct ws_fleet *f, const struct ws_push_source *source, struct ws_ev_end *result,
                 struct ws_err *err);
enum ws_asleep ws_fleet_asleep(const struct ws_fleet *f);            /* as ws_push_asleep */
void ws_fleet_finish(struct ws_fleet *f, struct ws_ev_end *result); /* as ws_push_finish */
void ws_fleet_close(struct ws_fleet *f);                             /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
