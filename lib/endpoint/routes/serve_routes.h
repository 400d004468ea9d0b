/* SPDX-License-Identifier: Apache-2.0 */
/* serve_routes.h - the table of routes, and what happens to every request. */
#ifndef WS_ENDPOINT_SERVE_ROUTES_H
#define WS_ENDPOINT_SERVE_ROUTES_H

#include "serve_http.h"

#include "wsync/tool/serve.h"

/* False, with a complete 401, when the request lacks the key. Needs no body. */
bool ws_serve_admit(struct ws_serve *s, const struct ws_serve_request *rq,
                    struct ws_serve_reply *rp);
/* Runs the request to its end, which may take as long as a group takes to form. */
void ws_serve_handle(struct ws_serve *s, const struct ws_serve_request *rq,
                     struct ws_serve_reply *rp);

/* Route i of the table, NULL where that lineage does not have it. i beyond the last: *end. */
const char *ws_serve_route_at(size_t i, enum ws_serve_lineage lineage, bool *get, bool *post,
                              bool *end);
/* The route's canonical name (no slash), or NULL where that lineage has no such route. */
const char *ws_serve_route_name(const char *name, enum ws_serve_lineage lineage);

#endif
