/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint.h - the client of inference endpoints: detection, and single lifecycle calls.
 *
 * Functions for several endpoints send all requests at once and wait for all answers, one for each
 * endpoint. They return 0 if every endpoint succeeded, else *err is the first failure. If a
 * lifecycle call succeeded at some endpoints and failed at others, *err is WS_EPARTIAL. Text from
 * endpoints is foreign: it arrives here limited in length and printable. URLs are normalized. */
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
 * missing) of a normalized URL. They identify an endpoint. host has room for 256 bytes. */
int ws_endpoint_host_port(const char *url, char *host, uint16_t *port, struct ws_err *err);
/* Do two URLs name the same endpoint? Host, port and path must be equal; localhost, 127.0.0.1
 * and ::1 are one host, 127.0.0.2 is another. Resolves no names. Push records are matched with
 * this function. false for invalid URLs. */
bool ws_endpoint_same(const char *a, const char *b);
/* An endpoint must not get two requests at a time. Compares as ws_endpoint_same: behind one host
 * and port, each path is an endpoint. WS_EUSAGE names the first URL that repeats an earlier one.
 * *first and *again are the positions of the two; n if no URL is repeated. */
int ws_endpoint_find_twice(const char *const *urls, size_t n, size_t *first, size_t *again,
                           struct ws_err *err);

/* ---- connections ---- */

struct ws_http; /* kept-alive connections to any number of endpoints; belongs to one thread */

#define WS_ENDPOINT_CONNECT_NS (10 * WS_NS_PER_S)

struct ws_client_opts {
	/* sent as "Authorization: Bearer ..."; "KEY\nADMIN_KEY": the second on the routes for which
	 * SGLang wants its --admin-api-key, each may be empty; NULL: none; copied */
	const char *api_key;
	/* certificates (PEM) to trust; NULL: the system's; copied */
	const char *ca_file;
	int64_t connect_ns;       /* 0: WS_ENDPOINT_CONNECT_NS */
	const struct ws_log *log; /* borrowed */
	struct ws_trace *trace;   /* of the requests; borrowed; NULL: none */
};

int ws_client_open(const struct ws_client_opts *opts, struct ws_http **out, struct ws_err *err);
void ws_client_close(struct ws_http *http); /* NULL is fine */
/* The first line of a file, blanks trimmed. `key` is the caller's to free; *loose: others may read
 * the file. Empty, longer than 4096 bytes, with control characters, or in a directory that others
 * can write: WS_EINPUT. */
int ws_client_read_key(const char *path, char **key, bool *loose, struct ws_err *err);

/* ---- caches ---- */

/* Caches of a server that may hold results of old weights. */
enum ws_cache {
	WS_CACHE_PREFIX,     /* keys and values of prompts, in the server's memory */
	WS_CACHE_EXTERNAL,   /* the same in a store: HiCache's storage, LMCache, a connector */
	WS_CACHE_ENCODER,    /* outputs of the encoder of images and sounds */
	WS_CACHE_MULTIMODAL, /* prepared inputs of that encoder */
	WS_CACHE_DRAFT,      /* keys and values of the draft model */
	WS_N_CACHES
};
enum ws_cache_fact {
	WS_CACHE_UNTOLD,  /* the server does not say whether it has one, or whether it is clear */
	WS_CACHE_NONE,    /* it has none */
	WS_CACHE_CLEARED, /* of what a server has: its routes clear it */
	WS_CACHE_OLD      /* it may hold results of old weights; of what a server has: no route
	                   * clears it */
};
struct ws_caches {
	struct ws_cache_state {
		enum ws_cache_fact fact;
		const char *route; /* that cleared it: static text; NULL: it was not cleared */
	} of[WS_N_CACHES];
};
const char *ws_cache_name(enum ws_cache cache);          /* "prefix", "external", ... */
const char *ws_cache_fact_name(enum ws_cache_fact fact); /* "untold", "none", "cleared", "old" */

/* ---- detection ---- */

/* Which start of a server answers at a URL: the instance that has the weights. URLs do not say it,
 * and neither do paths, names and labels, which an update changes. */
