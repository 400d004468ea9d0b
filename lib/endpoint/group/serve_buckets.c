/* SPDX-License-Identifier: Apache-2.0 */
/* serve_buckets.c - requests that announce several buckets at once. All buckets are received before
 * any tensor is loaded. */
#include "serve_core.h"
#include "serve_decode.h"

#include <stdlib.h>
#include <string.h>

/* Appends the tensors of one bucket. */
static int add_bucket(const struct ws_json *node, struct ws_serve_buckets *b, struct ws_err *err)
{
	struct ws_serve_update one = { 0 };
	if (ws_serve_decode_lists(node, &one, err)) {
		ws_serve_update_fini(&one);
		return -1;
	}
	struct ws_serve_slot *slots = realloc(b->all.slots, (b->all.n + one.n + 1) * sizeof *slots);
	if (!slots) {
		ws_serve_update_fini(&one);
		return ws_oom(err);
	}
	b->all.slots = slots;
	memcpy(slots + b->all.n, one.slots, one.n * sizeof *slots);
	b->all.n += one.n;
	b->buckets[b->n++].n = one.n;
	ws_serve_update_fini(&one);
	return 0;
}

static bool given(const struct ws_json *body, const char *key)
{
	const struct ws_json *node = ws_json_get(body, key);
	return node && ws_json_type(node) != WS_JSON_NULL;
}

static int decode(const struct ws_json *body, struct ws_serve_buckets *b, struct ws_err *err)
{
	const struct ws_json *list;
	if (ws_serve_field_list(body, "buckets", false, &list, err))
		return -1;
	b->buckets = calloc(list ? ws_json_count(list) + 1 : 1, sizeof *b->buckets);
	if (!b->buckets)
		return ws_oom(err);
	if (!list)
		return given(body, "names") ? add_bucket(body, b, err) : 0;
	for (const struct ws_json *node = ws_json_first(list); node; node = ws_json_next(node)) {
		if (ws_json_type(node) != WS_JSON_OBJECT)
			return ws_err_set(err, WS_EUSAGE,
			                  "body.buckets.%zu: Input should be a valid dictionary",
			                  b->n);
		if (add_bucket(node, b, err))
			return -1;
	}
	return 0;
}

int ws_serve_decode_buckets(const struct ws_json *body, struct ws_serve_buckets *out,
                            struct ws_err *err)
{
	int64_t announced = 0;
	*out = (struct ws_serve_buckets){ 0 };
	out->all.group = "weight_update_group";
	if (ws_serve_field_str(body, "group_name", false, &out->all.group, err) ||
	    ws_serve_field_str(body, "load_format", false, &out->all.load_format, err) ||
	    (given(body, "num_buckets") &&
	     ws_serve_field_int(body, "num_buckets", &announced, err)) ||
	    decode(body, out, err)) {
		ws_serve_buckets_fini(out);
		return -1;
	}
	out->all.staged = true;
	out->all.flattened = out->all.load_format &&
	                     strcmp(out->all.load_format, "flattened_bucket") == 0;
	out->announced = given(body, "num_buckets") ? announced : (int64_t)out->n;
	return 0;
}

/* Gives each bucket its part of the slots, whose array is never moved after this. */
static void cut(struct ws_serve_buckets *b)
{
	struct ws_serve_slot *slots = b->all.slots;
	for (size_t i = 0; i < b->n; i++) {
		struct ws_serve_update *one = &b->buckets[i];
		const size_t n = one->n;
		*one = b->all;
		one->slots = slots;
		one->n = n;
		one->bytes = 0;
		for (size_t k = 0; k < n; k++)
			one->bytes += slots[k].bytes;
		slots += n;
	}
}

/* Allocates the memory of all buckets at once. A server allocates and keeps it bucket by bucket. */
int ws_serve_stage_buckets(const struct ws_serve *s, struct ws_serve_buckets *b, struct ws_err *err)
{
	struct ws_serve_update *all = &b->all;
	if (ws_serve_check_update(s, all, err))
		return -1;
	cut(b);
	if (s->opts.keep != WS_KEEP_MEMORY)
		return 0;
	b->block = malloc(all->bytes ? (size_t)all->bytes : 1);
	if (!b->block)
		return ws_err_set(err, WS_ESYSTEM,
		                  "not enough memory: you tried to allocate %llu bytes",
		                  (unsigned long long)all->bytes);
	uint8_t *at = b->block;
	for (size_t i = 0; i < all->n; i++) {
		all->slots[i].data = at;
		at += all->slots[i].bytes;
	}
	return 0;
}

void ws_serve_buckets_fini(struct ws_serve_buckets *b)
{
	ws_serve_update_fini(&b->all);
	free(b->buckets);
	free(b->block);
	*b = (struct ws_serve_buckets){ 0 };
}
