/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_holds.c - reads the names and shapes of endpoints' parameters, and checksums of their
 * bytes.
 *
 * Equal replies of endpoints, perhaps of a hundred thousand names each, are kept once. */
#include "endpoint_call.h"

#include "hashes.h"
#include "listing_read.h"
#include "wsync/tool/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- list ---- */

static int append_escaped(char *dst, size_t n, size_t used, const char *text)
{
	for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
		const bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
		                   (*p >= '0' && *p <= '9') || strchr("._-~", *p);
		if (used + 4 > n)
			return -1;
		used += (size_t)snprintf(dst + used, n - used, plain ? "%c" : "%%%02X", *p);
	}
	return 0;
}

static int list_path(char *dst, size_t n, const char *prefix, unsigned rank, struct ws_err *err)
{
	const int used = snprintf(dst, n, "/list_weights?rank=%u%s", rank,
	                          prefix ? "&prefix=" : "");
	if (prefix && append_escaped(dst, n, (size_t)used, prefix))
		return ws_err_set(err, WS_EUSAGE, "prefix '%.60s...': too long", prefix);
	return 0;
}

static int list_body(struct ws_buf *body, const char *prefix, unsigned rank, struct ws_err *err)
{
	struct ws_jw w;
	ws_jw_init(&w, body);
	ws_jw_object(&w, NULL);
	ws_jw_uint(&w, "rank", rank);
	if (prefix)
		ws_jw_str(&w, "prefix", prefix);
	ws_jw_end_object(&w);
	return ws_buf_check(body, "list_weights", err);
}

/* Sends GET requests, and POST after a 405: some descriptions of this route call it a POST. */
static int ask_lists(const struct ws_call *to, struct ws_endpoint_call *calls, const char *path,
                     const struct ws_buf *body, struct ws_err *err)
{
	for (size_t i = 0; i < to->n; i++)
		if (ws_endpoint_prepare(&calls[i], to->urls[i], "GET", path, NULL, to->until, err))
			return -1;
	if (ws_endpoint_run(to->http, calls, to->n, to->cancel, err))
		return -1;
	for (size_t i = 0; i < to->n; i++)
		if (calls[i].http.status == 405 &&
		    ws_endpoint_prepare(&calls[i], to->urls[i], "POST", path, body,
		                        ws_endpoint_later(to->until), err))
			return -1;
	return ws_endpoint_run(to->http, calls, to->n, to->cancel, err);
}

static int read_list(struct ws_endpoint_call *call, const char *url, struct ws_weight_list *out,
                     struct ws_err *err)
{
	const struct ws_json *root;
	if (ws_endpoint_reply(call, &root, NULL, 0, err) ||
	    ws_endpoint_decode_weights(root, out, err))
		return ws_err_where(err, NULL, url);
	out->priv = call->root;
	call->root = NULL;
	ws_buf_free(&call->http.reply);
	return 0;
}

/* Shares the list of an earlier endpoint if it is the same. */
static void share_list(struct ws_weight_list *outs, const struct ws_err *errs, size_t i)
{
	struct ws_weight_list shared;
	for (size_t k = 0; k < i; k++) {
		if (errs[k].code || !ws_weight_list_same(&outs[k], &outs[i]))
			continue;
		if (ws_weight_list_share(&outs[k], &shared) == 0) {
			ws_weight_list_free(&outs[i]);
			outs[i] = shared;
		}
		return;
	}
}

struct listing {
	const char *const *urls;
	struct ws_weight_list *outs;
};

static int read_or_share_list(void *ctx, struct ws_endpoint_call *calls, size_t i,
                              struct ws_err *errs)
{
	const struct listing *l = ctx;
	if (read_list(&calls[i], l->urls[i], &l->outs[i], &errs[i]))
		return -1;
	share_list(l->outs, errs, i);
	return 0;
}

int ws_endpoint_list_all(const struct ws_call *to, const char *prefix, unsigned rank,
                         struct ws_weight_list *outs, struct ws_err *errs, struct ws_err *err)
{
	struct ws_endpoint_call *calls = calloc(to->n ? to->n : 1, sizeof *calls);
	struct ws_err why = WS_ERR_INIT;
	struct listing l = { to->urls, outs };
	struct ws_buf body;
	char path[WS_PATH_MAX];
	ws_buf_init(&body, 2 * WS_PATH_MAX);
	int rc = calls ? 0 : ws_oom(&why);
	for (size_t i = 0; i < to->n; i++)
		outs[i] = (struct ws_weight_list){ 0 };
	if (!rc)
		rc = list_path(path, sizeof path, prefix, rank, &why);
	if (!rc)
		rc = list_body(&body, prefix, rank, &why);
	if (!rc)
		ask_lists(to, calls, path, &body, &why);
	rc = ws_endpoint_take(calls, to->n, &why, read_or_share_list, &l, errs, err);
	ws_buf_free(&body);
	return rc;
}

/* ---- checksums ---- */

/* The first earlier call that was read without error and has the same reply, else i. */
static size_t find_same(const struct ws_endpoint_call *calls, const struct ws_err *errs, size_t i)
{
	const struct ws_http_call *mine = &calls[i].http;
	for (size_t k = 0; k < i && !mine->err.code && mine->reply.len; k++) {
		const struct ws_http_call *other = &calls[k].http;
		if (errs[k].code == WS_OK && other->status == mine->status &&
		    other->reply.len == mine->reply.len &&
		    memcmp(other->reply.data, mine->reply.data, mine->reply.len) == 0)
			return k;
	}
	return i;
}

