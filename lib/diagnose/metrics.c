/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c - turns the events of pushes into Prometheus metrics. */
#include "wsync/tool/metrics.h"

#include "exposition.h"

#include "wsync/tool/name_check_run.h"
#include "wsync/clock.h"
#include "wsync/version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TEXT_MAX = 64 << 20, URL = 2048 };
static const char success_at[] = "wsync_push_last_success_timestamp_seconds";

struct endpoint {
	char url[URL];
	enum ws_endpoint_state state;
	bool ok, paused;
};

/* Facts of a push from the events before its end. */
struct told {
	char backend[16], protocol[32], load_format[32], verify[16];
	uint64_t warnings, mismatches;
	bool dry_run;
	bool names_checked;          /* against the server's, or the caller's, model */
};

struct ws_metrics {
	struct told now, last;       /* of the current push; of the last push that ended */
	bool known;                  /* a push has ended; the following describe the last one */
	bool ok;
	enum ws_code code;
	struct ws_ev_end end;        /* numbers only: all pointers are NULL */
	struct endpoint *endpoints;
	size_t n_endpoints;
	uint64_t pushed, failed;     /* pushes that succeeded, that failed */
	int64_t at;                  /* end of the last push, ns since 1970 */
	int64_t success;             /* end of the last successful push; 0: not known */
};

int ws_metrics_open(struct ws_metrics **out, struct ws_err *err)
{
	*out = calloc(1, sizeof **out);
	return *out ? 0 : ws_oom(err);
}

void ws_metrics_close(struct ws_metrics *m)
{
	if (!m)
		return;
	free(m->endpoints);
	free(m);
}

/* ---- metrics of an earlier process ---- */

/* Converts "1700000000.123456789" to ns. Returns 0 for any other form. */
static int64_t parse_seconds(const char *text, size_t n)
{
	uint64_t ns = 0; /* at most 19 digits */
	size_t i = 0, digits = 0;
	for (; i < n && text[i] >= '0' && text[i] <= '9' && i < 10; i++)
		ns = ns * 10 + (uint64_t)(text[i] - '0');
	if (i == 0 || i + 1 >= n || text[i++] != '.')
		return 0;
	for (; i < n && text[i] >= '0' && text[i] <= '9' && digits < 9; i++, digits++)
		ns = ns * 10 + (uint64_t)(text[i] - '0');
	return digits == 9 && i == n && ns < INT64_MAX / 2 ? (int64_t)ns : 0;
}

void ws_metrics_recall(struct ws_metrics *m, const char *text, size_t len)
{
	const size_t n = sizeof success_at - 1;
	for (size_t i = 0, line; i < len; i += line + 1) {
		const char *end = memchr(text + i, '\n', len - i);
		line = end ? (size_t)(end - text) - i : len - i;
		if (line > n + 1 && memcmp(text + i, success_at, n) == 0 && text[i + n] == ' ')
			m->success = parse_seconds(text + i + n + 1, line - n - 1);
	}
}

/* ---- events ---- */

static void hear_plan(struct ws_metrics *m, const struct ws_ev_plan *plan)
{
	struct told *now = &m->now;
	snprintf(now->backend, sizeof now->backend, "%s", plan->backend);
	snprintf(now->protocol, sizeof now->protocol, "%s", plan->protocol);
	snprintf(now->load_format, sizeof now->load_format, "%s", plan->load_format);
	now->dry_run = plan->dry_run;
}

static void keep_endpoints(struct ws_metrics *m, const struct ws_ev_end *end)
{
	free(m->endpoints);
	m->n_endpoints = 0;
	m->endpoints = calloc(end->n_endpoints + 1, sizeof *m->endpoints);
	for (size_t i = 0; m->endpoints && i < end->n_endpoints; i++) {
		const struct ws_ev_endpoint_result *from = &end->endpoints[i];
		struct endpoint *to = &m->endpoints[m->n_endpoints++];
		*to = (struct endpoint){ .state = from->state,
			                 .ok = from->ok,
			                 .paused = from->paused };
		snprintf(to->url, sizeof to->url, "%s", from->url);
	}
}

