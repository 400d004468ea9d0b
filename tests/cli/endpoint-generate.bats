#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-endpoint's /generate: answers that depend on the weights and the prompt alone.
# verify-endpoints.bats compares logprobs, experts and the cache of several endpoints.
load helpers

post() { # URL BODY: the answer in $out, its status in $code
	out=$(curl -s -m 180 -w '\n%{http_code}' -H 'Content-Type: application/json' \
		-d "$2" "$1/generate") || true
	code=${out##*$'\n'}
	out=${out%$'\n'*}
	last="POST /generate $2"
}

# ask URL TEXT [FIELDS]: text and logprobs of prompt and answer in $said; $cached.
ask() {
	post "$1" "{\"text\": \"$2\", \"return_logprob\": true, \"sampling_params\": \
{\"max_new_tokens\": 8, \"temperature\": 0}
		${3:+, $3}}"
	[ "$code" = 200 ] || explain "status $code"
	said=$(json '(lines[0]["text"],
		[lines[0]["meta_info"][k + "_token_logprobs"] for k in ("input", "output")])')
	cached=$(json 'lines[0]["meta_info"]["cached_tokens"]')
}

push() { try wsync-push "$@" --verify none; expect_status 0; }

@test "the same weights answer the same over any number of ranks, another bit does not" {
	llama one
	cp -r one two
	/usr/bin/python3 - <<-'END'
		with open("two/model.safetensors", "r+b") as f:
		    f.seek(-2, 2); b = f.read(1)[0]; f.seek(-2, 2); f.write(bytes([b ^ 1]))
	END
	first=
	for tp in 1 2 4; do
		endpoint "tp$tp" --model one --tp "$tp"
		push one -e "$url"
		ask "$url" "the quick brown fox" '"logprob_start_len": 0'
		first=${first:-$said}
		[ "$said" = "$first" ] || explain "tp $tp"
	done
	push two -e "$url"
	ask "$url" "the quick brown fox" '"logprob_start_len": 0'
	[ "$said" != "$first" ] || explain "another bit, the same answer"
	push one -e "$url"
	ask "$url" "the quick brown fox" '"logprob_start_len": 0'
	[ "$said" = "$first" ] || explain "the old weights, another answer"
}

@test "without a flush the cache keeps what old weights computed" {
	llama one
	llama two '' --seed 1
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
	[ "$cached" = 0 ] || explain "tokens with logprobs are computed again"
	push two -e "$url"
	ask "$url" "the quick brown fox"
	[ "$cached $said" = "0 $new" ] || explain "as without a past"
}

@test "answers have the form of SGLang's" {
	endpoint e
	post "$url" '{"input_ids": [[104, 105], [200]], "rid": "r", "return_logprob": true,
	"logprob_start_len": 0,
		"sampling_params": [{"max_new_tokens": 1, "temperature": 0},
		{"max_new_tokens": 2}]}'
	expect_json '[(a["meta_info"]["id"], len(a["output_ids"]),
		a["meta_info"]["finish_reason"]["length"]) for a in lines[0]]' \
		"[('r_0', 1, 1), ('r_1', 2, 2)]"
	expect_json '([t[1:] for t in lines[0][0]["meta_info"]["input_token_logprobs"]],
		lines[0][0]["meta_info"]["input_token_logprobs"][0][0])' \
		"([[104, None], [105, None]], None)"
	post "$url" '{"text": "x", "sampling_params": {"max_new_tokens": 1}}'
	expect_json '[k for k in lines[0]["meta_info"] if "logprobs" in k or "experts" in k]' "[]"
	# The probabilities of all tokens after one prompt add up to 1.
	post "$url" "{\"input_ids\": [$(seq -s , 0 255 |
		sed 's/[0-9]*/[7,&]/g')], \"return_logprob\": true, \"logprob_start_len\": 0,
		\"sampling_params\": {\"max_new_tokens\": 0}}"
	expect_json 'abs(1 - sum(__import__("math").exp(
		a["meta_info"]["input_token_logprobs"][1][0]) for a in lines[0])) < 1e-5' True
	for lineage in sglang-0.4 sglang-0.5 xorl-legacy sglang-2026; do
		endpoint "$lineage" --lineage "$lineage"
		post "$url" '{"text": "hi", "return_logprob": true,
			"sampling_params": {"max_new_tokens": 1}}'
		version=$([ "$lineage" = sglang-0.4 ] && echo False || echo True)
		last=$([ "$lineage" = sglang-2026 ] && echo '[]' || echo '[[None, 105, None]]')
		expect_json '("weight_version" in lines[0]["meta_info"],
			lines[0]["meta_info"]["input_token_logprobs"])' "($version, $last)"
	done
	try wsync-endpoint --listen 127.0.0.1:0 --model one --return-routed-experts \
		--lineage sglang-0.5
	expect_status 2
	err_has "sglang-0.5 has no answers with routed experts"
}

@test "hostile and wrong requests are refused" {
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
		{"text": "a", "sampling_params": [{}]}|as long as that of the prompts
		{"text": ["a", "b"], "sampling_params": [{}]}|as long as that of the prompts
		{"text": "a", "sampling_params": {"max_new_tokens": -1}}|max_new_tokens must be at least 0, got -1
		{"text": "a", "sampling_params": {"max_new_tokens": 1000000000000}}|maximum context length of 32768
		{"text": "a", "sampling_params": {"max_new_tokens": "7"}}|max_new_tokens must be an integer
		{"text": "a", "sampling_params": {"n": 2}}|one answer to a prompt
		{"text": ["a", "b", "c"], "sampling_params": {"max_new_tokens": 30000}}|A batch of 90003 tokens
		{"text": "a", "return_logprob": 2}|body.return_logprob
		{"text": "a", "return_logprob": true, "logprob_start_len": 2}|higher than the number of input tokens
		{"text": "a", "return_logprob": true, "logprob_start_len": -2}|higher than the number of input tokens
		{"text": "a", "return_logprob": true, "logprob_start_len": [0]}|body.logprob_start_len
		{"text": "a", "top_logprobs_num": 1}|does not support top_logprobs_num
		{"text": "a", "token_ids_logprob": [1]}|does not support token_ids_logprob
		{"text": "a", "stream": true}|does not support stream
		{"text": "a", "rid": 7}|body.rid
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
	post "$url" '{"text": "a", "stream": false, "top_logprobs_num": 0}'
	[ "$code" = 200 ] || explain "status $code"
}

@test "prompts wait for the end of a pause" {
	endpoint e
	try wsync-ctl pause -e "$url"
	expect_status 0
	start waiting curl -s -m 180 -d '{"text": "hi"}' "$url/generate"
	sleep 0.5
	[ ! -s waiting.out ] || explain "answered"
	try wsync-ctl resume -e "$url"
	expect_status 0
	eventually grep -q '"finish_reason"' waiting.out
}
