/* SPDX-License-Identifier: Apache-2.0 */
/* scales.h - checks the scales of quantized checkpoints and servers.
 *
 * Servers load codes without scales, inverted scales, or scales of another block size with
 * "success", and then generate nonsense. The check uses the tensors, the config and the weights
 * before quantization. It reports findings, each about one name. Tensors are read once, in
 * pieces, by a few threads. */
#ifndef WSYNC_SCALES_H
#define WSYNC_SCALES_H

#include "wsync/cancel.h"
#include "wsync/tool/catalog.h"
#include "wsync/endpoint.h"
#include "wsync/event.h"
#include "wsync/tool/namecheck.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ws_scales_verdict {
	WS_SCALES_PAIR,       /* codes without a scale, a scale without codes, or with two */
	WS_SCALES_SHAPE,      /* not one scale for each block */
	WS_SCALES_DTYPE,      /* scales of a type that servers do not take, or that loses bits */
	WS_SCALES_NAME,       /* a name that a server with this config does not load */
	WS_SCALES_CONFIG,     /* quantized although the config excludes it, or the reverse */
	/* scales that are zero, negative, no number, or out of all proportion */
	WS_SCALES_VALUES,
	WS_SCALES_CODES,      /* NaN; clamped, vanished, or far from using their range */
	WS_SCALES_RECIPROCAL, /* they make sense only as 1 / scale */
	WS_SCALES_UE8M0,      /* all are powers of two */
	/* cannot be compared with the source: absent there, or of another shape */
	WS_SCALES_SOURCE,
	WS_SCALES_ERROR,      /* too far from the source */
	WS_SCALES_UNSEEN,     /* tensors that were not checked */
	WS_SCALES_VERDICTS
};
const char *ws_scales_verdict_name(enum ws_scales_verdict v); /* "pair", "shape", ... */

struct ws_scales_finding {
	enum ws_scales_verdict verdict;
	enum ws_severity severity; /* only errors make the answer no */
	const char *name;          /* of a tensor; or of a config, or "all tensors" */
	const char *reason;        /* one sentence */
	size_t order;
};

/* A tensor compared with the same tensor of the source, as numbers: w are those of the source,
 * d the dequantized codes. */
struct ws_scales_error {
	const char *name;
	const char *packing;       /* "fp8", "nvfp4", "nf4"; "none": as it is on both sides */
	double max;                /* largest |d - w| */
	double rms;                /* sqrt(sum (d - w)^2 / sum w^2) */
	double cosine;             /* of the angle between them; 0 where one is all zero */
	double limit;              /* of rms */
};

struct ws_scales_report {
	/* errors first, then by kind, then as in the checkpoint */
	struct ws_scales_finding *findings;
	size_t n_findings;
	struct ws_scales_error *compared;   /* the worst first */
	size_t n_compared;
	size_t tensors;                /* checked by name and shape */
	size_t quantized;              /* whose codes and scales were read */
	uint64_t scales, bytes;        /* numbers of scales; bytes read */
	size_t errors, warnings, notes;
	size_t count[WS_SCALES_VERDICTS];
	void *priv;
};

struct ws_scales_opts {
	const struct ws_catalog *items;
	const struct ws_catalog *against;   /* before it was quantized; NULL */
	const struct ws_config *config;     /* the server's; NULL: not known */
	const struct ws_layout *layout;     /* likewise: which parameters are of 8 bits; NULL */
	/* rows, columns; 0, 0: as the config says, or as the shapes do */
	int64_t block[2];
	/* of ws_scales_error.rms; 0: 0.05 for 8 bits, 0.15 for 4 */
	double max_error;
	const char *const *include, *const *exclude; /* globs, as ws_plan_opts */
	size_t n_include, n_exclude;
	unsigned threads;                   /* 0: one for each processor, at most 8 */
	struct ws_sink sink;                /* gets WS_EV_PROGRESS */
	const struct ws_cancel *cancel;
};

/* With a source, unquantized tensors are compared too: they may differ by a rounding to 16 bits.
 * 0: the check ran, whatever it found. -1: memory, cancelled, a file that cannot be read. */
int ws_scales_check(const struct ws_scales_opts *opts, struct ws_scales_report *out,
                    struct ws_err *err);
void ws_scales_report_free(struct ws_scales_report *r); /* NULL and all zero are fine */

/* ---- a running server ---- */

struct ws_scales_ask_opts {
	const char *url;              /* normalized */
	/* NULL: that of its model path, where it can be read here */
	const struct ws_config *config;
	int64_t block[2];             /* as above */
	size_t samples;               /* tensors of scales of which some numbers are asked for */
	ws_deadline until;
	const struct ws_cancel *cancel;
};

/* Checks the names and shapes that the server lists for rank 0, and numbers of some
 * scales if it returns them. Codes cannot be read this way: unchecked tensors are a
 * finding of their own. -1: the server did not answer. */
int ws_scales_ask(struct ws_http *http, const struct ws_scales_ask_opts *opts,
                  struct ws_scales_report *out, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
