#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The kernels as nvcc made them, interpreted by the double of libcuda (tests/gpu/ptx.h), through the
# tests that compare them with the CPU's results bit for bit. What the double notices (races, memory
# that was not written or is not there, threads that do not meet) ends a program with 99.
#
# PTX_TESTS="stage_recipe merge" is these of build/tests/gpu/test_*_gpu; else all but the long one.
load helpers

ptx=$build/gen/ptx
tests=${PTX_TESTS:-$(basename -s _gpu.c "$repo"/tests/gpu/test_*_gpu.c | sed 's/^test_//; /^stage_recipe$/d')}

prepare() {
	[ -d "$ptx" ] || skip 'this build has no kernels: nvcc was not found'
	export CMOCKA_MESSAGE_OUTPUT=TAP TRY_SECONDS=300
}

# interprets ARCH
interprets() {
	[ -d "$ptx/$1" ] || skip "CUDA_ARCHS is without $1"
	local t
	for t in $tests; do
		FAKE_CUDA_PTX=$ptx/$1 try "$build/tests/gpu/test_${t}_gpu"
		expect_status 0
		[[ $out != '1..0 # SKIP '* ]] || skip "${out#* # SKIP }"
		out_has 'ok 1'
	done
}

# same_kernels: of both, all but FP8 is the same text. The tests of that alone need not run twice.
same_kernels() {
	local file other
	for file in "$ptx"/80/*.ptx; do
		other=$ptx/90/${file##*/}
		[ "${file##*/}" != fp8.ptx ] || continue
		[ -s "$file" ] && [ -s "$other" ] || return 1
		cmp -s <(sed '/^\.target/d' "$file") <(sed '/^\.target/d' "$other") || return 1
	done
}

@test "as for GPUs without FP8" {
	[ -n "${PTX_TESTS:-}" ] || ! same_kernels || tests=$(grep -xE 'far|fp8' <<<"$tests")
	interprets 80
}

@test "as for those with FP8, which round by an instruction" {
	interprets 90
}

@test "as for 100 and later, by another compiler" {
	interprets 100
}

# A driver that compiles PTX for a GPU of another kind may contract what has no .rn; the interpreter
# refuses it.
@test "contraction would change nothing" {
	local file name
	for file in "$ptx"/contracted/*.ptx; do
		name=${file##*/}
		cmp "$file" "$ptx/$(sed -n 's/^\.target sm_//p' "$file")/$name"
	done
}

@test "a kernel that cannot be run is not passed over" {
	mkdir empty broken
	FAKE_CUDA_PTX=empty try "$build/tests/gpu/test_merge_gpu"
	expect_status 99
	err_has 'is in none of the files of FAKE_CUDA_PTX'
	for file in "$ptx"/contracted/*.ptx; do
		sed '0,/max\.u32/s//max.u33/' "$file" >"broken/${file##*/}"
	done
	FAKE_CUDA_PTX=broken try "$build/tests/gpu/test_merge_gpu"
	expect_status 99
	err_has 'unknown instruction: max.u33'
}
