/* SPDX-License-Identifier: Apache-2.0 */
/* serve_generate_sampling.c - the sampling_params of one prompt.
 *
 * max_new_tokens, temperature, sampling_seed, top_k 1 and n count; what else servers know is taken
 * and does nothing; what no server knows is refused. */
#include "serve_generate.h"

#include "wsync/tool/str.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_NEW = 128, DEFAULT_SEED = 42 };

static bool is_given(const struct ws_json *node)
{
	return node && ws_json_type(node) != WS_JSON_NULL;
}

static int refuse(struct ws_err *err, const char *fmt, const char *text)
{
	return ws_err_set(err, WS_EREFUSED, fmt, text);
}

static int check_names(const struct ws_json *params, struct ws_err *err)
{
	static const char *const known[] = {
		"max_new_tokens",
		"stop",
		"stop_token_ids",
		"stop_regex",
		"temperature",
		"top_p",
		"top_k",
		"min_p",
		"frequency_penalty",
		"presence_penalty",
		"repetition_penalty",
		"min_new_tokens",
		"n",
		"json_schema",
		"regex",
		"ebnf",
		"structural_tag",
		"ignore_eos",
		"skip_special_tokens",
		"spaces_between_special_tokens",
		"no_stop_trim",
		"custom_params",
		"stream_interval",
		"logit_bias",
		"sampling_seed",
	};
	for (const struct ws_json *p = ws_json_first(params); p; p = ws_json_next(p)) {
		size_t i = 0;
		while (i < sizeof known / sizeof known[0] && strcmp(known[i], ws_json_key(p)) != 0)
			i++;
		char name[64];
		if (i == sizeof known / sizeof known[0])
			return refuse(err, "Unexpected keyword argument '%s'",
			              ws_printable(name, sizeof name, ws_json_key(p),
			                           strlen(ws_json_key(p))));
	}
	return 0;
}

static int read_param(const struct ws_json *params, const char *name, int64_t least, int64_t *out,
                      struct ws_err *err)
{
	const struct ws_json *node = ws_json_get(params, name);
	if (!is_given(node))
		return 0;
	if (ws_json_type(node) != WS_JSON_NUMBER || !ws_json_int(node, out))
		return refuse(err, "%s must be an integer.", name);
	if (*out < least)
		return ws_err_set(err, WS_EREFUSED,
		                  "%s must be at least %" PRId64 ", got %" PRId64 ".", name, least,
		                  *out);
	return 0;
}

/* Below a millionth it is none, as in the servers. */
static int read_temperature(struct ws_generate_one *one, const struct ws_json *params,
                            struct ws_err *err)
{
	const struct ws_json *node = ws_json_get(params, "temperature");
	const double most = 65536, least = 1.0 / 65536;
	double t = 1;
	if (is_given(node) && (ws_json_type(node) != WS_JSON_NUMBER || !ws_json_double(node, &t)))
		return refuse(err, "%s must be a number.", "temperature");
	if (!(t >= 0))
		return ws_err_set(err, WS_EREFUSED, "temperature must be non-negative, got %g.", t);
	if (t < 1e-6)
		one->temperature = 0;
	else
		one->temperature = (uint64_t)((t < least ? least : t > most ? most : t) * 65536);
	return 0;
}

int ws_generate_read_sampling(struct ws_generate_one *one, const struct ws_json *params,
                              struct ws_err *err)
{
	int64_t new = DEFAULT_NEW, seed = DEFAULT_SEED, n = 1, top_k = -1;
	if (params && ws_json_type(params) != WS_JSON_OBJECT)
		return ws_serve_field_invalid(err, "sampling_params",
		                              "Input should be a valid dictionary");
	if (check_names(params, err) || read_param(params, "max_new_tokens", 0, &new, err) ||
	    read_param(params, "sampling_seed", 0, &seed, err) ||
	    read_param(params, "n", 1, &n, err) || read_param(params, "top_k", -1, &top_k, err) ||
	    read_temperature(one, params, err))
		return -1;
	if (n != 1)
		return refuse(err, "%s", "n: this endpoint generates one answer to a prompt.");
	if (new + (int64_t)one->n_prompt >= WS_SERVE_CONTEXT)
		return ws_err_set(
			err, WS_EREFUSED,
			"Requested token count exceeds the model's maximum context length "
			"of %d tokens. You requested a total of %" PRId64
			" tokens: %zu tokens from the input "
			"messages and %" PRId64 " tokens for the completion.",
			WS_SERVE_CONTEXT, new + (int64_t)one->n_prompt, one->n_prompt, new);
	if (top_k == 1)
		one->temperature = 0;
	one->n_new = (size_t)new;
	one->seed = (uint64_t)seed;
	int32_t *ids = realloc(one->ids, (one->n_prompt + one->n_new + 1) * sizeof *ids);
	if (!ids)
		return ws_err_set(err, WS_ESYSTEM, "not enough memory");
	one->ids = ids;
	return 0;
}
