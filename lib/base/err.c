/* SPDX-License-Identifier: Apache-2.0 */
#include "wsync/err.h"

#include "wsync/tool/str.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int ws_err_set(struct ws_err *err, enum ws_code code, const char *fmt, ...)
{
	if (!err)
		return -1;
	*err = (struct ws_err)WS_ERR_INIT;
	err->code = code;
	va_list ap;
	va_start(ap, fmt);
	const int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
	va_end(ap);
	ws_hide_passwords(err->msg, n >= (int)sizeof err->msg);
	return -1;
}

int ws_oom(struct ws_err *err)
{
	return ws_err_set(err, WS_ESYSTEM, "out of memory");
}

int ws_err_errno(struct ws_err *err, const char *fmt, ...)
{
	const int saved = errno;
	if (!err)
		return -1;
	*err = (struct ws_err)WS_ERR_INIT;
	err->code = WS_ESYSTEM;
	err->native = saved;
	va_list ap;
	va_start(ap, fmt);
	const int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
	va_end(ap);
	ws_hide_passwords(err->msg, n >= (int)sizeof err->msg);
	const size_t used = strlen(err->msg);
	snprintf(err->msg + used, sizeof err->msg - used, ": %s", strerror(saved));
	return -1;
}

int ws_err_wrap(struct ws_err *err, const char *fmt, ...)
{
	if (!err)
		return -1;
	char old[sizeof err->msg];
	memcpy(old, err->msg, sizeof old);
	va_list ap;
	va_start(ap, fmt);
	const int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
	va_end(ap);
	ws_hide_passwords(err->msg, n >= (int)sizeof err->msg);
	const size_t used = strlen(err->msg);
	snprintf(err->msg + used, sizeof err->msg - used, ": %s", old);
	return -1;
}

int ws_err_hint(struct ws_err *err, const char *fmt, ...)
{
	if (!err)
		return -1;
	va_list ap;
	va_start(ap, fmt);
	const int n = vsnprintf(err->hint, sizeof err->hint, fmt, ap);
	va_end(ap);
	ws_hide_passwords(err->hint, n >= (int)sizeof err->hint);
	return -1;
}

int ws_err_where(struct ws_err *err, const char *phase, const char *endpoint)
{
	if (!err)
		return -1;
	if (phase && !err->phase[0])
		snprintf(err->phase, sizeof err->phase, "%s", phase);
	if (endpoint && !err->endpoint[0])
		snprintf(err->endpoint, sizeof err->endpoint, "%s", endpoint);
	return -1;
}

int ws_err_rank(struct ws_err *err, unsigned rank)
{
	if (err && !err->rank)
		err->rank = rank;
	return -1;
}

bool ws_err_gpu_broken(const struct ws_err *err)
{
	enum { ILLEGAL_ADDRESS = 700, ASSERT = 710, LAUNCH_FAILED = 719 };
	return err->code == WS_EDEVICE &&
	       (err->native == ILLEGAL_ADDRESS || err->native == ASSERT ||
	        err->native == LAUNCH_FAILED);
}

const char *ws_code_name(enum ws_code code)
{
	static const char *const names[] = {
		[WS_OK] = "ok",
		[WS_EMISMATCH] = "mismatch",
		[WS_EUSAGE] = "usage",
		[WS_EINPUT] = "input",
		[WS_EREACH] = "unreachable",
		[WS_EREFUSED] = "refused",
		[WS_EDATA] = "data",
		[WS_EDEVICE] = "device",
		[WS_ESYSTEM] = "system",
		[WS_EPARTIAL] = "partial",
		[WS_ETIMEOUT] = "timeout",
		[WS_EUNKNOWN] = "unknown",
		[WS_ECRASHED] = "crashed",
		[WS_ECANCELLED] = "cancelled",
	};
	const unsigned i = (unsigned)code;
	return i < sizeof names / sizeof names[0] && names[i] ? names[i] : "system";
}
