#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-endpoint's /generate: a toy model, whose answers are a matter of the weights alone.
load helpers

post() { # URL BODY: the answer in $out, its status in $code
	out=$(curl -s -m 30 -w '\n%{http_code}' -H 'Content-Type: application/json' -d "$2" "$1/generate") || true
	code=${out##*$'\n'}
	out=${out%$'\n'*}
	last="POST /generate $2"
}

# ask URL TEXT [FIELDS]: the logprobs of prompt and answer as they stand there, into $said; $cached.
ask() {
	post "$1" "{\"text\": \"$2\", \"return_logprob\": true, \"sampling_params\": {\"max_new_tokens\": 8, \"temperature\": 0}
		${3:+, $3}}"
	[ "$code" = 200 ] || explain "status $code"
	said=$(json '(lines[0]["text"], [lines[0]["meta_info"][k + "_token_logprobs"] for k in ("input", "output")])')
	cached=$(json 'lines[0]["meta_info"]["cached_tokens"]')
}

push() { try wsync-push "$@" --verify none; expect_status 0; }

# spoil DIR FROM_END: one bit of that byte of the checkpoint. llama's head and norm are the last 16512 bytes.
spoil() {
	/usr/bin/python3 - "$1/model.safetensors" "$2" <<-'END'
		import sys
		at = -int(sys.argv[2])
		with open(sys.argv[1], "r+b") as f:
		    f.seek(at, 2); b = f.read(1)[0]; f.seek(at, 2); f.write(bytes([b ^ 1]))
	END
}

@test "the same weights say the same, over however many ranks, and one other bit says something else" {
	llama one
	cp -r one two
	spoil two 2
	first=
	for tp in 1 2 4; do
		endpoint "tp$tp" --model one --tp "$tp"
		push one -e "$url"
		ask "$url" "the quick brown fox" '"logprob_start_len": 0'
		first=${first:-$said}
		[ "$said" = "$first" ] || explain "tp $tp says something else"
	done
	push two -e "$url"
	ask "$url" "the quick brown fox" '"logprob_start_len": 0'
	[ "$said" != "$first" ] || explain "the bit is not heard"
	push one -e "$url"
	ask "$url" "the quick brown fox" '"logprob_start_len": 0'
	[ "$said" = "$first" ] || explain "not what it was"
}

@test "without a flush the cache says what old weights made" {
	llama one
	cp -r one two
	spoil two 20000
	endpoint fresh --model one
	push two -e "$url"
	ask "$url" "the quick brown fox"
	new=$said
	endpoint e --model one
	push one -e "$url"
	ask "$url" "the quick brown fox"
	old=$said
	push two -e "$url" --flush never
	ask "$url" "the quick brown fox"
	[ "$cached" = 18 ] || explain "cached"
	[ "$said" != "$old" ] && [ "$said" != "$new" ] || explain "neither old nor new"
	ask "$url" "the quick brown fox" '"logprob_start_len": 0'
	[ "$cached" = 0 ] || explain "told tokens are computed anew"
	push two -e "$url"
	ask "$url" "the quick brown fox"
	[ "$cached $said" = "0 $new" ] || explain "as if nothing had been before"
}

@test "a batch says what its prompts say alone, unless it is told not to" {
	llama one
	for fault in "" batch-variant:generate:3; do
		endpoint "e$fault" --model one ${fault:+--fault "$fault"}
		push one -e "$url"
		want='"return_logprob": true, "logprob_start_len": 0, "sampling_params": {"temperature": 0, "max_new_tokens": 5}'
		alone=()
		for text in hello world; do
			post "$url" "{\"text\": \"$text\", $want}"
			alone+=("$(json '[lines[0]["meta_info"][k + "_token_logprobs"] for k in ("input", "output")]')")
		done
		post "$url" "{\"text\": [\"hello\", \"world\"], $want}"
		same=1
		for i in 0 1; do
			[ "$(json "[lines[0][$i]['meta_info'][k + '_token_logprobs'] for k in ('input', 'output')]")" = \
				"${alone[i]}" ] || same=0
		done
		[ "$same" = "$([ -z "$fault" ] && echo 1 || echo 0)" ] || explain "same: $same"
	done
}

