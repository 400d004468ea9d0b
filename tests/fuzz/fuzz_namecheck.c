/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever is sent to whatever server, the check ends, and its findings are in order and printable.
 *
 * The first byte chooses model, sizes and options. Behind it are two listings (listing.h),
 * parted by a line "==": what is sent, and what the server shows. */
#include "listing_read.h"
#include "wsync/tool/namecheck.h"
#include "wsync/tool/json_read.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static const char *const configs[] = {
	"{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"hidden_size\":"
	"256,"
	"\"intermediate_size\":512,\"moe_intermediate_size\":256,\"num_hidden_layers\":2,"
	"\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":64,\"num_experts\":2,"
	"\"vocab_size\":100,\"quantization_config\":{\"quant_method\":\"fp8\","
	"\"weight_block_size\":[128,128]}}",
	"{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"hidden_size\":8,"
	"\"intermediate_size\":16,\"num_hidden_layers\":2,\"num_attention_heads\":2,"
	"\"num_key_value_heads\":1,\"head_dim\":4,\"vocab_size\":100,\"tie_word_embeddings\":true,"
	"\"text_config\":{\"tie_word_embeddings\":false}}",
	"{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"hidden_size\":"
	"8,"
	"\"intermediate_size\":16,\"moe_intermediate_size\":8,\"num_hidden_layers\":1,"
	"\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":4,\"num_experts\":2,"
	"\"vocab_size\":100,\"quantization_config\":{\"quant_method\":\"fp8\","
	"\"activation_scheme\":\"static\"}}",
};
enum { CONFIGS = sizeof configs / sizeof configs[0] };

static void require(int true_here)
{
	if (!true_here)
		abort();
}

/* The list as a safetensors file with a hole for data; its descriptor, or
 * -1: too large, or no file. */
static int write_source(const struct ws_weight_list *list)
{
	struct ws_buf text;
	struct ws_jw w;
	uint64_t at = 0;
	ws_buf_init(&text, 1 << 20);
	ws_jw_init(&w, &text);
	ws_jw_object(&w, NULL);
	for (size_t i = 0; i < list->n; i++) {
		enum ws_dtype dtype;
		uint64_t bytes;
		const struct ws_weight *p = &list->items[i];
		if (!ws_dtype_from_torch(p->dtype, &dtype))
			dtype = WS_DTYPE_BF16;
		if (!ws_dtype_bytes(dtype, p->n_dims, p->dims, &bytes) || bytes > 1 << 20)
			continue;
		ws_jw_object(&w, p->name);
		ws_jw_str(&w, "dtype", ws_dtype_safetensors(dtype));
		ws_jw_array(&w, "shape");
		for (unsigned d = 0; d < p->n_dims; d++)
			ws_jw_int(&w, NULL, p->dims[d]);
		ws_jw_end_array(&w);
		ws_jw_array(&w, "data_offsets");
		ws_jw_uint(&w, NULL, at);
		ws_jw_uint(&w, NULL, at += bytes);
		ws_jw_end_array(&w);
		ws_jw_end_object(&w);
	}
	ws_jw_end_object(&w);
	int fd = text.failed ? -1 : memfd_create("sent", MFD_CLOEXEC);
	if (fd >= 0) {
		const uint64_t n = text.len;
		unsigned char head[8];
		for (unsigned i = 0; i < 8; i++)
			head[i] = (unsigned char)(n >> 8 * i);
		require(write(fd, head, 8) == 8 &&
		        write(fd, text.data, text.len) == (ssize_t)text.len &&
		        ftruncate(fd, (off_t)(8 + text.len + at)) == 0);
	}
	ws_buf_free(&text);
	return fd;
}

static void check_findings(const struct ws_findings *f)
{
	size_t at = 0, kinds = 0;
	for (size_t g = 0; g < f->n_groups; g++) {
		const struct ws_finding_group *p = &f->groups[g];
		require(p->first == at && p->n > 0 && p->reason && *p->reason && p->remedy);
		require(!g || p->severity <= p[-1].severity);
		at += p->n;
		for (size_t i = p->first; i < at; i++) {
			const struct ws_finding *it = &f->items[i];
			require(it->group == g && it->verdict == p->verdict &&
			        it->severity == p->severity);
			require(it->name && *it->name && it->param && it->near && it->rule &&
			        *it->reason);
			for (const unsigned char *c = (const unsigned char *)it->reason; *c; c++)
				require(*c >= 0x20 && *c != 0x7f);
		}
	}
	for (size_t v = 0; v < WS_NAME_VERDICTS; v++)
		kinds += f->count[v];
	require(at == f->n && kinds == f->n && f->errors + f->warnings + f->notes == f->n);
}

static void check(unsigned flags, const struct ws_source *source,
                  const struct ws_weight_list *shown)
{
	static struct ws_namemap *map;
	static struct ws_config *config[CONFIGS];
	struct ws_err err = WS_ERR_INIT;
	for (unsigned i = 0; !map && i < CONFIGS; i++)
		require(!ws_config_parse(configs[i], strlen(configs[i]), "config", &config[i],
		                         &err));
	require(map || !ws_namemap_open(NULL, &map, &err));
	const struct ws_config *c = config[(flags & 9) == 9 ? 2 : flags & 1];
	const struct ws_family *family = ws_namemap_find(map, c);
	const struct ws_layout_opts sizes = { .tp = 1u << (flags >> 1 & 3),
		                              .unquantized = (flags & 9) == 8 };
	const struct ws_catalog_opts plain = { .family = flags & 0x20 ? family : NULL };
	struct ws_layout *layout = NULL;
	struct ws_catalog *items = NULL;
	struct ws_findings found;
	require(flags & 0x10 || !ws_layout_make(family, c, &sizes, &layout, &err));
	if (!ws_catalog_make(&source, 1, &plain, &items, &err)) {
		const struct ws_namecheck_opts o = {
			.items = items,
			.layout = layout,
			.listing = shown->n ? shown : NULL,
			.family = family,
			.config = c,
			.whole_modules = flags >> 6 & 1,
			.scan = flags >> 7 & 1,
		};
		if (!ws_namecheck(&o, &found, &err)) {
			check_findings(&found);
			ws_findings_free(&found);
		}
		ws_catalog_free(items);
	}
	ws_layout_free(layout);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct ws_weight_list sent = { 0 }, shown = { 0 };
	struct ws_source *source = NULL;
	struct ws_err err;
	char path[64];
	if (size < 1 || size > 1 << 16)
		return 0;
	const char *text = (const char *)data + 1;
	const char *part = memmem(text, size - 1, "\n==\n", 4);
	const size_t first = part ? (size_t)(part - text) : size - 1;
	if (part)
		ws_weight_list_parse(part + 4, size - 1 - first - 4, "shown", &shown, &err);
	if (!ws_weight_list_parse(text, first, "sent", &sent, &err)) {
		const int fd = write_source(&sent);
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		const char *const paths[] = { path };
		if (fd >= 0 && !ws_source_open(paths, 1, &source, &err))
			check(data[0], source, &shown);
		ws_source_close(source);
		if (fd >= 0)
			close(fd);
	}
	ws_weight_list_free(&sent);
	ws_weight_list_free(&shown);
	return 0;
}
