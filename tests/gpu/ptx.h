/* SPDX-License-Identifier: Apache-2.0 */
/* ptx.h - an interpreter of the PTX that nvcc makes of lib/gpu/kernels/, for the double of libcuda.
 *
 * It knows the instructions that are in there, per NVIDIA's PTX ISA manual, and refuses a module
 * with any other. A warp runs as 32 lanes that each have a program counter; those that stand
 * lowest go on together. Blocks follow each other, and so do the warps of one, from barrier to
 * barrier. What no order of threads can hide is told: each byte of shared and global memory
 * remembers who wrote and read it since when. */
#ifndef TESTS_GPU_PTX_H
#define TESTS_GPU_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	PTX_LANES = 32,
	PTX_MAX_THREADS = 1024,
	/* of one instruction: a vector of four and an address, and one for luck */
	PTX_OPERANDS = 6,
	PTX_ARRAYS = 16   /* in shared memory */
};

/* One register of a warp. 16 bits and predicates (0 or 1) lie in u4. */
union ptx_lanes {
	uint32_t u4[PTX_LANES];
	float f4[PTX_LANES];
	uint64_t u8[PTX_LANES];
};

/* The first thing that went wrong; "": nothing. */
struct ptx_trouble {
	char text[224];
};
void ptx_complain(struct ptx_trouble *t, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* ---- ptx_ops.c: arithmetic, all lanes of it ---- */

struct ptx_op {
	const char *name;
	/* Of the result and then of the sources: p predicate, 2, 4 or 8 bytes. */
	const char *classes;
	void (*run)(union ptx_lanes *restrict out, const union ptx_lanes *const *in);
};
/* With as many operands. NULL: there is none such. */
const struct ptx_op *ptx_op_find(const char *name, size_t n_operands);
/* Of redux and atom: "max", for values of so many bits. */
typedef uint64_t ptx_fold(uint64_t x, uint64_t y);
ptx_fold *ptx_fold_find(const char *name, const char *type);

/* ---- ptx_parse.c, ptx_decode.c ---- */

enum ptx_kind {
	PTX_OP,
	PTX_LOAD,
	PTX_STORE,
	PTX_ATOM,
	PTX_BRANCH,
	PTX_EXIT,
	PTX_BARRIER,
	PTX_REDUX
};
enum ptx_space { PTX_PARAM, PTX_SHARED, PTX_GLOBAL };

struct ptx_inst {
	enum ptx_kind kind;
	uint32_t line;
	const struct ptx_op *op;
	ptx_fold *fold;
	uint32_t reg[PTX_OPERANDS]; /* the result, or the values of a load or a store, first */
	uint32_t base;              /* of an address: a register, */
	int64_t offset;             /* and what is added */
	uint32_t target;            /* of a branch */
	enum ptx_space space;
	uint8_t size, vector;       /* bytes, and how many of them */
	bool is_signed, is_strong;  /* strong: volatile or atomic, which do not race each other */
	uint8_t data;               /* bytes of the registers that it loads or stores */
	bool base8;                 /* the address is in one of 8 bytes */
	bool is_guarded, unless;    /* @%p, @!%p */
	uint32_t guard;
};

/* What a register holds before the kernel begins, in every lane. */
struct ptx_constant {
	uint64_t value;
	uint32_t reg;
	bool is8;
};

struct ptx_array {
	char name[128];
	uint32_t at, bytes;
};

/* The registers that differ from thread to thread and from block to block come first. */
enum { PTX_TID, PTX_NTID, PTX_CTAID, PTX_NCTAID, PTX_LANEID, PTX_N_SPECIAL };

struct ptx_kernel {
	char name[64];
	struct ptx_module *of;
	struct ptx_inst *code;
	struct ptx_constant *constants;
	uint32_t n_code, n_constants, n_regs;
	uint32_t param_bytes, max_threads; /* 0: any */
};

struct ptx_module {
	char file[64];
	struct ptx_kernel *kernels;
	struct ptx_array arrays[PTX_ARRAYS];
	uint32_t n_kernels, n_arrays, shared_bytes;
};
/* Text is the module's; NULL: it cannot be run, and why. */
struct ptx_module *ptx_parse(const char *file, const char *text, struct ptx_trouble *why);
void ptx_free(struct ptx_module *m);
const struct ptx_kernel *ptx_find(const struct ptx_module *m, const char *name);

/* ---- ptx_memory.c ---- */

/* Who wrote a byte last and who read it: when, in barriers since the
 * program began, and which thread. */
struct ptx_mark {
	uint64_t write, read;
};

struct ptx_span {
	uint64_t at, bytes;
};

struct ptx_memory {
	const struct ptx_module *of;
	const char *params;
	uint32_t param_bytes;
	const struct ptx_span *spans; /* of the device */
	size_t n_spans, last_span;
	char *shared;
	struct ptx_mark *marks; /* of shared memory */
	/* when it began; now rises with each barrier and never falls */
	uint64_t launch, block, now;
};

struct ptx_access {
	uint64_t at;
	enum ptx_space space;
	uint32_t bytes, thread;
	bool writes, is_strong;
};
/* Where that is for us. NULL: it may not be done, and why. */
char *ptx_reach(struct ptx_memory *m, const struct ptx_access *a, struct ptx_trouble *why);
/* Forgets what no launch under way needs. */
void ptx_memory_trim(void);

/* ---- ptx_run.c ---- */

struct ptx_launch {
	const struct ptx_kernel *kernel;
	uint32_t blocks, threads;
	const void *args;
	const struct ptx_span *spans;
	size_t n_spans;
};
/* One at a time. False: it was stopped, and why. */
bool ptx_run(const struct ptx_launch *l, struct ptx_trouble *why);

#endif
