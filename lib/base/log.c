/* SPDX-License-Identifier: Apache-2.0 */
#include "wsync/log.h"

#include <stdarg.h>
#include <stdio.h>

void ws_log(const struct ws_log *log, int level, const char *fmt, ...)
{
	if (!log || !log->fn || level > log->level)
		return;
	char line[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	log->fn(log->ctx, level, line);
}
