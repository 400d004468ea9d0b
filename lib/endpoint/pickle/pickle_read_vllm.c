/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_read_vllm.c - reads the handles of GPU memory that a trainer sends to vLLM (pickle.h).
 * vLLM unpickles them without a list of allowed names; this reader knows only those of tensors. */
#include "pickle_bucket.h"
#include "pickle_machine.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_GPUS = 32 };

/* Returns the entry of this GPU from the dictionary {uuid: entry}; NULL: it has none. */
static const struct pickle_value *entry_of(const struct pickle *p, const struct pickle_value *v,
                                           const char *uuid, struct ws_err *err)
{
	struct ws_buf text;
	if (!v || v->kind != PICKLE_DICT || v->n > 2 * MOST_GPUS) {
		pickle_bad("no dictionary of handles by the UUID of their GPU", err);
		return NULL;
	}
	const struct pickle_value *found = pickle_get(p, v, uuid);
	if (found)
		return found;
	ws_buf_init(&text, 0);
	for (uint32_t i = 0; i + 1 < v->n; i += 2) {
		const struct pickle_value *key = pickle_child(p, v, i);
		if (key->kind == PICKLE_STR)
			ws_buf_printf(&text, "%s'%.*s'", i ? ", " : "",
			              (int)(key->len < 80 ? key->len : 80), key->text);
	}
	ws_err_set(err, WS_EINPUT, "IPC handle not found for GPU UUID %s. Available UUIDs: [%s]",
	           uuid, ws_buf_str(&text));
	ws_buf_free(&text);
	return NULL;
}

/* The tuple of arguments: alone, or behind the function. */
static const struct pickle_value *args_of(const struct pickle *p, const struct pickle_value *v,
                                          bool with_function, struct ws_err *err)
{
	const struct pickle_value *args = v;
	if (with_function) {
		const bool is_pair = v->kind == PICKLE_TUPLE && v->n == 2 &&
		                     pickle_is_global(pickle_child(p, v, 0),
		                                      "torch.multiprocessing.reductions",
		                                      "rebuild_cuda_tensor");
		args = is_pair ? pickle_child(p, v, 1) : NULL;
	}
	if (args && args->kind == PICKLE_TUPLE)
		return args;
	pickle_bad(with_function ? "a handle is not rebuild_cuda_tensor and its arguments" :
	                           "a handle is not a tuple of arguments",
	           err);
	return NULL;
}

static int read_packed(const struct pickle *p, const char *uuid, struct ws_pickle_shared *out,
                       struct ws_err *err)
{
	const struct pickle_value *entry = entry_of(p, pickle_at(p, p->result), uuid, err);
	const struct pickle_value *args = entry ? args_of(p, entry, false, err) : NULL;
	out->n = 1;
	return args ? pickle_read_cuda(p, args, &out->items[0], err) : -1;
}

static int read_tensors(const struct pickle *p, const char *uuid, bool with_function,
                        struct ws_pickle_shared *out, struct ws_err *err)
{
	const struct pickle_value *list = pickle_at(p, p->result);
	const struct pickle_cell *cells = p->cells.items;
	for (uint32_t c = list->first; c != PICKLE_NOTHING; c = cells[c].next) {
		struct ws_pickle_bucket *item = &out->items[out->n++];
		const struct pickle_value *entry =
			entry_of(p, pickle_at(p, cells[c].value), uuid, err);
		const struct pickle_value *args =
			entry ? args_of(p, entry, with_function, err) : NULL;
		if (!args)
			return -1;
		item->tensors = calloc(1, sizeof *item->tensors);
		item->n = 1;
		if (!item->tensors)
			return ws_oom(err);
		if (pickle_read_cuda_tensor(p, args, item, item->tensors, err))
			return -1;
	}
	return 0;
}

int ws_pickle_read_shared(const void *data, size_t n, const char *uuid, size_t n_names,
                          bool with_function, struct ws_pickle_shared *out, struct ws_err *err)
{
	struct pickle p;
	*out = (struct ws_pickle_shared){ 0 };
	int rc = pickle_run(&p, data, n, err);
	const struct pickle_value *root = rc ? NULL : pickle_at(&p, p.result);
	const bool is_list = root && root->kind == PICKLE_LIST;
	if (is_list && root->n != n_names)
		rc = ws_err_set(err, WS_EINPUT,
		                "`ipc_handles` should be of the same size as `names`: got %u and "
		                "%zu", root->n, n_names);
	if (rc == 0) {
		out->packed = !is_list;
		out->items = calloc(is_list ? root->n + 1 : 1, sizeof *out->items);
		rc = !out->items ? ws_oom(err) :
		     is_list     ? read_tensors(&p, uuid, with_function, out, err) :
		                   read_packed(&p, uuid, out, err);
	}
	pickle_close(&p);
	if (rc)
		ws_pickle_free_shared(out);
	return rc;
}

void ws_pickle_free_shared(struct ws_pickle_shared *s)
{
	for (size_t i = 0; i < s->n; i++)
		ws_pickle_free(&s->items[i]);
	free(s->items);
	*s = (struct ws_pickle_shared){ 0 };
}
