/* SPDX-License-Identifier: Apache-2.0 */
/* ui_text.c - events for people: short aligned lines, the summary last. */
#include "ui.h"

#include "wsync/tool/str.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NUM = 32 };

void ui_head(struct ui *ui, enum ui_color color, const char *word)
{
	printf("%s%-9s%s ", ui_on(ui, color), word, color == UI_PLAIN ? "" : ui_off(ui));
}

char *ui_shape(char *dst, size_t n, unsigned n_dims, const int64_t *dims)
{
	size_t used = (size_t)snprintf(dst, n, "[");
	for (unsigned i = 0; i < n_dims && used < n; i++)
		used += (size_t)snprintf(dst + used, n - used, "%s%lld", i ? ", " : "",
		                         (long long)dims[i]);
	if (used < n)
		snprintf(dst + used, n - used, "]");
	return dst;
}

static const char *plural(size_t n)
{
	return n == 1 ? "" : "s";
}

static void text_start(struct ui *ui, const struct ws_ev_start *s)
{
	char line[64];
	snprintf(line, sizeof line, "connecting to %zu endpoint%s", s->n_endpoints,
	         plural(s->n_endpoints));
	if (s->n_endpoints)
		ui_progress(ui, line);
}

static void text_plan(struct ui *ui, const struct ws_ev_plan *p)
{
	char bytes[NUM], size[NUM];
	ui->dry_run = p->dry_run;
	ui_head(ui, UI_PLAIN, "plan");
	printf("%zu tensor%s, %s", p->tensors, plural(p->tensors),
	       ws_format_size(bytes, NUM, p->bytes));
	if (p->bucket_size)
		printf(p->bucket_size_auto ? " in %zu bucket%s (auto, %s at first)" :
		                             " in %zu bucket%s of at most %s",
		       p->buckets, plural(p->buckets), ws_format_size(size, NUM, p->bucket_size));
	printf(", %s by %s", p->load_format, p->backend);
	if (p->skipped)
		printf(", %zu skipped", p->skipped);
	printf(", digest %016llx\n", (unsigned long long)p->digest);
	if (p->disk_path) {
		ui_head(ui, UI_PLAIN, "disk");
		printf("%s%s%s\n", ui_text(p->disk_path), p->disk_bytes ? ", about " : "",
		       p->disk_bytes ? ws_format_size(bytes, NUM, p->disk_bytes) : "");
	}
	if (!p->dry_run || !(p->gpu_bytes || p->pinned_bytes))
		return;
	ui_head(ui, UI_PLAIN, "memory");
	printf("at most %s of the GPU, %s pinned\n", ws_format_size(bytes, NUM, p->gpu_bytes),
	       ws_format_size(size, NUM, p->pinned_bytes));
}

static void text_endpoint(struct ui *ui, const struct ws_ev_endpoint *e)
{
	char time[NUM];
	/* All phases with -v; otherwise only connections and failures. */
	if (e->ok && !ui->verbose && e->phase != WS_PHASE_CONNECT)
		return;
	ui_head(ui, e->ok ? UI_PLAIN : UI_BAD, ws_phase_name(e->phase));
	/* Most failure messages name their endpoint. */
	const bool named = !e->ok && strstr(e->message, e->url);
	if (!named)
		printf("%s", ui_text(e->url));
	if (e->phase == WS_PHASE_CONNECT && e->ok) {
		if (*e->version)
			printf(", %s", ui_text(e->version));
		if (e->ranks)
			printf(", %u rank%s", e->ranks, plural(e->ranks));
		if (*e->weight_version)
			printf(", weight version %s", ui_text(e->weight_version));
	}
	if (!e->ok)
		printf("%sfailed", named ? "" : ", ");
	if (*e->message)
		printf(": %s", ui_text(ui_words(e->message)));
	printf(", %s\n", ws_format_duration(time, NUM, e->ns));
}

static void text_bucket(struct ui *ui, const struct ws_ev_bucket *b)
{
	char bytes[NUM], time[NUM], rate[NUM];
	if (!b->planned && !ui->verbose)
		return;
	ui_head(ui, UI_PLAIN, "bucket");
	printf("%zu of %zu, %zu tensor%s, %s", b->index + 1, b->count, b->tensors,
	       plural(b->tensors), ws_format_size(bytes, NUM, b->bytes));
	if (!b->planned)
		printf(", %s, %s", ws_format_duration(time, NUM, b->ns),
		       ws_format_rate(rate, NUM, b->bytes, b->ns));
	printf("%s\n", b->flush ? ", flush" : "");
}

