#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-push --backend ipc into vLLM servers, which wsync-endpoint emulates from vLLM's sources:
# they open the memory of our GPU. On a double of libcuda, or with WSYNC_TEST_CUDA on a real one.
# That torch reads our pickles as vLLM has it do, is in tests/peers/test_pickle.py.
load helpers

prepare() {
	[ -e "$build/tests/gpu/fake_cuda.so" ] || skip "built without CUDA"
	gpu_libraries
	llama m
	llama n '' --seed 7
}

# load URL DIRECTORY: by vLLM's reload.
load_disk() {
	fetch "$1/collective_rpc" "{\"method\":\"reload_weights\",
		\"kwargs\":{\"weights_path\":\"$2\"}}" >/dev/null
}

# vllm NAME VERSION OPTION...: a server with the model n; sets $url.
vllm() {
	endpoint "$1" --lineage "vllm-$2" --model "$PWD/n" --backend ipc "${@:3}"
	load_disk "$url" "$PWD/n"
}

sums() { fetch "$1/wsync/checksums" | sed 's/"url":"[^"]*"//'; }
expect_sums() { [ "$(sums "$1")" = "$2" ] || explain "$1 has other weights"; }
completes() {
	fetch "$url/v1/completions" '{"prompt":[1,2,3],"max_tokens":1}' >/dev/null || explain "it does not answer a prompt"
}
push() { try wsync-push m -e "$url" --backend ipc "$@"; }

@test "each dialect opens what it is shown, in one bucket or many, and holds all bytes" {
	local v size of_m of_n
	vllm oracle 0.33
	of_n=$(sums "$url")
	load_disk "$url" "$PWD/m"
	of_m=$(sums "$url")
	[ "$of_n" != "$of_m" ] || explain "two models with the same checksums"
	for v in 0.20 0.24 0.27 0.33; do
		vllm "at-$v" "$v"
		for size in 8KiB 90KiB 1GiB; do
			push --bucket-size "$size"
			expect_status 0
			expect_sums "$url" "$of_m"
			try wsync-push n -e "$url" --backend ipc --bucket-size "$size"
			expect_status 0
			expect_sums "$url" "$of_n"
		done
	done
	push --verify hash --weight-version 7
	expect_status 0
	printf '%s\n' m n m >list
	STDIN=list try wsync-push --stdin -e "$url" --backend ipc --bucket-size 16KiB --json
	expect_status 0
	expect_sums "$url" "$of_m"
}

@test "what cannot work is refused before anything is asked of it" {
	vllm two 0.33 --tp 2
	push
	expect_status 5
	err_has "it has several workers, each of which wants memory of its own GPU"
	vllm one 0.33
	push --ipc-device 0
	expect_status 5
	err_has "a vLLM finds its GPU by its UUID"
	try wsync-push m -e "$url" --backend nccl
	expect_status 5
	err_has "it takes weights by vLLM's engine ipc, not nccl"
	err_has "or use --backend ipc"
	expect_journal "$url" "'/pause' in paths or '/init_weight_transfer_engine' in paths" False
	proxy "$url" "if path == '/version': answer = (200, '{\"version\":\"0.21.0\"}')"
	push
	expect_status 5
	err_has "vLLM 0.21.0 cannot be given memory of a GPU"
	endpoint nccl --lineage vllm-0.33 --model "$PWD/n"
	push
	expect_status 5
	err_has "it takes weights by vLLM's engine nccl, not ipc"
}

@test "what only the first bucket shows is told with what helps, and harms nothing" {
	local v old
	for v in 0.20 0.24 0.33; do
		vllm "at-$v" "$v"
		old=$(sums "$url")
		push --gpu 1
		expect_status 5
		err_has "IPC handle not found for GPU UUID"
		err_has "the server computes on another GPU than --gpu names"
		out_has "untouched"
		expect_sums "$url" "$old"
		expect_journal "$url" 's["paused"]' False
		completes
		push
		expect_status 0
	done
	local real=$url
	proxy "$real" "if path == '/update_weights': answer = (500, '{\"error\":{\"message\":\"' +
		'Refusing to deserialize without VLLM_ALLOW_INSECURE_SERIALIZATION=1\"}}')"
	push
	expect_status 5
	err_has "start vLLM with VLLM_ALLOW_INSECURE_SERIALIZATION=1"
	expect_journal "$real" 's["paused"]' False
	proxy "$real" "if path == '/update_weights': answer = (500, '{\"error\":{\"message\":\"' +
		'CUDA error: invalid resource handle\"}}')"
	push
	expect_status 5
	err_has "--ipc=host and --pid=host"
}

@test "a failed update leaves it partial and paused, and the next push ends that" {
	local v
	for v in 0.20 0.24 0.33; do
		vllm "at-$v" "$v" --fault refuse:update_weights:2
		push --bucket-size 90KiB
		expect_status 5
		expect_journal "$url" 's["paused"]' True
		push --bucket-size 90KiB
		expect_status 0
		expect_journal "$url" 's["paused"]' False
	done
	vllm dies 0.33 --fault die:update_weights:2
	push --bucket-size 90KiB
	expect_status 4
	vllm silent 0.33
	meddle "$url" /update_weights 1 "kill -STOP $pid"
	push --bucket-timeout 1s
	expect_status 10
	err_has "may still read memory of the GPU that is given back"
}
