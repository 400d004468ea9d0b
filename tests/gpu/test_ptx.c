/* SPDX-License-Identifier: Apache-2.0 */
/* The interpreter of PTX: what it computes, and that it tells what is wrong. Kernels are written
 * by hand here; those of nvcc are in tests/cli/kernels-ptx.bats. */
#include "ptx.h"
#include "test.h"

/* %rd1: 64 words of memory; %r1: the thread; %rd2: the thread's word. */
#define HEAD                                                                                       \
	".version 9.0\n.target sm_90\n.address_size 64\n"                                          \
	".visible .entry k(\n\t.param .align 8 .b8 k_param_0[8]\n)\n.maxntid 64, 1, 1\n{\n"        \
	".reg .pred %p<4>;\n.reg .b16 %rs<4>;\n.reg .f32 %f<8>;\n.reg .b32 %r<8>;\n.reg .b64 "     \
	"%rd<8>;\n"                                                                                \
	".shared .align 4 .b8 s[256];\n"                                                           \
	"ld.param.u64 %rd1, [k_param_0];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\n"      \
	"add.s64 %rd2, %rd1, %rd2;\nmov.u32 %r2, s;\nmad.lo.s32 %r2, %r1, 4, %r2;\n"
#define TAIL "ret;\n}\n"

static uint32_t memory[64];

static void run_of(const char *body, uint32_t blocks, uint32_t threads, struct ptx_trouble *why)
{
	char text[4096];
	snprintf(text, sizeof text, "%s%s%s", HEAD, body, TAIL);
	*why = (struct ptx_trouble){ "" };
	struct ptx_module *m = ptx_parse("test.ptx", text, why);
	if (!m)
		return;
	const struct ptx_span span = { (uintptr_t)memory, sizeof memory };
	const uint64_t argument = span.at;
	const struct ptx_launch l = { .kernel = ptx_find(m, "k"), .blocks = blocks,
		                      .threads = threads, .args = &argument, .spans = &span,
		                      .n_spans = 1 };
	assert_non_null(l.kernel);
	const bool ok = ptx_run(&l, why);
	assert_int_equal(ok, why->text[0] == '\0');
	ptx_free(m);
}

static void runs_of(const char *body, uint32_t blocks, uint32_t threads)
{
	struct ptx_trouble why;
	run_of(body, blocks, threads, &why);
	assert_string_equal(why.text, "");
}

static void tells(const char *body, const char *words)
{
	struct ptx_trouble why;
	run_of(body, 1, 64, &why);
	if (!strstr(why.text, words))
		fail_msg("\"%s\" does not say \"%s\"", why.text, words);
}

/* ---- what is computed ---- */

/* One thread; the result of an instruction with %r3 or %f3, from x and y. */
static uint32_t of_two(const char *instruction, uint32_t x, uint32_t y)
{
	char body[512];
	memory[0] = x, memory[1] = y;
	snprintf(body, sizeof body,
	         "ld.global.u32 %%r4, [%%rd1];\nld.global.u32 %%r5, [%%rd1+4];\n"
	         "mov.b32 %%f4, %%r4;\nmov.b32 %%f5, %%r5;\nmov.b32 %%f3, 0;\n%s\n"
	         "st.global.u32 [%%rd1+8], %%r3;\n",
	         instruction);
	runs_of(body, 1, 1);
	return memory[2];
}

#define FLOATS(op) op ".f32 %f3, %f4, %f5;\nmov.b32 %r3, %f3;"

TEST(floats_are_rounded_once_and_their_nan_is_the_one_of_a_gpu)
{
	/* 1 + 2^-24: a tie */
	assert_int_equal(of_two(FLOATS("add.rn"), 0x3f800000, 0x33800000), 0x3f800000);
	assert_int_equal(of_two(FLOATS("add.rn"), 0x3f800001, 0x33800000), 0x3f800002);
	/* subnormal */
	assert_int_equal(of_two(FLOATS("mul.rn"), 0x00800000, 0x3f000000), 0x00400000);
	assert_int_equal(of_two(FLOATS("mul.rn"), 0xffc12345, 0x3f000000), 0x7fffffff);
	assert_int_equal(of_two(FLOATS("sub.rn"), 0x7f800000, 0x7f800000), 0x7fffffff);
	assert_int_equal(of_two(FLOATS("max"), 0x7fc00000, 0x80000000), 0x80000000);
	assert_int_equal(of_two(FLOATS("max"), 0x80000000, 0), 0);
	assert_int_equal(of_two(FLOATS("min"), 0x80000000, 0), 0x80000000);
	assert_int_equal(of_two("fma.rn.f32 %f3, %f4, %f5, 0fBF800000;\nmov.b32 %r3, %f3;",
	                        0x3f800001, 0x3f7fffff),
	                 /* (1 + 2^-23) * (1 - 2^-24) - 1, which two roundings make 0 */
	                 0x337ffffe);
}

