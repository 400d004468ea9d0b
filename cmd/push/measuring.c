/* SPDX-License-Identifier: Apache-2.0 */
#include "measuring.h"

#include "wsync/tool/output.h"

static void write_file(struct measuring *m)
{
	struct ws_err why = WS_ERR_INIT;
	struct ws_buf text;
	if (!ws_metrics_known(m->metrics))
		return;
	ws_buf_init(&text, 0);
	if (ws_metrics_write(m->metrics, &text, &why) || ws_output_write(m->file, &text, &why))
		ui_warn(m->ui, NULL, "--metrics: %s", why.msg);
	ws_buf_free(&text);
}

/* Writes the file, or warns, before the line that ends a push is printed. */
static void hear(void *ctx, const struct ws_event *ev)
{
	struct measuring *m = ctx;
	ws_metrics_hear(m->metrics, ev);
	m->ended = m->ended || ev->type == WS_EV_END;
	if (ev->type == WS_EV_RESULT || (ev->type == WS_EV_END && !ev->end.n_results))
		write_file(m);
	m->ui->sink.event(m->ui->sink.ctx, ev);
}

int measuring_begin(struct measuring *m, struct ui *ui, struct ws_err *err)
{
	static const struct ws_output_kind kind = { "metrics of ours", WS_METRICS_BEGIN };
	struct ws_buf before;
	m->ui = ui;
	m->sink = ui->sink;
	if (!m->file)
		return 0;
	if (ws_output_check(m->file, &kind, err))
		return ws_err_wrap(err, "--metrics");
	if (ws_metrics_open(&m->metrics, err))
		return -1;
	ws_buf_init(&before, 16 << 20);
	if (ws_output_read(m->file, &before) == 0)
		ws_metrics_recall(m->metrics, ws_buf_str(&before), before.len);
	ws_buf_free(&before);
	m->sink = (struct ws_sink){ hear, m };
	return 0;
}

void measuring_end(struct measuring *m, const struct ws_err *err, bool dry_run)
{
	if (m->metrics && !m->ended && !dry_run && err->code != WS_OK) {
		ws_metrics_fail(m->metrics, err);
		write_file(m);
	}
	ws_metrics_close(m->metrics);
	m->metrics = NULL;
}
