/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_relate.h - relating names without a family's rules. */
#ifndef WS_CHECK_NAMECHECK_RELATE_H
#define WS_CHECK_NAMECHECK_RELATE_H

#include "namecheck_core.h"

/* A tensor of the checkpoint, the one it is stacked into, and which of its shares it is. */
struct ws_stacked {
	const char *part, *fused;
	unsigned share, of;             /* a bit, and the bits of all */
};

struct ws_relation {
	size_t shown;                   /* entry of the listing; WS_NONE: none */
	const struct ws_stacked *stack; /* NULL: under its own name */
	bool experts;
};

struct ws_relation ws_relate(const struct ws_check *c, const char *name);
size_t ws_find_shown(const struct ws_check *c, const char *name); /* WS_NONE: is not */
/* "k_proj and v_proj": the shares that are not among these. */
struct ws_text ws_text_lacking(const struct ws_stacked *stack, bool of_experts, unsigned shares);

#endif
