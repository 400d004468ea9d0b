/* SPDX-License-Identifier: Apache-2.0 */
/* fake_wire_nccl.h - the double of libnccl between processes: how its
 * communicators meet and move bytes. */
#ifndef TESTS_GPU_FAKE_WIRE_NCCL_H
#define TESTS_GPU_FAKE_WIRE_NCCL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	FAKE_SUCCESS,
	FAKE_SYSTEM_ERROR = 2,
	FAKE_INTERNAL_ERROR,
	FAKE_INVALID_ARGUMENT,
	FAKE_INVALID_USAGE,
	FAKE_REMOTE_ERROR,
	FAKE_IN_PROGRESS
};

struct fake_id {
	char bytes[128];
};
/* Listens for the ranks of a communicator. False: it cannot. */
bool fake_wire_id(struct fake_id *out);

struct fake_wire;
struct fake_wire_opts {
	struct fake_id id;
	int rank, size, version, device;
};
/* Goes on by itself from here on. NULL: no such id, or no memory. */
struct fake_wire *fake_wire_join(const struct fake_wire_opts *opts);
/* FAKE_IN_PROGRESS while ranks are missing or it ends, FAKE_SUCCESS, or what broke it. */
int fake_wire_state(struct fake_wire *w);
/* Why it broke last, of all in this process. */
const char *fake_wire_words(void);

/* One broadcast from rank 0. Moved is asked in its stream's turn, the first time begins
 * it, and says true when the bytes are there or the communicator was aborted; over
 * frees it. NULL: no memory. */
struct fake_move *fake_wire_move(struct fake_wire *w, void *at, size_t bytes);
/* Likewise, the sum of every rank's float at that place. */
struct fake_move *fake_wire_sum(struct fake_wire *w, void *at);
bool fake_wire_moved(void *move);
void fake_wire_over(void *move);

/* In progress until everybody finalizes or is gone. */
void fake_wire_finalize(struct fake_wire *w);
/* Without having been finalized: aborted, which the others see. */
void fake_wire_leave(struct fake_wire *w);

#endif
