#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The checksums that a server must report: wsync-list-weights --runtime --checksum.
load helpers

small_model() { # FAMILY [--fp8]: the directory FAMILY
	/usr/bin/python3 "$repo/tests/cli/small_model.py" "$1" "$@"
	/usr/bin/python3 "$repo/tests/cli/numbers.py" tame "$1/model.safetensors"
}

predicted() { # DIR TP RANK FUNCTION
	try wsync-list-weights "$1" --runtime --tp "$2" --rank "$3" --checksum "$4" --format tsv
	expect_status 0
	cut -f 1,5 <<<"$out" | LC_ALL=C sort
}

same_as_the_rules() { # DIR TP RANK FUNCTION
	predicted "$@" >ours
	/usr/bin/python3 "$repo/tests/peers/runtime_sums.py" "$@" | LC_ALL=C sort >theirs
	[ -s theirs ]
	diff theirs ours
}

@test "parameters are fused, cut, padded, stacked and replicated as the rules say" {
	for family in llama qwen3 qwen3_moe; do
		small_model "$family"
		same_as_the_rules "$family" 1 0 sglang-cpu
		same_as_the_rules "$family" 2 1 sglang-cuda
		same_as_the_rules "$family" 4 2 sha256
	done
}

@test "a server lists what it reports, and a missing tensor has no checksum but a reason" {
	small_model llama
	endpoint one --tp 2
	try wsync-push llama -e "$url" --verify none
	expect_status 0
	try wsync-list-weights -e "$url" --checksum reported --rank 1 --format tsv
	expect_status 0
	cut -f 1,5 <<<"$out" | LC_ALL=C sort >reported
	wsync-list-weights llama --hash --format tsv | cut -f 1,5 | LC_ALL=C sort | diff - reported
	try wsync-list-weights -e "$url" --checksum reported --rank 2
	expect_status 5
	err_has "reports no checksums of rank 2"
	/usr/bin/python3 "$repo/tests/cli/small_model.py" llama part --only '*.mlp.gate_proj.weight'
	try wsync-list-weights part --runtime --tp 2 --checksum sglang-cpu --json \
		--include '*.0.mlp.gate_up*'
	expect_status 0
	expect_json '[(r["checksum"], r["why"]) for r in lines if r["type"] == "tensor"]' \
		"[(None, 'the source has no model.layers.0.mlp.up_proj.weight')]"
	try wsync-list-weights llama --checksum sha256
	expect_status 2
	err_has "--checksum sha256: with --runtime and a SOURCE only"
	try wsync-list-weights llama --runtime --checksum reported
	expect_status 2
	err_has "--checksum reported: of endpoints only"
}

@test "block FP8 is hashed as bf16 with SGLang's functions, as it is with SHA-256" {
	for family in llama qwen3_moe; do
		small_model "$family" --fp8
		same_as_the_rules "$family" 2 0 sglang-cpu
		same_as_the_rules "$family" 2 1 sglang-cuda
		same_as_the_rules "$family" 2 1 sha256
	done
}

@test "block FP8 is hashed as a Blackwell server rewrites it, whatever its scales" {
	for family in llama qwen3_moe; do
		small_model "$family" --fp8 --block 128 --head 128 --moe 128
		same_as_the_rules "$family" 1 0 sglang-cuda-ue8m0
		mv ours before
		same_as_the_rules "$family" 1 0 sglang-cuda
		[ "$(diff before ours | grep -c '^>')" = "$(grep -c 'proj\|experts' before)" ]
	done
	# Scales that are powers of two stay.
	small_model qwen3 --head 128
	for function in sglang-cuda sglang-cuda-ue8m0; do
		try wsync-list-weights qwen3 --runtime --quantize fp8 --block-size 128x128 --ue8m0 \
			--checksum "$function" --format tsv
		expect_status 0
		cut -f 1,5 <<<"$out" >"$function"
	done
	out_has float8_e4m3fn
	diff sglang-cuda sglang-cuda-ue8m0
}

@test "the bits of a NaN in block FP8 depend on the server, so such a weight is not predicted" {
	/usr/bin/python3 "$repo/tests/cli/small_model.py" llama raw --fp8 # random codes
	try wsync-list-weights raw --runtime --checksum sglang-cpu --json \
		--include '*.0.mlp.gate_up*'
	expect_status 0
	expect_json '[(r["checksum"], r["why"]) for r in lines if r["type"] == "tensor"]' \
		"[(None, 'it has a NaN')]"
}
