/* SPDX-License-Identifier: Apache-2.0 */
/* What another sender says, or a file holds: a list that was believed is sorted and is written
 * as it was read; a share stays within the tensors that it was read against. */
#include "round.h"
#include "senders.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void try_list(const unsigned char *data, size_t size)
{
	struct ws_sender_list l;
	struct ws_buf text;
	if (ws_senders_read_list(data, size, &l, NULL))
		return;
	for (size_t i = 1; i < l.n; i++)
		if (strcmp(l.tensors[i - 1].name, l.tensors[i].name) >= 0)
			abort();
	ws_buf_init(&text, 0);
	ws_senders_write_list(&l, &text);
	if (!text.failed && (text.len != size || memcmp(text.data, data, size) != 0))
		abort();
	ws_buf_free(&text);
	ws_senders_list_free(&l);
}

static void try_share(const unsigned char *data, size_t size)
{
	struct ws_plan_tensor tensors[] = {
		{ .name = "a", .dtype = WS_DTYPE_F32, .n_dims = 1, .dims = { 8 }, .bytes = 32 },
		{ .name = "b", .dtype = WS_DTYPE_BF16, .n_dims = 2, .dims = { 4, 6 }, .bytes = 48 },
	};
	const struct ws_sender_list mine = { .tensors = tensors, .n = 2 };
	struct ws_share s;
	if (ws_share_read(data, size, &mine, &s, NULL))
		return;
	for (size_t i = 0; i < s.n_stripes; i++) {
		const struct ws_stripe *x = &s.stripes[i];
		for (unsigned d = 0; x->tensor && d < x->tensor->n_dims; d++)
			if (x->at[d] < 0 || x->size[d] < 1 ||
			    x->at[d] + x->size[d] > x->tensor->dims[d])
				abort();
	}
	for (size_t i = 0; i < s.n_sends; i++)
		if (s.sends[i].rank >= s.world_size ||
		    s.sends[i].first + s.sends[i].n > s.n_stripes)
			abort();
	ws_share_free(&s);
}

/* Parts that were believed are sorted, and come back as they were. */
static void try_parts(const char *data, size_t size)
{
	struct ws_parts p, back;
	struct ws_buf text;
	if (ws_parts_read(data, size, &p, NULL))
		return;
	ws_buf_init(&text, 0);
	ws_parts_write(&p, &text);
	if (text.failed || ws_parts_read(ws_buf_str(&text), text.len, &back, NULL))
		abort();
	if (back.n_tensors != p.n_tensors || back.n_servers != p.n_servers)
		abort();
	for (size_t i = 0; i < p.n_tensors; i++)
		if (strcmp(p.tensors[i].name, back.tensors[i].name) ||
		    (i && strcmp(p.tensors[i - 1].name, p.tensors[i].name) >= 0))
			abort();
	ws_buf_free(&text);
	ws_parts_free(&back);
	ws_parts_free(&p);
}

static void try_round(const unsigned char *data, size_t size)
{
	static struct ws_round r;
	char text[600], *copy = malloc(size + 1);
	if (!copy)
		return;
	memcpy(copy, data, size);
	copy[size] = 0;
	struct ws_parts parts;
	ws_round_read(copy, size, &r, &parts);
	if (r.senders > WS_ROUND_SENDERS || ws_round_count(&r) > r.senders)
		abort();
	ws_parts_free(&parts);
	try_parts(copy, size);
	ws_round_describe(&r, text, sizeof text);
	ws_round_list(&r, text, sizeof text);
	free(copy);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct ws_err err = WS_ERR_INIT;
	try_round(data, size);
	try_list(data, size);
	try_share(data, size);
	(void)ws_senders_read_end(data, size, &err);
	return 0;
}