static void conclude(struct ws_metrics *m, bool ok, enum ws_code code)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	m->known = true;
	m->ok = ok;
	m->code = ok ? WS_OK : code;
	m->at = (int64_t)now.tv_sec * WS_NS_PER_S + now.tv_nsec;
	m->success = ok ? m->at : m->success;
	m->pushed += ok;
	m->failed += !ok;
	m->last = m->now;
	m->now = (struct told){ 0 };
}

static void hear_end(struct ws_metrics *m, const struct ws_ev_end *end)
{
	if (end->dry_run || m->now.dry_run)
		return;
	snprintf(m->now.verify, sizeof m->now.verify, "%s", end->verify ? end->verify : "none");
	m->now.names_checked = end->names && end->names->checked;
	keep_endpoints(m, end);
	m->end = *end;
	m->end.source = NULL;
	m->end.err = NULL;
	m->end.endpoints = NULL;
	m->end.weight_version = m->end.verify = NULL;
	m->end.names = NULL;
	m->end.transform = NULL;
	conclude(m, end->ok, end->err ? end->err->code : WS_OK);
}

void ws_metrics_hear(struct ws_metrics *m, const struct ws_event *ev)
{
	switch (ev->type) {
	case WS_EV_PLAN:     hear_plan(m, &ev->plan); break;
	case WS_EV_WARNING:  m->now.warnings++; break;
	case WS_EV_MISMATCH: m->now.mismatches++; break;
	case WS_EV_RESULT:   hear_end(m, &ev->end); break;
	case WS_EV_END:
		if (!ev->end.n_results && ev->end.total_ns) /* the end of a single push */
			hear_end(m, &ev->end);
		break;
	default: break;
	}
}

void ws_metrics_fail(struct ws_metrics *m, const struct ws_err *err)
{
	m->end = (struct ws_ev_end){ 0 };
	m->n_endpoints = 0;
	conclude(m, false, err->code);
}

bool ws_metrics_known(const struct ws_metrics *m)
{
	return m->known;
}

/* ---- gauges ---- */

static void write_infos(const struct ws_metrics *m, struct ws_exposition *x)
{
	const struct ws_label build[] = { { "version", ws_version() },
		                          { "build", ws_build() },
		                          { 0 } };
	const struct told *last = &m->last;
	const struct ws_label how[] = { { "backend", *last->backend ? last->backend : NULL },
		                        { "protocol", *last->protocol ? last->protocol : NULL },
		                        { "load_format",
		                          *last->load_format ? last->load_format : NULL },
		                        { "verify", *last->verify ? last->verify : NULL },
		                        { 0 } };
	ws_exposition_head(x, "wsync_build_info", "gauge", "Version of the program.");
	ws_exposition_uint(x, build, 1);
	ws_exposition_head(x, "wsync_push_info", "gauge",
	                   "Settings of the last push, as far as they were chosen.");
	if (m->known)
		ws_exposition_uint(x, how, 1);
}

static void write_outcome(const struct ws_metrics *m, struct ws_exposition *x)
{
	ws_exposition_one(x, "wsync_push_success",
	                  "Every endpoint has the weights of the last push.", m->ok);
	ws_exposition_one(x, "wsync_push_exit_code",
	                  "Exit status of the last push: 0 done, 9 only some endpoints.", m->code);
	ws_exposition_one_seconds(x, "wsync_push_timestamp_seconds", "End of last push.", m->at);
	if (m->success)
		ws_exposition_one_seconds(x, success_at, "End of last success.", m->success);
	ws_exposition_one(x, "wsync_push_warnings", "Warnings of the last push.", m->last.warnings);
	ws_exposition_head(x, "wsync_push_runs_total", "counter", "Pushes of this process.");
	ws_exposition_uint(x, (const struct ws_label[]){ { "outcome", "success" }, { 0 } },
	                   m->pushed);
	ws_exposition_uint(x, (const struct ws_label[]){ { "outcome", "failure" }, { 0 } },
	                   m->failed);
}

static void write_sizes(const struct ws_metrics *m, struct ws_exposition *x)
{
	ws_exposition_one(x, "wsync_push_bytes", "Weights, counted once.", m->end.bytes);
	ws_exposition_one(x, "wsync_push_wire_bytes", "Weights, counted once per copy sent.",
	                  m->end.wire_bytes);
	ws_exposition_one(x, "wsync_push_tensors", "Tensors.", m->end.tensors);
	ws_exposition_one(x, "wsync_push_buckets", "Buckets.", m->end.buckets);
}