@test "experts are as many as the model has, and the router's weights choose them" {
	mkdir moe
	cat >moe/config.json <<-'END'
		{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16",
		 "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8,
		 "num_key_value_heads": 4, "head_dim": 4, "vocab_size": 64, "num_experts": 8,
		 "num_experts_per_tok": 2, "moe_intermediate_size": 16, "mlp_only_layers": [0],
		 "decoder_sparse_step": 1, "tie_word_embeddings": false}
	END
	safetensors router.safetensors model.layers.1.mlp.gate.weight:BF16:8,32 model.layers.2.mlp.gate.weight:BF16:8,32
	for tp in 1 2; do
		endpoint "e$tp" --model moe --tp "$tp" --ep "$tp" --return-routed-experts
		push router.safetensors -e "$url"
		post "$url" '{"text": "hello", "return_routed_experts": true, "sampling_params": {"max_new_tokens": 4, "temperature": 0}}'
		[ "$code" = 200 ] || explain "status $code"
		echo "$out" >"$tp.json"
		try wsync-verify routing --config moe "$tp.json"
		expect_status 0
		out_has "8 tokens x 3 layers x 2 of 8 experts, 1 of the layers without"
	done
	try wsync-verify routing --config moe 1.json 2.json
	expect_status 0
	try curl -s "$url/server_info"
	out_has '"enable_return_routed_experts":true'
	safetensors --seed 1 router.safetensors model.layers.1.mlp.gate.weight:BF16:8,32
	push router.safetensors -e "$url"
	post "$url" '{"text": "hello", "return_routed_experts": true, "sampling_params": {"max_new_tokens": 4, "temperature": 0}}'
	echo "$out" >other.json
	try wsync-verify routing --config moe 1.json other.json
	expect_status 1
	endpoint plain --model moe
	post "$url" '{"text": "hello", "return_routed_experts": true}'
	[ "$(json '"routed_experts" in lines[0]["meta_info"]')" = False ] || explain "told without the option"
	try wsync-endpoint --listen 127.0.0.1:0 --model moe --return-routed-experts --lineage sglang-0.5
	expect_status 2
	err_has "sglang-0.5 has no answers with routed experts"
}

@test "a flush that flushes nothing is found out" {
	endpoint e --fault stale:flush_cache:1
	ask "$url" "hello"
	curl -s "$url/flush_cache" >flush
	[ "$(cat flush)" = "Cache flushed." ] || explain "flush"
	ask "$url" "hello"
	[ "$cached" = 4 ] || explain "cached"
	curl -s "$url/flush_cache" >flush
	ask "$url" "hello"
	[ "$cached" = 0 ] || explain "cached"
}