static void text_tensor(struct ui *ui, const struct ws_ev_tensor *t)
{
	char shape[256], bytes[NUM];
	ui_head(ui, UI_PLAIN, "tensor");
	printf("%s  %s %s, %s, %s\n", ui_text(t->name), ws_dtype_torch(t->dtype),
	       ui_shape(shape, sizeof shape, t->n_dims, t->dims),
	       ws_format_size(bytes, NUM, t->bytes), t->recipe);
}

static void text_mismatch(struct ui *ui, const struct ws_ev_mismatch *m)
{
	ui_head(ui, UI_BAD, "mismatch");
	if (m->url && *m->url)
		printf("%s", ui_text(m->url));
	if (m->rank >= 0)
		printf(" rank %d", m->rank);
	printf("%s%s: %s", (m->url && *m->url) || m->rank >= 0 ? ": " : "", ui_text(m->name),
	       m->kind);
	if (m->expected && *m->expected)
		printf(", expected %s", ui_text(m->expected));
	if (m->found && *m->found)
		printf(", found %s", ui_text(m->found));
	if (m->cause)
		printf("; %s", ui_text(m->cause));
	putchar('\n');
}

char *ui_proof(char *dst, size_t n, const struct ws_ev_proof *p)
{
	int used = snprintf(dst, n, "proven %zu of %zu parameters on %u rank%s, %.4g %% of "
	                          "the bytes", p->proven, p->parameters, p->ranks,
	                          p->ranks == 1 ? "" : "s", p->percent);
	if (p->not_sent && used > 0 && (size_t)used < n)
		used += snprintf(dst + used, n - (size_t)used, "; nothing was sent for %zu, which "
		                 "are not covered", p->not_sent);
	if (p->unknown && used > 0 && (size_t)used < n)
		used += snprintf(dst + used, n - (size_t)used, "; it has %zu more, of which "
		                 "nothing was sent", p->unknown);
	if (p->drafts && used > 0 && (size_t)used < n)
		snprintf(dst + used, n - (size_t)used, "; %zu checksums of a draft model were not "
		         "compared", p->drafts);
	return dst;
}

static void text_proof(struct ui *ui, const struct ws_ev_proof *p)
{
	char text[256];
	ui_head(ui, p->proven == p->parameters && !p->not_sent ? UI_GOOD : UI_WARN,
	        "proof");
	printf("%s: %s\n", ui_text(p->url), ui_proof(text, sizeof text, p));
}

static const char BY_LABEL[] = " (by its label alone)";

static bool is_by_label(const char *current_by)
{
	return current_by && strcmp(current_by, "label") == 0;
}

static void text_stale(struct ui *ui, const struct ws_ev_stale *s)
{
	if (!s->stale && !ui->verbose)
		return;
	ui_head(ui, s->stale ? UI_WARN : UI_PLAIN, s->stale ? "stale" : "current");
	printf("%s%s%s%s\n", ui_text(s->url), is_by_label(s->current_by) ? BY_LABEL : "",
	       *s->why ? ": " : "", ui_text(ui_words(s->why)));
}

static void text_canary(struct ui *ui, const struct ws_ev_canary *c)
{
	char time[NUM];
	ui_head(ui, c->ok ? UI_GOOD : UI_BAD, "canary");
	for (size_t i = 0; i < c->n_urls; i++)
		printf("%s%s", i ? ", " : "", ui_text(c->urls[i]));
	printf(": the check %s, %s\n", c->ok ? "passed" : "failed",
	       ws_format_duration(time, NUM, c->ns));
}

/* In whole seconds: more digits would only flicker. */
static const char *format_left(char *dst, size_t n, const struct ws_ev_progress *p)
{
	const double share = (double)p->done / (double)p->total;
	dst[0] = 0;
	/* An estimate from the first percent is unstable. */
	if (share <= 0.01 || share >= 1)
		return dst;
	const double left = ceil((double)p->ns * (1 - share) / share / 1e9);
	if (left < 120)
		snprintf(dst, n, "  %.0f s left", left);
	else
		snprintf(dst, n, "  %.0f min left", ceil(left / 60));
	return dst;
}

/* Important values come first: a narrow terminal cuts the line. Numbers keep their columns. */
static void text_progress(struct ui *ui, const struct ws_ev_progress *p)
{
	char line[256], done[NUM], total[NUM], rate[NUM], left[NUM];
	size_t used = (size_t)snprintf(line, sizeof line, "%s", ws_phase_name(p->phase));
	if (p->total)
		used += (size_t)snprintf(line + used, sizeof line - used,
		         " %3.0f %%  %10s of %s %9s%s",
		         (double)p->done / (double)p->total * 100,
		         ws_format_size(done, NUM, p->done), ws_format_size(total, NUM, p->total),
		         ws_format_rate(rate, NUM, p->done, p->ns), format_left(left, NUM, p));
	if (p->buckets && used < sizeof line)
		used += (size_t)snprintf(line + used, sizeof line - used, "  bucket %zu of %zu",
		                         p->bucket + 1, p->buckets);
	if (p->bucket_bytes && used < sizeof line)
		snprintf(line + used, sizeof line - used, ", %s",
		         ws_format_size(left, NUM, p->bucket_bytes));
	ui_progress(ui, line);
}

