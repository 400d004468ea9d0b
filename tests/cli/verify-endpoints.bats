#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-verify logprobs and routing of wsync-endpoints, whose answers depend on the weights they
# were pushed.
load helpers

logprobs() { try wsync-verify logprobs "$@"; }
routing() { try wsync-verify routing "$@"; }
push() { try wsync-push "$@"; expect_status 0; }

# Two checkpoints of one model, one and two, and two endpoints, $a and $b.
prepare_two() {
	llama one
	llama two '' --seed 1
	endpoint a --model one "$@"
	a=$url
	endpoint b --model one --tp 2 "$@"
	b=$url
}

@test "endpoints agree as long as their weights do" {
	prepare_two
	push one -e "$a" -e "$b" --weight-version 1
	logprobs -e "$a" -e "$b"
	expect_status 0
	out_has "prefill   6 prompts, 465 tokens, mean difference 0, largest 0"
	out_has "decode    6 prompts, 96 tokens, mean difference 0, largest 0"
	logprobs -e "$a" --save before.json
	expect_status 0
	push two -e "$b" --weight-version 2
	logprobs -e "$a" -e "$b" --max-difference 0.1
	expect_status 1
	err_has "weight version '1', $b with '2'"
	logprobs -e "$a" -e "$b" --teacher-forced --max-k3 0.01
	expect_status 1
	logprobs -e "$a" before.json
	expect_status 0
	push two -e "$a" --weight-version 2
	logprobs -e "$a" -e "$b"
	expect_status 0
	logprobs -e "$a" before.json --json
	expect_status 1
	/usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" wsync-verify \
		<<<"$out"
	for one in --teacher-forced --batched "--teacher-forced --parallel 4"; do
		# shellcheck disable=SC2086
		logprobs -e "$a" -e "$b" $one
		expect_status 0
	done
}

@test "a cache that outlived a push is found" {
	prepare_two
	push one -e "$a"
	logprobs -e "$a" --save before.json
	logprobs -e "$a" --cached
	expect_status 0
	out_has "cached    $a: 6 prompts, 471 tokens and 96 drawn, 465 cached"
	push two -e "$a" --flush never
	logprobs -e "$a" --cached
	expect_status 1
	err_has "the cache has results of older weights"
	push two -e "$a" -e "$b"
	logprobs -e "$a" -e "$b" --cached --json
	expect_status 11
	/usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" wsync-verify \
		<<<"$out"
	err_has "nothing was tested: no token of the prompts came from its cache"
	logprobs -e "$a" -e "$b" --cached
	expect_status 0
	logprobs -e "$a" --cached --flush-first
	expect_status 2
	logprobs -e "$a" --cached before.json
	expect_status 2
	logprobs -e "$a" --cached --batched
	expect_status 2
}

@test "a flush that flushes nothing is found" {
	llama one
	llama two '' --seed 1
	endpoint e --model one --fault stale:flush_cache:1
	push one -e "$url" --flush never
	logprobs -e "$url" --save before.json
	push two -e "$url" --flush never
	try wsync-ctl flush -e "$url"
	expect_status 0
	logprobs -e "$url" --cached
	expect_status 1
	try wsync-ctl flush -e "$url"
	logprobs -e "$url" --cached
	expect_status 11
	err_has "nothing was tested: no token of the prompts came from its cache"
	err_has "hint: run it again"
	logprobs -e "$url" --cached
	expect_status 0
}

@test "an endpoint that batches differently is found, by the last bit" {
	prepare_two
	endpoint c --model one --fault batch-variant:generate:1
	push one -e "$a" -e "$url"
	logprobs -e "$a" -e "$url"
	expect_status 0
	logprobs -e "$a" --batched
	expect_status 0
	logprobs -e "$url" --batched --max-difference 1
	expect_status 1
	# Numbers that differ are shown so that they do.
	first=$(sed -n 's/.*token [0-9]* (id [0-9]*): \(.*\) and \(.*\)/\1 \2/p' <<<"$out" |
		head -1)
	[ -n "$first" ] && [ "${first% *}" != "${first#* }" ] ||
		explain "not to be told apart: $first"
	err_has "--enable-deterministic-inference"
}

@test "a paused endpoint is told apart from a broken one" {
	prepare_two
	push one -e "$a"
	logprobs -e "$a" --save before.json
	try wsync-ctl pause -e "$a"
	expect_status 0
	SECONDS=0
	logprobs -e "$a" before.json --timeout 500ms
	expect_status 10
	[ "$SECONDS" -lt 30 ] || explain "took $SECONDS s" # not the default of 60 s
	err_has "a server that is paused or asleep keeps prompts waiting"
	try wsync-ctl resume -e "$a"
	logprobs -e "$a" before.json
	expect_status 0
	endpoint d --model one --fault hang:generate:2
	SECONDS=0
	logprobs -e "$url" --save x --timeout 2s # the first prompt is answered in time
	expect_status 10
	[ "$SECONDS" -lt 30 ] || explain "took $SECONDS s"
	err_has "prompt 2: POST"
	for fault in garbage wrong-length refuse drop; do
		endpoint "$fault" --model one --fault "$fault:generate:1"
		logprobs -e "$url" --save x --timeout 2s
		[[ $status == [45] || $status == 10 ]] || explain "$fault"
		[ ! -e x ]
	done
}

@test "experts are the same as long as the weights are" {
	mkdir moe
	cat >moe/config.json <<-'END'
		{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16",
		 "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8,
		 "num_key_value_heads": 4, "head_dim": 4, "vocab_size": 64, "num_experts": 8,
		 "num_experts_per_tok": 2, "moe_intermediate_size": 16, "mlp_only_layers": [0],
		 "decoder_sparse_step": 1, "tie_word_embeddings": false}
	END
	gates="model.layers.1.mlp.gate.weight:BF16:8,32 model.layers.2.mlp.gate.weight:BF16:8,32"
	# shellcheck disable=SC2086
	safetensors one.safetensors $gates
	# shellcheck disable=SC2086
	safetensors two.safetensors --seed 1 $gates
	endpoint a --model moe --return-routed-experts --model-path "$scratch/moe"
	a=$url
	endpoint b --model moe --return-routed-experts --tp 2
	b=$url
	push one.safetensors -e "$a" -e "$b" --verify none
	routing -e "$a" -e "$b"
	expect_status 0
	out_has "6 prompts: "
	out_has "(100%)"
	routing -e "$a" --save before.json
	push two.safetensors -e "$b" --verify none
	routing -e "$a" -e "$b"
	expect_status 1
	routing -e "$a" before.json
	expect_status 0
	# What came from the cache was chosen with the old weights: --flush never leaves it there.
	push two.safetensors -e "$a" --verify none --flush never
	routing -e "$a" -e "$b" --json
	expect_status 1
	err_has "came from the cache"
	routing -e "$a" -e "$b" --flush-first
	expect_status 0
	endpoint plain --model moe
	routing -e "$url" --config moe
	expect_status 5
	err_has "--enable-return-routed-experts"
}