static uint32_t e4m3(uint32_t bits)
{
	return of_two("cvt.rn.satfinite.e4m3x2.f32 %rs1, %f5, %f4;\ncvt.u32.u16 %r3, %rs1;", bits,
	              0x3f800000);
}

TEST(e4m3_is_rounded_to_even_and_saturates)
{
	assert_int_equal(e4m3(0), 0x3800);           /* the first source is the upper byte: 1 */
	assert_int_equal(e4m3(0x80000000), 0x3880);
	assert_int_equal(e4m3(0x3f880000), 0x3838);  /* 1.0625: to even, 1 */
	assert_int_equal(e4m3(0x3f980000), 0x383a);  /* 1.1875: to even, 1.25 */
	assert_int_equal(e4m3(0x3fff0000), 0x3840);  /* to the next power */
	assert_int_equal(e4m3(0x3b000000), 0x3801);  /* 2^-9 */
	assert_int_equal(e4m3(0x3a800000), 0x3800);  /* its half */
	assert_int_equal(e4m3(0x3a800001), 0x3801);
	assert_int_equal(e4m3(0x3c7fffff), 0x3808);  /* the least that is normal */
	assert_int_equal(e4m3(0x43e00000), 0x387e);
	assert_int_equal(e4m3(0x7f800000), 0x387e);
	assert_int_equal(e4m3(0xff7fffff), 0x38fe);
	assert_int_equal(e4m3(0xffc00000), 0x387f);
}

#define INTEGERS(op) op " %r3, %r4, %r5;"

TEST(integers_wrap_and_shifts_end)
{
	assert_int_equal(of_two(INTEGERS("add.s32"), UINT32_MAX, 2), 1);
	assert_int_equal(of_two(INTEGERS("mul.hi.u32"), UINT32_MAX, UINT32_MAX), UINT32_MAX - 1);
	assert_int_equal(of_two(INTEGERS("shl.b32"), 1, 32), 0);
	assert_int_equal(of_two(INTEGERS("shr.s32"), 0x80000000, 40), UINT32_MAX);
	assert_int_equal(of_two(INTEGERS("div.s32"), (uint32_t)-7, 2), (uint32_t)-3);
	assert_int_equal(of_two(INTEGERS("rem.s32"), (uint32_t)-7, 2), UINT32_MAX);
	assert_int_equal(of_two(INTEGERS("min.s32"), UINT32_MAX, 1), UINT32_MAX);
	assert_int_equal(of_two(INTEGERS("min.u32"), UINT32_MAX, 1), 1);
	assert_int_equal(of_two("prmt.b32 %r3, %r4, %r5, 0x5140;", 0x33221100, 0x77665544),
	                 0x55114400);
	assert_int_equal(of_two("lop3.b32 %r3, %r4, %r5, 255, 0x6a;", 0xf0f0, 0xff00),
	                 (0xf0f0 & 0xff00) ^ 255);
	assert_int_equal(of_two("shf.l.wrap.b32 %r3, %r4, %r5, 8;", 0x11223344, 0x55667788),
	                 0x66778811);
	assert_int_equal(of_two("bfe.u32 %r3, %r4, 8, 12;", 0x11223344, 0), 0x233);
	assert_int_equal(of_two("bfi.b32 %r3, %r4, %r5, 4, 8;", 0xab, 0x1000f), 0x10abf);
}

TEST(threads_part_and_come_together)
{
	/* each counts down from its number, by a loop of its own length */
	runs_of("mov.u32 %r3, %r1;\nmov.u32 %r4, 0;\n"
	        "$L1:\nsetp.eq.s32 %p1, %r3, 0;\n@%p1 bra $L2;\nadd.s32 %r4, %r4, %r3;\nadd.s32 "
	        "%r3, %r3, -1;\n"
	        "bra.uni $L1;\n$L2:\nmov.u32 %r5, -1;\nredux.sync.max.u32 %r6, %r4, %r5;\n"
	        "st.shared.u32 [%r2], %r6;\nbar.sync 0;\nld.shared.u32 %r7, "
	        "[s+252];\nst.global.u32 [%rd2], %r7;\n",
	        1, 64);
	for (int i = 0; i < 64; i++)
		assert_int_equal(memory[i], 63 * 64 / 2);
}

/* ---- what is told ---- */

TEST(races_in_shared_memory)
{
	tells("st.shared.u32 [%r2], %r1;\nld.shared.u32 %r3, [s];\n",
	      "a race: byte 0 is written by thread 0 too");
	tells("st.shared.u32 [s], %r1;\n", "a race");
	tells("st.shared.u32 [%r2], %r1;\nbar.sync 0;\nld.shared.u32 %r3, [s+4];\nst.shared.u32 "
	      "[%r2], %r3;\n",
	      "a race: byte 0x4 is read by several threads too");
	runs_of("st.shared.u32 [%r2], %r1;\nbar.sync 0;\nld.shared.u32 %r3, [s+4];\nbar.sync 0;\n"
	        "st.shared.u32 [%r2], %r3;\n", 2, 64);
}