/* ---- the end ---- */

static void text_endpoint_result(struct ui *ui, const struct ws_ev_endpoint_result *e,
                                 const struct ws_ev_end *end)
{
	const bool staged = end->staged && e->ok;
	char time[NUM];
	if (e->current && !ui->verbose)
		return;
	ui_head(ui, e->ok ? UI_GOOD : e->state == WS_PARTIAL ? UI_BAD : UI_WARN,
	        staged                                        ? "staged" :
	        e->current                                    ? "current" :
	        e->left_out && e->state == WS_UNTOUCHED       ? "left out" :
	        e->ok && e->state == WS_COMMITTED ?
	                ws_evidence_word_name(ws_evidence_word(&e->evidence)) :
	                ws_endpoint_state_name(e->state));
	printf("%s%s%s%s%s", ui_text(e->url), is_by_label(e->current_by) ? BY_LABEL : "",
	       e->paused ? ", left paused" : "",
	       e->unflushed ? ", with the cache of the old weights" : "",
	       e->staged && end->completed && e->state == WS_UNTOUCHED ? ", still staged" : "");
	if (end->completed && e->paused_ns)
		printf(", was paused for %s", ws_format_duration(time, NUM, e->paused_ns));
	if (e->ok && !staged && !e->current &&
	    ws_evidence_word(&e->evidence) == WS_WORD_ACKNOWLEDGED)
		printf(" (a restart since then would not be noticed)");
	if (!e->ok && e->state == WS_COMMITTED)
		printf(" (and does not answer any more)");
	if (e->message && *e->message && !staged) /* "ready to receive" is over */
		printf(": %s", ui_text(ui_words(e->message)));
	putchar('\n');
}

static void text_transform(struct ui *ui, const struct ws_transform_report *t)
{
	const struct {
		size_t n;
		const char *what;
	} counts[] = { { t->quantized, "made FP8" },
		       { t->already, "FP8 before" },
		       { t->unpacked, "unpacked" },
		       { t->bound, "merged" },
		       { t->replaced, "replaced" } };
	const char *before = "";
	ui_head(ui, UI_PLAIN, "changed");
	for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
		if (!counts[i].n)
			continue;
		printf("%s%zu %s", before, counts[i].n, counts[i].what);
		before = ", ";
	}
	if (!*before)
		printf("nothing");
	if (t->largest_change > 0)
		printf(", by at most %.2g of the largest weight (%s)", t->largest_change,
		       ui_text(t->largest_name));
	if (t->left_over)
		printf("; %zu of the adapter left out, the first %s", t->left_over,
		       ui_text(t->left_over_first));
	putchar('\n');
}

static const char *done_word(const struct ws_ev_end *e)
{
	return e->written   ? (e->dry_run ? "would write" : "wrote") :
	       e->completed ? "loaded" :
	       e->staged    ? (e->dry_run ? "would stage" : "staged") :
	       e->dry_run   ? "would push" :
	                      "pushed";
}

/* The command that loads a staged update. */
static void text_completion(const struct ws_ev_end *e)
{
	printf("to load it: wsync-ctl complete");
	for (size_t i = 0; i < e->n_endpoints; i++)
		printf(" -e %s", ui_text(e->endpoints[i].url));
	putchar('\n');
}

static size_t count_ok(const struct ws_ev_end *e, bool current)
{
	size_t n = 0;
	for (size_t i = 0; i < e->n_endpoints; i++)
		n += e->endpoints[i].current == current &&
		     (e->endpoints[i].ok || (e->dry_run && !e->endpoints[i].left_out));
	return n;
}

/* Of how many does nothing but their label say that they have the weights? */
static void text_by_label(const struct ws_ev_end *e, size_t current)
{
	size_t n = 0;
	for (size_t i = 0; i < e->n_endpoints; i++)
		n += e->endpoints[i].current && is_by_label(e->endpoints[i].current_by);
	if (n && n == current)
		printf("%s", n == 1 ? BY_LABEL : " (by their labels alone)");
	else if (n)
		printf(" (%zu of them by %s alone)", n, n == 1 ? "its label" : "their labels");
}