static void write_times(const struct ws_metrics *m, struct ws_exposition *x)
{
	ws_exposition_one_seconds(x, "wsync_push_duration_seconds",
	                          "Duration of the last push.", m->end.total_ns);
	if (m->end.first_byte_ns)
		ws_exposition_one_seconds(x, "wsync_push_first_byte_seconds",
		                          "Time from the start to the first byte of weights.",
		                          m->end.first_byte_ns);
	ws_exposition_head(x, "wsync_push_phase_seconds", "gauge", "Duration of each phase.");
	for (int i = 0; i < WS_PHASE_COUNT; i++)
		ws_exposition_seconds(x,
		                      (const struct ws_label[]){
					      { "phase", ws_phase_name((enum ws_phase)i) }, { 0 } },
		                      m->end.ns[i]);
}

/* The outcome of the requested check. */
static const char *verify_outcome(const struct ws_metrics *m)
{
	if (strcmp(m->last.verify, "none") == 0)
		return "none";
	if (m->last.mismatches || m->code == WS_EMISMATCH)
		return "failed";
	return m->ok && (m->last.names_checked || strcmp(m->last.verify, "names")) ? "passed" :
	                                                                             "unknown";
}

static void write_verify(const struct ws_metrics *m, struct ws_exposition *x)
{
	static const char *const outcomes[] = { "passed", "failed", "unknown", "none" };
	ws_exposition_head(x, "wsync_push_verify", "gauge",
	                   "Outcome of the check by names or hash; none: not requested.");
	for (size_t i = 0; i < sizeof outcomes / sizeof *outcomes; i++)
		ws_exposition_uint(x,
		                   (const struct ws_label[]){ { "outcome", outcomes[i] }, { 0 } },
		                   strcmp(outcomes[i], verify_outcome(m)) == 0);
	ws_exposition_one(x, "wsync_push_mismatches",
	                  "Tensors that differ, counted for each rank.", m->last.mismatches);
}

static void write_endpoints(const struct ws_metrics *m, struct ws_exposition *x)
{
	static const enum ws_endpoint_state states[] = { WS_UNTOUCHED, WS_PARTIAL, WS_COMMITTED };
	ws_exposition_one(x, "wsync_push_endpoints", "Endpoints.", m->n_endpoints);
	if (!m->n_endpoints)
		return;
	ws_exposition_head(x, "wsync_push_endpoint_success", "gauge",
	                   "Whether the endpoint has the weights of the last push.");
	for (size_t i = 0; i < m->n_endpoints; i++)
		ws_exposition_uint(x,
		                   (const struct ws_label[]){ { "endpoint", m->endpoints[i].url },
		                                              { 0 } },
		                   m->endpoints[i].ok);
	ws_exposition_head(x, "wsync_push_endpoint_state", "gauge",
	                   "Weights: untouched, partial (some old, some new), or committed.");
	for (size_t i = 0; i < m->n_endpoints; i++)
		for (size_t s = 0; s < sizeof states / sizeof *states; s++)
			ws_exposition_uint(x, (const struct ws_label[]){
				{ "endpoint", m->endpoints[i].url },
				{ "state", ws_endpoint_state_name(states[s]) }, { 0 } },
				m->endpoints[i].state == states[s]);
	ws_exposition_head(x, "wsync_push_endpoint_paused", "gauge", "Endpoint left paused.");
	for (size_t i = 0; i < m->n_endpoints; i++)
		ws_exposition_uint(x,
		                   (const struct ws_label[]){ { "endpoint", m->endpoints[i].url },
		                                              { 0 } },
		                   m->endpoints[i].paused);
}

int ws_metrics_write(const struct ws_metrics *m, struct ws_buf *out, struct ws_err *err)
{
	struct ws_exposition x = { .out = out };
	ws_buf_init(out, TEXT_MAX);
	write_infos(m, &x);
	if (m->known) {
		write_outcome(m, &x);
		write_sizes(m, &x);
		write_times(m, &x);
		write_verify(m, &x);
		write_endpoints(m, &x);
	}
	return ws_buf_check(out, "the metrics", err);
}
