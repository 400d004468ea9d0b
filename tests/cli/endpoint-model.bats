#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# An endpoint with a model's parameters: what arrives lies where a server would have it, and names
# are taken, ignored and refused as SGLang's loaders do.
load helpers

small() { /usr/bin/python3 "$repo/tests/cli/small_model.py" "$@"; }

# asked PATH [BODY]: $out is the endpoint's answer.
asked() {
	try curl -sS -m 180 ${2+--data-binary "$2"} "$url$1"
	expect_status 0
}

# The updates of the journal: what EXPRESSION says of each, r being the request.
updates() {
	asked /wsync/journal
	json "[$1 for r in lines[0]['requests'] if r['path'].startswith('/update_weights_from')]"
}

@test "a checkpoint comes back from any number of ranks" {
	small qwen3 ck
	for tp in 1 2 4 8; do
		endpoint "tp$tp" --model ck --tp "$tp"
		try wsync-push ck -e "$url" --verify hash --json
		expect_status 0
		[ "$(updates '(r["tensors"], r["loaded"], r["ignored"])')" = "[(24, 24, 0)]" ]
		asked "/list_weights?rank=$((tp - 1))"
		[ "$(json '{w["name"]: w["shape"]
			for w
			in lines[0]["weights"]}["model.layers.1.self_attn.qkv_proj.weight"]')" = \
			"[$(((8 / tp + 2 * (tp > 2 ? 1 : 2 / tp)) * 16)), 128]" ]
		expect_json '[lines[0]["message"], "received" in lines[0]]' \
			"['Found 18 weights', False]"
	done
}

@test "experts and latent attention of 8 bits come back, and are what is made of 16" {
	for family in qwen3_moe deepseek_v3; do
		small $family "$family" --fp8
		small $family "$family-bf16"
		for sizes in "1 1" "2 1" "2 2"; do
			read -r tp ep <<<"$sizes"
			endpoint "$family-$tp-$ep" --model "$PWD/$family" --tp "$tp" --ep "$ep"
			try wsync-push "$family" -e "$url" --verify hash
			expect_status 0
			try wsync-push "$family-bf16" --quantize fp8 -e "$url" --dry-run
			expect_status 0
			try wsync-push "$family-bf16" -e "$url"
			expect_status 5
			err_has "add --quantize fp8"
		done
	done
}

@test "a flipped byte of a scale is found" {
	small qwen3_moe ck --fp8
	endpoint one --model "$PWD/ck" --tp 2 \
		--fault 'flip:update_weights_from_distributed:1:*.experts.3.up_proj.weight_scale_inv'
	try wsync-push ck -e "$url" --verify hash --weight-version 7
	expect_status 1
	err_has "1 tensor differs from what was sent"
	asked /model_info
	out_has '"weight_version":"default"'
}

@test "a loader logs unknown names, and misses fused ones" {
	small llama cfg
	small llama wrong --prefix transformer. --only '*norm.weight'
	endpoint one --model cfg -v
	try wsync-push wrong -e "$url" --verify none --allow-unknown format
	expect_status 0
	[ "$(updates 'r["ignored_names"][0]')" = "['transformer.model.norm.weight']" ]
	grep -q "Parameter transformer.model.norm.weight not found in params_dict" one.err
	small llama wrong --prefix transformer. --only '*0.self_attn.q_proj.weight'
	try wsync-push wrong -e "$url" --verify none --allow-unknown format
	expect_status 5
	err_has "Failed to update parameter online: \
'transformer.model.layers.0.self_attn.qkv_proj.weight'. The full weights of the ModelRunner are \
partially updated. Please discard the whole weights."
}

@test "a tensor of another shape is refused when its bytes have come" {
	small llama cfg
	safetensors w.safetensors model.norm.weight:BF16:127
	endpoint one --model cfg --tp 2
	try wsync-push w.safetensors -e "$url" --verify none --allow-unknown format
	expect_status 5
	err_has "shape mismatch for 'model.norm.weight': the parameter is [128], \
the loaded weight is [127]"
}

@test "a model that ranks do not divide is refused at the start" {
	small qwen3 ck
	try wsync-endpoint --listen 127.0.0.1:0 --model ck --tp 3
	expect_status 3
	err_has "ck/config.json at tp 3, ep 1: "
	try wsync-endpoint --listen 127.0.0.1:0 --model ck --tp 4 --ep 3
	expect_status 2
	err_has "4 tensor-parallel ranks do not form 3 expert-parallel groups"
	try wsync-endpoint --listen 127.0.0.1:0 --model nowhere
	expect_status 3
}

