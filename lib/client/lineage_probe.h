/* SPDX-License-Identifier: Apache-2.0 */
/* lineage_probe.h - detects the routes of an endpoint from its list, or by one request per route.
 *
 * Nothing here has an effect on a server. GET would: /flush_cache, /release_memory_occupation and
 * others accept it. OPTIONS does not: a framework answers 405 and lists the methods if it knows the
 * path, else 404. */
#ifndef WS_CLIENT_LINEAGE_PROBE_H
#define WS_CLIENT_LINEAGE_PROBE_H

#include "http.h"
#include "wsync/endpoint.h"
#include "wsync/lineage.h"
#include "wsync/tool/json_read.h"

/* Fills *out from the table. WS_LINEAGE_UNKNOWN gets the routes that most servers have, because a
 * missing one only answers 404. It gets no fields, because servers ignore unknown fields silently.
 * It gets every way to die. */
void ws_lineage_capabilities(enum ws_lineage lineage, struct ws_capabilities *out);

/* What an endpoint's routes show. A field of seen counts only if the same field of asked is
 * true. */
struct ws_lineage_signs {
	struct ws_capabilities asked, seen;
	bool pull_weights;    /* /pull_weights: only slime has it */
	bool one_by_one;      /* one tensor per update, as before 0.4.9: wsync cannot send that */
	const char *version;  /* from /server_info, "" unknown */
};

/* Returns the lineage that fits the routes best. The version decides only between lineages with the
 * same routes. *can is the lineage's table, corrected by the signs. */
enum ws_lineage ws_lineage_detect(const struct ws_lineage_signs *signs,
                                  struct ws_capabilities *can);

/* The lineage of a vLLM of this version, and its capabilities. */
enum ws_lineage ws_lineage_vllm(const char *version, struct ws_capabilities *can);
/* False: a version of another form, such as that of a build from source, which counts as new. */
bool ws_lineage_vllm_reads(const char *version);

/* Reads an /openapi.json. -1, with *signs unchanged: it has no paths, or it does not list
 * own_route, which the server has just answered. Then it may be a proxy's. */
int ws_lineage_read_openapi(const struct ws_json *root, const char *own_route,
                            struct ws_lineage_signs *signs);

/* Requests one route after another from all endpoints with wanted[i]. Endpoints that do not answer,
 * or that accept a route that no server has, get no further requests. -1: cancelled or a system
 * error. */
int ws_lineage_ask(const struct ws_call *to, const bool *wanted, struct ws_lineage_signs *signs,
                   struct ws_err *err);

/* ---- used by both ---- */

enum ws_presence { WS_NOT_ASKED, WS_ABSENT, WS_PRESENT };
enum { WS_LINEAGE_PATHS_MAX = 48 };

/* The routes that show a capability or a lineage, by number. */
size_t ws_lineage_path_count(void);
const char *ws_lineage_path(size_t i);
/* Sets the signs from the presence of each route. A capability with several routes needs all of
 * them. */
void ws_lineage_sum_up(const enum ws_presence *found, struct ws_lineage_signs *signs);

#endif