@test "what is told is what was asked for" {
	endpoint e
	post "$url" '{"input_ids": [[104, 105], [200]], "rid": "r", "return_logprob": [true, false], "top_logprobs_num": 2,
		"token_ids_logprob": [7], "logprob_start_len": 0, "return_text_in_logprobs": true,
		"sampling_params": [{"max_new_tokens": 1, "temperature": 0}, {"max_new_tokens": 2}]}'
	[ "$(json '[(a["meta_info"]["id"], len(a["output_ids"]), a["meta_info"]["finish_reason"]["length"]) for a in lines[0]]')" = \
		"[('r_0', 1, 1), ('r_1', 2, 2)]" ] || explain "two answers"
	[ "$(json '[t[1:] for t in lines[0][0]["meta_info"]["input_token_logprobs"]], lines[0][0]["meta_info"]["input_token_logprobs"][0][0]')" = \
		"([[104, 'h'], [105, 'i']], None)" ] || explain "prompt"
	[ "$(json '(lambda m: (m["input_top_logprobs"][0], len(m["input_top_logprobs"][1]), m["output_top_logprobs"][0][0] == m["output_token_logprobs"][0], m["output_token_ids_logprobs"][0][0][1:]))(lines[0][0]["meta_info"])')" = \
		"(None, 2, True, [7, '<7>'])" ] || explain "others"
	[ "$(json '[k for k in lines[0][1]["meta_info"] if "logprobs" in k]')" = "[]" ] || explain "unasked"
	# All of the vocabulary together is certain.
	post "$url" '{"text": "x", "return_logprob": true, "top_logprobs_num": 256, "sampling_params": {"max_new_tokens": 1}}'
	[ "$(json '__import__("math").isclose(sum(__import__("math").exp(t[0]) for t in lines[0]["meta_info"]["output_top_logprobs"][0]), 1, abs_tol=1e-5)')" = True ] ||
		explain "not one"
	post "$url" '{"text": "x", "stream": true, "sampling_params": {"max_new_tokens": 1}}'
	[[ $out == 'data: {"text":'*$'}\n\ndata: [DONE]'* ]] || explain "stream"
}

@test "what no server would answer is refused" {
	endpoint e
	while IFS='|' read -r body words; do
		post "$url" "$body"
		[ "$code" = 400 ] || explain "status $code"
		out_has "$words"
	done <<-'END'
		{}|Either text, input_ids
		{"text": "a", "input_ids": [1]}|Either text, input_ids
		{"text": ""}|body.text
		{"text": 7}|body.text
		{"text": []}|A batch of 0 prompts
		{"text": ["a", 1]}|body.text
		{"text": {"a": 1}}|body.text
		{"input_ids": []}|The input_ids are empty
		{"input_ids": [[1], []]}|The input_ids are empty
		{"input_ids": [[1], 2]}|Input should be a valid list
		{"input_ids": [1, [2]]}|Input should be a valid integer
		{"input_ids": [1.5]}|Input should be a valid integer
		{"input_ids": [true]}|Input should be a valid integer
		{"input_ids": [-1]}|The input id -1 is out of range
		{"input_ids": [256]}|The input id 256 is out of range
		{"input_ids": [1e300]}|Input should be a valid integer
		{"text": "a", "sampling_params": 7}|body.sampling_params
		{"text": "a", "sampling_params": [{}]}|a list is for a list of prompts
		{"text": ["a", "b"], "sampling_params": [{}]}|as long as that of the prompts
		{"text": "a", "sampling_params": {"max_new_token": 1}}|Unexpected keyword argument 'max_new_token'
		{"text": "a", "sampling_params": {"max_new_tokens": -1}}|max_new_tokens must be at least 0, got -1
		{"text": "a", "sampling_params": {"max_new_tokens": 1000000000000}}|maximum context length of 32768
		{"text": "a", "sampling_params": {"max_new_tokens": "7"}}|max_new_tokens must be an integer
		{"text": "a", "sampling_params": {"temperature": -1}}|temperature must be non-negative
		{"text": "a", "sampling_params": {"temperature": "hot"}}|temperature must be a number
		{"text": "a", "sampling_params": {"n": 2}}|one answer to a prompt
		{"text": ["a", "b", "c"], "sampling_params": {"max_new_tokens": 30000}}|A batch of 90003 tokens
		{"text": "a", "return_logprob": 1}|body.return_logprob
		{"text": "a", "return_logprob": true, "logprob_start_len": 2}|higher than the number of input tokens
		{"text": "a", "return_logprob": true, "logprob_start_len": -2}|higher than the number of input tokens
		{"text": "a", "return_logprob": true, "logprob_start_len": "0"}|body.logprob_start_len
		{"text": "a", "return_logprob": true, "top_logprobs_num": 257}|top_logprobs_num: 257 of 256 tokens
		{"text": "a", "return_logprob": true, "top_logprobs_num": 256, "sampling_params": {"max_new_tokens": 9000}}|tells at most
		{"text": "a", "return_logprob": true, "token_ids_logprob": [256]}|The token id 256 is out of range
		{"text": "a", "return_logprob": true, "token_ids_logprob": 7}|body.token_ids_logprob
		{"text": "a", "rid": 7}|body.rid
		{"text": "a", "stream": "maybe"}|body.stream
	END
	post "$url" $'{"text": "\xff"}'
	[ "$code" = 400 ] || explain "status $code"
	post "$url" "$(printf '{"text": %.0s' $(seq 2000))"
	[ "$code" = 400 ] || explain "status $code"
	post "$url" "$(printf '[%.0s' $(seq 100000))"
	[ "$code" = 400 ] || explain "status $code"
	{ printf '{"text": "'; head -c 32768 /dev/zero | tr '\0' a; printf '"}'; } >long.json
	post "$url" @long.json
	[ "$code" = 400 ] || explain "status $code"
	out_has "The input (32768 tokens) is longer than the model's context length (32768 tokens)."
	endpoint none --keep none
	post "$url" '{"text": "a", "return_logprob": true}'
	[ "$code" = 400 ] || explain "status $code"
	post "$url" '{"text": "a"}'
	[ "$code" = 200 ] || explain "status $code"
}

