/* SPDX-License-Identifier: Apache-2.0 */
/* lineage_probe.h - what an endpoint shows of itself: its list of routes,
 * else one question for each.
 *
 * Nothing here has an effect on a server. GET would: /flush_cache, /release_memory_occupation and
 * others take it. OPTIONS does not; a framework that knows the path answers 405 and says what it
 * takes, and one that does not answers 404. */
#ifndef WS_CLIENT_LINEAGE_PROBE_H
#define WS_CLIENT_LINEAGE_PROBE_H

#include "http.h"
#include "wsync/endpoint.h"
#include "wsync/lineage.h"
#include "wsync/tool/json_read.h"

/* What servers of this lineage have. Of WS_LINEAGE_UNKNOWN it is hoped that it has the routes that
 * most have, because a missing one answers 404 and no harm is done; no field is believed in,
 * because unknown ones are ignored in silence; and every way to die is feared. */
void ws_lineage_capabilities(enum ws_lineage lineage, struct ws_capabilities *out);

/* What was seen of an endpoint: where asked is true the answer is in seen. */
struct ws_lineage_signs {
	struct ws_capabilities asked, seen;
	bool pull_weights;    /* /pull_weights: slime's alone */
	bool one_by_one;      /* an update takes one tensor, as before 0.4.9: not spoken here */
	const char *version;  /* as /server_info says it, "" unknown */
};

/* The lineage that explains the routes best; the version speaks only between lineages with the same
 * routes. *can is the lineage's table with everything put over it that was seen. */
enum ws_lineage ws_lineage_detect(const struct ws_lineage_signs *signs,
                                  struct ws_capabilities *can);

/* Reads an /openapi.json. -1: it is none, or somebody else's, such as a proxy's: it does not list
 * own_route, which the server has just answered. *signs is then as it was. */
int ws_lineage_read_openapi(const struct ws_json *root, const char *own_route,
                            struct ws_lineage_signs *signs);

/* Asks for each route by itself, all endpoints at once; wanted[i] false: not this one. An endpoint
 * that does not answer, or says yes to anything, is not asked again. -1: cancelled or system. */
int ws_lineage_ask(const struct ws_call *to, const bool *wanted, struct ws_lineage_signs *signs,
                   struct ws_err *err);

/* ---- between the two ---- */

enum ws_presence { WS_NOT_ASKED, WS_ABSENT, WS_PRESENT };
enum { WS_LINEAGE_PATHS_MAX = 48 };

/* The routes that tell something, by number. */
size_t ws_lineage_path_count(void);
const char *ws_lineage_path(size_t i);
/* A capability with several routes is there when all of them are. */
void ws_lineage_sum_up(const enum ws_presence *found, struct ws_lineage_signs *signs);

#endif
