/* SPDX-License-Identifier: Apache-2.0 */
/* ptx_run.c - runs a kernel: blocks, warps and lanes, and where they have to meet. */
#include "ptx.h"

#include <stdlib.h>
#include <string.h>

enum { WARPS = PTX_MAX_THREADS / PTX_LANES };

struct warp {
	union ptx_lanes *regs;
	uint32_t pc[PTX_LANES];
	uint32_t ready, waiting; /* lanes; those that are neither have ended */
	uint32_t first;          /* thread */
};

static struct run {
	const struct ptx_launch *l;
	struct ptx_trouble *why;
	struct ptx_memory memory;
	struct warp warps[WARPS];
	uint32_t n_warps, block, where; /* where: the instruction that runs */
	struct warp *warp;
	/* Kept from launch to launch, as they are large. */
	union ptx_lanes *regs;
	char *shared;
	struct ptx_mark *marks;
	size_t n_regs, n_shared;
} run;

__attribute__((destructor)) static void free_all(void)
{
	free(run.regs);
	free(run.shared);
	free(run.marks);
}

#define EACH_LANE(lane, lanes) \
	for (uint32_t lane = 0, left_ = (lanes); left_; lane++, left_ >>= 1) \
		if (left_ & 1)

static bool stop(const struct ptx_inst *i, uint32_t lane, const struct ptx_trouble *what)
{
	const struct ptx_kernel *k = run.l->kernel;
	ptx_complain(run.why, "%s, %s:%u, block %u, thread %u: %s", k->name, k->of->file, i->line,
	             run.block, run.warp->first + lane, what->text);
	return false;
}

static bool stop_for(const struct ptx_inst *i, uint32_t lane, const char *what)
{
	struct ptx_trouble t = { "" };
	ptx_complain(&t, "%s", what);
	return stop(i, lane, &t);
}

static uint32_t lanes_where(const struct warp *w, uint32_t of, uint32_t pc)
{
	uint32_t lanes = 0;
	EACH_LANE(l, of)
		if (w->pc[l] == pc)
			lanes |= 1u << l;
	return lanes;
}

static uint32_t lowest(const struct warp *w, uint32_t of)
{
	uint32_t pc = UINT32_MAX;
	EACH_LANE(l, of)
		if (w->pc[l] < pc)
			pc = w->pc[l];
	return pc;
}

static void set_pc(struct warp *w, uint32_t lanes, uint32_t pc)
{
	EACH_LANE(l, lanes)
		w->pc[l] = pc;
}

/* ---- one instruction ---- */

static void run_op(struct warp *w, const struct ptx_inst *i, uint32_t lanes)
{
	const union ptx_lanes *in[PTX_OPERANDS] = { 0 };
	union ptx_lanes out, *to = &w->regs[i->reg[0]];
	const bool is8 = i->op->classes[0] == '8';
	for (size_t k = 1; i->op->classes[k]; k++)
		in[k - 1] = &w->regs[i->reg[k]];
	i->op->run(&out, in);
	if (lanes == UINT32_MAX) {
		memcpy(to, &out, is8 ? sizeof out.u8 : sizeof out.u4);
		return;
	}
	EACH_LANE(l, lanes) {
		if (is8)
			to->u8[l] = out.u8[l];
		else
			to->u4[l] = out.u4[l];
	}
}

static uint64_t value(const struct warp *w, uint32_t reg, uint32_t bytes, uint32_t lane)
{
	return bytes == 8 ? w->regs[reg].u8[lane] : w->regs[reg].u4[lane];
}

static void set_value(struct warp *w, uint32_t reg, uint32_t bytes, uint32_t lane, uint64_t v)
{
	if (bytes == 8)
		w->regs[reg].u8[lane] = v;
	else
		w->regs[reg].u4[lane] = (uint32_t)v & (bytes == 2 ? 0xffff : UINT32_MAX);
}

/* Little-endian, as here so there. */
static uint64_t take(const struct ptx_inst *i, const char *from)
{
	uint64_t v = 0;
	memcpy(&v, from, i->size);
	if (i->is_signed && i->size < 8 && v >> (i->size * 8 - 1))
		v |= UINT64_MAX << i->size * 8;
	return v;
}

static void move(struct warp *w, const struct ptx_inst *i, uint32_t lane, char *at)
{
	for (uint32_t v = 0; v < i->vector; v++) {
		char *one = at + v * i->size;
		uint64_t x;
		switch (i->kind) {
		case PTX_LOAD:
			set_value(w, i->reg[v], i->data, lane, take(i, one));
			break;
		case PTX_ATOM:
			x = take(i, one);
			const uint64_t folded = i->fold(x, value(w, i->reg[1], i->data, lane));
			set_value(w, i->reg[0], i->data, lane, x);
			memcpy(one, &folded, i->size);
			break;
		default:
			x = value(w, i->reg[v], i->data, lane);
			memcpy(one, &x, i->size);
		}
	}
}

