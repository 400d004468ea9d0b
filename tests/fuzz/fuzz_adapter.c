/* SPDX-License-Identifier: Apache-2.0 */
/* An adapter: adapter_config.json, a NUL, and lines "NAME DIM DIM [DIM]" of its tensors. What
 * binds must lie within its factors and within its target. */
#include "lora_priv.h"

#include "wsync/tool/input.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TENSORS = 64 };

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static const char model[] =
	"{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"hidden_size\":"
        "16,"
	"\"intermediate_size\":24,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
	"\"num_key_value_heads\":2,\"head_dim\":4,\"vocab_size\":40,\"num_experts\":4,"
	"\"num_experts_per_tok\":2,\"moe_intermediate_size\":8,\"decoder_sparse_step\":1,"
	"\"mlp_only_layers\":[]}";

static struct ws_input base;

static void require(int true_here)
{
	if (!true_here)
		abort();
}

/* A checkpoint of all parts of that model, but for q, k and v, which it
 * keeps fused; all bytes zero. */
static void write_base(const struct ws_layout *layout, const char *path)
{
	struct ws_buf text;
	uint64_t at = 0;
	ws_buf_init(&text, 0);
	for (size_t i = 0; i <= ws_layout_part_count(layout); i++) {
		static const struct ws_part more = { .name = "extra.experts.down_proj", .n_dims = 3,
			                             .dims = { 4, 16, 16 } };
		const bool last = i == ws_layout_part_count(layout);
		const struct ws_part *p = last ? &more : ws_layout_part(layout, i);
		uint64_t n = 2;
		ws_buf_printf(&text, "%c\"%s\":{\"dtype\":\"BF16\",\"shape\":[", i ? ',' : '{',
		              p->name);
		for (unsigned d = 0; d < p->n_dims; d++) {
			ws_buf_printf(&text, "%s%lld", d ? "," : "", (long long)p->dims[d]);
			n *= (uint64_t)p->dims[d];
		}
		ws_buf_printf(&text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
		              (unsigned long long)(at + n));
		at += n;
	}
	ws_buf_putc(&text, '}');
	const uint64_t n = text.len;
	FILE *f = fopen(path, "wb");
	require(f && fwrite(&n, sizeof n, 1, f) == 1 && fwrite(text.data, text.len, 1, f) == 1);
	require(fflush(f) == 0 && ftruncate(fileno(f), (off_t)(sizeof n + text.len + at)) == 0);
	fclose(f);
	ws_buf_free(&text);
}

static void open_base(void)
{
	char path[] = "/tmp/wsync-fuzz-XXXXXX.safetensors";
	const char *paths[] = { path };
	const struct ws_layout_opts whole = { .tp = 1 };
	struct ws_err err = WS_ERR_INIT;
	close(mkstemps(path, 12));
	require(ws_namemap_open(NULL, &base.map, &err) == 0);
	require(ws_config_parse(model, strlen(model), "model", &base.config, &err) == 0);
	base.family = ws_namemap_find(base.map, base.config);
	require(ws_layout_make(base.family, base.config, &whole, &base.layout, &err) == 0);
	write_base(base.layout, path);
	base.sources = calloc(1, sizeof *base.sources);
	require(base.sources && ws_source_open(paths, 1, base.sources, &err) == 0);
	const struct ws_catalog_opts opts = { .family = base.family, .layout = base.layout };
	require(ws_catalog_make((const struct ws_source *const *)base.sources, 1, &opts,
	                        &base.stored, &err) == 0);
	base.catalog = base.stored;
	unlink(path);
}

static size_t read_items(const char *text, size_t n, char *names, struct ws_item *items)
{
	size_t count = 0;
	memcpy(names, text, n);
	names[n] = 0;
	for (char *line = strtok(names, "\n"); line && count < MAX_TENSORS;
	     line = strtok(NULL, "\n")) {
		struct ws_item *x = &items[count];
		char *p = strchr(line, ' ');
		*x = (struct ws_item){ .name = line, .dtype = WS_DTYPE_BF16 };
		for (; p && x->n_dims < 4; p = strchr(p, ' ')) {
			*p++ = 0;
			x->dims[x->n_dims++] = (int64_t)(strtoul(p, NULL, 10) & 0xffff);
		}
		if (ws_dtype_bytes(x->dtype, x->n_dims, x->dims, &x->bytes))
			count++;
	}
	return count;
}

static void check_delta(const struct ws_delta *d, const struct ws_item *target)
{
	const int64_t cols = target->dims[target->n_dims - 1],
		      rows = (int64_t)(target->bytes / 2) / cols;
	require(d->rank > 0 && d->rows > 0 && d->row >= 0 && d->row + d->rows <= rows &&
	        d->cols == cols);
	require(d->a_row > 0 && d->a_col > 0 && d->b_row > 0 && d->b_col > 0);
	require(d->a_at + (uint64_t)((d->rank - 1) * d->a_row + (d->cols - 1) * d->a_col) <
	        d->a->bytes / 2);
	require(d->b_at + (uint64_t)((d->rows - 1) * d->b_row + (d->rank - 1) * d->b_col) <
	        d->b->bytes / 2);
}

static void bind(struct ws_adapter *a, const struct ws_layout *layout)
{
	struct ws_bindings b;
	struct ws_err err = WS_ERR_INIT;
	if (ws_adapter_bind(a, base.catalog, layout, NULL, NULL, &b, &err)) {
		require(err.code == WS_EINPUT && err.msg[0] && b.n == 0);
		return;
	}
	require(b.n > 0);
	for (size_t i = 0; i < b.n; i++) {
		const struct ws_item *target = ws_catalog_find(base.catalog, b.items[i].target);
		require(target && ws_bindings_find(&b, target->name) == &b.items[i]);
		require(b.items[i].n_deltas || b.items[i].replaced);
		require(i == 0 || strcmp(b.items[i - 1].target, b.items[i].target) < 0);
		for (size_t k = 0; k < b.items[i].n_deltas; k++)
			check_delta(&b.items[i].deltas[k], target);
	}
	ws_bindings_free(&b);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	static char names[1 << 16];
	struct ws_item items[MAX_TENSORS];
	const struct ws_item *list[MAX_TENSORS];
	const unsigned char *end = memchr(data, 0, size);
	struct ws_adapter a = { .dir = NULL };
	struct ws_err err = WS_ERR_INIT;
	if (!end || size >= sizeof names)
		return 0;
	if (!base.catalog)
		open_base();
	if (ws_lora_config_parse((const char *)data, (size_t)(end - data), "fuzz", &a.config,
	                         &err)) {
		require(err.code == WS_EINPUT && err.msg[0]);
		return 0;
	}
	const size_t n =
		read_items((const char *)end + 1, size - (size_t)(end - data) - 1, names, items);
	for (size_t i = 0; i < n; i++)
		list[i] = &items[i];
	if (ws_adapter_take(&a, list, n, &err) == 0) {
		bind(&a, NULL);
		ws_adapter_suit(&a, base.family, base.config);
		bind(&a, base.layout);
	} else {
		require(err.code == WS_EINPUT && err.msg[0]);
	}
	ws_lora_config_free(&a.config);
	ws_arena_free(&a.arena);
	return 0;
}
