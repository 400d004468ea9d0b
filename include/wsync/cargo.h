/* SPDX-License-Identifier: Apache-2.0 */
/* cargo.h - what somebody wants to send, opened: the sources, the config.json that goes with them, the
 * family that it names, and the catalog of tensors as servers want them.
 *
 * The config is the one that was given, else the source's own; a synthetic model has one too. Without
 * any, or where no family is known by it, names are taken as they are but for wrappers' segments. */
#ifndef WSYNC_CARGO_H
#define WSYNC_CARGO_H

#include "wsync/catalog.h"
#include "wsync/config.h"
#include "wsync/namemap.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ws_cargo_opts {
	const char *const *paths;  /* of ws_source_open; several are one checkpoint, unless sharded */
	size_t n_paths;
	const char *config;        /* a directory or a config.json; NULL: the source's own */
	const char *map;           /* more families (ws_namemap_open); NULL */
	unsigned sharded_tp;       /* > 0: as many paths, each what one tensor-parallel rank saved */
	unsigned sharded_ep;       /* 0: 1 */
	bool lenient;              /* a config of the source's own that cannot be read or used is none */
	bool no_items;             /* stop before the catalog: config and family are what is wanted */
};

struct ws_cargo {
	struct ws_source **sources;
	size_t n_sources;
	struct ws_namemap *map;
	struct ws_config *config;         /* NULL: there is none */
	const struct ws_family *family;   /* the generic one where no other fits */
	bool generic;                     /* it is that */
	struct ws_layout *layout;         /* at tp 1; NULL: no config, or generic */
	struct ws_layout *sharded;        /* with the tp and ep that the source was saved with; NULL */
	struct ws_catalog *items;
};

/* No path is fine with no_items. Sharded sources without a known family: WS_EINPUT. */
int ws_cargo_open(const struct ws_cargo_opts *opts, struct ws_cargo *out, struct ws_err *err);
void ws_cargo_close(struct ws_cargo *c); /* NULL is fine */

/* The config that lies with a source, or that of a synthetic model; *out NULL: it has none. */
int ws_source_config(const struct ws_source *s, struct ws_config **out, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
