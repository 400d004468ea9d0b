/* SPDX-License-Identifier: Apache-2.0 */
#include "exposition.h"

#include "wsync/clock.h"
#include "wsync/tool/str.h"

#include <stdlib.h>
#include <string.h>

void ws_exposition_head(struct ws_exposition *x, const char *name, const char *type,
                        const char *help)
{
	x->name = name;
	ws_buf_printf(x->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void add_value(struct ws_buf *out, const char *text)
{
	for (size_t n = strlen(text), i = 0, step; i < n; i += step ? step : 1) {
		const char c = text[i];
		step = ws_utf8_step(text + i, n - i);
		if (c == '\\' || c == '"')
			ws_buf_printf(out, "\\%c", c);
		else if (c == '\n')
			ws_buf_puts(out, "\\n");
		else if (!step || !ws_utf8_is_shown(text + i, step))
			ws_buf_puts(out, "\xef\xbf\xbd");
		else
			ws_buf_add(out, text + i, step);
	}
}

static void begin_sample(struct ws_exposition *x, const struct ws_label *labels)
{
	char before = '{';
	ws_buf_puts(x->out, x->name);
	for (; labels && labels->name; labels++) {
		if (!labels->value)
			continue;
		ws_buf_printf(x->out, "%c%s=\"", before, labels->name);
		add_value(x->out, labels->value);
		ws_buf_putc(x->out, '"');
		before = ',';
	}
	ws_buf_puts(x->out, before == ',' ? "} " : " ");
}

void ws_exposition_uint(struct ws_exposition *x, const struct ws_label *labels, uint64_t value)
{
	begin_sample(x, labels);
	ws_buf_printf(x->out, "%llu\n", (unsigned long long)value);
}

void ws_exposition_seconds(struct ws_exposition *x, const struct ws_label *labels, int64_t ns)
{
	begin_sample(x, labels);
	ws_buf_printf(x->out, "%s%lld.%09lld\n", ns < 0 ? "-" : "",
	              llabs((long long)(ns / WS_NS_PER_S)), llabs((long long)(ns % WS_NS_PER_S)));
}

void ws_exposition_one(struct ws_exposition *x, const char *name, const char *help, uint64_t value)
{
	ws_exposition_head(x, name, "gauge", help);
	ws_exposition_uint(x, NULL, value);
}

void ws_exposition_one_seconds(struct ws_exposition *x, const char *name, const char *help,
                               int64_t ns)
{
	ws_exposition_head(x, name, "gauge", help);
	ws_exposition_seconds(x, NULL, ns);
}