enum ws_identity_strength {
	WS_IDENTITY_NONE, /* the server reports nothing that tells two starts apart */
	WS_IDENTITY_WEAK, /* a random seed, which --random-seed may make equal for all starts */
	WS_IDENTITY_SURE  /* when it started, or how long each phase of the start took */
};
enum { WS_IDENTITY_PROCESSES = 64 };
struct ws_identity {
	enum ws_identity_strength strength;
	unsigned processes; /* that answer requests at this URL for one server; 0: not known */
	unsigned n;         /* seen so far */
	struct {
		unsigned rank;
		uint64_t id;
	} seen[WS_IDENTITY_PROCESSES];
	int64_t since; /* the server's clock when it first answered: ns since 1970; 0: unknown */
	bool unique;   /* no other server has these ids: each is a time in ns, or many times */
	bool closed;   /* a process that is seen for the first time from now on proves nothing */
};
enum ws_identity_match {
	WS_IDENTITY_SAME,
	WS_IDENTITY_OTHER, /* another start, or another server */
	WS_IDENTITY_UNTOLD /* one of the two says nothing, or a process of it is new */
};
/* Compares an answer with what was known of the server, and adds processes to it that are seen for
 * the first time. */
enum ws_identity_match ws_identity_compare(struct ws_identity *known,
                                           const struct ws_identity *now);

/* Read from /server_info and /model_info (or their older names) and from the routes (lineage.h),
 * within 5 s: values that have not arrived by then count as not reported. A size that the server
 * does not report is 1, except tp_size; a text is "". */
struct ws_endpoint_info {
	char url[WS_URL_MAX];
	char host[256];           /* without brackets */
	uint16_t port;
	bool tls;
	unsigned tp_size;         /* 0: not reported */
	unsigned dp_size, pp_size, ep_size;
	bool dp_attention;        /* dp_size counts attention groups of one world, not replicas */
	bool disable_radix_cache;
	/* several processes answer HTTP: not all of them know the live weight version */
	bool many_tokenizers;
	bool on_policy;           /* started with --rl-on-policy-target */
	unsigned attention_cp;    /* ranks that share the context of attention; 0: not reported */
	bool offloads;            /* keeps some weights in CPU memory */
	bool moves_experts;       /* the place of an expert may change (EPLB) */
	bool has_draft;           /* it has a draft model, for speculative decoding */
	/* LoRA: "none", "kept": it was started with them; NULL: not reported. Static */
	const char *adapters;
	bool shares_weights;      /* with other processes (--weight-cache-mode) */
	enum ws_cache_fact caches[WS_N_CACHES]; /* which it has */
	/* its external cache: "mooncake", "LMCacheConnectorV1"; "": none, or not reported */
	char external[48];
	/* of vLLM: */
	unsigned world_size;      /* ranks of all its engines; 0: not reported */
	bool control_off;         /* started without VLLM_SERVER_DEV_MODE=1: no control routes */
	char engine[32];          /* weight_transfer_config's backend: "nccl"; "": none */
	bool gloo_worker;         /* its workers have the extension wsync_vllm */
	bool sleeping;            /* its memory is released */
	bool runs;                /* it said that it is not paused; false: or was not asked */
	char version[64];         /* of the server */
	char dtype[32];           /* as configured: "auto", "bfloat16" */
	char device[16];          /* "cuda" (also with ROCm), "cpu", ... */
	char quantization[32];    /* "": none, or the checkpoint's */
	char load_format[32];     /* "auto"; "flash_rl": the server makes received weights FP8 */
	bool weights_copy;        /* SGLang keeps a copy of the weights that it releases */
	bool keeps_anything;      /* wsync-endpoint without a model: it accepts every dtype */
	/* SGLang: its arguments set NCCL_CUMEM_ENABLE, NCCL_NVLS_ENABLE to 1; else it sets 0 */
	bool nccl_cumem, nccl_nvls;
	char nccl_version[32]; /* "2.28.9"; wsync-endpoint reports it, real servers do not yet */
	bool quant_told;          /* vLLM: its configuration has a quantization, or null for none */
	bool quant_override;      /* the server's arguments override quantization_config */
	char kv_cache_dtype[32];
	char weight_version[128];
	/* the route whose GET reports the live weight version; NULL: none */
	const char *version_path;
	char model_path[1024];
	char start_path[1024];    /* model_path at the start; an update from disk replaces that */
	char revision[96];        /* of start_path, if that is a name on a hub; "": not told */
	/* the snapshot of that in this machine's cache of the Hugging Face Hub; "": none */
	char snapshot[1024];
	const char *path_unused;  /* why its config.json is not the server's; NULL: it is. Static */
	char served_model[256];
	char model_type[64]; /* of its config.json; SGLang reports both since 0.5.6, else "" */
	char architecture[96];    /* the first of "architectures" */
	const char *info_path;    /* the route whose GET reports these values; NULL: not reached */
	struct ws_identity identity;
	/* the same as one number, for records; 0: not reported, or one of several processes */
	uint64_t instance;
	enum ws_lineage lineage;
	struct ws_capabilities can; /* of the lineage, corrected by the server's routes */
	int64_t ns;               /* the slower of the two answers */
};

