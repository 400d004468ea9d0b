/* SPDX-License-Identifier: Apache-2.0 */
/* main.h - the main of every program:
 *
 *   int main(int argc, char **argv)
 *   {
 *           return main_run(&(struct main_program){ &program, &cfg.common, check, run },
 *                           argc, argv);
 *   } */
#ifndef WSYNC_CMD_MAIN_H
#define WSYNC_CMD_MAIN_H

#include "opt.h"
#include "ui.h"

struct main_program {
	const struct opt_program *program;
	const struct opt_common *common;
	/* Checks usage that the option table cannot express. Returns OPT_GO, or the
	 * value of opt_usage. NULL: there is nothing more to check. */
	int (*check)(const struct opt_args *args);
	/* Does the work, fills err, passes &run_cancel to every wait. */
	void (*run)(const struct opt_args *args, struct ui *ui, struct ws_err *err);
};

int main_run(const struct main_program *m, int argc, char **argv);

#endif
