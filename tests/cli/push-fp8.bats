#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Codes of 8 bits go to servers that keep them, and weights of 16 bits to the others: a push finds
# out what an endpoint keeps before it changes anything there.
load helpers

setup_file() {
	/usr/bin/python3 "$BATS_TEST_DIRNAME/scaled_model.py" "$BATS_FILE_TMPDIR/m" >/dev/null
	/usr/bin/python3 "$BATS_TEST_DIRNAME/scaled_model.py" "$BATS_FILE_TMPDIR/t" --tensor \
		>/dev/null
}

# A checkpoint in blocks of 16x16, and one with one scale for each tensor; of each also bf16.
m() { echo "$BATS_FILE_TMPDIR/m/$1"; }
t() { echo "$BATS_FILE_TMPDIR/t/$1"; }

# says NAME FIELDS: an endpoint that only says what it is.
says() {
	canned "$1" "/server_info=200:{\"tp_size\":1,\"dtype\":\"auto\",\"version\":\"0.5.9\",$2}" \
		'/model_info=200:{"weight_version":"7"}'
}

# What push would do, without doing anything.
planned() { try wsync-push "$@" -e "$url" --dry-run; }

# That an endpoint was never asked to change anything.
expect_untouched() {
	! grep -q POST "$1.out" || explain "expected no POST"
}

@test "a server in 16 bits is given no codes" {
	says dense "\"quantization\":null,\"model_path\":\"$(m bf16)\""
	for source in "$(m fp8)" "$(m bf16) --quantize fp8"; do
		# shellcheck disable=SC2086 # a path and perhaps options
		planned $source
		expect_status 5
		err_has "does not keep quantized weights"
		err_has "report success (by its config.json)"
	done
	planned "$(m bf16)"
	expect_status 0
	expect_untouched dense
}

@test "a server of another quantization is given no codes" {
	says awq "\"quantization\":\"awq\",\"model_path\":\"elsewhere\""
	planned "$(m fp8)"
	expect_status 5
	err_has "keeps packed weights, rearranged when it started"
	err_has "(it says awq); model.layers.0.self_attn.q_proj.weight would be sent"
	expect_untouched awq
}

@test "a server in blocks of FP8 is given no weights of 16 bits" {
	says blocks "\"quantization\":null,\"model_path\":\"$(m fp8)\""
	for verify in names none; do
		planned "$(m bf16)" --verify "$verify"
		expect_status 5
		err_has "keeps its weights in FP8 with a scale for each block"
		err_has "(by its config.json); model.layers.0.self_attn.q_proj.weight would be sent"
		err_has "hint: add --quantize fp8"
	done
	planned "$(m bf16)" --include '*norm.weight' --include '*embed*'
	expect_status 0
	planned "$(m bf16)" --quantize fp8
	expect_status 0
	planned "$(m fp8)"
	expect_status 0
	expect_untouched blocks
}

@test "what only its name says, somebody may know better" {
	says named "\"quantization\":\"fp8\",\"model_path\":\"elsewhere\""
	planned "$(m bf16)"
	expect_status 5
	err_has "keeps its weights in FP8, with scales of a kind that it does not tell"
	err_has "--allow-unknown format sends it nevertheless"
	planned "$(m bf16)" --verify none
	expect_status 5
	planned "$(m bf16)" --allow-unknown format
	expect_status 0
	planned "$(m bf16)" --quantize fp8 --block-size 16x16
	expect_status 0
}

@test "a server that made FP8 by itself can be given nothing" {
	says own "\"quantization\":\"fp8\",\"model_path\":\"$(m \
		bf16)\",\"json_model_override_args\":\"{}\""
	for more in "--quantize none" "--quantize fp8"; do
		# shellcheck disable=SC2086 # an option and its value
		planned "$(m bf16)" $more --verify none
		expect_status 5
		err_has "quantized its 16-bit checkpoint when it started"
		err_has "start it from a checkpoint of block FP8"
	done
	planned "$(m bf16)" --include '*norm.weight'
	expect_status 0
	expect_untouched own
}

