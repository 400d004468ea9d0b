/* SPDX-License-Identifier: Apache-2.0 */
/* serve_corrupt_parse.c - how a corruption is asked for:
 *
 *   HOW[,KEY=VALUE]...
 *   HOW   flip, truncate, permute, drop, copy, swap, retype, drop-bucket, stale-bucket,
 *         repeat-bucket, swap-buckets
 *   KEY   at=N|middle|last|padding, bit=N (flip); bytes=N (truncate); as=DTYPE (retype); rank=N;
 *         tensor=GLOB, which is the last one: the rest is the glob */
#include "serve_corrupt.h"
#include "serve_model.h"

#include "wsync/tool/str.h"

#include <string.h>

static const char *const hows[] = {
	[WS_CORRUPT_FLIP] = "flip",
	[WS_CORRUPT_TRUNCATE] = "truncate",
	[WS_CORRUPT_PERMUTE] = "permute",
	[WS_CORRUPT_DROP] = "drop",
	[WS_CORRUPT_COPY] = "copy",
	[WS_CORRUPT_SWAP] = "swap",
	[WS_CORRUPT_RETYPE] = "retype",
	[WS_CORRUPT_DROP_BUCKET] = "drop-bucket",
	[WS_CORRUPT_STALE_BUCKET] = "stale-bucket",
	[WS_CORRUPT_REPEAT_BUCKET] = "repeat-bucket",
	[WS_CORRUPT_SWAP_BUCKETS] = "swap-buckets",
};
enum { N_HOWS = sizeof hows / sizeof hows[0] };

static int parse_how(const char *text, const char *spec, size_t n, struct ws_serve_corrupt *c,
                     struct ws_err *err)
{
	for (size_t i = 0; i < N_HOWS; i++)
		if (strlen(hows[i]) == n && memcmp(hows[i], spec, n) == 0) {
			c->how = (enum ws_serve_corruption)i;
			return 0;
		}
	return ws_err_set(
		err, WS_EUSAGE,
		"fault '%s': corruption is none of flip, truncate, permute, drop, "
		"copy, swap, retype, drop-bucket, stale-bucket, repeat-bucket, swap-buckets",
		text);
}

static int parse_spot(const char *value, struct ws_serve_corrupt *c, struct ws_err *err)
{
	static const char *const spots[] = { "middle", "last", "padding" };
	for (size_t i = 0; i < 3; i++)
		if (strcmp(value, spots[i]) == 0) {
			c->spot = (enum ws_serve_spot)(WS_AT_MIDDLE + i);
			return 0;
		}
	return ws_parse_uint(value, 0, UINT64_MAX, "at", &c->at, err);
}

/* One KEY=VALUE of those that end at a comma. */
static int parse_key(const char *key, const char *value, struct ws_serve_corrupt *c,
                     struct ws_err *err)
{
	uint64_t number = 0;
	if (strcmp(key, "at") == 0 && c->how == WS_CORRUPT_FLIP)
		return parse_spot(value, c, err);
	if (strcmp(key, "bytes") == 0 && c->how == WS_CORRUPT_TRUNCATE)
		return ws_parse_uint(value, 1, UINT64_MAX, "bytes", &c->bytes, err);
	if (strcmp(key, "as") == 0 && c->how == WS_CORRUPT_RETYPE)
		return ws_dtype_from_torch(value, &c->as) ?
		               0 :
		               ws_err_set(err, WS_EUSAGE, "as: no type '%s'", value);
	if (strcmp(key, "bit") == 0 && c->how == WS_CORRUPT_FLIP) {
		const int rc = ws_parse_uint(value, 0, 7, "bit", &number, err);
		c->bit = (unsigned)number;
		return rc;
	}
	if (strcmp(key, "rank") == 0) {
		const int rc = ws_parse_uint(value, 0, WS_SERVE_MAX_TP - 1, "rank", &number, err);
		c->rank = (int)number;
		return rc;
	}
	return ws_err_set(err, WS_EUSAGE, "%s: not of a %s", key, hows[c->how]);
}

static int parse_keys(const char *at, struct ws_serve_fault *f, struct ws_err *err)
{
	static const char tensor[] = "tensor=";
	char pair[64];
	while (*at) {
		if (strncmp(at, tensor, sizeof tensor - 1) == 0) {
			at += sizeof tensor - 1;
			if (!*at || strlen(at) >= sizeof f->tensor)
				return ws_err_set(err, WS_EUSAGE, "no such tensor");
			memcpy(f->tensor, at, strlen(at) + 1);
			return 0;
		}
		const size_t n = strcspn(at, ",");
		if (n >= sizeof pair)
			return ws_err_set(err, WS_EUSAGE, "no KEY=VALUE is so long");
		memcpy(pair, at, n);
		pair[n] = 0;
		char *equals = strchr(pair, '=');
		if (!equals)
			return ws_err_set(err, WS_EUSAGE, "'%s' is not of the form KEY=VALUE",
			                  pair);
		*equals = 0;
		if (parse_key(pair, equals + 1, &f->corrupt, err))
			return -1;
		at += n + (at[n] != 0);
	}
	return 0;
}

int ws_serve_corrupt_parse(const char *text, const char *spec, struct ws_serve_fault *f,
                           struct ws_err *err)
{
	const size_t n = strcspn(spec, ",");
	f->corrupt = (struct ws_serve_corrupt){ .rank = -1, .as = WS_DTYPE_COUNT };
	memcpy(f->tensor, "*", 2);
	if (parse_how(text, spec, n, &f->corrupt, err))
		return -1;
	if (parse_keys(spec + n + (spec[n] != 0), f, err))
		return ws_err_wrap(err, "fault '%s'", text);
	if (f->corrupt.how == WS_CORRUPT_RETYPE && f->corrupt.as == WS_DTYPE_COUNT)
		return ws_err_set(err, WS_EUSAGE, "fault '%s': as=DTYPE is missing", text);
	return 0;
}

int ws_serve_corrupt_check(const struct ws_serve *s, const struct ws_serve_fault *f,
                           struct ws_err *err)
{
	if (f->kind != WS_FAULT_CORRUPT)
		return 0;
	if (s->opts.keep != WS_KEEP_MEMORY)
		return ws_err_set(err, WS_EUSAGE, "fault corrupt needs --keep memory");
	if (!s->model && (f->corrupt.rank > 0 || f->corrupt.spot == WS_AT_PADDING))
		return ws_err_set(err, WS_EUSAGE,
		                  "fault corrupt: without --model there is one copy for all "
		                  "ranks, and no padding");
	if (f->corrupt.rank >= (int)s->opts.tp)
		return ws_err_set(err, WS_EUSAGE, "fault corrupt: rank %d of %u", f->corrupt.rank,
		                  s->opts.tp);
	return 0;
}