static bool run_access(struct warp *w, const struct ptx_inst *i, uint32_t lanes)
{
	struct ptx_access a = { .space = i->space, .bytes = (uint32_t)i->size * i->vector,
		                .writes = i->kind != PTX_LOAD, .is_strong = i->is_strong };
	struct ptx_trouble why = { "" };
	EACH_LANE(l, lanes) {
		a.at = value(w, i->base, i->base8 ? 8 : 4, l) + (uint64_t)i->offset;
		if (!i->base8)
			a.at &= UINT32_MAX;
		a.thread = w->first + l;
		char *at = ptx_reach(&run.memory, &a, &why);
		if (!at)
			return stop(i, l, &why);
		move(w, i, l, at);
	}
	return true;
}

/* All lanes that its mask names, and no others, have come to it. */
static bool run_redux(struct warp *w, const struct ptx_inst *i, uint32_t lanes)
{
	const uint32_t first = (uint32_t)__builtin_ctz(lanes);
	uint64_t all = w->regs[i->reg[1]].u4[first];
	EACH_LANE(l, lanes) {
		if (w->regs[i->reg[2]].u4[l] != lanes)
			return stop_for(i, l,
			                "threads of a warp are missing at a redux.sync, or are "
			                "others than it names");
		if (l != first)
			all = i->fold(all, w->regs[i->reg[1]].u4[l]);
	}
	EACH_LANE(l, lanes)
		w->regs[i->reg[0]].u4[l] = (uint32_t)all;
	return true;
}

/* ---- a warp ---- */

static uint32_t guarded(const struct warp *w, const struct ptx_inst *i, uint32_t lanes)
{
	uint32_t these = 0;
	if (!i->is_guarded)
		return lanes;
	EACH_LANE(l, lanes)
		if ((w->regs[i->guard].u4[l] != 0) != i->unless)
			these |= 1u << l;
	return these;
}

static void wait_here(struct warp *w, uint32_t lanes, uint32_t pc)
{
	set_pc(w, lanes, pc);
	w->ready &= ~lanes;
	w->waiting |= lanes;
}

/* From pc on, as far as these lanes stay together and come to no others; their pc is set. */
static bool go_on(struct warp *w, uint32_t lanes, uint32_t pc)
{
	const struct ptx_kernel *k = run.l->kernel;
	const uint32_t others = lowest(w, w->ready & ~lanes);
	while (pc < others) {
		const struct ptx_inst *i = &k->code[pc];
		const uint32_t these = guarded(w, i, lanes);
		switch (i->kind) {
		case PTX_OP:
			run_op(w, i, these);
			break;
		case PTX_LOAD:
		case PTX_STORE:
		case PTX_ATOM:
			if (!run_access(w, i, these))
				return false;
			break;
		case PTX_BARRIER:
		case PTX_REDUX:
			wait_here(w, lanes, pc);
			return true;
		case PTX_BRANCH:
			if (these != lanes && these) {
				set_pc(w, these, i->target);
				set_pc(w, lanes & ~these, pc + 1);
				return true;
			}
			pc = these ? i->target : pc + 1;
			continue;
		case PTX_EXIT:
			w->ready &= ~these;
			lanes &= ~these;
			if (!lanes)
				return true;
			break;
		}
		pc++;
	}
	set_pc(w, lanes, pc);
	return true;
}

/* Until all lanes have ended or wait at a barrier. */
static bool run_warp(struct warp *w)
{
	const struct ptx_kernel *k = run.l->kernel;
	run.warp = w;
	for (;;) {
		while (w->ready) {
			const uint32_t pc = lowest(w, w->ready);
			if (!go_on(w, lanes_where(w, w->ready, pc), pc))
				return false;
		}
		if (!w->waiting)
			return true;
		const uint32_t pc = lowest(w, w->waiting), lanes = lanes_where(w, w->waiting, pc);
		if (k->code[pc].kind == PTX_BARRIER)
			return true;
		if (!run_redux(w, &k->code[pc], lanes))
			return false;
		w->waiting &= ~lanes;
		w->ready |= lanes;
		set_pc(w, lanes, pc + 1);
	}
}

/* ---- a block ---- */

static uint32_t all_lanes(const struct warp *w)
{
	const uint32_t threads = run.l->threads - w->first;
	return threads < PTX_LANES ? (1u << threads) - 1 : UINT32_MAX;
}

