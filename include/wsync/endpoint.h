/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint.h - the client of inference endpoints: what they are, and one lifecycle call at a time.
 *
 * Every function that takes several endpoints asks them all at once and waits for all of them. One
 * answer per endpoint comes back; the return value is 0 only when every one agreed, else *err is
 * the first failure. Of the lifecycle calls, which change something, some may have agreed and some
 * not: then *err is WS_EPARTIAL. Whatever an endpoint says is foreign text and arrives here bounded
 * and printable. URLs are normalized ones. */
#ifndef WSYNC_ENDPOINT_H
#define WSYNC_ENDPOINT_H

#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/dtype.h"
#include "wsync/err.h"
#include "wsync/lineage.h"
#include "wsync/log.h"
#include "wsync/trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { WS_URL_MAX = 512 }; /* an endpoint's URL with its NUL */

/* "host:port" means "http://host:port"; a trailing slash is dropped, scheme and host are
 * lower-cased, a missing port stays missing. http and https only; an IPv6 literal stands in
 * brackets. User info, query, fragment, blanks and control characters are WS_EUSAGE. n should be
 * WS_URL_MAX. */
int ws_endpoint_normalize(const char *text, char *url, size_t n, struct ws_err *err);
/* Host (without brackets; a numeric address in its usual form) and port (the scheme's when
 * missing) of a normalized URL: what an endpoint is told apart by. host has room for 256 bytes. */
int ws_endpoint_host_port(const char *url, char *host, uint16_t *port, struct ws_err *err);
/* Do two URLs name the same endpoint? Host, port and path must be equal; localhost, 127.0.0.1
 * and ::1 are one host, 127.0.0.2 is another. No name is looked up. Records of pushes are
 * compared by this. false for invalid URLs. */
bool ws_endpoint_same(const char *a, const char *b);

/* ---- connections ---- */

struct ws_http; /* kept-alive connections to any number of endpoints; belongs to one thread */

struct ws_client_opts {
	const char *api_key;      /* sent as "Authorization: Bearer ..."; NULL: none; copied */
	/* certificates (PEM) to trust instead of the system's; NULL: those; copied */
	const char *ca_file;
	int64_t connect_ns;       /* 0: 10 s */
	const struct ws_log *log; /* borrowed */
	struct ws_trace *trace;   /* of the requests; borrowed; NULL: none */
};

int ws_client_open(const struct ws_client_opts *opts, struct ws_http **out, struct ws_err *err);
void ws_client_close(struct ws_http *http); /* NULL is fine */
/* The first line of a file, blanks trimmed. `key` is the caller's to free; *loose: others may read
 * the file. Empty, longer than 4096 bytes or with control characters: WS_EINPUT. */
int ws_client_read_key(const char *path, char **key, bool *loose, struct ws_err *err);

/* ---- what an endpoint is ---- */

/* From /server_info and /model_info (or their older names), and what the routes show
 * (lineage.h). That takes 5 s at the most; what has not been answered by then counts as not
 * told. A server that does not report a size is taken to have 1 of it, except for tp_size; text
 * that it does not report is "". */
struct ws_endpoint_info {
	char url[WS_URL_MAX];
	char host[256];           /* without brackets */
	uint16_t port;
	bool tls;
	unsigned tp_size;         /* 0: not told */
	unsigned dp_size, pp_size, ep_size;
	bool dp_attention;
	bool disable_radix_cache;
	/* several processes answer HTTP: not all of them know the live weight version */
	bool many_tokenizers;
	bool on_policy;           /* started with --rl-on-policy-target */
	char version[64];         /* of the server */
	char dtype[32];           /* as configured: "auto", "bfloat16" */
	char quantization[32];    /* "" none, or that of its checkpoint */
	char load_format[32];     /* "auto"; "flash_rl": what it is sent becomes FP8 there */
	bool keeps_anything;      /* wsync-endpoint without a model: it has no types of its own */
	char nccl_version[32]; /* "2.28.9"; wsync-endpoint tells it, real servers as yet do not */
	bool quant_override;      /* its arguments say a quantization_config of their own */
	char kv_cache_dtype[32];
	char weight_version[128];
	/* GET of this route tells the live weight version; NULL: none does */
	const char *version_path;
	char model_path[1024];
	char served_model[256];
	char model_type[64]; /* of its config.json; SGLang tells both since 0.5.6, "" otherwise */
	char architecture[96];    /* the first of "architectures" */
	const char *info_path;    /* GET of this route tells all this; NULL: not reached */
	/* another number after a restart, and of another server; 0: it does not tell */
	uint64_t instance;
	enum ws_lineage lineage;
	struct ws_capabilities can; /* of the lineage, corrected by what its routes show */
	int64_t ns;               /* the slower of the two answers */
};

/* WS_EREFUSED if the server does not report tp_size: then its number of ranks is not known. */
int ws_endpoint_check_tp(const struct ws_endpoint_info *info, struct ws_err *err);

