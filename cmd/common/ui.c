/* SPDX-License-Identifier: Apache-2.0 */
/* ui.c - parts of both sinks: color, width, the progress line, warnings and log lines. */
#include "ui.h"

#include "outlet.h"
#include "run.h"

#include "wsync/tool/str.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { JSON_LINE_MAX = 64 << 20 };

static bool is_terminal(int fd)
{
	const char *fake = fd == STDERR_FILENO ? getenv("WSYNC_FAKE_TTY") : NULL;
	return isatty(fd) || (fake && strcmp(fake, "1") == 0);
}

static bool is_dumb(void)
{
	const char *term = getenv("TERM");
	return term && strcmp(term, "dumb") == 0;
}

static bool wants_color(const struct opt_common *c, int fd)
{
	const char *no = getenv("NO_COLOR");
	if (c->color != OPT_COLOR_AUTO)
		return c->color == OPT_COLOR_ALWAYS;
	return !(no && *no) && !is_dumb() && is_terminal(fd);
}

int ui_width(int fd)
{
	const char *columns = getenv("COLUMNS");
	uint64_t width = 0;
	struct winsize ws;
	if (columns && ws_parse_uint(columns, 1, 10000, "COLUMNS", &width, NULL) == 0)
		return width < 40 ? 40 : (int)width;
	if (ioctl(fd, TIOCGWINSZ, &ws) == 0 && ws.ws_col > 0)
		return ws.ws_col < 40 ? 40 : ws.ws_col;
	return 80;
}

/* Allocated by a thread that prints. Thread-local arrays would cost every thread of the library
 * their whole size: the C library clears them when a thread starts. */
struct buffers {
	unsigned turn;
	char text[UI_BUFFERS][UI_BUFFER_SIZE];
};

static pthread_key_t buffers_key;

static void make_key(void)
{
	(void)pthread_key_create(&buffers_key, free);
}

char *ui_buffer(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	static struct buffers of_all; /* without memory for a thread's own */
	pthread_once(&once, make_key);
	struct buffers *b = pthread_getspecific(buffers_key);
	if (!b && (b = malloc(sizeof *b)) != NULL) {
		b->turn = 0;
		if (pthread_setspecific(buffers_key, b)) {
			free(b);
			b = NULL;
		}
	}
	b = b ? b : &of_all;
	return b->text[b->turn++ % UI_BUFFERS];
}

const char *ui_text(const char *foreign)
{
	return ws_printable(ui_buffer(), UI_TEXT_MAX + 1, foreign, strlen(foreign));
}

/* ---- color ---- */

static const char *sequence(enum ui_color color)
{
	static const char *const sequences[] = {
		[UI_PLAIN] = "",         [UI_GOOD] = "\033[32m", [UI_BAD] = "\033[31m",
		[UI_WARN] = "\033[33m",  [UI_DIM] = "\033[2m",   [UI_BOLD] = "\033[1m",
	};
	return sequences[color];
}

const char *ui_on(const struct ui *ui, enum ui_color color)
{
	return ui->color ? sequence(color) : "";
}

const char *ui_off(const struct ui *ui)
{
	return ui->color ? "\033[0m" : "";
}

/* ---- stderr ---- */

enum { PROGRESS_EVERY_NS = 100000000 };

void ui_progress(struct ui *ui, const char *text)
{
	const int64_t now = ws_now_ns();
	char line[1024];
	if (!ui->progress || (text && ui->drawn_ns && now - ui->drawn_ns < PROGRESS_EVERY_NS))
		return;
	/* One column is left free: a full last column makes some terminals wrap. */
	snprintf(line, sizeof line, "%.*s", ui_width(STDERR_FILENO) - 1,
	         text ? ui_text(text) : "");
	outlet_progress(line);
	ui->drawn_ns = text ? now : ui->drawn_ns;
}

static void to_stderr(const struct ui *ui, const char *label, const char *text)
{
	const bool color = ui->color_err && *label;
	fprintf(stderr, "%s: %s%s%s%s\n", ui->program, color ? sequence(UI_WARN) : "", label,
	        color ? "\033[0m" : "", text);
}

/* Called from any thread of the library. */
static void log_line(void *ctx, int level, const char *text)
{
	struct ui *ui = ctx;
	(void)level;
	to_stderr(ui, "", ui_text(text));
}

void ui_warn(struct ui *ui, const char *url, const char *fmt, ...)
{
	char text[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	const struct ws_event ev = {
		.type = WS_EV_WARNING,
		.warning = { .url = url ? url : "", .message = text },
	};
	ui->sink.event(ui->sink.ctx, &ev);
}

void ui_say(struct ui *ui, const char *fmt, ...)
{
	if (ui->json || ui->quiet)
		return;
	va_list ap;
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
}

static void warn_on_stderr(struct ui *ui, const struct ws_ev_warning *w)
{
	char text[1200];
	const bool add = *w->url && !strstr(w->message, w->url);
	snprintf(text, sizeof text, "%s%s%s", add ? ui_text(w->url) : "", add ? ": " : "",
	         ui_text(ui_words(w->message)));
	to_stderr(ui, "warning: ", text);
}

/* ---- the sink ---- */

static void on_event(void *ctx, const struct ws_event *ev)
{
	struct ui *ui = ctx;
	if (ev->type == WS_EV_WARNING && !ui->quiet)
		warn_on_stderr(ui, &ev->warning);
	if (ev->type == WS_EV_WAITING && !ui->quiet)
		to_stderr(ui, "", ui_text(ui_words(ev->waiting.message)));
	if (ev->type == WS_EV_HANG)
		ui_hang(ui, ev->hang);
	if (ev->type == WS_EV_RESULT && ev->end.err)
		run_print_error(ev->end.err); /* now, because the run goes on */
	if (ui->json)
		ui_json_event(ui, ev);
	else if (!ui->quiet)
		ui_text_event(ui, ev);
}

void ui_init(struct ui *ui, const char *program, const struct opt_common *common)
{
	*ui = (struct ui){
		.program = program,
		.json = common->json,
		.quiet = common->quiet,
		.limit = 3,
		.verbose = common->verbose,
		.color = !common->json && wants_color(common, STDOUT_FILENO),
		.color_err = wants_color(common, STDERR_FILENO),
		.progress = !common->json && !common->quiet && !is_dumb() &&
		            common->progress == OPT_PROGRESS_AUTO && is_terminal(STDERR_FILENO),
	};
	ui->sink = (struct ws_sink){ on_event, ui };
	ui->log = (struct ws_log){ (int)(ui->verbose > 2 ? 2 : ui->verbose), log_line, ui };
	ws_buf_init(&ui->line, JSON_LINE_MAX);
	if (ui->json)
		outlet_json();
}

void ui_fini(struct ui *ui)
{
	ui_progress(ui, NULL);
	ws_buf_free(&ui->line);
}