/* Settings of NCCL that all ranks of one group must have alike. NCCL reads them from its process's
 * environment, once, before the process joins its first group. Ranks of one machine that differ
 * in them fail with "invalid argument" or hang (SkyRL #143, NeMo-RL #564). */
enum { WS_NCCL_OWN_CUMEM = -2, WS_NCCL_OWN_NVLS = 2 }; /* NCCL's defaults: as if it were unset */
struct ws_nccl_settings {
	int cumem, nvls;     /* NCCL_CUMEM_ENABLE, NCCL_NVLS_ENABLE */
	const char *url;     /* the server whose settings these are; borrowed */
	const char *other;   /* a server with other settings; NULL: all are alike; borrowed */
	/* network interface of our address in the group; "": loopback, or not known */
	char interface[16];
};
/* The settings of these servers, by their family and their arguments. n > 0. */
void ws_endpoint_nccl_settings(const struct ws_endpoint_info *infos, size_t n,
                               struct ws_nccl_settings *out);

/* Is it a wsync-endpoint? Its version says so ("+wsync."). */
bool ws_endpoint_is_ours(const struct ws_endpoint_info *info);
/* WS_EREFUSED if the server does not report tp_size: then its number of ranks is not known. */
int ws_endpoint_check_tp(const struct ws_endpoint_info *info, struct ws_err *err);

/* Requests to n endpoints, all at once. */
struct ws_call {
	struct ws_http *http;
	const char *const *urls;
	size_t n;
	ws_deadline until;              /* for all requests together */
	const struct ws_cancel *cancel; /* NULL: none */
	/* As detected, one for each URL. NULL: not known; a server that does not know a route of
	 * SGLang then gets the request of vLLM. */
	const struct ws_endpoint_info *const *infos;
};

/* infos[i] and errs[i] belong to to->urls[i]; errs[i].code is WS_OK if that endpoint answered. */
int ws_endpoint_probe_all(const struct ws_call *to, struct ws_endpoint_info *infos,
                          struct ws_err *errs, struct ws_err *err);
/* The same, with patience for servers that live but answer slowly: the first time, a vLLM needs
 * 10 s or more to tell its configuration. It has until slow_until if that is later. */
int ws_endpoint_probe_slow(const struct ws_call *to, ws_deadline slow_until,
                           struct ws_endpoint_info *infos, struct ws_err *errs,
                           struct ws_err *err);
/* That limit: as long as the run may take, unless connect_ns is not the default, and so was asked
 * for. `until` is the limit for the connection. */
ws_deadline ws_endpoint_slow_until(int64_t connect_ns, ws_deadline until, ws_deadline run);
/* Replaces the detected lineage and all capabilities by those of this lineage's table.
 * WS_LINEAGE_UNKNOWN: changes nothing. */
void ws_endpoint_assume(struct ws_endpoint_info *info, enum ws_lineage lineage);

/* ---- lifecycle calls ---- */

/* Filled in for every endpoint, also when the calls were cancelled. */
struct ws_endpoint_answer {
	struct ws_err err;        /* code WS_OK: done */
	bool sent;                /* the request left completely: the server may have acted */
	char message[256];        /* the server's message; "": none */
	int64_t ns;
};

enum ws_pause_mode {
	WS_PAUSE_ABORT,    /* requests in flight end with an abort reason */
	WS_PAUSE_RETRACT,  /* running requests return to the queue; flushes will be refused */
	WS_PAUSE_IN_PLACE, /* running requests stop in place; flushes will be refused */
	WS_PAUSE_WAIT,     /* requests in flight end as usual first; vLLM only */
	WS_PAUSE_NONE      /* do not pause */
};
/* "abort", "retract", "in_place", "wait", "none" */
const char *ws_pause_mode_name(enum ws_pause_mode mode);

int ws_endpoint_health(const struct ws_call *to, struct ws_endpoint_answer *answers,
                       struct ws_err *err);