@test "a quantization in a server's arguments is one that nobody can read" {
	says args "\"quantization\":\"fp8\",\"model_path\":\"$(m \
		bf16)\",\"json_model_override_args\":\"{\\\"quantization_config\\\": {}}\""
	planned "$(m bf16)" --allow-unknown format
	expect_status 0
	planned "$(m bf16)" --quantize fp8 --verify none
	expect_status 0
}

@test "a server with one scale for each tensor is given no blocks" {
	says tensors "\"quantization\":null,\"model_path\":\"$(t fp8)\""
	for more in "--quantize none" "--quantize fp8"; do
		# shellcheck disable=SC2086 # an option and its value
		planned "$(m bf16)" $more --verify none
		expect_status 5
		err_has "keeps FP8 with one scale for each tensor or row"
	done
	planned "$(t fp8)" --verify none
	expect_status 5
	planned "$(t fp8)" --allow-unknown format
	expect_status 0
	expect_untouched tensors
}

@test "a checkpoint with one scale per tensor goes to a server that keeps it so, and to no other" {
	endpoint patched --model-path "$(t fp8)" --tp 2
	for verify in names hash; do
		try wsync-push "$(t fp8)" -e "$url" --verify "$verify" --allow-unknown format
		expect_status 0
	done
	endpoint stock --model "$(t fp8)" --tp 2
	try wsync-push "$(t fp8)" -e "$url" --allow-unknown format
	expect_status 1
	out_has "the server shows [32, 64] where config.json gives [64, 32]: \
it laid FP8 with one scale for each tensor out anew"
	out_has "untouched"
	expect_untouched stock
}

@test "blocks are told from whole tensors, both ways" {
	try wsync-verify names "$(m fp8)" --config "$(t fp8)"
	expect_status 1
	out_has "7 scales are of blocks, and the server keeps one for each tensor"
	out_has "the server keeps model.layers.0.self_attn.q_proj.weight with weight_scale of the \
whole tensor"
	out_has "7 quantized weights are sent without their scales"
	try wsync-verify names "$(t fp8)" --config "$(m fp8)"
	expect_status 1
	out_has "7 scales are of another scheme than the server's FP8 blocks"
	out_has "the server keeps model.layers.0.self_attn.q_proj.weight with weight_scale_inv of \
blocks"
	try wsync-verify names "$(t bf16)" --config "$(t fp8)"
	expect_status 1
	out_has "bfloat16 sent, and the server keeps float8_e4m3fn with scales"
}

@test "a scale may be a scalar, and no list of them" {
	cp -r "$(t fp8)" s
	try wsync-verify names s
	expect_status 0
	sed -i 's/"shape": \[1\]/"shape": [ ]/g' s/model.safetensors
	try wsync-verify names s
	expect_status 0
	out_has "19 tensors, no errors"
	/usr/bin/python3 "$repo/tests/cli/scaled_model.py" b --block 64 96 >/dev/null
	sed -i 's/weight_scale_inv/weight_scale    /g; s/    "/"    /g' b/fp8/model.safetensors
	try wsync-verify names b/fp8 --config s
	expect_status 1
	out_has "[1, 1] sent, [1] wanted: the server keeps one scale for the whole tensor"
}

@test "scales of activations belong to a checkpoint that was scaled once and for all" {
	PYTHONPATH=$repo/tests/peers /usr/bin/python3 -c 'import mkst
mkst.write("scales.safetensors", [("model.layers.0.mlp.down_proj.input_scale", "F32", [1])])'
	mkdir static
	sed 's/"dynamic"/"static"/' "$(t fp8)/config.json" >static/config.json
	try wsync-verify names "$(t fp8)" scales.safetensors --config static
	expect_status 0
	out_has "a scale of activations, whose shape is not checked"
	try wsync-verify names "$(t fp8)" scales.safetensors --config "$(t fp8)"
	expect_status 1
	out_has "a scale of activations, which the server works out by itself"
}

