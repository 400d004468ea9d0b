/* SPDX-License-Identifier: Apache-2.0 */
#include "targets.h"

#include "run.h"

#include "wsync/endpoint.h"

#include <stdlib.h>
#include <string.h>

static int add(struct targets *t, const char *text, struct ws_err *err)
{
	char url[WS_URL_MAX];
	if (ws_endpoint_normalize(text, url, sizeof url, err))
		return -1;
	const char **urls = realloc(t->urls, (t->n + 1) * sizeof *urls);
	if (!urls)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	t->urls = urls;
	t->urls[t->n] = strdup(url);
	if (!t->urls[t->n])
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	t->n++;
	return 0;
}

static int read_key(struct targets *t, const struct opt_common *common, struct ui *ui,
                    struct ws_err *err)
{
	const char *path = run_api_key_file(common->api_key_file);
	bool loose = false;
	if (!path)
		return 0;
	if (ws_client_read_key(path, &t->api_key, &loose, err))
		return -1;
	if (loose)
		ui_warn(ui, NULL, "%s: others can read this key file", ui_text(path));
	return 0;
}

int targets_find(struct targets *t, const struct opt_list *given, const char *pool,
                 const struct opt_common *common, bool optional, struct ui *ui, struct ws_err *err)
{
	(void)pool;
	*t = (struct targets){ 0 };
	for (size_t i = 0; i < given->n; i++)
		if (add(t, given->items[i], err))
			return -1;
	if (t->n == 0 && !optional)
		return ws_err_set(err, WS_EUSAGE, "no endpoint: give --endpoint URL");
	return read_key(t, common, ui, err);
}

void targets_free(struct targets *t)
{
	for (size_t i = 0; i < t->n; i++)
		free((void *)(uintptr_t)t->urls[i]);
	free(t->urls);
	free(t->api_key);
	*t = (struct targets){ 0 };
}
