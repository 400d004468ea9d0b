/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_core.h - NCCL's functions as a table, and the parts of its header that they need. */
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
/* ncclDataType_t. A broadcast moves bytes, whatever type the other ranks give. */
enum { NCCL_UINT8 = 1, NCCL_FLOAT32 = 7 };
/* ncclRedOp_t. */
enum { NCCL_SUM = 0 };

/* ncclConfig_t of 2.14. Every later NCCL accepts it: NCCL copies `size` bytes and uses defaults
 * for the rest. */
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
	F(all_reduce, "ncclAllReduce", (const void *, void *, size_t, int, int, void *, void *))   \
	F(finalize, "ncclCommFinalize", (void *))                                                  \
	F(destroy, "ncclCommDestroy", (void *))                                                    \
	F(abort, "ncclCommAbort", (void *))

struct ws_nccl {
	void *library;
	struct {
#define NCCL_MEMBER(member, symbol, args) int(*member) args;
		NCCL_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
		const char *(*error_string)(int);
		const char *(*last_error)(void *); /* NULL: this NCCL lacks it */
	} call;
	int version;
	char version_text[32];
	char path[WS_NCCL_PATH_MAX];
};

/* 0, or -1 with "what: NCCL's message (its number): its last error". */
int ws_nccl_check(const struct ws_nccl *n, int rc, void *comm, const char *what,
                  struct ws_err *err);

#endif