@test "a server that makes FP8 of what comes is sent 16 bits" {
	says making "\"quantization\":\"fp8\",\"load_format\":\"flash_rl\",\"model_path\":\"$(m \
		bf16)\""
	planned "$(m bf16)"
	expect_status 0
	planned "$(m bf16)" --quantize fp8
	expect_status 5
	err_has "quantizes the 16-bit weights that it receives"
	err_has "hint: push without --quantize"
}

@test "powers of two as scales go to those who say that they want them" {
	says plain "\"quantization\":null,\"model_path\":\"$(m fp8)\""
	planned "$(m bf16)" --quantize fp8 --ue8m0
	expect_status 5
	err_has "is not known to want scales that are powers of two: \
its config.json has no \"scale_fmt\": \"ue8m0\""
	mkdir wants
	sed 's/"quant_method"/"scale_fmt": "ue8m0", &/' "$(m fp8)/config.json" >wants/config.json
	says wants "\"quantization\":null,\"model_path\":\"$PWD/wants\""
	planned "$(m bf16)" --quantize fp8 --ue8m0
	expect_status 0
	err_lacks ue8m0
	planned "$(m bf16)" --quantize fp8
	expect_status 0
	err_has "expects scales that are powers of two, which --ue8m0 makes"
	says far "\"quantization\":\"fp8\",\"model_path\":\"elsewhere\""
	planned "$(m bf16)" --quantize fp8 --ue8m0
	expect_status 5
	err_has "its config.json cannot be read here"
	planned "$(m bf16)" --ue8m0
	expect_status 2
	err_has "--ue8m0: with --quantize fp8 only"
}

@test "packed scales are sent as int32, where every rank gets whole ones" {
	endpoint any
	planned "$(m bf16)" --packed-scales
	expect_status 2
	err_has "--packed-scales: with --quantize fp8 only"
	planned "$(m bf16)" --quantize fp8 --packed-scales --block-size 64x64
	expect_status 2
	err_has "--packed-scales packs the scales of blocks of 128x128 only"
	/usr/bin/python3 -S "$repo/tests/cli/small_model.py" qwen3_moe moe --head 128 --moe 768
	/usr/bin/python3 -S "$repo/tests/cli/numbers.py" tame moe/model.safetensors
	/usr/bin/python3 -S "$repo/tests/cli/small_model.py" qwen3_moe server --head 128 --moe 768 \
		--fp8 --block 128
	local packed=(--quantize fp8 --packed-scales)
	try wsync-verify names moe "${packed[@]}" --config server --tp 2
	expect_status 1
	out_has "384 columns of an expert at each rank are no multiple of 4 packed scales' 512"
	out_has "down_proj: 128 columns of 256 at each rank are no multiple of 4 packed scales' 512"
	try wsync-verify names moe "${packed[@]}" --config server
	expect_status 0
	endpoint another
	try wsync-push moe "${packed[@]}" --block-size 128x128 -e "$url" --verify hash
	expect_status 0
	try wsync-push moe "${packed[@]}" --block-size 128x128 -e "$url" --backend disk \
		--disk-dir made
	expect_status 2
	err_has "--packed-scales: no server loads packed scales from a checkpoint"
}

@test "codes of other blocks are made anew for a server that says its own" {
	says blocks "\"quantization\":null,\"model_path\":\"$(m fp8)\""
	/usr/bin/python3 "$repo/tests/cli/scaled_model.py" other --block 8 8 >/dev/null
	planned other/fp8
	expect_status 5
	err_has "expects blocks of its weight_block_size"
	planned other/fp8 --quantize fp8 --json
	expect_status 0
	expect_json 'lines[-1]["transform"]["quantized"], lines[-1]["transform"]["already"]' \
		"(7, 0)"
	planned "$(m fp8)" --quantize fp8 --json
	expect_status 0
	expect_json 'lines[-1]["transform"]["quantized"], lines[-1]["transform"]["already"]' \
		"(0, 7)"
	planned "$(m fp8)" --quantize fp8 --block-size 8x8
	expect_status 5
	err_has "expects blocks of its weight_block_size"
	expect_untouched blocks
}

