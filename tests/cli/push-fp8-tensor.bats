#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# FP8 with one scale for each tensor: a push to servers that keep it so, and what the check of names says
# where one side has blocks.
load helpers

# server FAMILY [KEY=VALUE]: server/config.json of one that keeps a scale for each tensor; m, a checkpoint
# of that family in bf16, all of whose numbers are finite.
server() {
	/usr/bin/python3 "$repo/tests/cli/small_model.py" "$1" m
	/usr/bin/python3 - "${2:-}" <<-'END'
		import json, os, struct, sys
		os.makedirs("server", exist_ok=True)
		c = json.load(open("m/config.json"))
		c["quantization_config"] = dict([a.split("=") for a in sys.argv[1:] if a], quant_method="fp8")
		json.dump(c, open("server/config.json", "w"))
		data = bytearray(open("m/model.safetensors", "rb").read())
		begin = 8 + struct.unpack_from("<Q", data)[0]
		data[begin + 1::2] = bytes(b & 0xbf for b in data[begin + 1::2])
		open("m/model.safetensors", "wb").write(data)
	END
}

@test "one scale for each tensor arrives, at every rank and of every expert" {
	for family in llama qwen3_moe deepseek_v3; do
		server "$family"
		for tp in 1 2; do
			endpoint "$family$tp" --model-path "$PWD/server" --tp "$tp" --ep "$tp"
			for verify in names hash; do
				try wsync-push m -e "$url" --quantize fp8-tensor --verify "$verify"
				expect_status 0
			done
			try wsync-verify names m --quantize fp8-tensor -e "$url"
			expect_status 0
			out_has "no errors, checked against $family at tp $tp"
			try wsync-verify weights m --quantize fp8-tensor -e "$url"
			expect_status 0
		done
		try wsync-list-weights m --config server --runtime --ep 2 --tp 2
		out_has "mlp.gate_up_proj.weight_scale"
		if [ "$family" = qwen3_moe ]; then
			out_has "model.layers.0.self_attn.qkv_proj.weight_scale  -              [3]"
			out_has "model.layers.1.mlp.experts.w13_weight_scale     -              [4, 2]"
			out_has "model.layers.1.mlp.experts.w2_weight_scale      -              [4]"
		fi
	done
}

@test "a server that was not patched for it has laid its weights out anew" {
	server qwen3_moe
	endpoint stock --model "$PWD/server" --tp 2
	try wsync-push m -e "$url" --quantize fp8-tensor --verify names
	expect_status 1
	out_has "the server shows [128, 96] where config.json gives [96, 128]: it laid FP8 with one scale for each tensor out anew"
	out_has "untouched"
	! grep -q POST stock.out || explain "expected no POST"
}

@test "blocks are told from whole tensors, both ways" {
	server llama
	try wsync-verify names m --quantize fp8 --block-size 16x16 --config server
	expect_status 1
	out_has "14 scales are of blocks, and the server keeps one for each tensor"
	out_has "the server keeps model.layers.0.self_attn.q_proj.weight with weight_scale of the whole tensor"
	out_has "14 quantized weights are sent without their scales"
	/usr/bin/python3 "$repo/tests/cli/small_model.py" llama blocks --fp8
	try wsync-verify names m --quantize fp8-tensor --config blocks
	expect_status 1
	out_has "14 scales are of another scheme than the server's FP8 blocks"
	out_has "the server keeps model.layers.0.self_attn.q_proj.weight with weight_scale_inv of blocks"
	try wsync-verify names m --config server
	expect_status 1
	out_has "bfloat16 sent, and the server keeps float8_e4m3fn with scales"
}

@test "a scale may be a scalar, and no list of them" {
	/usr/bin/python3 "$repo/tests/cli/scaled_model.py" s --tensor >/dev/null
	try wsync-verify names s/fp8
	expect_status 0
	sed -i 's/"shape": \[1\]/"shape": [ ]/g' s/fp8/model.safetensors
	try wsync-verify names s/fp8
	expect_status 0
	out_has "19 tensors, no errors"
	/usr/bin/python3 "$repo/tests/cli/scaled_model.py" b --block 64 96 >/dev/null
	sed -i 's/weight_scale_inv/weight_scale    /g; s/    "/"    /g' b/fp8/model.safetensors
	try wsync-verify names b/fp8 --config s/fp8
	expect_status 1
	out_has "[1, 1] sent, [1] wanted: the server keeps one scale for the whole tensor"
}

@test "scales of activations belong to a checkpoint that was scaled once and for all" {
	server llama activation_scheme=static
	PYTHONPATH=$repo/tests/peers /usr/bin/python3 - <<-'END'
		import mkst
		mkst.write("m/scales.safetensors", [("model.layers.0.mlp.down_proj.input_scale", "F32", [1])])
	END
	try wsync-verify names m m/scales.safetensors --quantize fp8-tensor --config server
	expect_status 0
	out_has "a scale of activations, whose shape is not checked"
	server llama activation_scheme=dynamic
	try wsync-verify names m m/scales.safetensors --quantize fp8-tensor --config server
	expect_status 1
	out_has "a scale of activations, which the server works out by itself"
}
