/* SPDX-License-Identifier: Apache-2.0 */
/* quant_skips.c - finds the modules that a quantization_config leaves unquantized.
 *
 * Quantizers and servers match the entries in different ways, some by substring. Here an entry
 * matches whole segments: "mlp.gate" does not match "mlp.gate_proj". For the lists of published
 * checkpoints all these ways give the same result. */
#include "wsync/tool/config.h"

#include <string.h>

/* Matches a '*' glob with name[0..n) in at most quadratic time: only the last star is retried. */
static bool glob(const char *p, size_t n_p, const char *name, size_t n)
{
	size_t i = 0, j = 0, star = SIZE_MAX, from = 0;
	while (j < n) {
		if (i < n_p && p[i] == '*') {
			star = i++;
			from = j;
		} else if (i < n_p && p[i] == name[j]) {
			i++;
			j++;
		} else if (star != SIZE_MAX) {
			i = star + 1;
			j = ++from;
		} else {
			return false;
		}
	}
	while (i < n_p && p[i] == '*')
		i++;
	return i == n_p;
}

/* True if an entry matches the module or a module that contains it. */
static bool covers(const char *entry, size_t n, const char *module)
{
	const size_t len = strlen(module);
	if (!memchr(entry, '*', n))
		return n <= len && memcmp(entry, module, n) == 0 &&
		       (module[n] == 0 || module[n] == '.');
	for (size_t end = 0; end <= len; end++)
		if ((module[end] == 0 || module[end] == '.') && glob(entry, n, module, end))
			return true;
	return false;
}

static bool ends_with(const char *entry, size_t n, const char *module)
{
	const size_t len = strlen(module);
	return n < len && module[len - n - 1] == '.' && memcmp(module + len - n, entry, n) == 0;
}

bool ws_quant_skips(const struct ws_quant *q, const char *module)
{
	static const char leaf[] = ".weight";
	for (size_t i = 0; i < q->n_skip; i++) {
		const char *entry = q->skip[i];
		size_t n = strlen(entry);
		if (n > strlen(leaf) && strcmp(entry + n - strlen(leaf), leaf) == 0)
			n -= strlen(leaf);
		if (n == 0 || strncmp(entry, "re:", 3) == 0)
			continue;
		if (covers(entry, n, module) || ends_with(entry, n, module))
			return true;
	}
	return false;
}