@test "what a model comes to is said at the start" {
	small qwen3 ck
	start one wsync-endpoint --listen 127.0.0.1:0 --model ck --tp 2
	eventually grep -q '^ready at' one.out
	grep -qx 'qwen3: 18 parameters, .* of memory as they are written' one.out
	endpoint two --model ck
	out=$(<two.out)
	expect_json 'sorted(lines[1])' "['bytes', 'family', 'params', 'type', 'url']"
}

# Name and shape of every tensor in $out, sorted.
rows() { json '"\n".join(sorted(str((t["name"], t["shape"])) for t in lines
	if t["type"] == "tensor"))'; }

@test "every rank shows what its model implies" {
	for family in "llama 4 1" "qwen3 8 1" "qwen3_moe 4 2" "deepseek_v3 4 4" \
		"qwen3 2 1 --fp8"; do
		read -r name tp ep more <<<"$family"
		# shellcheck disable=SC2086 # a word or none
		small "$name" ck $more
		endpoint "$name-$tp" --model ck --tp "$tp" --ep "$ep"
		for rank in 0 $((tp - 1)); do
			try wsync-list-weights -e "$url" --rank "$rank" --json
			expect_status 0
			shown=$(rows)
			try wsync-list-weights --runtime --config ck --tp "$tp" --ep "$ep" \
				--rank "$rank" --json
			expect_status 0
			diff <(rows) <(echo "$shown") >&2
		done
	done
}

# ---- weights of 8 bits where none are kept, and the reverse ----

scaled() { /usr/bin/python3 "$repo/tests/cli/scaled_model.py" "$@" >/dev/null; }

# An endpoint that does not say what it keeps: to one that does, nothing would be sent.
silent() { endpoint "$1" --model "$2" --model-path elsewhere --quantization "" "${@:3}"; }
# It does not answer the push that asks for a scale and a norm either.
mute() { silent "$@" --fault refuse:get_weights_by_name:1 --fault refuse:get_weights_by_name:2; }

@test "codes pushed to parameters of 16 bits are taken for weights, and their scales left aside" {
	small qwen3 bf16
	small qwen3 ck --fp8
	silent plain bf16
	try wsync-push ck -e "$url" --verify none --allow-unknown format --include '*.down_proj.*'
	expect_status 0
	[ "$(updates '(r["loaded"], r["ignored"])')" = "[(2, 2)]" ]
	asked "/list_weights?prefix=model.layers.0.mlp.down_proj"
	expect_json '[w["dtype"] for w in lines[0]["weights"]]' "['bfloat16']"
	# As large as codes are, not as weights are.
	asked /get_weights_by_name '{"name":"model.layers.0.mlp.down_proj.weight","truncate_size":64}'
	expect_json 'max(abs(x) for row in lines[0] for x in row if x is not None) > 1' True
}

@test "scales of a fused parameter that has none are refused" {
	scaled m
	mute llama m/bf16
	try wsync-push m/fp8 -e "$url" --verify none --allow-unknown format
	expect_status 5
	err_has weight_scale_inv
}

@test "weights of 16 bits pushed to parameters of 8 bits are cast, and the scales stay" {
	scaled m
	mute eight m/fp8
	try wsync-push m/bf16 -e "$url" --verify none --allow-unknown format
	expect_status 0
	[ "$(updates '(r["status"], r["loaded"], r["ignored"])')" = "[(200, 12, 0)]" ]
	asked "/list_weights?prefix=model.layers.0.mlp.down_proj"
	expect_json '[w["dtype"] for w in lines[0]["weights"]]' "['float8_e4m3fn', 'float32']"
	asked /get_weights_by_name '{"name":"model.layers.0.mlp.down_proj.weight","truncate_size":16}'
	# Numbers of E4M3 near 0.05: sixteenths of powers of two, and steps of 2^-9 below 2^-6.
	expect_json 'all(x * 512 == round(x * 512) for row in lines[0] for x in row)' True
	expect_json '0.01 < max(abs(x) for row in lines[0] for x in row) < 0.5' True
}

@test "scales of another shape are refused" {
	scaled m
	scaled other --flaw transposed
	endpoint eight --model "$PWD/m/fp8"
	try wsync-push other/fp8 -e "$url" --verify none --allow-unknown format
	expect_status 5
	err_has model.layers.0.mlp
}

# ---- FP8 that cannot be updated ----

# own NAME OPTION...: an endpoint that made FP8 of a checkpoint in 16 bits, in $PWD/m/bf16.
own() {
	scaled m
	endpoint "$1" --model m/bf16 --model-path elsewhere --quantization fp8 "${@:2}"
}

