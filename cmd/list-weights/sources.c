/* SPDX-License-Identifier: Apache-2.0 */
/* sources.c - lists the tensors of a checkpoint, as its files have them or as they would be sent.
 * Reads only headers; --hash reads the tensors. */
#include "list.h"

#include "run.h"

#include <inttypes.h>
#include <stdio.h>

/* Prints row i: a tensor of s, or without s an item of a catalog. */
static int print_row(struct list_job *job, const struct ws_source *s, size_t i, struct ws_err *err)
{
	struct tensors *list = &job->list;
	const void *origin = list->rows[i].origin;
	const struct ws_item *item = s ? NULL : origin;
	const struct ws_tensor *t = s ? origin : item->from;
	uint64_t hash = 0;
	if (ws_cancelled(&run_cancel))
		return ws_err_set(err, WS_ECANCELLED, "interrupted");
	if (job->cfg->hash &&
	    (s ? ws_source_hash(s, t, &hash, err) : ws_item_hash(item, &hash, err)))
		return -1;
	char text[17];
	snprintf(text, sizeof text, "%016" PRIx64, hash);
	list->from = ws_source_file_name(s ? s : item->source, t->file);
	tensors_print(list, &list->rows[i], job->cfg->hash ? text : NULL);
	return 0;
}

static int print_rows(struct list_job *job, const struct ws_source *s, struct ws_err *err)
{
	for (size_t i = 0; i < job->list.n; i++)
		if (print_row(job, s, i, err))
			return -1;
	list_finish(job);
	return 0;
}

/* The line from which a reference knows its config.json. */
static int print_checkpoint(struct list_job *job, const struct ws_source *s, struct ws_err *err)
{
	struct ws_buf text;
	ws_buf_init(&text, 16 << 20);
	const int rc = ws_source_config_text(s, &text, err);
	if (!rc) {
		struct ws_jw *w = ui_line(job->ui, "checkpoint");
		ws_jw_str(w, "source", ws_source_file_name(s, 0));
		ws_jw_str(w, "config", text.len ? ws_buf_str(&text) : NULL);
		ui_line_end(job->ui);
	}
	ws_buf_free(&text);
	return rc;
}

int list_source(struct list_job *job, const struct opt_args *args, struct ws_err *err)
{
	const struct ws_source_opts opts = { .memory = &ws_memory_cuda, .cancel = &run_cancel };
	struct ws_source *s = NULL;
	if (ws_source_open_with(&opts, args->v, args->n, &s, err))
		return -1;
	naming_warn(job->ui, s);
	int rc = tensors_start(&job->list, ws_source_count(s), err);
	if (rc == 0 && job->cfg->headers_only)
		rc = print_checkpoint(job, s, err);
	for (size_t i = 0; rc == 0 && i < ws_source_count(s); i++) {
		const struct ws_tensor *t = ws_source_tensor(s, i);
		list_add(job, &(struct tensors_row){
			.name = t->name, .dtype = ws_dtype_torch(t->dtype), .n_dims = t->n_dims,
			.dims = t->dims, .sized = true, .bytes = t->bytes, .origin = t,
		});
	}
	job->list.from_key = "file";
	if (rc == 0)
		rc = print_rows(job, s, err);
	if (rc == 0 && job->cfg->hash)
		rc = ws_source_check(s, err);
	ws_source_close(s);
	return rc;
}

/* ---- as sent ---- */

static int list_catalog(struct list_job *job, const struct ws_catalog *c, struct ws_err *err)
{
	if (tensors_start(&job->list, ws_catalog_count(c), err))
		return -1;
	job->list.from_key = "file";
	job->list.note_key = "made";
	for (size_t i = 0; i < ws_catalog_count(c); i++) {
		const struct ws_item *item = ws_catalog_item(c, i);
		list_add(job, &(struct tensors_row){
			.name = item->name, .dtype = ws_dtype_torch(item->dtype),
			.n_dims = item->n_dims, .dims = item->dims, .sized = true,
			.bytes = item->bytes, .note = item->derivation, .origin = item,
		});
	}
	return print_rows(job, NULL, err);
}

int list_as_sent(struct list_job *job, const struct opt_args *args, struct ws_err *err)
{
	const struct list_config *cfg = job->cfg;
	const struct ws_transform_opts transform = transforming_opts(&cfg->transforming);
	struct ws_input_opts opts = naming_input(&cfg->naming, args);
	struct ws_input in;
	opts.transform = &transform;
	if (naming_open(job->ui, &opts, &in, err))
		return -1;
	if (in.why.code)
		ui_warn(job->ui, NULL, "names are taken as they are: %s", in.why.msg);
	int rc = list_catalog(job, in.catalog, err);
	if (rc == 0 && job->cfg->hash)
		rc = ws_catalog_check(in.catalog, err);
	ws_input_close(&in);
	return rc;
}
