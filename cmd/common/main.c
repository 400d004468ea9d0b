/* SPDX-License-Identifier: Apache-2.0 */
#include "main.h"

#include "run.h"

int main_run(const struct main_program *m, int argc, char **argv)
{
	struct opt_args args;
	run_start(m->program->name);
	ui_words_typed((const char *const *)argv);
	int status = opt_parse(m->program, argc, argv, &args);
	if (status == OPT_GO && m->check)
		status = m->check(&args);
	struct ws_err err = WS_ERR_INIT;
	if (status == OPT_GO) {
		struct ui ui;
		ui_init(&ui, m->program->name, m->common);
		m->run(&args, &ui, &err);
		ui_end(&ui, &err); /* unless the run has ended the stream itself */
		ui_fini(&ui);
	}
	opt_free(m->program);
	return status == OPT_GO ? run_finish(&err) : run_exit(status);
}
