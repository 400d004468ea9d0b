/* SPDX-License-Identifier: Apache-2.0 */
/* images.c - the fat binaries that nvcc makes of kernels/, embedded as constants.
 *
 * The assembler includes them (.incbin), so that megabytes need not pass through the C compiler.
 * The Makefile sets WSYNC_IMAGES to their directory, and makes this file depend on them. */
#include "cuda_driver.h"

#include <string.h>

#define IMAGE(name) \
	__asm__(".section .rodata\n" \
	        ".balign 16\n" \
	        "ws_image_" #name ":\n" \
	        ".incbin \"" WSYNC_IMAGES "/" #name ".fatbin\"\n" \
	        "ws_image_end_" #name ":\n" \
	        ".previous\n"); \
	extern const char ws_image_##name[] __attribute__((visibility("hidden"))); \
	extern const char ws_image_end_##name[] __attribute__((visibility("hidden")))

IMAGE(fp8);
IMAGE(gather);
IMAGE(lowrank);
IMAGE(unpack);
IMAGE(values);

const void *ws_cuda_image(const char *name, size_t *bytes)
{
	static const struct {
		const char *name, *begin, *end;
	} images[] = {
		{ "fp8", ws_image_fp8, ws_image_end_fp8 },
		{ "gather", ws_image_gather, ws_image_end_gather },
		{ "lowrank", ws_image_lowrank, ws_image_end_lowrank },
		{ "unpack", ws_image_unpack, ws_image_end_unpack },
		{ "values", ws_image_values, ws_image_end_values },
	};
	for (size_t i = 0; i < sizeof images / sizeof images[0]; i++)
		if (strcmp(images[i].name, name) == 0) {
			*bytes = (size_t)(images[i].end - images[i].begin);
			return images[i].begin;
		}
	return NULL;
}