@test "answers are off as far as the weights are" {
	# compare ONE OTHER: the mean difference over the prompt, in thousandths.
	compare() {
		try wsync-verify logprobs --json "$1.json" "$2.json" --max-difference 100
		mean=$(json 'round(1000 * next(l["mean"] for l in lines if l.get("part") == "prefill"))')
	}
	/usr/bin/python3 "$repo/tests/cli/scaled_model.py" s >/dev/null
	cp -r s/bf16 bit
	spoil bit 20000
	for name in s/bf16 s/fp8 bit; do
		endpoint "e${name//\//-}" --model "$name"
		push "$name" -e "$url"
		post "$url" '{"text": "the quick brown fox", "return_logprob": true, "logprob_start_len": 0}'
		echo "$out" >"${name//\//-}.json"
	done
	endpoint empty --model s/bf16
	post "$url" '{"text": "the quick brown fox", "return_logprob": true, "logprob_start_len": 0}'
	echo "$out" >empty.json
	compare s-bf16 bit
	[ "$mean" -le 5 ] || explain "one bit: $mean"
	compare s-bf16 s-fp8
	[ "$mean" -gt 1 ] && [ "$mean" -lt 200 ] || explain "FP8: $mean"
	near=$mean
	compare s-bf16 empty
	[ "$mean" -gt $((3 * near)) ] || explain "other weights: $mean, FP8: $near"
}

@test "what is told depends on the era" {
	for lineage in sglang-0.4 sglang-0.5 xorl-legacy sglang-2026; do
		endpoint "$lineage" --lineage "$lineage"
		post "$url" '{"text": "hi", "return_logprob": true, "sampling_params": {"max_new_tokens": 1}}'
		version=$([ "$lineage" = sglang-0.4 ] && echo False || echo True)
		last=$([ "$lineage" = sglang-2026 ] && echo '[]' || echo '[[None, 105, None]]')
		[ "$(json '("weight_version" in lines[0]["meta_info"], lines[0]["meta_info"]["input_token_logprobs"])')" = \
			"($version, $last)" ] || explain "$lineage"
	done
}

@test "prompts wait for the end of a pause" {
	endpoint e
	try wsync-ctl pause -e "$url"
	expect_status 0
	start waiting curl -s -m 30 -d '{"text": "hi"}' "$url/generate"
	sleep 0.5
	[ ! -s waiting.out ] || explain "answered"
	try wsync-ctl resume -e "$url"
	expect_status 0
	eventually 20 grep -q '"finish_reason"' waiting.out
}
