/* SPDX-License-Identifier: Apache-2.0 */
/* uuid.c - a GPU's identifier as text. It is the same in every process, whichever GPUs the process
 * sees. */
#include "cuda_driver.h"

#include <string.h>

char *ws_cuda_uuid_text(const struct ws_cuda_device *d, char text[WS_CUDA_UUID_TEXT])
{
	static const char digits[] = "0123456789abcdef";
	/* The driver names a MIG instance "NVIDIA A100-SXM4-40GB MIG 1g.5gb". */
	char *p = text + strlen(strcpy(text, strstr(d->name, " MIG ") ? "MIG-" : "GPU-"));
	for (size_t i = 0; i < sizeof d->uuid; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*p++ = '-';
		*p++ = digits[d->uuid[i] >> 4];
		*p++ = digits[d->uuid[i] & 15];
	}
	*p = '\0';
	return text;
}