# shows NAME MODEL SCALES NORM [REPLICAS]: an endpoint elsewhere, and its answers to requests for
# scales and norms.
shows() {
	start "$1" /usr/bin/python3 "$repo/tests/cli/showing.py" "${@:2}"
	eventually test -s "$scratch/$1.out"
	url=http://127.0.0.1:$(head -n 1 "$scratch/$1.out")
}

@test "a server that does not say is asked for the scales of a weight" {
	shows blocks Qwen/Qwen3-8B '[[0.5, 0.25]]' '[1.0]'
	planned "$(m bf16)" --quantize fp8 --block-size 16x16
	expect_status 0
	grep -q "^/get_weights_by_name model.layers.0.self_attn.o_proj.weight_scale_inv 1$" \
		blocks.out
	planned "$(m bf16)" # nothing in the model's name says FP8
	expect_status 5
	err_has "keeps its weights in FP8 with a scale for each block"
	shows dense Qwen/Qwen3-8B '' '[1.0]'
	planned "$(m bf16)" --quantize fp8 --block-size 16x16
	expect_status 5
	err_has "does not keep quantized weights"
	err_has "(by the parameters that it shows)"
	shows mute Qwen/Qwen3-8B '' ''
	planned "$(m bf16)" --quantize fp8 --block-size 16x16
	expect_status 5
	err_has "does not tell the format of its weights"
	planned "$(m bf16)" --quantize fp8 --block-size 16x16 --config "$(m fp8)"
	expect_status 0
}

@test "a null from each replica is no answer to a request for scales" {
	shows replicas my/fp8-experiments '[null, null]' '[[1.0], [1.0]]' 2
	planned "$(m bf16)"
	expect_status 0
	planned "$(m bf16)" --quantize fp8 --block-size 16x16
	expect_status 5
	err_has "does not keep quantized weights"
	err_has "(by the parameters that it shows)"
	shows mute my/fp8-experiments '[null, null]' '' 2
	planned "$(m bf16)" --quantize fp8 --block-size 16x16 --allow-unknown format
	expect_status 0
}

@test "a name with fp8 in it says nothing against what the server shows" {
	shows only-named my/fp8-experiments '' '[1.0]'
	planned "$(m bf16)"
	expect_status 0
}

@test "16 bits beside FP8 are judged module by module, and so are the sizes of blocks" {
	/usr/bin/python3 - "$(m fp8)" mixed <<-'E'
		import json, os, struct, sys
		src, dst = sys.argv[1:]
		raw = open(src + "/model.safetensors", "rb").read()
		n = struct.unpack("<Q", raw[:8])[0]
		h, data = json.loads(raw[8:8 + n]), raw[8 + n:]
		name = "model.layers.0.self_attn.o_proj.weight"
		h.pop(name + "_scale_inv")
		shape = h[name]["shape"]
		bytes_ = 2 * shape[0] * shape[1]
		h[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + bytes_]}
		kept, out = {}, b""
		for k, t in h.items():
		    if k == "__metadata__":
		        continue
		    a, b = t["data_offsets"]
		    part = (data + bytes(bytes_))[a:b]
		    kept[k] = dict(t, data_offsets=[len(out), len(out) + len(part)])
		    out += part
		head = json.dumps(kept).encode()
		head += b" " * (-len(head) % 8)
		os.mkdir(dst)
		open(dst + "/model.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + out)
		open(dst + "/config.json", "w").write(open(src + "/config.json").read())
	E
	says blocks "\"quantization\":null,\"model_path\":\"$(m fp8)\""
	planned mixed --verify none
	expect_status 5
	err_has "keeps this module in FP8, and 16 bits are sent; model.layers.0.self_attn.o_proj.weight"
	planned "$(m fp8)" --verify none
	expect_status 0
}

