/* SPDX-License-Identifier: Apache-2.0 */
/* targets.h - the endpoints of a command, and the API key. */
#ifndef WSYNC_CMD_TARGETS_H
#define WSYNC_CMD_TARGETS_H

#include "opt.h"
#include "ui.h"

#include "wsync/endpoint.h"
#include "wsync/err.h"

/* "auto", then the lineages; indexes are the values of enum ws_lineage. */
extern const char *const targets_lineages[];
#define OPT_LINEAGE(lineage) \
	OPT_CHOICE(0, "lineage", targets_lineages, lineage, \
		"server family (auto: detect)")

struct targets {
	const char **urls; /* normalized */
	size_t n;
	char *api_key;     /* as in ws_client_opts; NULL: none */
	const char *ca_file; /* NULL: the system's */
	struct ws_http *http; /* NULL before targets_connect */
	struct ws_endpoint_info *infos; /* of each; NULL before targets_probe, as errs */
	struct ws_err *errs;
};

/* The URLs given by --endpoint, else those of the registry (of one pool with --pool). None at all
 * is WS_EUSAGE unless optional. Warns about a key file that others can read. */
int targets_find(struct targets *t, const struct opt_common *common, bool optional, struct ui *ui,
                 struct ws_err *err);
/* The same without the key. */
int targets_find_urls(struct targets *t, const struct opt_common *common, bool optional,
                      struct ws_err *err);
/* Finds only the key and the certificates, for a command that finds its endpoints
 * elsewhere. The caller zeroes *t. */
int targets_read_key(struct targets *t, const struct opt_common *common, struct ui *ui,
                     struct ws_err *err);
/* Reads a key from a file. The caller frees the key. Warns if others can read the file. */
int targets_read_file(const char *path, char **key, struct ui *ui, struct ws_err *err);
int targets_connect(struct targets *t, const struct opt_common *common, const struct ui *ui,
                    struct ws_err *err);
/* Requests to all endpoints, which end after ns or when the program is cancelled. */
struct ws_call targets_call(const struct targets *t, int64_t ns);
/* Detects all endpoints, once; fails if an endpoint does not answer. Then infos and errs are set
 * too, unless memory ran out. */
int targets_probe(struct targets *t, ws_deadline until, struct ws_err *err);
/* Has endpoint i weights that can be read, by its own word and the records of this user? If not, a
 * request to read them may crash the server: *err says why. */
bool targets_readable(const struct targets *t, size_t i, const char *state_dir, struct ws_err *err);
/* -1: one of them has not. Detects them, unless that was done before. */
int targets_check_readable(struct targets *t, const char *state_dir, ws_deadline until,
                           struct ws_err *err);
/* Exchanges the endpoints of two, and nothing else. */
void targets_swap_urls(struct targets *a, struct targets *b);
/* Closes the connections, too. */
void targets_free(struct targets *t);

#endif
