/* SPDX-License-Identifier: Apache-2.0 */
#include "serve_http.h"

#include <stdlib.h>
#include <string.h>

int ws_serve_field_invalid(struct ws_err *err, const char *key, const char *reason)
{
	return ws_err_set(err, WS_EUSAGE, "body.%s: %s", key, reason);
}

int ws_serve_field_missing(struct ws_err *err, const char *key)
{
	return ws_serve_field_invalid(err, key, "Field required");
}

int ws_serve_field_str(const struct ws_json *body, const char *key, bool required, const char **out,
                       struct ws_err *err)
{
	const struct ws_json *node = ws_json_get(body, key);
	if (!node)
		return required ? ws_serve_field_missing(err, key) : 0;
	if (!required && !*out && ws_json_type(node) == WS_JSON_NULL)
		return 0; /* str or null, null by default */
	const char *text = ws_json_string(node);
	if (!text)
		return ws_serve_field_invalid(err, key, "Input should be a valid string");
	if (strlen(text) > WS_SERVE_MAX_TEXT)
		return ws_serve_field_invalid(err, key,
		                              "String should have at most 4096 characters");
	*out = text;
	return 0;
}

int ws_serve_field_int(const struct ws_json *body, const char *key, int64_t *out,
                       struct ws_err *err)
{
	const struct ws_json *node = ws_json_get(body, key);
	if (!node)
		return ws_serve_field_missing(err, key);
	/* Accepts numbers as strings too, like the servers' lax validation. */
	const char *text = ws_json_string(node);
	char *end = NULL;
	const long long value = text && strlen(text) <= 18 ? strtoll(text, &end, 10) : 0;
	if (text && end && end != text && !*end)
		*out = value;
	else if (text || !ws_json_int(node, out))
		return ws_serve_field_invalid(err, key, "Input should be a valid integer");
	return 0;
}

int ws_serve_field_bool(const struct ws_json *body, const char *key, bool *out, struct ws_err *err)
{
	const struct ws_json *node = ws_json_get(body, key);
	int64_t number = 0;
	if (!node)
		return 0;
	const char *text = ws_json_string(node);
	if (ws_json_type(node) == WS_JSON_BOOL)
		*out = ws_json_bool(node, false);
	else if (ws_json_int(node, &number) && (number == 0 || number == 1))
		*out = number == 1;
	else if (text && (strcmp(text, "true") == 0 || strcmp(text, "false") == 0))
		*out = text[0] == 't';
	else
		return ws_serve_field_invalid(err, key, "Input should be a valid boolean");
	return 0;
}
