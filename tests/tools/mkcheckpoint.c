/* SPDX-License-Identifier: Apache-2.0 */
/* mkcheckpoint SOURCE DIR [SHARD_SIZE]
 *
 * Writes a source, most usefully synthetic:MODEL[:SEED], as a Hugging Face checkpoint; a synthetic
 * model gets the config.json that belongs to it. */
#include "checkpoint.h"
#include "file.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
		rc = ws_checkpoint_write(s, argv[2], shard_bytes, &err);
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