@test "what keeps anything is not asked" {
	endpoint any --lineage sglang-2026
	for options in "" "--quantize fp8 --block-size 16x16" "" \
		"--quantize fp8 --block-size 16x16"; do
		# shellcheck disable=SC2086 # none or several
		try wsync-push "$(m bf16)" $options -e "$url" --verify hash
		expect_status 0
	done
}

@test "a format that the table does not know is refused, unless it is allowed" {
	local method
	for method in awq_marlin gptq_marlin compressed-tensors bitsandbytes gguf w8a8_int8 \
		modelopt_fp4 torchao quark mxfp8 mxfp4; do
		says "$method" "\"quantization\":\"$method\",\"model_path\":\"elsewhere\""
		planned "$(m bf16)" --verify none --allow-unknown format
		expect_status 5
		expect_untouched "$method"
	done
	endpoint keeper --quantization awq # keeps any tensor, and tells a format
	planned "$(m bf16)"
	expect_status 5
	endpoint called --model-path org/Model-AWQ
	planned "$(m bf16)"
	expect_status 5
	says new '"quantization":"brand_new","model_path":"elsewhere"'
	planned "$(m bf16)"
	expect_status 5
	err_has "names a quantization that is not known here (it says brand_new)"
	planned "$(m bf16)" --allow-unknown format
	expect_status 0
	says torchao '"quantization":null,"torchao_config":"int4wo-128","model_path":"elsewhere"'
	planned "$(m bf16)"
	expect_status 5
	says named '"quantization":null,"model_path":"org/Model-AWQ"'
	planned "$(m bf16)"
	expect_status 5
	err_has "its model's name has \"awq\""
	says plain '"quantization":null,"model_path":"org/Model"'
	planned "$(m bf16)"
	expect_status 0
	planned "$(m bf16)" --allow-unknown nonsense
	expect_status 2
}

@test "MXFP8 cannot be made here" {
	mkdir mx
	sed 's/"quant_method": *"fp8"/"quant_method": "mxfp8"/' "$(m fp8)/config.json" >mx/config.json
	says mx "\"quantization\":null,\"model_path\":\"$PWD/mx\""
	for more in none fp8; do
		planned "$(m bf16)" --quantize "$more"
		expect_status 5
		err_has "MXFP8, which cannot be made here"
	done
}

# skipping LIST: a config.json of FP8 with this modules_to_not_convert, in ./skipping.
skipping() {
	mkdir -p skipping
	/usr/bin/python3 - "$(m fp8)/config.json" "$1" >skipping/config.json <<-'END'
		import json, sys
		c = json.load(open(sys.argv[1]))
		c["quantization_config"]["modules_to_not_convert"] = json.loads(sys.argv[2])
		print(json.dumps(c))
	END
}

@test "the release of a server decides which modules it keeps in 16 bits" {
	skipping '["o_pro"]' # a part of a name for 0.5.9, and no segment for 0.5.23
	says part "\"quantization\":null,\"model_path\":\"$PWD/skipping\""
	old=$url
	planned "$(m bf16)" --quantize fp8 --block-size 16x16
	expect_status 0
	out_lacks "o_proj.weight_scale_inv"
	out_has "q_proj.weight_scale_inv"
	planned "$(m fp8)" --verify none
	expect_status 5
	err_has "keeps this module in 16 bits, by its list of modules, and FP8 codes are sent"
	canned new "/server_info=200:{\"tp_size\":1,\"dtype\":\"auto\",\"version\":\"0.5.23\",\
\"quantization\":null,\"model_path\":\"$PWD/skipping\"}" '/model_info=200:{"weight_version":"7"}'
	planned "$(m bf16)" --quantize fp8 --block-size 16x16
	out_has "o_proj.weight_scale_inv"
	planned "$(m bf16)" --quantize fp8 --block-size 16x16 -e "$old" --verify none
	expect_status 5
	err_has "o_proj.weight would be sent"
}

