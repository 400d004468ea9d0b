/* SPDX-License-Identifier: Apache-2.0 */
#include "tracing.h"

#include "wsync/tool/output.h"

int tracing_begin(struct tracing *t, struct ws_err *err)
{
	static const struct ws_output_kind kind = { "a trace of ours", WS_TRACE_BEGINS };
	if (!t->file)
		return 0;
	return ws_output_check(t->file, &kind, err) ? ws_err_wrap(err, "--trace") :
	                                              ws_trace_open(0, &t->trace, err);
}

void tracing_write(struct tracing *t, struct ui *ui)
{
	struct ws_err why = WS_ERR_INIT;
	if (!t->trace || t->written)
		return;
	t->written = true;
	if (ws_trace_save(t->trace, ui->program, t->file, &why))
		ui_warn(ui, NULL, "--trace: %s", why.msg);
}

void tracing_end(struct tracing *t, struct ui *ui)
{
	tracing_write(t, ui);
	ws_trace_close(t->trace);
	t->trace = NULL;
}
