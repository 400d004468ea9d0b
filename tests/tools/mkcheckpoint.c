/* SPDX-License-Identifier: Apache-2.0 */
/* mkcheckpoint SOURCE DIR [SHARD_SIZE]
 *
 * Writes a source, usually synthetic:MODEL[:SEED], as a Hugging Face checkpoint. A synthetic model
 * also gets its config.json. */
#include "checkpoint.h"
#include "file.h"
#include "payloads.h"
#include "plan_files.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int write_config(const char *source, const char *dir, struct ws_err *err)
{
	static const char scheme[] = "synthetic:";
	char model[64], path[4096];
	struct ws_buf config;
	if (strncmp(source, scheme, sizeof scheme - 1) != 0)
		return 0;
	snprintf(model, sizeof model, "%.*s", (int)strcspn(source + sizeof scheme - 1, ":"),
	         source + sizeof scheme - 1);
	snprintf(path, sizeof path, "%s/config.json", dir);
	ws_buf_init(&config, 1 << 20);
	int rc = ws_synthetic_config(model, &config, err);
	if (rc == 0)
		rc = ws_file_replace(path, config.data, config.len, 0644, err);
	ws_buf_free(&config);
	return rc;
}

static int tick(void *ctx, uint64_t bytes, struct ws_err *err)
{
	(void)ctx, (void)bytes, (void)err;
	return 0;
}

static int write_files(const struct ws_plan *p, const char *dir, struct ws_err *err)
{
	char name[WS_PLAN_FILE_NAME], path[4096];
	int rc = ws_file_mkdirs(dir, err);
	snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
	unlink(path); /* left by an earlier checkpoint; a single file has no index */
	for (size_t b = 0; rc == 0 && b < p->n_buckets; b++) {
		struct ws_payload *payloads;
		size_t n;
		/* An interrupted run may have left the file. */
		snprintf(path, sizeof path, "%s/%s", dir, ws_plan_file_name(p, b, name));
		unlink(path);
		if (ws_plan_payloads(p, b, &payloads, &n, err))
			return -1;
		rc = ws_plan_file_write(p, b, payloads, n, dir, tick, NULL, err);
		ws_plan_payloads_free(payloads, n);
	}
	return rc == 0 ? ws_plan_index_write(p, dir, err) : rc;
}

static int write_checkpoint(const struct ws_source *s, const char *dir, uint64_t shard_bytes,
                            struct ws_err *err)
{
	const struct ws_plan_opts opts = { .format = WS_FORMAT_FLATTENED,
	                                   .bucket_size = shard_bytes ? shard_bytes : UINT64_MAX };
	struct ws_catalog *items = NULL;
	struct ws_plan *p = NULL;
	int rc = ws_catalog_make(&s, 1, &(struct ws_catalog_opts){ 0 }, &items, err);
	if (rc == 0)
		rc = ws_plan_make(items, &opts, &p, err);
	if (rc == 0)
		rc = write_files(p, dir, err);
	ws_plan_free(p);
	ws_catalog_free(items);
	return rc;
}

int main(int argc, char **argv)
{
	if (argc < 3 || argc > 4) {
		fprintf(stderr, "usage: mkcheckpoint SOURCE DIR [SHARD_SIZE]\n");
		return WS_EUSAGE;
	}
	const char *const source = argv[1];
	struct ws_source *s = NULL;
	struct ws_err err = WS_ERR_INIT;
	uint64_t shard_bytes = 0;
	int rc = argc > 3 ? ws_parse_size(argv[3], &shard_bytes, &err) : 0;
	if (rc == 0)
		rc = ws_source_open(&source, 1, &s, &err);
	if (rc == 0)
		rc = write_checkpoint(s, argv[2], shard_bytes, &err);
	if (rc == 0)
		rc = write_config(source, argv[2], &err);
	ws_source_close(s);
	if (rc == 0)
		return 0;
	fprintf(stderr, "mkcheckpoint: %s\n", err.msg);
	if (err.hint[0])
		fprintf(stderr, "hint: %s\n", err.hint);
	return (int)err.code;
}
