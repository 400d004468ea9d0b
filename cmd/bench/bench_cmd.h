/* SPDX-License-Identifier: Apache-2.0 */
/* bench_cmd.h - shared by the commands of wsync-bench: options, rows, local endpoints and
 * receivers. */
#ifndef WSYNC_CMD_BENCH_H
#define WSYNC_CMD_BENCH_H

#include "pushing.h"
#include "targets.h"
#include "transforming.h"

#include "wsync/tool/bench.h"

#include <sys/types.h>

struct bench_config {
	struct opt_common common;
	struct transforming transforming;
	struct pushing pushing;
	const char *model, *listen, *join, *host;
	uint64_t samples, warmups;
	/* for one measurement; WS_FOREVER: as long as it takes */
	int64_t most_ns;
	bool check, csv, cold, keep_group, alone;
	bool stage;                            /* push */
	uint64_t size, most;                   /* kernels; load */
	uint64_t least_size, greatest_size, factor, receivers, remote, count, total; /* transport */
	uint64_t local, tp;                    /* endpoints of our own */
	unsigned keep;
	/* kernels: a CPU, or a GPU; load: this process, or a GPU */
	unsigned on, to;
	struct opt_list buckets, formats, quantize; /* sweep */
	struct ws_bench_topology plan;
	int64_t timeout_ns;
};

/* ---- report.c: rows, printed as they come and kept for the summary ---- */

struct report_row {
	char stage[16], name[48], detail[64], against[32];
	uint64_t bytes;
	unsigned count;
	struct ws_bench_sum sum;
	struct ws_bench_ratio ratio;
	bool has_ratio;
	bool minor;          /* a phase of less than 1 % of the total, never called noisy */
	double against_rate; /* bytes per second of the reference's median; 0 */
	int64_t errors;
};

struct report {
	struct ui *ui;
	const struct bench_config *cfg;
	struct report_row *rows; /* owned */
	size_t n;
	const char *definitions; /* NULL: none, or printed */
	double load;             /* of the machine, before the first sample */
	bool has_gpu;            /* `machine` is set */
	struct ws_bench_machine machine;
	bool headed, failed;     /* the table has its head; out of memory */
	int64_t errors;          /* of all checked rows */
};

/* definitions: lines that define the figures; they must outlive the report. Prints nothing yet,
 * because the command may still fail. */
void report_begin(struct report *r, const char *definitions);
void report_open(void *report); /* of a ws_bench_sink: prints definitions and machine, once */
void report_row(void *report, const struct ws_bench_row *row); /* of a ws_bench_sink */
void report_turn(void *report, const char *name, unsigned done, unsigned of); /* likewise */
/* Prints the roofline, the noisy rows, and whether bytes were wrong, which is an error. */
int report_end(struct report *r, struct ws_err *err);
void report_free(struct report *r);
double report_rate(uint64_t bytes, int64_t ns); /* in bytes per second; 0: no time */

/* ---- bench_table.c ---- */
void table_define(struct report *r);
void table_row(struct report *r, const struct report_row *k);
bool report_noisy(const struct report_row *k);
void report_label(const struct report_row *k, char *label, size_t n);

/* ---- machine.c ---- */
void report_machine(struct report *r);

/* ---- local.c: local processes, wsync-endpoint or receivers ---- */

enum { LOCAL_MAX = 64 };
struct local {
	struct {
		pid_t pid;
		char url[WS_URL_MAX];
	} of[LOCAL_MAX];
	const char *urls[LOCAL_MAX];
	size_t n;
};
extern const char *const local_keeps[]; /* choices of --keep */
int local_start(struct local *l, const struct bench_config *cfg, struct ws_err *err);
/* Starts argv, with this NCCL_HOSTID if it is not NULL. out: its stdout, and its stderr is closed;
 * -1: it has no stdout, and our stderr. */
int local_spawn(struct local *l, char *const *argv, const char *host_id, int out,
                struct ws_err *err);
/* -1 with the exit status of the first that failed. */
int local_failed(struct local *l, struct ws_err *err);
void local_stop(struct local *l);

/* ---- receivers.c: those of a broadcast; start and failed of ws_bench_transport ---- */
int receivers_start(void *job, const char *host, uint16_t port, struct ws_err *err);
int receivers_failed(void *job, struct ws_err *err);

/* ---- the commands: ctx is a bench_job ---- */

struct bench_job {
	const struct bench_config *cfg;
	struct ui *ui;
	struct report report;
	struct targets targets;
	struct local local;
	const char *const *urls; /* of targets or local */
	size_t n_urls;
	struct ws_bench_gpu gpu;
	unsigned n_receivers;    /* local receivers of a broadcast */
	char nccl_path[WS_BENCH_NCCL_PATH]; /* of --nccl-from */
};

/* Opens the GPU of the options as job->gpu and for the report; nccl: with its NCCL. */
int bench_find_gpu(struct bench_job *job, bool nccl, struct ws_err *err);
/* The libnccl.so.2 of the options; *out NULL: where it usually is. */
int bench_find_nccl(struct bench_job *job, const char **out, struct ws_err *err);

struct ws_bench_opts bench_opts(struct bench_job *job);
/* Finds the given endpoints, else starts --local ones. */
int bench_find_endpoints(struct bench_job *job, struct ws_err *err);
/* SOURCE... or --model; the caller frees paths. */
struct bench_source {
	const char **paths;
	size_t n;
	char synthetic[256];
};
int bench_source(const struct bench_job *job, const struct opt_args *args,
                 struct bench_source *out, struct ws_err *err);

/* ---- bench_push_cmd.c: whole pushes as the options say ---- */

struct whole {
	struct bench_job *job;
	struct ws_push_opts push; /* sweep sets bucket size, format and quantization */
	struct ws_transform_opts transform;
	struct bench_source source;
	char state[PUSHING_PATH];
};
int whole_open(struct whole *w, struct bench_job *job, const struct opt_args *args,
               struct ws_err *err);

int bench_kernels(void *ctx, const struct opt_args *args, struct ws_err *err);
int bench_load(void *ctx, const struct opt_args *args, struct ws_err *err);
int bench_control(void *ctx, const struct opt_args *args, struct ws_err *err);
int bench_transport(void *ctx, const struct opt_args *args, struct ws_err *err);
int bench_push(void *ctx, const struct opt_args *args, struct ws_err *err);
int bench_sweep(void *ctx, const struct opt_args *args, struct ws_err *err);
int bench_plan(void *ctx, const struct opt_args *args, struct ws_err *err);

/* "400Gb" (bits) or "12.5GB" (bytes) a second, to bytes a second in a double. */
int bench_rate(void *rate, const char *value, struct ws_err *err);

#endif
