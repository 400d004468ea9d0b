/* SPDX-License-Identifier: Apache-2.0 */
/* plot.c - rows through gnuplot: rates over sizes where names repeat with other sizes, else one
 * bar for each row, of rates or, where not all have one, of times. Whiskers are the least and
 * the greatest sample. Data goes by its standard input, and no text of it is ever a command. */
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
	return dot && strcmp(dot, ".svg") == 0 ?
	               "svg noenhanced size 900,540 background rgb 'white'" :
	       dot && strcmp(dot, ".png") == 0 ? "png noenhanced size 900,540" :
	                                         NULL;
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
		return ws_err_set(err, WS_EUSAGE,
		                  "--plot: a name with quotes cannot be told to gnuplot");
	if (on_path("gnuplot"))
		return 0;
	ws_err_set(err, WS_ESYSTEM, "--plot: gnuplot is not installed");
	return ws_err_hint(err, "install gnuplot-nox, or draw what --csv prints");
}

/* Several sizes of one name: a line for it. */
static bool over_sizes(const struct report *r)
{
	for (size_t i = 1; i < r->n; i++)
		if (strcmp(r->rows[i].name, r->rows[0].name) != 0 ||
		    r->rows[i].bytes == r->rows[0].bytes)
			return false;
	return r->n > 1 && r->rows[0].bytes > 0;
}

/* What it is made of must not end the string, in quotes of either kind, nor the line. */
static void put_text(FILE *f, const char *text)
{
	for (; *text; text++)
		fputc(strchr("'\"\\\n", *text) ? ' ' : *text, f);
}

static double gigabytes(uint64_t bytes, int64_t ns)
{
	return report_rate(bytes, ns) / 1e9;
}

/* "transport: gloo, 2 receivers", where that is the same for all rows. */
static void put_title(FILE *f, const struct report *r)
{
	bool same = *r->rows[0].detail;
	for (size_t i = 1; i < r->n; i++)
		same = same && strcmp(r->rows[i].detail, r->rows[0].detail) == 0;
	fprintf(f, "set title \"wsync-bench ");
	put_text(f, r->rows[0].stage);
	fprintf(f, same ? ": " : "");
	put_text(f, same ? r->rows[0].detail : "");
	fprintf(f, ", median of %zu, least to greatest\"\n", r->rows[0].sum.n);
}

/* Median, least and greatest: of rates, which are least where times are greatest. */
static void put_rates(FILE *f, const struct report_row *k)
{
	fprintf(f, " %.6f %.6f %.6f %.6f\n", gigabytes(k->bytes, k->sum.median),
	        gigabytes(k->bytes, k->sum.max), gigabytes(k->bytes, k->sum.min),
	        k->against_rate / 1e9);
}

static void put_lines(FILE *f, const struct report *r)
{
	fprintf(f, "set logscale x 2\nset format x '%%.0b %%BB'\nset xlabel 'size'\nset ylabel "
	           "'GB/s'\n"
	           "set yrange [0:]\nset grid\nset key above\nset rmargin 8\nset xtics rotate by "
	           "-30\n$rows << EOD\n");
	for (size_t i = 0; i < r->n; i++) {
		fprintf(f, "%llu", (unsigned long long)r->rows[i].bytes);
		put_rates(f, &r->rows[i]);
	}
	fprintf(f, "EOD\nplot $rows using 1:2:3:4 with yerrorlines linewidth 2 title \"");
	put_text(f, r->rows[0].name);
	fprintf(f, "\"");
	if (r->rows[0].against_rate > 0) {
		fprintf(f, ", $rows using 1:5 with linespoints title \"");
		put_text(f, r->rows[0].against);
		fprintf(f, "\"");
	}
	fprintf(f, "\n");
}

/* All rows have a rate, and are compared by it: of whole pushes it is the time that counts. */
static bool has_rates(const struct report *r)
{
	bool all = strcmp(r->rows[0].stage, "push") != 0 && strcmp(r->rows[0].stage, "sweep") != 0;
	for (size_t i = 0; i < r->n; i++)
		all = all && r->rows[i].bytes;
	return all;
}

/* Times, in the unit of the longest. */
static bool has_seconds(const struct report *r)
{
	int64_t longest = 0;
	for (size_t i = 0; i < r->n; i++)
		longest = r->rows[i].sum.median > longest ? r->rows[i].sum.median : longest;
	return longest >= 2 * WS_NS_PER_S;
}

static void put_bar(FILE *f, const struct report *r, const struct report_row *k, bool rates)
{
	const double unit = (double)(has_seconds(r) ? WS_NS_PER_S : WS_NS_PER_MS);
	bool detail = false; /* is not the same everywhere */
	for (size_t i = 1; i < r->n; i++)
		detail = detail || strcmp(r->rows[i].detail, r->rows[0].detail) != 0;
	fputc('"', f);
	put_text(f, k->name);
	if (detail && *k->detail) {
		fprintf(f, ", ");
		put_text(f, k->detail);
	}
	fputc('"', f);
	if (rates)
		put_rates(f, k);
	else
		fprintf(f, " %.6f %.6f %.6f 0\n", (double)k->sum.median / unit,
		        (double)k->sum.min / unit, (double)k->sum.max / unit);
}

static void put_bars(FILE *f, const struct report *r)
{
	const bool rates = has_rates(r);
	fprintf(f,
	        "set ylabel '%s'\nset style data histogram\nset style histogram errorbars gap 1 "
	        "linewidth 1\n"
	        "set style fill solid 0.7\nset yrange [0:]\nset grid y\nset bmargin 10\nset "
	        "rmargin 18\n"
	        "set xtics rotate by -30\nset key above\n$rows << EOD\n",
	        rates          ? "GB/s" :
	        has_seconds(r) ? "s" :
	                         "ms");
	for (size_t i = 0; i < r->n; i++)
		put_bar(f, r, &r->rows[i], rates);
	fprintf(f, "EOD\nplot $rows using 2:3:4:xtic(1) %s",
	        rates ? "title 'measured'" : "notitle");
	if (rates && r->rows[0].against_rate > 0) {
		fprintf(f, ", $rows using 5:5:5 title \"");
		put_text(f, r->rows[0].against);
		fprintf(f, "\"");
	}
	fprintf(f, "\n");
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
	put_title(f, r);
	if (over_sizes(r))
		put_lines(f, r);
	else
		put_bars(f, r);
	fclose(f); /* what it did not take shows in its status */
	return reap(pid, path, err);
}