/* "all 12 endpoints have weight version 120" */
static void text_current(const struct ws_ev_end *e, size_t n)
{
	if (n == e->n_endpoints)
		printf("all %zu endpoint%s", n, plural(n));
	else
		printf("%zu of %zu endpoints", n, e->n_endpoints);
	printf(e->weight_version ? " %s weight version %s" : " %s these weights",
	       n == 1 ? "has" : "have", e->weight_version ? ui_text(e->weight_version) : "");
	text_by_label(e, n);
	puts(e->verify && strcmp(e->verify, "hash") == 0 ? ws_ev_end_words(e) : "");
}

static void text_summary(struct ui *ui, const struct ws_ev_end *e)
{
	char bytes[NUM], time[NUM], rate[NUM];
	const size_t current = count_ok(e, true), pushed = count_ok(e, false);
	if (current && !pushed) {
		text_current(e, current);
		return;
	}
	printf("%s%s %s%s (%zu tensor%s", ui_on(ui, UI_BOLD), done_word(e),
	       ws_format_size(bytes, NUM, e->bytes), ui_off(ui), e->tensors, plural(e->tensors));
	if (!e->completed) /* it does not know them */
		printf(", %zu bucket%s", e->buckets, plural(e->buckets));
	putchar(')');
	if (e->n_endpoints)
		printf(" %s %zu endpoint%s", e->completed || e->staged ? "at" : "to", pushed,
		       plural(pushed));
	if (current)
		printf(" (%zu had them)", current);
	text_by_label(e, current);
	if (e->dry_run) {
		ui_text_left_out(e->left_out);
		printf(e->written ? ", nothing was written\n" : ", nothing was sent\n");
		return;
	}
	if (e->written)
		printf(" to %s", ui_text(e->written));
	printf(" in %s", ws_format_duration(time, NUM, e->total_ns));
	if (!e->completed)
		printf(", %s", ws_format_rate(rate, NUM, e->bytes, e->total_ns));
	printf("%s", ws_ev_end_words(e));
	ui_text_left_out(e->left_out);
	if (e->not_covered)
		printf(", not covered: %zu of the server's parameters", e->not_covered);
	if (e->weight_version)
		printf(", weight version %s", ui_text(e->weight_version));
	if (e->round && e->round->ended)
		printf(", ends %s", ui_text(e->round->text));
	if (e->format_note)
		printf(" (%s)", ui_words(e->format_note));
	putchar('\n');
}

static void text_end(struct ui *ui, const struct ws_ev_end *e)
{
	ui_progress(ui, NULL);
	for (size_t i = 0; i < e->n_endpoints && !e->dry_run; i++)
		text_endpoint_result(ui, &e->endpoints[i], e);
	if (e->ok && e->transform)
		text_transform(ui, e->transform);
	if (e->ok)
		text_summary(ui, e);
	if (e->ok && e->staged && !e->dry_run)
		text_completion(e);
}

/* One line of --stdin. */
static void text_result(struct ui *ui, const struct ws_ev_end *e)
{
	ui_progress(ui, NULL);
	printf("%s: ", ui_text(e->source));
	if (e->ok)
		text_summary(ui, e);
	else
		puts("failed");
}

void ui_text_event(struct ui *ui, const struct ws_event *ev)
{
	switch (ev->type) {
	case WS_EV_START:
		text_start(ui, &ev->start);
		break;
	case WS_EV_PLAN:
		text_plan(ui, &ev->plan);
		break;
	case WS_EV_ENDPOINT:
		text_endpoint(ui, &ev->endpoint);
		break;
	case WS_EV_BUCKET:
		text_bucket(ui, &ev->bucket);
		break;
	case WS_EV_TENSOR:
		text_tensor(ui, &ev->tensor);
		break;
	case WS_EV_NAMES:
		ui_text_names(ui, &ev->names);
		break;
	case WS_EV_MISMATCH:
		text_mismatch(ui, &ev->mismatch);
		break;
	case WS_EV_PROOF:
		text_proof(ui, &ev->proof);
		break;
	case WS_EV_WARNING:
	case WS_EV_WAITING:
	case WS_EV_HANG:
		break; /* already printed on stderr, or printed with the error */
	case WS_EV_PROGRESS:
		text_progress(ui, &ev->progress);
		break;
	case WS_EV_STALE:
		text_stale(ui, &ev->stale);
		break;
	case WS_EV_CANARY:
		text_canary(ui, &ev->canary);
		break;
	case WS_EV_RESULT:
		text_result(ui, &ev->end);
		break;
	case WS_EV_END:
		text_end(ui, &ev->end);
		break;
	}
}