@test "experts that FP8 leaves in 16 bits are refused" {
	skipping '[]'
	/usr/bin/python3 - <<-'END'
		import json, struct
		names = {"model.layers.0.mlp.experts.gate_up_proj": [2, 32, 32],
		         "model.layers.0.self_attn.o_proj.weight": [32, 32]}
		head, at = {}, 0
		for name, shape in names.items():
		    n = 2
		    for d in shape:
		        n *= d
		    head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
		    at += n
		text = json.dumps(head).encode()
		with open("fused.safetensors", "wb") as f:
		    f.write(struct.pack("<Q", len(text)) + text + bytes(at))
	END
	says fused "\"quantization\":null,\"model_path\":\"$PWD/skipping\""
	planned fused.safetensors --quantize fp8 --block-size 16x16 --verify none
	expect_status 5
	err_has "keeps this module in FP8, and 16 bits are sent; \
model.layers.0.mlp.experts.gate_up_proj would be sent"
	expect_untouched fused
}

@test "a draft model that keeps its old weights is told" {
	says draft '"quantization":null,"speculative_algorithm":"EAGLE","model_path":"org/Model"'
	planned "$(m bf16)"
	expect_status 0
	err_has "its draft model, for speculative decoding, keeps its old weights"
	planned "$(m bf16)" --allow-unknown draft
	expect_status 0
	err_lacks "draft model"
}

@test "a draft model of which a part may be sent is untold" {
	canned draft '/server_info=200:{"tp_size":1,"dtype":"auto","version":"0.5.23",
		"quantization":null,"speculative_algorithm":"EAGLE","model_path":"elsewhere"}' \
		/begin_weight_update=200:x /end_weight_update=200:x '/model_info=200:{}' \
		'/openapi.json=200:{"paths":{"/begin_weight_update":{},"/end_weight_update":{}}}'
	safetensors alone.safetensors a.weight:BF16:16,16
	planned alone.safetensors --verify none
	expect_status 0
	err_has "whether all weights of that are sent is not known"
	llama one '$ s/$/\nmodel.mtp.norm.weight:BF16:64/'
	planned one --verify none
	expect_status 0
	err_has "whether all weights of that are sent is not known"
	llama two
	planned two --verify none
	expect_status 0
	err_has "its draft model, for speculative decoding, keeps its old weights"
	planned two --verify none --allow-unknown draft
	expect_status 0
	err_lacks "draft model"
}

@test "tensors without elements are counted in a warning" {
	says some '"quantization":null,"model_path":"elsewhere"'
	safetensors some.safetensors a:F32:16,16 b:F32:0 c:F32:0,16
	planned some.safetensors --verify none
	expect_status 0
	err_has "2 tensors of the source have no elements and are not sent, the first is 'b'"
	planned some.safetensors --verify none --exclude b
	err_has "1 tensor of the source has no elements and is not sent, the first is 'c'"
	planned some.safetensors --verify none --include a
	err_lacks "no elements"
}

@test "a server that serves adapters is told of" {
	says lora '"quantization":null,"enable_lora":true,"model_path":"elsewhere"'
	planned "$(m bf16)" --json
	expect_status 0
	expect_json 'sum("LoRA adapters" in (l.get("message") or "") for l in lines)' 1
	expect_json 'lines[-1]["endpoints"][0]["evidence"]["adapters"]' kept
	says paths '"quantization":null,"lora_paths":[{"lora_name":"a"}],"model_path":"elsewhere"'
	planned "$(m bf16)"
	err_has "it serves LoRA adapters"
	says none '"quantization":null,"enable_lora":null,"lora_paths":null,"model_path":"elsewhere"'
	planned "$(m bf16)" --json
	expect_json 'lines[-1]["endpoints"][0]["evidence"]["adapters"]' none
	expect_json 'sum("LoRA" in (l.get("message") or "") for l in lines)' 0
}

# large FILE DTYPE BYTES: element 3 of tensor b, beside a matrix in float16, is these bytes.
large() {
	safetensors "$1" --holes model.layers.0.mlp.up_proj.weight:F16:16,16 "b:$2:16" >/dev/null
	/usr/bin/python3 - "$@" <<-'END'
		import struct, sys
		data = bytes.fromhex(sys.argv[3])
		with open(sys.argv[1], "r+b") as f:
		    n, = struct.unpack("<Q", f.read(8))
		    head = __import__("json").loads(f.read(n))
		    f.seek(8 + n + head["b"]["data_offsets"][0] + 3 * len(data))
		    f.write(data)
	END
}

