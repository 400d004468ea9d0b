#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-endpoint's /update_weights_from_disk.
load helpers

ask() { try curl -sS -m 180 -X "$1" --data-binary "$3" "$url$2"; }

model() { /usr/bin/python3 "$repo/tests/cli/small_model.py" "$1" m; }

@test "a checkpoint that the endpoint can read is loaded, with and without a model" {
	model qwen3
	for options in "--model m --tp 2" "--tp 1" "--lineage sglang-0.4 --model m --tp 2"; do
		# shellcheck disable=SC2086  # words
		endpoint "e${#options}" $options
		ask POST /update_weights_from_disk "{\"model_path\":\"$PWD/m\"}"
		[[ $out == *"Succeeded to update model weights."* ]] || explain "not loaded"
		try wsync-verify weights m -e "$url"
		expect_status 0
	done
}

@test "one that it cannot read changes nothing" {
	model qwen3
	endpoint a --model m
	ask POST /update_weights_from_disk '{"model_path":"/nowhere/at/all"}'
	[[ $out == *"Failed to get weights iterator: "*nowhere* ]] || explain "no refusal"
	ask POST /update_weights_from_disk '{}'
	[[ $out == *"model_path: Field required"* ]] || explain "no refusal"
}

@test "what was loaded is the model that the endpoint says it runs, and nothing else is" {
	model qwen3
	endpoint a --model m --served-model-name small
	ask POST /update_weights_from_disk "{\"model_path\":\"$PWD/m\",\"load_format\":\"dummy\"}"
	[[ $out == *"Failed to get model loader"*'"num_paused_requests":0'* ]] ||
		explain "numbers made up"
	ask GET /v1/models
	out_has '"id":"small"'
	ask POST /update_weights_from_disk "{\"model_path\":\"$PWD/m\",\"load_format\":\"auto\"}"
	out_has '"num_paused_requests":0'
	for route in /model_info /server_info /v1/models; do
		ask GET "$route"
		out_has "\"$PWD/m\""
	done
	ask GET /server_info
	out_has '"tokenizer_path":"m"'
}

@test "it dies in the middle, and spoils a byte, when told to" {
	model qwen3
	endpoint a --model m --fault drop:update_weights_from_disk:1 \
		--fault flip:update_weights_from_disk:2
	ask POST /update_weights_from_disk "{\"model_path\":\"$PWD/m\"}"
	[ "$status" != 0 ] || explain "an answer"
	ask POST /update_weights_from_disk "{\"model_path\":\"$PWD/m\"}"
	out_has "Succeeded"
	try wsync-verify weights m -e "$url"
	expect_status 1
}

@test "tensors in a file have whatever type and size, in any order" {
	safetensors odd.safetensors a:U8:3 b:I64:5,3 c:F32:7 d:F8_E4M3:5 e:BF16:3
	endpoint a
	ask POST /update_weights_from_disk "{\"model_path\":\"$PWD/odd.safetensors\"}"
	out_has "Succeeded"
	try wsync-verify weights odd.safetensors -e "$url"
	expect_status 0
}
