#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-bench where a GPU is asked for: on doubles of libcuda and libnccl, whose times mean nothing and are
# looked at by nobody, and on a machine that has none.
load helpers

prepare() {
	mkdir lib
	ln -s "$build/tests/gpu/fake_cuda.so" lib/libcuda.so.1
	ln -s "$build/tests/gpu/fake_cuda.so" lib/fake_cuda.so # where the other looks for it
	ln -s "$build/tests/gpu/fake_nccl.so" lib/libnccl.so.2
}

with_doubles() {
	[ -e "$build/tests/gpu/fake_cuda.so" ] || skip "built without CUDA"
	export LD_LIBRARY_PATH=$scratch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

keys() { /usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" wsync-bench <<<"$out"; }
rows() { json "[($1) for l in lines if l['type'] == 'measure']"; }

@test "kernels: those of a GPU, byte by byte those of the CPU" {
	with_doubles
	try wsync-bench kernels --on gpu --size 1MiB --samples 1 --warmup 0 --check --json
	expect_status 0
	keys
	[ "$(rows 'l["errors"], l["detail"], l["against"], l["against_bytes"]')" = "$(/usr/bin/python3 -c 'print([(0, "gpu", "device copy", 1 << 21)] * 14)')" ] ||
		explain "rows"
	[ "$(json '[l["against"] for l in lines if l["type"] == "roofline"]')" = "['device copy']" ]
	[ "$(json '[(l["gpus"], l["cuda"], l["compute_capability"], l["nccl"]) for l in lines if l["type"] == "machine"]')" = "[(2, '13.0', '9.0', None)]" ] ||
		explain "the machine"
}

@test "load: to the GPU, beside a copy of pinned memory" {
	with_doubles
	llama m
	try wsync-bench load m --to gpu --samples 2 --json
	expect_status 0
	keys
	[ "$(rows 'l["name"], l["against"]')" = "[('read', 'read(2)'), ('copied to GPU', None), ('read to GPU', 'pinned copy')]" ] || explain "rows"
	try wsync-bench load m --to gpu --gpu 1 --cold --samples 1
	expect_status 0
	out_has "Double 1"
	out_has "page cache empty"
}

@test "where there is no GPU, a sentence and no heading" {
	llama m
	for what in "kernels --on gpu" "load m --to gpu" "push m --backend nccl" "sweep m --backend nccl"; do
		# shellcheck disable=SC2086
		try wsync-bench $what
		expect_status 7
		expect_out ""
		[[ "$err" == *CUDA* ]] || explain "why"
	done
	with_doubles
	try wsync-bench kernels --on gpu --gpu 7
	expect_status 7
	err_has "there is no GPU 7"
	try wsync-bench push m --backend nccl --nccl-lib /nowhere/libnccl.so.2
	expect_status 7
	err_has "NCCL cannot be loaded"
	try wsync-bench load m --on gpu
	expect_status 2
}