/* clear_cache: vLLM empties its caches with the pause; SGLang flushes only by ws_endpoint_flush. */
int ws_endpoint_pause(const struct ws_call *to, enum ws_pause_mode mode, bool clear_cache,
                      struct ws_endpoint_answer *answers, struct ws_err *err);
int ws_endpoint_resume(const struct ws_call *to, struct ws_endpoint_answer *answers,
                       struct ws_err *err);
/* Flushes the caches. A busy server refuses: retries twice a second until `patience` (if that has
 * passed, each endpoint gets one request). No request lasts past to->until. */
int ws_endpoint_flush(const struct ws_call *to, ws_deadline patience,
                      struct ws_endpoint_answer *answers, struct ws_err *err);
/* Clears what a flush leaves: external, encoder and multimodal caches.
 * caches[i].of[WS_CACHE_PREFIX] says what happened to the prefix cache of to->urls[i]; fills the
 * rest. to->infos must be known. clear false: asks nothing.
 * A cache that could not be cleared is in `caches` only; -1: cancelled, or a system error. */
int ws_endpoint_clear_caches(const struct ws_call *to, bool clear, struct ws_caches *caches,
                             struct ws_err *err);
/* WS_EUSAGE: the version is empty, as an unset shell variable leaves it, longer than WS_VERSION_MAX
 * bytes, no UTF-8, or has characters that are not shown: servers could not report it as it is; or
 * it is "default", which every fresh SGLang reports. NULL (no version) is fine. */
enum { WS_VERSION_MAX = 127 };
int ws_endpoint_check_version(const char *version, struct ws_err *err);
/* True if both are integers, and version is the smaller one: decimal digits, however many, perhaps
 * after a sign. Zeros before them and blanks around them do not count. */
bool ws_endpoint_is_older(const char *version, const char *than);
/* Sets only the label; does not touch requests in flight. */
int ws_endpoint_set_version(const struct ws_call *to, const char *version,
                            struct ws_endpoint_answer *answers, struct ws_err *err);

/* Makes the endpoints leave a process group. If an endpoint refuses because it is not in that
 * group, it counts as success. */
int ws_endpoint_destroy_group(const struct ws_call *to, const char *group_name,
                              struct ws_endpoint_answer *answers, struct ws_err *err);

/* Memory that a server can release and take back, so that a trainer on the same GPU may use it. */
enum ws_memory { WS_MEMORY_WEIGHTS = 1, WS_MEMORY_KV_CACHE = 2, WS_MEMORY_CUDA_GRAPH = 4,
	         WS_MEMORY_ALL = 7,
	         WS_MEMORY_RECORDED = 8 /* for a push: as the records of earlier pushes say */ };
/* "weights,kv_cache" in any order; another word is WS_EUSAGE. */
int ws_memory_parse(const char *text, unsigned *out, struct ws_err *err);
const char *ws_memory_text(unsigned memory); /* the reverse; "" for none */
/* The memory that this server can release: a vLLM has no tag for its graphs. */
unsigned ws_endpoint_memory(const struct ws_endpoint_info *info);
/* Does the server keep a copy of the weights that ws_endpoint_sleep releases? */
bool ws_endpoint_keeps_weights(const struct ws_endpoint_info *info);

/* Releases memory. Released weights lose their content, unless the server keeps a copy. infos[i]
 * belongs to to->urls[i]. A server with running requests dies of it, so each must flush first,
 * which only an idle server does; retries the flush until `patience`. Later requests are not kept
 * away: pause first. If one endpoint refuses to flush or cannot sleep, none sleeps. */
int ws_endpoint_sleep(const struct ws_call *to, const struct ws_endpoint_info *infos,
                      unsigned memory, ws_deadline patience, struct ws_endpoint_answer *answers,
                      struct ws_err *err);
/* Takes released memory back: memory[i] of to->urls[i], none where it is 0. Never name memory that
 * was not released: servers die of it. */
int ws_endpoint_wake(const struct ws_call *to, const struct ws_endpoint_info *infos,
                     const unsigned *memory, struct ws_endpoint_answer *answers,
                     struct ws_err *err);

struct ws_waking {
	const char *url;
	const struct ws_endpoint_info *info;
	unsigned memory;          /* enum ws_memory: to be taken back */
	struct ws_endpoint_answer answer;
};
/* The same. -1 and the first failure if an endpoint did not confirm. */
int ws_endpoint_wake_each(struct ws_http *http, struct ws_waking *items, size_t n,
                          ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