@test "what was made FP8 while loading lies transposed, with scales of its own" {
	own fresh --tp 2
	asked "/list_weights?prefix=model.layers.0.mlp"
	[ "$(json '[(w["name"][19:], w["shape"], w["dtype"]) for w in lines[0]["weights"]]')" = \
		"[('gate_up_proj.weight', [64, 96], 'float8_e4m3fn'), \
('gate_up_proj.weight_scale', [1, 96], 'float32'), ('down_proj.weight', [48, 64], \
'float8_e4m3fn'), ('down_proj.weight_scale', [1, 64], 'float32')]" ]
	asked "/list_weights?prefix=lm_head"
	expect_json 'lines[0]["weights"][0]["dtype"]' bfloat16
}

@test "what was made FP8 while loading takes neither codes nor weights" {
	own fixed --tp 2
	for source in m/bf16 m/fp8; do
		try wsync-push $source -e "$url" --verify none --allow-unknown format --include '*.q_proj.weight'
		expect_status 5
		err_has "Failed to update parameter online: \
'Parameter' object has no attribute 'weight_loader'. The full weights of the ModelRunner are \
partially updated. Please discard the whole weights."
		try wsync-push $source -e "$url" --verify none --allow-unknown format --include '*.down_proj.weight'
		expect_status 5
		err_has "Attempted to load weight (torch.Size([64, \
96])) into parameter (torch.Size([48, 64]))"
	done
	try wsync-push m/fp8 -e "$url" --verify none --allow-unknown format --include '*.up_proj.weight_scale_inv'
	expect_status 5
	err_has "Failed to update parameter online: \
'model.layers.0.mlp.gate_up_proj.weight_scale_inv'"
	try wsync-push m/bf16 -e "$url" --verify none --allow-unknown format --include '*norm.weight' \
		--include 'lm_head*' --include '*embed*'
	expect_status 9 # it arrived; what failed before has not been completed
	[ "$(updates 'r.get("loaded")')" = "[0, 0, 0, 0, 0, 5]" ]
}

@test "a matrix that is square is loaded where no shape says no" {
	own square
	try wsync-push m/bf16 -e "$url" --verify none --allow-unknown format --include '*.o_proj.weight'
	expect_status 0
	try wsync-push m/bf16 -e "$url" --verify none --allow-unknown format --include '*.down_proj.weight'
	expect_status 5
	err_has "Attempted to load weight"
	asked /weights_checker
	expect_json 'list(lines[0]["ranks"][0]["checksums"])' \
		"['model.layers.0.self_attn.o_proj.weight']"
}

@test "experts that were made FP8 while loading have no loader either" {
	small qwen3_moe ck
	endpoint moe --model ck --model-path elsewhere --quantization fp8 --tp 2
	asked "/list_weights?prefix=model.layers.1.mlp.experts.w13"
	expect_json '[(w["shape"], w["dtype"]) for w in lines[0]["weights"]]' \
		"[([8, 32, 128], 'float8_e4m3fn'), ([8], 'float32')]"
	asked "/list_weights?prefix=model.layers.1.mlp.gate"
	expect_json 'lines[0]["weights"][0]["dtype"]' bfloat16
	try wsync-push ck -e "$url" --verify none --allow-unknown format --include '*.experts.3.down_proj.weight'
	expect_status 5
	err_has "'Parameter' object has no attribute 'weight_loader'"
}

@test "a checkpoint with one scale for each tensor cannot be updated either" {
	scaled m --tensor
	endpoint tensors --model m/fp8 --model-path elsewhere --quantization fp8
	asked "/list_weights?prefix=model.layers.0.mlp.down_proj"
	expect_json '[(w["shape"], w["dtype"]) for w in lines[0]["weights"]]' \
		"[([96, 64], 'float8_e4m3fn'), ([64, 1], 'float32')]"
	try wsync-push m/fp8 -e "$url" --verify none --allow-unknown format --include '*.q_proj.*'
	expect_status 5
	err_has "'Parameter' object has no attribute 'weight_loader'"
}

@test "an endpoint does not start with what a server does not start with" {
	scaled m
	try wsync-endpoint --listen 127.0.0.1:0 --model m/fp8 --quantization awq
	expect_status 2
	err_has "quantization method specified in the model config (fp8) does not match the \
quantization method specified in the \`quantization\` argument (awq)"
	scaled large --block 32 32
	try wsync-endpoint --listen 127.0.0.1:0 --model large/fp8 --tp 2
	expect_status 3
	err_has "k_proj: 16 rows of 32 at each rank are no multiple of the FP8 block's 32"
	sed -i 's/"dynamic"/"static"/' m/fp8/config.json
	try wsync-endpoint --listen 127.0.0.1:0 --model m/fp8
	expect_status 3
	err_has "the block-wise quantization only supports dynamic activation scheme for now, \
but got static activation scheme"
}