static int read_checksums(struct ws_endpoint_call *call, const char *url, struct ws_checksums *out,
                          struct ws_err *err)
{
	const struct ws_json *root;
	if (ws_endpoint_reply(call, &root, NULL, 0, err))
		return -1;
	const int rc = strcmp(call->path, "/weight_checker") == 0 ?
	                       ws_vllm_decode_checksums(root, out, err) :
	                       ws_endpoint_decode_checksums(root, out, err);
	if (rc)
		return ws_err_where(err, NULL, url);
	out->priv = call->root;
	call->root = NULL;
	return 0;
}

struct summing {
	const char *const *urls;
	struct ws_checksums *outs;
};

static int read_or_share_checksums(void *ctx, struct ws_endpoint_call *calls, size_t i,
                                   struct ws_err *errs)
{
	const struct summing *x = ctx;
	const size_t same = find_same(calls, errs, i);
	if (same < i && ws_checksums_share(&x->outs[same], &x->outs[i]) == 0)
		return 0;
	return read_checksums(&calls[i], x->urls[i], &x->outs[i], &errs[i]);
}

/* An unknown server without SGLang's route may be a vLLM. */
static int ask_checksums(const struct ws_call *to, struct ws_endpoint_call *calls,
                         const struct ws_buf *body, struct ws_err *err)
{
	for (size_t i = 0; i < to->n; i++) {
		const enum ws_server_family family =
			to->infos ? ws_lineage_family(to->infos[i]->lineage) : WS_FAMILY_SGLANG;
		if (ws_endpoint_prepare(&calls[i], to->urls[i], "POST",
		                        ws_endpoint_checker_route(family), body, to->until, err))
			return -1;
	}
	if (ws_endpoint_run(to->http, calls, to->n, to->cancel, err))
		return -1;
	for (size_t i = 0; i < to->n && !to->infos; i++)
		if (calls[i].http.status == 404 &&
		    ws_endpoint_prepare(&calls[i], to->urls[i], "POST",
		                        ws_endpoint_checker_route(WS_FAMILY_VLLM), body,
		                        ws_endpoint_later(to->until), err))
			return -1;
	return ws_endpoint_run(to->http, calls, to->n, to->cancel, err);
}

int ws_endpoint_checksums(const struct ws_call *to, struct ws_checksums *outs, struct ws_err *errs,
                          struct ws_err *err)
{
	struct ws_buf body;
	struct summing x = { to->urls, outs };
	struct ws_endpoint_call *calls = calloc(to->n ? to->n : 1, sizeof *calls);
	ws_buf_init(&body, 0);
	ws_buf_puts(&body, "{\"action\":\"checksum\"}");
	struct ws_err why = WS_ERR_INIT;
	int rc = calls ? ws_buf_check(&body, "checksums", &why) : ws_oom(&why);
	for (size_t i = 0; i < to->n; i++)
		outs[i] = (struct ws_checksums){ 0 };
	if (!rc)
		ask_checksums(to, calls, &body, &why);
	rc = ws_endpoint_take(calls, to->n, &why, read_or_share_checksums, &x, errs, err);
	ws_buf_free(&body);
	return rc;
}

/* ---- names of checksums ---- */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct ws_weight *)a)->name, ((const struct ws_weight *)b)->name);
}

/* The names stay in the reply's JSON, which the list takes over. wsync-endpoint reports received
 * tensors by their checkpoint names: such a list is marked as received. */
static int collect_names(struct ws_checksums *sums, struct ws_weight_list *out, struct ws_err *err)
{
	size_t n = 0, kept = 0;
	for (size_t r = 0; r < sums->n_ranks; r++)
		n += sums->ranks[r].n;
	out->items = calloc(n ? n : 1, sizeof *out->items);
	if (!out->items)
		return ws_oom(err);
	for (size_t r = 0; r < sums->n_ranks; r++)
		for (size_t i = 0; i < sums->ranks[r].n; i++) {
			const struct ws_checksum *sum = &sums->ranks[r].items[i];
			if (!ws_checksum_is_draft(sum))
				out->items[out->n++] = (struct ws_weight){ .name = sum->name,
					                                   .dtype = "",
					                                   .shapeless = true };
		}
	qsort(out->items, out->n, sizeof *out->items, by_name);
	for (size_t i = 0; i < out->n; i++)
		if (!kept || strcmp(out->items[kept - 1].name, out->items[i].name))
			out->items[kept++] = out->items[i];
	out->n = kept;
	out->received = ws_checksums_are_ours(sums);
	out->priv = sums->priv;
	sums->priv = NULL;
	return 0;
}

/* Equal replies are one for several servers. So are the lists then, of which one has the JSON. */
static int collect_or_share_names(struct ws_checksums *sums, size_t i, struct ws_weight_list *outs,
                                  struct ws_err *err)
{
	size_t same = 0;
	while (same < i && (!sums[i].users || sums[same].users != sums[i].users))
		same++;
	if (same == i)
		return collect_names(&sums[i], &outs[i], err);
	sums[i].priv = NULL;
	return ws_weight_list_share(&outs[same], &outs[i]) ? ws_oom(err) : 0;
}

int ws_endpoint_checker_names(const struct ws_call *to, struct ws_weight_list *outs,
                              struct ws_err *errs, struct ws_err *err)
{
	struct ws_checksums *sums = calloc(to->n + 1, sizeof *sums);
	if (!sums)
		return ws_oom(err);
	for (size_t i = 0; i < to->n; i++)
		outs[i] = (struct ws_weight_list){ 0 };
	int rc = ws_endpoint_checksums(to, sums, errs, err);
	for (size_t i = 0; i < to->n; i++)
		if (errs[i].code == WS_OK && collect_or_share_names(sums, i, outs, err))
			rc = -1;
	for (size_t i = 0; i < to->n; i++)
		ws_checksums_free(&sums[i]);
	free(sums);
	return rc;
}
