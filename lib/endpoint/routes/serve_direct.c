/* SPDX-License-Identifier: Apache-2.0 */
/* serve_direct.c - load_format "direct": copies tensors into the parameters of exactly these
 * names, without the model's loader. A tensor must have the shape of a rank's share, and all
 * ranks get the same bytes. */
#include "serve_fetch.h"
#include "serve_model.h"

#include <string.h>

static int check_shape(const struct ws_serve_model *m, const struct ws_param *p, unsigned rank,
                       const struct ws_serve_slot *slot, struct ws_err *err)
{
	int64_t dims[WS_MAX_DIMS];
	ws_layout_dims(m->layout, p, rank, dims);
	if (p->n_dims == slot->n_dims && memcmp(dims, slot->dims, p->n_dims * sizeof dims[0]) == 0)
		return 0;
	return ws_serve_refuse_shape(slot, p->n_dims, dims, err);
}

static int copy(struct ws_serve_model *m, const struct ws_serve_slot *slot, struct ws_err *err)
{
	const struct ws_param *p = ws_layout_find_param(m->layout, slot->name);
	if (!p)
		return ws_err_set(err, WS_EINPUT, "'%.200s'",
		                  slot->name); /* the text of a KeyError */
	const size_t param = (size_t)(p - ws_layout_param(m->layout, 0));
	if (!ws_serve_converts(m->dtypes[param], slot->dtype))
		return ws_err_set(err, WS_EINPUT, "'%.200s' is %s and cannot be copied into %s",
		                  slot->name, slot->dtype_name, ws_dtype_torch(m->dtypes[param]));
	const size_t n = (size_t)(slot->bytes * 8 / ws_dtype_bits(slot->dtype));
	for (unsigned r = 0; r < m->tp; r++) {
		if (check_shape(m, p, r, slot, err))
			return -1;
		ws_serve_convert(m->dtypes[param], ws_serve_model_at(m, param, r), slot->dtype,
		                 slot->data, n);
	}
	ws_serve_mark_loaded(m, p->first, p->n_parts, m->dtypes[param]);
	return 0;
}

int ws_serve_copy_direct(struct ws_serve *s, const struct ws_serve_update *u,
                         struct ws_serve_note *note, struct ws_err *err)
{
	for (size_t i = 0; i < u->n; i++)
		if (copy(s->model, &u->slots[i], err))
			return -1;
	note->model = true;
	note->loaded = u->n;
	ws_serve_count_update(s, u, note);
	return 0;
}
