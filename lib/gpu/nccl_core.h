/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_core.h - NCCL's functions as a table, and the little of its header that they need. */
#ifndef WS_GPU_NCCL_CORE_H
#define WS_GPU_NCCL_CORE_H

#include "nccl_library.h"

/* ncclResult_t. Numbers that are not here are from a newer NCCL. */
enum {
	NCCL_SUCCESS,
	NCCL_CUDA_ERROR,
	NCCL_SYSTEM_ERROR,
	NCCL_INTERNAL_ERROR,
	NCCL_INVALID_ARGUMENT,
	NCCL_INVALID_USAGE,
	NCCL_REMOTE_ERROR,
	NCCL_IN_PROGRESS
};
/* ncclDataType_t. A broadcast moves bytes, whatever the others call them. */
enum { NCCL_UINT8 = 1 };

/* ncclConfig_t as 2.14 had it, which every later NCCL takes: it copies as many bytes as `size`
 * says and has defaults for the rest. */
struct ws_nccl_config {
	size_t size;
	uint32_t magic, version;
	int blocking;
};
#define NCCL_CONFIG { sizeof(struct ws_nccl_config), 0xcafebeef, 21400, 0 }

/* member of the table, symbol, arguments; all return ncclResult_t */
#define NCCL_FUNCTIONS(F)                                                                          \
	F(get_version, "ncclGetVersion", (int *))                                                  \
	F(id_new, "ncclGetUniqueId", (struct ws_nccl_id *))                                        \
	F(init, "ncclCommInitRankConfig",                                                          \
	  (void **, int, struct ws_nccl_id, int, struct ws_nccl_config *))                         \
	F(state, "ncclCommGetAsyncError", (void *, int *))                                         \
	F(broadcast, "ncclBroadcast", (const void *, void *, size_t, int, int, void *, void *))    \
	F(finalize, "ncclCommFinalize", (void *))                                                  \
	F(destroy, "ncclCommDestroy", (void *))                                                    \
	F(abort, "ncclCommAbort", (void *))

struct ws_nccl {
	void *library;
	struct {
#define NCCL_MEMBER(member, symbol, args) int(*member) args;
		NCCL_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
		const char *(*words)(int);
		const char *(*last_words)(void *); /* NULL: this NCCL has none */
	} call;
	int version;
	char version_text[32];
	char path[WS_NCCL_PATH_MAX];
};

/* 0, or -1 with "what: NCCL's words (its number): what it said last". */
int ws_nccl_check(const struct ws_nccl *n, int rc, void *comm, const char *what,
                  struct ws_err *err);

#endif
