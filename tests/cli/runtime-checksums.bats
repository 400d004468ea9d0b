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
	# Packed scales stand for the same numbers, also in the slices of a rank.
	try wsync-list-weights qwen3 --runtime --quantize fp8 --packed-scales \
		--checksum sglang-cuda --format tsv
	expect_status 0
	cut -f 1,5 <<<"$out" | diff sglang-cuda -
	/usr/bin/python3 -S "$repo/tests/cli/small_model.py" qwen3_moe moe --head 256 --moe 1024 \
		--dense 0
	/usr/bin/python3 -S "$repo/tests/cli/numbers.py" tame moe/model.safetensors
	for scales in ue8m0 packed-scales; do
		wsync-list-weights moe --runtime --quantize fp8 "--$scales" --tp 2 --rank 1 \
			--checksum sglang-cpu --format tsv | cut -f 1,5 >"$scales"
	done
	grep experts ue8m0
	[ "$(grep -c -- $'\t-$' ue8m0)" = 0 ] || explain "not all of them are predicted"
	diff ue8m0 packed-scales
}

@test "packed scales are the exponents of the others, 4 in a number, in a row for each row" {
	small_model qwen3 --fp8 --block 128 --head 128 # of random scales
	cp -r qwen3 wants
	sed -i 's/"quant_method"/"scale_fmt": "ue8m0", &/' wants/config.json
	endpoint one --model-path "$PWD/wants"
	try wsync-push qwen3 --quantize fp8 --ue8m0 --backend disk --disk-dir made -e "$url"
	expect_status 0
	wsync-list-weights qwen3 --as-sent --quantize fp8 --packed-scales --hash --format tsv |
		sed -n '/_scale_inv/p' | cut -f 1,2,3,5 | LC_ALL=C sort >ours
	/usr/bin/python3 - "$repo/tests/peers" made/*/model*.safetensors <<-'PY' |
		import sys
		sys.path.insert(0, sys.argv[1])
		import runtime_sums
		import xxh3
		for path in sys.argv[2:]:
		    tensors = runtime_sums.read(path)
		    for name, scale in tensors.items():
		        if name.endswith("_scale_inv"):
		            made = runtime_sums.packed(scale, tensors[name[:-10]].shape[0])
		            print(name, "int32", "%d,%d" % made.shape, xxh3.xxh3_64(made.tobytes()),
		                  sep="\t")
	PY
		LC_ALL=C sort >theirs
	[ -s ours ]
	diff theirs ours
}

@test "the bits of a NaN in block FP8 depend on the server, so such a weight is not predicted" {
	/usr/bin/python3 "$repo/tests/cli/small_model.py" llama raw --fp8 # random codes
	try wsync-list-weights raw --runtime --checksum sglang-cpu --json \
		--include '*.0.mlp.gate_up*'
	expect_status 0
	expect_json '[(r["checksum"], r["why"]) for r in lines if r["type"] == "tensor"]' \
		"[(None, 'it has a NaN')]"
}
