#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-bench where a GPU is asked for: on doubles of libcuda and libnccl, whose times mean nothing
# and are looked at by nobody, and on a machine that has none.
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

keys() { /usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" wsync-bench \
	<<<"$out"; }
rows() { json "[($1) for l in lines if l['type'] == 'measure']"; }

@test "kernels: those of a GPU, beside its own copies" {
	with_doubles
	try wsync-bench kernels --on gpu --size 1MiB --samples 1 --warmup 0 --json
	expect_status 0
	keys
	[ "$(rows 'l["detail"], l["against"], l["against_bytes"]')" = \
		"$(/usr/bin/python3 -c 'print([("gpu", "device copy", 1 << 21)] * 12)')" ] ||
		explain "rows"
	expect_json '[l["against"] for l in lines if l["type"] == "roofline"]' "['device copy']"
	expect_json '[(l["gpus"], l["cuda"], l["compute_capability"], l["nccl"]) for l in lines
		if l["type"] == "machine"]' "[(2, '13.0', '9.0', None)]"
	try wsync-bench kernels --on gpu --check
	expect_status 2
	err_has "make check-gpu"
}

@test "load: to the GPU, beside a copy of pinned memory" {
	with_doubles
	llama m
	try wsync-bench load m --to gpu --samples 2 --json
	expect_status 0
	keys
	[ "$(rows 'l["name"], l["against"]')" = \
		"[('read', 'read(2)'), ('copied to GPU', None), ('read to GPU', 'pinned copy')]" \
		] || explain "rows"
	try wsync-bench load m --to gpu --gpu 1 --cold --samples 1
	expect_status 0
	out_has "Double 1"
	out_has "page cache empty"
	# zeros
	llama m '' --holes
	for where in auto cpu; do
		try wsync-bench load m --to gpu --quantize fp8 --transform-on "$where" --samples 1
		expect_status 0
		out_has "$([ "$where" = cpu ] && echo "read and made to GPU" ||
			echo "read and made on GPU")"
	done
	try wsync-bench load m --quantize fp8 --transform-on gpu --samples 1
	expect_status 2
	err_has "it goes to no GPU"
}

@test "push: over nccl, with the GPU's memory as the end of the source" {
	with_doubles
	export FAKE_NCCL_TOGETHER=1
	safetensors small.safetensors a.weight:BF16:64,32 b.weight:F32:1000
	endpoint e --backend nccl --gpu 1
	try wsync-bench push small.safetensors -e "$url" --backend nccl --verify none \
		--bucket-size 4KiB --samples 2 --json
	expect_status 0
	keys
	expect_json '[(l["supply_ns"] > 0, l["overlap"] > 0, l["buckets"]) for l in lines
		if l["type"] == "bound"]' "[(True, True, 2)]"
	expect_json '[l["nccl"] for l in lines if l["type"] == "machine"]' "['2.28.9']"
	try wsync-verify weights small.safetensors -e "$url"
	expect_status 0
}

@test "transport: over nccl every receiver has every byte, beside a loop of broadcasts" {
	with_doubles
	export FAKE_NCCL_TOGETHER=1 # moves bytes from process to process
	try wsync-bench transport --backend nccl --receivers 2 --min-size 1 --max-size 1MiB \
		--factor 1024 --count 3 \
		--samples 3 --check --json
	expect_status 0
	keys
	[ "$(rows 'l["bytes"], l["errors"], l["count"], l["against"], l["detail"]')" = \
		"$(/usr/bin/python3 -c 'print([
(n, 0, 3, "bare ncclBroadcast", "nccl, 2 receivers") for n in (1, 1024, 1 << 20)])')" ] ||
	explain "rows"
	expect_json '[(l["nccl"], l["gpus"]) for l in lines if l["type"] == "machine"]' \
		"[('2.28.9', 2)]"
	try wsync-bench transport --backend nccl --gpu 1 --nccl-lib "$scratch/lib/libnccl.so.2" \
		--samples 1 --max-size 1MiB
	expect_status 0
	out_has "nccl, 1 receiver x 8"
	out_has "Double 1"
	out_has "NCCL 2.28.9 ($scratch/lib/libnccl.so.2)"
}

@test "the check of speeds on a GPU runs on doubles, where it asks for right bytes alone" {
	[ -e "$build/tests/gpu/fake_cuda.so" ] || skip "built without CUDA"
	export FAKE_NCCL_TOGETHER=1 WSYNC_TEST_CUDA=$build/tests/gpu/fake_cuda.so \
		WSYNC_NCCL_LIB=$build/tests/gpu/fake_nccl.so
	WSYNC_TEST_TRY=1 BUILD=$build try /usr/bin/python3 -B "$repo/tests/gpu/bench_speed.py"
	expect_status 0
	[ "$(grep -c '^ok' <<<"$out")" = 3 ] && [[ "$out" != *SKIP* ]] || explain "all of it"
	BUILD=$build try /usr/bin/python3 -B "$repo/tests/gpu/bench_speed.py"
	expect_out "1..0 # SKIP a double has no speed"
}

@test "transport: receivers elsewhere are told that it is over nccl" {
	with_doubles
	export FAKE_NCCL_TOGETHER=1
	port=$(free_port)
	start one wsync-bench transport --join "127.0.0.1:$port" --gpu 1
	one=$pid
	NCCL_HOSTID=two start two wsync-bench transport --join "127.0.0.1:$port" --gpu 0
	two=$pid
	try wsync-bench transport --backend nccl --remote 2 --listen "127.0.0.1:$port" --samples 2 \
		--max-size 1MiB --check --json
	expect_status 0
	[ "$(rows 'l["detail"], l["errors"], l["against"]')" = \
		"[('nccl, 2 receivers', 0, 'bare ncclBroadcast')]" ] || explain "rows"
	wait "$one" && wait "$two"
}

@test "transport: who cannot take part over nccl, or dies, ends it with a sentence" {
	with_doubles
	export FAKE_NCCL_TOGETHER=1
	port=$(free_port)
	# ours, and nobody says that we are elsewhere
	start one wsync-bench transport --join "127.0.0.1:$port" --gpu 0
	try wsync-bench transport --backend nccl --remote 1 --listen "127.0.0.1:$port" --samples 1 \
		--timeout 10s
	[ "$status" = 6 ] || [ "$status" = 7 ] || explain "refused"
	err_has "joining the communicator"
	expect_out ""
	wait "$pid" || true
	start bench wsync-bench transport --backend nccl --samples 100000 --max-size 1MiB \
		--timeout 20s
	bench=$pid
	receivers() { pgrep -P "$bench" || true; }
	eventually bash -c "pgrep -P $bench >/dev/null"
	sleep 0.5
	kill -9 "$(receivers)"
	status=0
	wait "$bench" || status=$?
	[ "$status" != 0 ] && [ "$status" -lt 20 ] || explain "its end"
	grep -qE "receiver|remote" bench.err || explain "$(<bench.err)"
	try wsync-bench transport --backend tensor
	expect_status 2
	err_has "only gloo and nccl broadcast"
	try wsync-bench transport --join "127.0.0.1:$port" --backend nccl
	expect_status 2
}

@test "where there is no GPU, a sentence and no heading" {
	llama m
	for what in "kernels --on gpu" "load m --to gpu" "push m --backend nccl" \
		"sweep m --backend nccl" "transport --backend nccl"; do
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
