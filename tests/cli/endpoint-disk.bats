#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-endpoint's /update_weights_from_disk.
load helpers

ask() { try curl -sS -m 20 -X "$1" --data-binary "$3" "$url$2"; }

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