/* Requests to n endpoints, all at once. */
struct ws_call {
	struct ws_http *http;
	const char *const *urls;
	size_t n;
	ws_deadline until;              /* of all of them together */
	const struct ws_cancel *cancel; /* NULL: none */
};

/* infos[i] and errs[i] belong to to->urls[i]; errs[i].code is WS_OK where it answered. */
int ws_endpoint_probe_all(const struct ws_call *to, struct ws_endpoint_info *infos,
                          struct ws_err *errs, struct ws_err *err);
/* Somebody knows the lineage better than the probe: its table is believed, whatever was seen.
 * WS_LINEAGE_UNKNOWN: nobody does. */
void ws_endpoint_assume(struct ws_endpoint_info *info, enum ws_lineage lineage);

/* ---- lifecycle calls ---- */

/* One for each endpoint whatever happened, also when the calls were cancelled. */
struct ws_endpoint_answer {
	struct ws_err err;        /* code WS_OK: done */
	bool sent;                /* the request left completely: the server may have acted */
	char message[256];        /* the server's own words, "" none */
	int64_t ns;
};

enum ws_pause_mode {
	WS_PAUSE_ABORT,    /* requests in flight end with an abort reason */
	WS_PAUSE_RETRACT,  /* they go back to the queue; flushes will be refused */
	WS_PAUSE_IN_PLACE, /* they stop where they are; flushes will be refused */
	WS_PAUSE_NONE      /* do not pause */
};
/* "abort", "retract", "in_place", "none" */
const char *ws_pause_mode_name(enum ws_pause_mode mode);

int ws_endpoint_health(const struct ws_call *to, struct ws_endpoint_answer *answers,
                       struct ws_err *err);
int ws_endpoint_pause(const struct ws_call *to, enum ws_pause_mode mode,
                      struct ws_endpoint_answer *answers, struct ws_err *err);
int ws_endpoint_resume(const struct ws_call *to, struct ws_endpoint_answer *answers,
                       struct ws_err *err);
/* A flush is refused while the server is busy: asks again, twice a second, until `patience` (one
 * answer each when that has passed already), and no request lasts past to->until. */
int ws_endpoint_flush(const struct ws_call *to, ws_deadline patience,
                      struct ws_endpoint_answer *answers, struct ws_err *err);
/* An empty version, which an unset shell variable leaves, is WS_EUSAGE. NULL (no version) is
 * fine. */
int ws_endpoint_check_version(const char *version, struct ws_err *err);
/* The label only; requests in flight are left alone. */
int ws_endpoint_set_version(const struct ws_call *to, const char *version,
                            struct ws_endpoint_answer *answers, struct ws_err *err);

/* Has them leave a process group. One that is in no such group has left it:
 * its refusal is no failure. */
int ws_endpoint_destroy_group(const struct ws_call *to, const char *group_name,
                              struct ws_endpoint_answer *answers, struct ws_err *err);

/* Memory that a server can release and take back, so that a trainer on the same GPU may use it. */
enum ws_memory { WS_MEMORY_WEIGHTS = 1, WS_MEMORY_KV_CACHE = 2, WS_MEMORY_CUDA_GRAPH = 4,
	         WS_MEMORY_ALL = 7,
	         WS_MEMORY_RECORDED = 8 /* for a push: what the records of earlier pushes say */ };
/* "weights,kv_cache" in any order; another word is WS_EUSAGE. */
int ws_memory_parse(const char *text, unsigned *out, struct ws_err *err);
const char *ws_memory_text(unsigned memory); /* the reverse; "" for none */

/* Sends them to sleep: memory is released, and with the weights their content, unless the server
 * keeps a copy. infos[i] is to->urls[i]'s. A server that runs requests dies of it, so each is asked
 * to flush before, which only an idle one grants, again and again until `patience`; requests
 * that come afterwards are not kept away: pause it. Nobody is sent to sleep when one of them
 * refuses that, or cannot sleep. */
int ws_endpoint_sleep(const struct ws_call *to, const struct ws_endpoint_info *infos,
                      unsigned memory, ws_deadline patience, struct ws_endpoint_answer *answers,
                      struct ws_err *err);
/* Takes it back. What was not released must not be asked for: servers die of it. */
int ws_endpoint_wake(const struct ws_call *to, const struct ws_endpoint_info *infos,
                     unsigned memory, struct ws_endpoint_answer *answers, struct ws_err *err);

struct ws_waking {
	const char *url;
	const struct ws_endpoint_info *info;
	unsigned memory;          /* enum ws_memory: to be taken back, not 0 */
	struct ws_endpoint_answer answer;
};
/* Wakes endpoints that released different memory. -1 and the first failure
 * where one did not confirm it. */
int ws_endpoint_wake_each(struct ws_http *http, struct ws_waking *items, size_t n,
                          ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err);
/* The server refused, or the request never left: the memory is still released. Without an
 * answer it counts as taken back, because a server that received the request obeys it, and one
 * that is asked twice dies. */
bool ws_waking_failed(const struct ws_waking *w);

#ifdef __cplusplus
}
#endif
#endif
