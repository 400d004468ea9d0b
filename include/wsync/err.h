/* SPDX-License-Identifier: Apache-2.0 */
/* err.h - one error value for the whole library.
 *
 * A function that can fail returns 0 or -1 and fills the caller's struct ws_err. The first function
 * that knows why something failed writes the sentence; callers add context only where it adds a
 * fact. A NULL ws_err is allowed everywhere and loses the text. Nothing here allocates.
 *
 * Sentences of the library name an option by its field in the options struct, in braces: "use
 * {pause} abort, or {flush} never" means pause and flush of struct ws_push_opts. The values beside
 * the fields are those of the programs. This holds for errors, hints, warnings and findings. The
 * programs print their own options instead of fields. Other text in braces is user data. Text after
 * the name of a program is a command that can be typed: "wsync-ctl repair --again". */
#ifndef WSYNC_ERR_H
#define WSYNC_ERR_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The values are the exit codes of every program (wsync(7), EXIT STATUS). */
enum ws_code {
	WS_OK        = 0,
	WS_EMISMATCH = 1,  /* the answer is no: a verification found a difference */
	WS_EUSAGE    = 2,  /* invalid options or arguments */
	WS_EINPUT    = 3,  /* checkpoint, registry or adapter malformed */
	WS_EREACH    = 4,  /* name, connect, TLS, no answer */
	WS_EREFUSED  = 5,  /* the endpoint answered with an error or success=false */
	WS_EDATA     = 6,  /* data plane: rendezvous, gloo, NCCL */
	WS_EDEVICE   = 7,  /* no GPU, CUDA error, built without CUDA */
	WS_ESYSTEM   = 8,  /* memory, disk, permission, stdout */
	WS_EPARTIAL  = 9,  /* some endpoints have the new weights, some do not */
	WS_ETIMEOUT  = 10, /* a deadline passed */
	WS_EUNKNOWN  = 11, /* neither yes nor no: it could not be established */
	/* wsync-endpoint: a request crashed it, as it crashes the emulated server */
	WS_ECRASHED  = 12,
	WS_ECANCELLED = 13 /* a signal asked us to stop; programs re-raise it and never exit 13 */
};

struct ws_err {
	enum ws_code code;
	int native;         /* the foreign number: errno, HTTP status, CURLcode; 0: none */
	/* one sentence, lower case, no full stop: the attempted operation, ": ", the reason */
	char msg[768];
	char hint[1024];    /* a remedy, where one is known; else "" */
	char endpoint[128]; /* URL of the endpoint concerned; else "" */
	char phase[16];     /* plan, connect, init, pause, ...; else "" */
	/* rank in the process group, from 1; 0 (the sender's own rank): unknown */
	unsigned rank;
};

#define WS_ERR_INIT { WS_OK, 0, "", "", "", "", 0 }

/* Setters. All return -1, so that a failure is one line: return ws_err_set(err, WS_EINPUT, ...).
 * ws_err_set replaces the error; the others change the present one. */
int ws_err_set(struct ws_err *err, enum ws_code code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* WS_ESYSTEM, "out of memory". */
int ws_oom(struct ws_err *err);
/* WS_ESYSTEM with ": strerror(errno)" appended and native = errno. */
int ws_err_errno(struct ws_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prefixes "context: " to the message. */
int ws_err_wrap(struct ws_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Sets the hint. */
int ws_err_hint(struct ws_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Names the phase and the endpoint, unless the error already names one. NULL: leave. */
int ws_err_where(struct ws_err *err, const char *phase, const char *endpoint);
/* Names the rank, unless the error already names one. */
int ws_err_rank(struct ws_err *err, unsigned rank);

/* True if a failed kernel has made the GPU unusable for this process (CUDA's errors 700, 710 and
 * 719): what comes next in this process will fail too. */
bool ws_err_gpu_broken(const struct ws_err *err);

/* The word for a code as it stands in JSON: "mismatch", "usage", "input", ... */
const char *ws_code_name(enum ws_code code);

#ifdef __cplusplus
}
#endif
#endif
