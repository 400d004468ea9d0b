#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-verify logprobs: two saved answers.
load helpers

answer() { echo "{\"meta_info\": {\"input_token_logprobs\": [$2], \"output_token_logprobs\": \
[$3]}}" >"$1"; }
keys() { /usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" wsync-verify \
	<<<"$out"; }
prepare() { answer a.json '[null, 5, null], [-1.5, 6, null]' '[-0.25, 7, null], [-2, 8, null]'; }

@test "the same answer is a yes, also within an array" {
	echo "[$(<a.json)]" >b.json
	try wsync-verify logprobs a.json b.json
	expect_status 0
	expect_out "prefill   1 token, mean difference 0, largest 0
decode    2 tokens, mean difference 0, largest 0"
}

@test "prompt and drawn tokens are told apart, and may be off as far as is allowed" {
	answer b.json '[null, 5, null], [-1.5, 6, null]' '[-0.5, 7, null], [-3, 9, null]'
	try wsync-verify logprobs a.json b.json --json
	expect_status 1
	keys
	expect_json '[(l["part"], l["tokens"], l["max"], l["same"], l["diverges"])
		for l in lines[1:3]]' "[('prefill', 1, 0, 2, False), ('decode', 1, 0.25, 1, True)]"
	err_has "decode: a difference of 0.25 at token 0, where 0 is allowed"
	try wsync-verify logprobs a.json b.json --max-difference 0.25
	expect_status 0
	answer b.json '[null, 5, null], [-1.5, 6, null]' '[-0.25, 7, null], [-3, 9, null]'
	try wsync-verify logprobs a.json b.json
	expect_status 1
	err_has "decode: the tokens differ from 1 on"
}

@test "another prompt is a no whatever is allowed" {
	answer b.json '[null, 5, null], [-1.5, 7, null]' '[-0.25, 7, null], [-2, 8, null]'
	try wsync-verify logprobs a.json b.json --max-difference 10
	expect_status 1
	err_has "prefill: the tokens differ from 1 on"
}

@test "what is no such answer" {
	for tokens in 7 '[1]' '["a", 1]' '[null]' '[1, 1.5]' '{"a": 1}'; do
		answer b.json "$tokens" ''
		try wsync-verify logprobs a.json b.json
		expect_status 3
	done
	for text in '{}' '[]' '7' '{"meta_info": 1}' \
		'{"meta_info": {"input_token_logprobs": 1}}'; do
		echo "$text" >b.json
		try wsync-verify logprobs a.json b.json
		expect_status 3
	done
	answer b.json '' ''
	try wsync-verify logprobs b.json b.json
	expect_status 11
	try wsync-verify logprobs a.json a.json --max-difference -1
	expect_status 2
}
