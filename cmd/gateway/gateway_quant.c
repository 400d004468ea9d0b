/* SPDX-License-Identifier: Apache-2.0 */
/* gateway_quant.c - reads the quantization of a request: Hugging Face's quantization_config, as
 * far as xorl's training server accepts it, and the short form in xorl's documentation:
 *
 *   {"quantization": {"quant_method": "fp8", "weight_block_size": [128, 128],
 *                     "modules_to_not_convert": ["lm_head"]}}
 *   {"quantization": "fp8", "skip_modules": ["lm_head"]}
 *   {"quantization": "bf16"}        none
 *   {"quantization": null}          as the endpoints keep them */
#include "gateway_core.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_OF_A_BLOCK = 1 << 20 };

void gateway_quant_free(struct gateway_quant *q)
{
	for (size_t i = 0; i < q->n_skip; i++)
		free(q->skip[i]);
	*q = (struct gateway_quant){ 0 };
}

int gateway_quant_copy(const struct gateway_quant *from, struct gateway_quant *to,
                       struct ws_err *err)
{
	*to = *from;
	to->n_skip = 0;
	for (size_t i = 0; i < from->n_skip; i++) {
		to->skip[i] = strdup(from->skip[i]);
		if (!to->skip[i]) {
			gateway_quant_free(to);
			return ws_oom(err);
		}
		to->n_skip++;
	}
	return 0;
}

static int take_method(const char *method, struct gateway_quant *q, struct ws_err *err)
{
	static const char *const off[] = { "bf16", "bfloat16", "none", "null", "" };
	q->known = true;
	q->fp8 = strcmp(method, "fp8") == 0;
	for (size_t i = 0; !q->fp8 && i < sizeof off / sizeof off[0]; i++)
		if (strcmp(method, off[i]) == 0)
			return 0;
	return q->fp8 ? 0 :
	                ws_err_set(err, WS_EINPUT,
	                           "quantization '%s' is not one of fp8, bf16, none", method);
}

/* Names of modules, as ws_quant_skips takes them. */
static int take_skips(const struct ws_json *body, const char *key, struct gateway_quant *q,
                      struct ws_err *err)
{
	const char *names[GATEWAY_SKIPS];
	size_t n = 0;
	if (gateway_texts(body, key, names, GATEWAY_SKIPS, &n, err))
		return -1;
	for (size_t i = 0; i < n; i++) {
		if (!names[i][0])
			return ws_err_set(err, WS_EINPUT, "%s: an empty name", key);
		if (q->n_skip == GATEWAY_SKIPS)
			return ws_err_set(err, WS_EINPUT, "%s: more than %d modules", key,
			                  GATEWAY_SKIPS);
		q->skip[q->n_skip] = strdup(names[i]);
		if (!q->skip[q->n_skip])
			return ws_oom(err);
		q->n_skip++;
	}
	return 0;
}

static int take_block(const struct ws_json *node, struct gateway_quant *q, struct ws_err *err)
{
	int64_t size[2] = { 0 };
	size_t n = 0;
	if (!node || ws_json_type(node) == WS_JSON_NULL)
		return 0;
	bool good = ws_json_type(node) == WS_JSON_ARRAY ?
	                    ws_json_count(node) >= 1 && ws_json_count(node) <= 2 :
	                    ws_json_int(node, &size[n++]);
	for (const struct ws_json *x = n ? NULL : ws_json_first(node); good && x;
	     x = ws_json_next(x))
		good = ws_json_int(x, &size[n++]);
	if (n == 1)
		size[1] = size[0];
	if (!good || size[0] < 1 || size[1] < 1 || size[0] > MOST_OF_A_BLOCK ||
	    size[1] > MOST_OF_A_BLOCK)
		return ws_err_set(err, WS_EINPUT,
		                  "weight_block_size: one or two numbers from 1 to %d",
		                  MOST_OF_A_BLOCK);
	memcpy(q->block, size, sizeof size);
	return 0;
}

/* The key must be absent, or have the value `only`. */
static int check_only(const struct ws_json *config, const char *key, const char *only,
                      struct ws_err *err)
{
	const struct ws_json *node = ws_json_get(config, key);
	if (!node || ws_json_type(node) == WS_JSON_NULL)
		return 0;
	const char *text = ws_json_string(node);
	if (only && text && strcmp(text, only) == 0)
		return 0;
	return ws_err_set(err, WS_EINPUT, only ? "%s: only '%s' is supported" : "%s: not supported",
	                  key, only);
}

static int read_config(const struct ws_json *config, struct gateway_quant *q, struct ws_err *err)
{
	static const char *const keys[] = { "quant_method",      "fmt",
		                            "activation_scheme", "scale_fmt",
		                            "weight_block_size", "modules_to_not_convert",
		                            "dequantize",        NULL };
	const char *method = NULL;
	bool dequantize = false; /* transformers writes it into every config */
	if (gateway_check_keys(config, "quantization", keys, err) ||
	    ws_serve_field_bool(config, "dequantize", &dequantize, err))
		return -1;
	if (dequantize)
		return ws_err_set(err, WS_EINPUT, "dequantize: only false is supported");
	if (gateway_text(config, "quant_method", &method, err))
		return -1;
	if (!method)
		return ws_err_set(err, WS_EINPUT, "quantization: quant_method is missing");
	return take_method(method, q, err) || check_only(config, "fmt", "e4m3", err) ||
	       check_only(config, "activation_scheme", "dynamic", err) ||
	       check_only(config, "scale_fmt", NULL, err) ||
	       take_block(ws_json_get(config, "weight_block_size"), q, err) ||
	       take_skips(config, "modules_to_not_convert", q, err) ? -1 : 0;
}

int gateway_quant_read(const struct ws_json *body, struct gateway_quant *out, struct ws_err *err)
{
	const struct ws_json *node = ws_json_get(body, "quantization");
	const char *text = node ? ws_json_string(node) : NULL;
	int rc = 0;
	*out = (struct gateway_quant){ 0 };
	if (node && ws_json_type(node) == WS_JSON_OBJECT)
		rc = read_config(node, out, err);
	else if (text)
		rc = take_method(text, out, err);
	else if (node && ws_json_type(node) != WS_JSON_NULL)
		rc = ws_serve_field_invalid(err, "quantization",
		                            "Input should be a valid dictionary");
	if (rc == 0)
		rc = take_skips(body, "skip_modules", out, err);
	if (rc)
		gateway_quant_free(out);
	return rc;
}

void gateway_quant_write(const struct gateway_quant *q, struct ws_jw *w, const char *key)
{
	if (!q->fp8) {
		ws_jw_null(w, key);
		return;
	}
	ws_jw_object(w, key);
	ws_jw_str(w, "quant_method", "fp8");
	ws_jw_str(w, "fmt", "e4m3");
	ws_jw_str(w, "activation_scheme", "dynamic");
	ws_jw_array(w, "weight_block_size");
	ws_jw_int(w, NULL, q->block[0] ? q->block[0] : 128);
	ws_jw_int(w, NULL, q->block[1] ? q->block[1] : 128);
	ws_jw_end_array(w);
	ws_jw_strs(w, "modules_to_not_convert", (const char *const *)q->skip, q->n_skip);
	ws_jw_end_object(w);
}
