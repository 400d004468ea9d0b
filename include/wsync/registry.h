/* SPDX-License-Identifier: Apache-2.0 */
/* registry.h - the registry file: one entry per endpoint (host, port, path), with the properties
 * that were detected when it was added.
 *
 *   {"version": 1,
 *    "endpoints": [{"url": "http://gpu7:30000", "host": "gpu7", "port": 30000, "pool": "default",
 *                   "world_size": 2, "tp_size": 2, "dtype": "bfloat16", "quantization": "",
 *                   "served_model": "qwen3", "version": "0.5.9",
 *                   "lineage": "sglang-2026", "added_at": "2026-01-31T12:00:00Z"}]}
 *
 * Only url is required. Keys that this version does not know are kept when the file is rewritten.
 * Every change is made under a lock (PATH.lock) on the file as it is then, and replaces the file
 * whole, so a reader needs no lock and sees either state. */
#ifndef WSYNC_REGISTRY_H
#define WSYNC_REGISTRY_H

#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/endpoint.h"
#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WS_POOL_DEFAULT "default"

struct ws_registry_entry {
	char url[WS_URL_MAX];    /* normalized */
	char host[256];
	uint16_t port;
	char pool[64];
	unsigned world_size;     /* ranks that a group gives it; 0: not known */
	unsigned tp_size;        /* 0: not asked yet */
	char dtype[32], quantization[32], served_model[256], version[64];
	char lineage[24];        /* as ws_lineage_name; "" not asked yet */
	char added_at[32];       /* RFC 3339, UTC; "" unknown */
	const void *more;        /* private: unknown keys of the file */
};

struct ws_registry {
	struct ws_registry_entry *items; /* in the order in which they were added */
	size_t n;
	void *priv;
};

/* A missing file is an empty registry. WS_EINPUT, naming the file and the entry: the file is
 * malformed, of a newer version, or has an endpoint twice; or others than this user and root can
 * write it: weights and keys go to its URLs. */
int ws_registry_load(const char *path, struct ws_registry *out, struct ws_err *err);
void ws_registry_free(struct ws_registry *r); /* NULL is fine */
/* The entry with the host, port and path of a normalized URL; NULL: none. */
const struct ws_registry_entry *ws_registry_find(const struct ws_registry *r, const char *url);
/* WS_EUSAGE: this endpoint is registered by another name of this machine (ws_endpoint_same), so a
 * push to all endpoints of the registry would find it twice. */
int ws_registry_check_twin(const struct ws_registry *r, const char *path, const char *url,
                           struct ws_err *err);

/* WS_EUSAGE: one of the endpoints that were detected is a server that is registered by another
 * URL, or is among them by two. Asks the registered servers for at most 5 s, with the keys of
 * to->http, and only those for which may_ask returns true. One that does not answer, or reports no
 * sure instance, is no hindrance. infos[i] is of to->urls[i]. */
int ws_registry_check_instances(const char *path, const struct ws_call *to,
                                const struct ws_endpoint_info *infos,
                                bool (*may_ask)(const void *ctx, const struct ws_registry_entry *e),
                                const void *ctx, struct ws_err *err);

/* A pool is named by 1 to 63 letters, digits, '.', '_' and '-'; anything else is WS_EUSAGE. */
int ws_registry_check_pool(const char *pool, struct ws_err *err);

/* Copies tp_size, lineage, dtype, quantization, model and version of a probe into the entry. */
void ws_registry_describe(struct ws_registry_entry *e, const struct ws_endpoint_info *info);

/* Adds an entry, or replaces the entry of its (host, port, path) and keeps added_at; *updated:
 * replaced. Uses url, pool, sizes and texts of *entry and fills in the rest. pool "": the present
 * pool, else WS_POOL_DEFAULT. Creates the file (mode 0600) and missing directories (0700). */
int ws_registry_add(const char *path, struct ws_registry_entry *entry, ws_deadline until,
                    const struct ws_cancel *cancel, bool *updated, struct ws_err *err);
/* Removes the entry with the (host, port, path) of url. WS_EINPUT: no entry has it. */
int ws_registry_remove(const char *path, const char *url, ws_deadline until,
                       const struct ws_cancel *cancel, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
