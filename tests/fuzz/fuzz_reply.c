/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever a server says becomes a sentence, printable and bounded, or a decoded value. The first
 * byte chooses the HTTP status. */
#include "endpoint_call.h"
#include "vllm_probe.h"
#include "wsync/tool/listing.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void check_text(const char *text)
{
	for (const unsigned char *p = (const unsigned char *)text; *p; p++)
		if (*p < 0x20 || *p == 0x7f)
			abort();
}

static void decode(const struct ws_json *root)
{
	struct ws_endpoint_info info = { .tp_size = 1 };
	struct ws_weight_list list;
	struct ws_checksums sums;
	struct ws_err err;
	ws_endpoint_decode_server_info(root, &info);
	ws_endpoint_decode_model_info(root, &info);
	ws_vllm_decode_config(root, &info);
	check_text(info.version);
	check_text(info.served_model);
	if (info.tp_size < 1)
		abort();
	if (ws_endpoint_decode_weights(root, &list, &err))
		check_text(err.msg);
	else
		ws_weight_list_free(&list);
	if (ws_vllm_decode_checksums(root, &sums, &err))
		check_text(err.msg);
	else
		ws_checksums_free(&sums);
	if (ws_endpoint_decode_checksums(root, &sums, &err)) {
		check_text(err.msg);
	} else {
		if (ws_checksums_whole(&sums, &info, &err))
			check_text(err.msg);
		ws_checksums_free(&sums);
	}
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	static const long statuses[] = { 200, 400, 401, 404, 405, 500, 503, 204, 307 };
	struct ws_endpoint_call call = { 0 };
	struct ws_err err = WS_ERR_INIT;
	const struct ws_json *root;
	char words[256];
	if (!size || ws_endpoint_prepare(&call, "http://h:1", "POST", "/x?y", NULL, 0, &err))
		return 0;
	call.http.done = true;
	call.http.status = statuses[data[0] % (sizeof statuses / sizeof *statuses)];
	ws_buf_add(&call.http.reply, data + 1, size - 1);
	if (ws_endpoint_reply(&call, &root, words, sizeof words, &err) && err.code != WS_EREFUSED)
		abort();
	check_text(words);
	check_text(err.msg);
	decode(root);
	ws_endpoint_call_free(&call);
	return 0;
}