TEST(races_in_global_memory)
{
	struct ptx_trouble why;
	tells("st.global.u32 [%rd1], %r1;\n", "a race");
	tells("ld.global.u32 %r3, [%rd1];\nst.global.u32 [%rd2], %r3;\n", "a race");
	/* blocks are never ordered, not even by time */
	run_of("st.global.u32 [%rd2], %r1;\n", 2, 64, &why);
	assert_non_null(strstr(why.text, "block 1, thread 0: a race"));
	run_of("mov.u32 %r3, %ctaid.x;\nsetp.ne.s32 %p1, %r3, 0;\n@%p1 bra $L1;\nld.global.u32 "
	       "%r3, [%rd2];\nret;\n"
	       "$L1:\nst.global.u32 [%rd2], %r3;\n",
	       2, 64, &why);
	assert_non_null(strstr(why.text, "block 1, thread 0: a race"));
	/* but what is volatile or atomic is meant so, and launches are ordered */
	for (int i = 0; i < 2; i++)
		runs_of("cvt.u64.u32 %rd3, %r1;\natom.global.max.u32 %r3, [%rd1], %r1;\n"
		        "ld.volatile.global.u32 %r4, [%rd1];\n", 3, 64);
	assert_int_equal(memory[0], 63);
	tells("ld.volatile.global.u32 %r4, [%rd1];\nst.global.u32 [%rd1], %r1;\n", "a race");
}

TEST(shared_memory_that_was_not_written)
{
	tells("ld.shared.u32 %r3, [%r2];\n", "is read and was not written");
	/* what the last block wrote is gone */
	struct ptx_trouble why;
	run_of("mov.u32 %r3, %ctaid.x;\nsetp.ne.s32 %p1, %r3, 0;\n@!%p1 st.shared.u32 [%r2], "
	       "%r1;\nbar.sync 0;\n"
	       "ld.shared.u32 %r3, [%r2];\n",
	       2, 64, &why);
	assert_non_null(
		strstr(why.text,
	               "block 1, thread 0: byte 0 of shared memory is read and was not written"));
}

TEST(accesses_beside_and_across)
{
	tells("ld.global.u32 %r3, [%rd2+4];\n", "thread 63: 4 bytes at");
	tells("ld.global.u32 %r3, [%rd1+-4];\n", "are in no allocation");
	tells("st.shared.u32 [%r2+4], %r1;\n", "are in no array of shared memory");
	tells("ld.param.u64 %rd3, [k_param_0+8];\n", "are not in the parameter");
	tells("ld.global.u32 %r3, [%rd1+2];\n", "are not aligned");
	tells("ld.global.v2.u32 {%r3, %r4}, [%rd1+4];\n", "are not aligned");
}

TEST(threads_that_do_not_meet)
{
	tells("setp.lt.u32 %p1, %r1, 16;\n@%p1 bra $L1;\nbar.sync 0;\n$L1:\n",
	      "has ended, and others wait");
	tells("setp.lt.u32 %p1, %r1, 16;\n@%p1 bra $L1;\nbar.sync 0;\nbra.uni $L2;\n$L1:\nbar.sync "
	      "0;\n$L2:\n",
	      "waits at a barrier, and others do not");
	tells("setp.lt.u32 %p1, %r1, 40;\n@%p1 bra $L1;\nbar.sync 0;\n$L1:\n",
	      "waits at a barrier, and others do not");
	tells("setp.lt.u32 %p1, %r1, 16;\n@%p1 bra $L1;\nmov.u32 %r3, -1;\nredux.sync.max.u32 %r4, "
	      "%r1, %r3;\n$L1:\n",
	      "missing at a redux.sync");
	tells("mov.u32 %r3, 65535;\nredux.sync.max.u32 %r4, %r1, %r3;\n", "others than it names");
}

TEST(what_it_does_not_know)
{
	tells("mul.f32 %f3, %f4, %f5;\n",
	      "test.ptx:21: without .rn it may become part of an fma, with other bits: mul.f32");
	tells("add.ftz.f32 %f3, %f4, %f5;\n", "unknown instruction: add.ftz.f32");
	tells("add.s32 %r3, %r4, %rd5;\n", "another size");
	tells("add.s32 %r3, %r4, %r99;\n", "no such register");
	tells("ld.local.u32 %r3, [%rd1];\n", "unknown kind of access: local");
	tells("bra $nowhere;\n", "no such label: $nowhere");
	tells(".local .align 4 .b8 depot[16];\n", "unknown directive");
	tells("bar.sync 1;\n", "a barrier of another kind");
}

RUN_TESTS(NULL, NULL)
