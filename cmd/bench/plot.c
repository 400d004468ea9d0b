/* SPDX-License-Identifier: Apache-2.0 */
/* plot.c - rows through gnuplot: rates over sizes where names repeat with other sizes, else one bar for
 * each row. Data goes by its standard input, and no text of it is ever a command. */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *terminal_of(const char *path)
{
	const char *dot = strrchr(path, '.');
	return dot && strcmp(dot, ".svg") == 0 ? "svg size 900,540 background rgb 'white'"
	     : dot && strcmp(dot, ".png") == 0 ? "png size 900,540"
	                                       : NULL;
}

static bool on_path(const char *program)
{
	const char *path = getenv("PATH");
	for (const char *at = path ? path : "/usr/bin:/bin"; *at;) {
		char file[4096];
		const size_t n = strcspn(at, ":");
		snprintf(file, sizeof file, "%.*s/%s", (int)n, at, program);
		if (access(file, X_OK) == 0)
			return true;
		at += n + (at[n] == ':');
	}
	return false;
}

int plot_check(const char *path, struct ws_err *err)
{
	if (!terminal_of(path))
		return ws_err_set(err, WS_EUSAGE, "--plot: %s: must end in .svg or .png", path);
	if (strpbrk(path, "'\"\\\n"))
		return ws_err_set(err, WS_EUSAGE, "--plot: a name with quotes cannot be told to gnuplot");
	if (on_path("gnuplot"))
		return 0;
	ws_err_set(err, WS_ESYSTEM, "--plot: gnuplot is not installed");
	return ws_err_hint(err, "install gnuplot-nox, or draw what --csv prints");
}

/* Several sizes of one name: a line for it. */
static bool over_sizes(const struct report *r)
{
	for (size_t i = 1; i < r->n; i++)
		if (strcmp(r->rows[i].name, r->rows[0].name) != 0 || r->rows[i].bytes == r->rows[0].bytes)
			return false;
	return r->n > 1 && r->rows[0].bytes > 0;
}

static void put_label(FILE *f, const char *text)
{
	for (; *text; text++)
		fputc(*text == '"' || *text == '\\' ? ' ' : *text, f);
}

static double gigabytes(uint64_t bytes, int64_t ns)
{
	return ns > 0 ? (double)bytes / (double)ns : 0;
}

static void put_lines(FILE *f, const struct report *r)
{
	fprintf(f, "set logscale x 2\nset xlabel 'bytes'\nset ylabel 'GB/s'\nset yrange [0:]\nset grid\n"
	        "set key bottom right\n$rows << EOD\n");
	for (size_t i = 0; i < r->n; i++)
		fprintf(f, "%llu %.6f %.6f\n", (unsigned long long)r->rows[i].bytes,
		        gigabytes(r->rows[i].bytes, r->rows[i].sum.median), r->rows[i].against_rate / 1e9);
	fprintf(f, "EOD\nplot $rows using 1:2 with linespoints title '%s'", r->rows[0].name);
	if (r->rows[0].against_rate > 0)
		fprintf(f, ", $rows using 1:3 with linespoints title '%s'", r->rows[0].against);
	fprintf(f, "\n");
}

static void put_bars(FILE *f, const struct report *r)
{
	const bool rates = r->n && r->rows[0].bytes;
	fprintf(f, "set ylabel '%s'\nset style data histogram\nset style fill solid 0.7\nset yrange [0:]\n"
	        "set grid y\nset xtics rotate by -30\nunset key\n$rows << EOD\n", rates ? "GB/s" : "ms");
	for (size_t i = 0; i < r->n; i++) {
		const struct report_row *k = &r->rows[i];
		fputc('"', f);
		put_label(f, k->name);
		fprintf(f, "\" %.6f\n", rates ? gigabytes(k->bytes, k->sum.median)
		                              : (double)k->sum.median / (double)WS_NS_PER_MS);
	}
	fprintf(f, "EOD\nplot $rows using 2:xtic(1)\n");
}

static int reap(pid_t pid, const char *path, struct ws_err *err)
{
	int status;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return ws_err_errno(err, "gnuplot");
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && access(path, F_OK) == 0)
		return 0;
	return ws_err_set(err, WS_ESYSTEM, "gnuplot could not draw %s", path);
}

int plot_rows(const struct report *r, const char *path, struct ws_err *err)
{
	int ends[2];
	if (plot_check(path, err))
		return -1;
	if (pipe2(ends, O_CLOEXEC))
		return ws_err_errno(err, "pipe");
	const pid_t pid = fork();
	if (pid == 0) {
		dup2(ends[0], STDIN_FILENO);
		dup2(STDERR_FILENO, STDOUT_FILENO);
		execlp("gnuplot", "gnuplot", "-", (char *)NULL);
		_exit(127);
	}
	close(ends[0]);
	FILE *f = pid < 0 ? NULL : fdopen(ends[1], "w");
	if (!f) {
		close(ends[1]);
		ws_err_errno(err, "gnuplot");
		if (pid > 0)
			(void)reap(pid, path, NULL);
		return -1;
	}
	fprintf(f, "set terminal %s\nset output '%s'\n", terminal_of(path), path);
	if (over_sizes(r))
		put_lines(f, r);
	else
		put_bars(f, r);
	fclose(f); /* what it did not take shows in its status */
	return reap(pid, path, err);
}