@test "--require values judges numbers in the type that the server keeps" {
	canned half '/server_info=200:{"tp_size":1,"dtype":"float16","version":"0.5.9",
		"quantization":null,"model_path":"elsewhere"}' '/model_info=200:{"weight_version":"7"}'
	local dtype fits exceeds
	while read -r dtype fits exceeds; do
		large fits.safetensors "$dtype" "$fits"
		planned fits.safetensors --verify none --require values
		expect_status 0
		large exceeds.safetensors "$dtype" "$exceeds"
		planned exceeds.safetensors --verify none --require values
		expect_status 3
		err_has "tensor 'b' has"
		err_has "at element 3, which is infinite in float16, the type that $url keeps"
	done <<-END
		BF16 7f47 8047
		BF16 7fc7 49f1
		F32 ffef7f47 00f07f47
		F64 0000000000fcef40 0000000000feefc0
	END
	large fits.safetensors F16 ff7b
	planned fits.safetensors --verify none --require values
	expect_status 0
	# A tensor that is cast is told, also if it is no matrix.
	large fits.safetensors BF16 7f47
	planned fits.safetensors --verify none
	err_has "bfloat16 is sent, and it keeps float16: it casts the weights, and those above 65504"
	# A router, say, may stay in float32.
	large fits.safetensors F32 ffef7f47
	planned fits.safetensors --verify none
	err_lacks "casts the weights"
}

@test "what a server's config.json decides of FP8, it decides for those who compare, too" {
	mkdir server
	sed 's/"lm_head"/"lm_head", "model.layers.0.self_attn.o_proj"/' "$(m fp8)/config.json" \
		>server/config.json
	grep -q o_proj server/config.json
	endpoint one --model "$PWD/server"
	try wsync-push "$(m bf16)" --quantize fp8 -e "$url" --weight-version 7 --verify hash
	expect_status 0
	for command in "verify weights" "verify names" "ctl ready --verify hash"; do
		# shellcheck disable=SC2086 # a program and its command
		try wsync-${command} "$(m bf16)" --quantize fp8 -e "$url"
		expect_status 0
	done
	try wsync-push "$(m bf16)" --quantize fp8 -e "$url" --weight-version 7 --verify hash \
		--only-stale
	expect_status 0
	out_has "all 1 endpoint has weight version 7, verified by hash"
	expect_err ""
	try wsync-verify weights "$(m bf16)" --quantize fp8 --block-size 32x32 -e "$url"
	expect_status 1
}

@test "the config.json of each server decides whether it has the plan" {
	cp -r "$(m fp8)" a
	cp -r a b
	local to=() config
	for config in a b; do
		endpoint "$config" --lineage sglang-2026 --model-path "$PWD/$config"
		to+=(-e "$url")
	done
	try wsync-push "$(m bf16)" --quantize fp8 "${to[@]}" --weight-version 5
	expect_status 0
	try wsync-push "$(m bf16)" --quantize fp8 "${to[@]}" --weight-version 5 --only-stale
	expect_out "all 2 endpoints have weight version 5"
	/usr/bin/python3 - <<-'EOF'
		import json
		c = json.load(open("b/config.json"))
		c["quantization_config"]["modules_to_not_convert"] = ["model.layers.0.mlp.up_proj",
			"model.layers.0.mlp.gate_proj"]
		json.dump(c, open("b/config.json", "w"))
	EOF
	try wsync-push "$(m bf16)" --quantize fp8 "${to[@]}" --weight-version 5 --only-stale --json
	expect_json '[l["url"] for l in lines if l.get("stale")]' "['$url']"
	expect_json '["another plan" in l["message"] for l in lines if l.get("stale")]' "[True]"
	expect_status 0
}