/* All threads wait at one and the same barrier, or none waits. */
static bool have_met(bool *ended)
{
	const bool waits = run.warps[0].waiting;
	const uint32_t pc = waits ? lowest(&run.warps[0], run.warps[0].waiting) : 0;
	*ended = !waits;
	for (uint32_t n = 0; n < run.n_warps; n++) {
		struct warp *w = run.warp = &run.warps[n];
		const uint32_t here = lanes_where(w, w->waiting, pc);
		const uint32_t astray = waits ? all_lanes(w) & ~here : w->waiting;
		if (!astray)
			continue;
		const uint32_t lane = (uint32_t)__builtin_ctz(astray);
		return stop_for(&run.l->kernel->code[w->pc[lane]], lane,
		                w->waiting >> lane & 1 ? "waits at a barrier, and others do not" :
		                                         "has ended, and others wait at a barrier");
	}
	return true;
}

static void begin_block(uint32_t block)
{
	run.block = block;
	run.memory.block = ++run.memory.now;
	for (uint32_t n = 0; n < run.n_warps; n++) {
		struct warp *w = &run.warps[n];
		w->ready = all_lanes(w);
		w->waiting = 0;
		set_pc(w, UINT32_MAX, 0);
		for (uint32_t l = 0; l < PTX_LANES; l++)
			w->regs[PTX_CTAID].u4[l] = block;
	}
}

static bool run_block(uint32_t block)
{
	bool ended = false;
	begin_block(block);
	while (!ended) {
		for (uint32_t n = 0; n < run.n_warps; n++)
			if (!run_warp(&run.warps[n]))
				return false;
		if (!have_met(&ended))
			return false;
		run.memory.now++;
		for (uint32_t n = 0; n < run.n_warps; n++) {
			struct warp *w = &run.warps[n];
			EACH_LANE(l, w->waiting)
				w->pc[l]++;
			w->ready = w->waiting;
			w->waiting = 0;
		}
	}
	return true;
}

/* ---- a launch ---- */

static void set_all(union ptx_lanes *r, uint64_t v, bool is8)
{
	for (uint32_t l = 0; l < PTX_LANES; l++)
		if (is8)
			r->u8[l] = v;
		else
			r->u4[l] = (uint32_t)v;
}

static void prepare_warp(struct warp *w, uint32_t n)
{
	const struct ptx_kernel *k = run.l->kernel;
	w->first = n * PTX_LANES;
	w->regs = run.regs + (size_t)n * k->n_regs;
	for (uint32_t c = 0; c < k->n_constants; c++)
		set_all(&w->regs[k->constants[c].reg], k->constants[c].value, k->constants[c].is8);
	set_all(&w->regs[PTX_NTID], run.l->threads, false);
	set_all(&w->regs[PTX_NCTAID], run.l->blocks, false);
	for (uint32_t l = 0; l < PTX_LANES; l++) {
		w->regs[PTX_TID].u4[l] = w->first + l;
		w->regs[PTX_LANEID].u4[l] = l;
	}
}

static bool make_room(size_t n_regs, size_t n_shared)
{
	if (n_regs > run.n_regs) {
		free(run.regs);
		run.regs = malloc(n_regs * sizeof *run.regs);
		run.n_regs = run.regs ? n_regs : 0;
	}
	if (n_shared > run.n_shared) {
		free(run.shared);
		free(run.marks);
		run.shared = malloc(n_shared);
		run.marks = calloc(n_shared, sizeof *run.marks);
		run.n_shared = run.shared && run.marks ? n_shared : 0;
	}
	return n_regs <= run.n_regs && n_shared <= run.n_shared;
}

bool ptx_run(const struct ptx_launch *l, struct ptx_trouble *why)
{
	const struct ptx_kernel *k = l->kernel;
	run.l = l;
	run.why = why;
	run.n_warps = (l->threads + PTX_LANES - 1) / PTX_LANES;
	const size_t n_regs = (size_t)run.n_warps * k->n_regs, n_shared = k->of->shared_bytes;
	if (l->threads > PTX_MAX_THREADS || (k->max_threads && l->threads > k->max_threads)) {
		ptx_complain(why, "%s: %u threads are more than it is made for", k->name,
		             l->threads);
		return false;
	}
	if (!make_room(n_regs, n_shared)) {
		ptx_complain(why, "%s: out of memory", k->name);
		return false;
	}
	ptx_memory_trim();
	/* so that one which is read too early shows */
	memset(run.regs, 0xa5, n_regs * sizeof *run.regs);
	run.memory = (struct ptx_memory){ .of = k->of, .params = l->args,
		                          .param_bytes = k->param_bytes, .spans = l->spans,
		                          .n_spans = l->n_spans, .shared = run.shared,
		                          .marks = run.marks, .now = run.memory.now + 1 };
	run.memory.launch = run.memory.now;
	for (uint32_t n = 0; n < run.n_warps; n++)
		prepare_warp(&run.warps[n], n);
	for (uint32_t block = 0; block < l->blocks; block++)
		if (!run_block(block))
			return false;
	return true;
}
