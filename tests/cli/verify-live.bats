#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-verify logprobs and routing: servers that are asked, well-behaved and not. They are
# talker.py, whose numbers are hashes of its seed and the tokens.
load helpers

keys() { /usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" wsync-verify \
	<<<"$out"; }

# talker NAME [KEY=VALUE]...: sets $url.
talker() {
	local name=$1
	shift
	start "$name" /usr/bin/python3 "$repo/tests/cli/talker.py" "$@"
	eventually test -s "$scratch/$name.out"
	url=http://127.0.0.1:$(head -n 1 "$scratch/$name.out")
}

# Two of them, in $a and $b: two "KEY=VALUE ..." "KEY=VALUE ...".
two() {
	# shellcheck disable=SC2086
	talker a $1
	a=$url
	# shellcheck disable=SC2086
	talker b $2
	b=$url
}
logprobs() { try wsync-verify logprobs "$@"; }
routing() { try wsync-verify routing "$@"; }

@test "two endpoints with the same weights agree, with others they do not" {
	two "" "version=7"
	logprobs -e "$a" -e "$b"
	expect_status 0
	out_has "prefill   6 prompts, 465 tokens, mean difference 0, largest 0"
	out_has "decode    6 prompts, 96 tokens, mean difference 0, largest 0"
	talker c seed=1 version=8
	logprobs -e "$a" -e "$url" --json
	expect_status 1
	keys
	expect_json '[(l["part"], l["prompts"], l["different"], l["good"]) for l in lines
		if l["type"] == "total"]' "[('prefill', 6, 6, False), ('decode', 6, 6, False)]"
	err_has "prompt 1: prefill: a difference of"
	err_has "hint: $a answers with weight version 'default', $url with '8'"
	err_has "warning: $url: answers with weight version '8', $a with 'default'"
	logprobs -e "$a" -e "$b" -e "$url" -q
	expect_status 1
	expect_out ""
}

@test "limits are of a part, of the mean and of k3" {
	two "" "decode=0.01"
	logprobs -e "$a" -e "$b"
	expect_status 1
	err_has "decode: a difference of 0.01 at token"
	logprobs -e "$a" -e "$b" --max-difference 0.011
	expect_status 0
	out_has "near"
	logprobs -e "$a" -e "$b" --max-difference prefill=0.011
	expect_status 1
	logprobs -e "$a" -e "$b" --max-difference decode=0.011
	expect_status 0
	logprobs -e "$a" -e "$b" --mean-difference 0.011
	expect_status 0
	logprobs -e "$a" -e "$b" --mean-difference 0.009
	expect_status 1
	err_has "a mean difference of 0.01, where 0.009 is allowed"
	logprobs -e "$a" -e "$b" --max-k3 decode=0.0001
	expect_status 0
	logprobs -e "$a" -e "$b" --max-k3 decode=0.00001
	expect_status 1
	err_has "a k3 of 5.01"
	for wrong in 'both=1' 'decode=' '=1' 'decode=-1' 'nan' 'decode=1x'; do
		logprobs -e "$a" -e "$b" --max-difference "$wrong"
		expect_status 2
	done
}

@test "before and after: answers are saved, and asked again with the same tokens" {
	two "" "seed=1"
	printf 'one\n\n{"text": "{two", "max_new_tokens": 3}\r\n{"input_ids": [5, 6, 7]}\n' >prompts
	logprobs -e "$a" --prompts prompts --prompt zero --save before.json
	expect_status 0
	[ "$(/usr/bin/python3 -c 'import json
print([[len(x["meta_info"][k]) for k in ("input_token_logprobs", "output_token_logprobs")]
       for x in json.load(open("before.json"))])')" = "[[4, 16], [3, 16], [4, 3], [3, 16]]" ]
	logprobs -e "$a" before.json --json
	expect_status 0
	keys
	expect_json '[l["tokens"] for l in lines if l["type"] == "logprobs"]' \
		"[3, 16, 2, 16, 3, 3, 2, 16]"
	logprobs before.json before.json
	expect_status 0
	logprobs -e "$b" before.json
	expect_status 1
	out_has "$b against before.json"
	logprobs -e "$b" before.json --prompt zero
	expect_status 1
	err_has "before.json has answers to 4 prompts, $b to 1"
	logprobs -e "$a" --prompt zero --save zero.json
	logprobs before.json zero.json
	expect_status 1
}

@test "by teacher forcing one side judges what the other drew, or its own" {
	two "" "decode=0.5"
	logprobs -e "$a" --teacher-forced
	expect_status 0
	out_has "its prefill against its decode"
	logprobs -e "$b" --teacher-forced --json
	expect_status 1
	keys
	expect_json '[(l["part"], l["tokens"], round(l["max"], 9)) for l in lines
		if l["type"] == "total"]' "[('prefill', 465, 0), ('decode', 96, 0.5)]"
	logprobs -e "$a" -e "$b" --teacher-forced
	expect_status 0
	logprobs -e "$b" -e "$a" --teacher-forced --max-difference decode=0.6
	expect_status 0
	# Other weights, which draw other tokens, still judge the same ones.
	talker c seed=1
	logprobs -e "$a" -e "$url" --teacher-forced --json
	expect_status 1
	expect_json '[(l["tokens"], l["diverges"]) for l in lines if l["type"] == "total"]' \
		"[(465, False), (96, False)]"
	logprobs -e "$a" --save a.json
	logprobs -e "$a" a.json --teacher-forced
	expect_status 0
	logprobs -e "$url" a.json --teacher-forced
	expect_status 1
}

@test "what comes in a batch has to be what comes alone" {
	two "" "batch=0.0000001"
	logprobs -e "$a" --batched
	expect_status 0
	logprobs -e "$b" --batched --max-difference 1
	expect_status 1
	err_has "of the batch: \
servers that promise otherwise are started with --enable-deterministic-inference"
	logprobs -e "$a" -e "$b" --batched --json
	expect_status 1
	keys
	[ "$(json '[(l["second"][-5:], l["part"], l["different"]) for l in lines
		if l["type"] == "total"]')" = \
		"[('${a: -5}', 'prefill', 0), ('${a: -5}', 'decode', 0), ('${b: -5}', 'prefill', \
0), ('${b: -5}', 'decode', 6)]" ] ||
		explain "totals"
	printf '{"text": "a", "max_new_tokens": 2}\n{"text": "b"}\n' >prompts
	logprobs -e "$a" --batched --prompts prompts
	expect_status 0
	echo '{"input_ids": [1]}' >>prompts
	logprobs -e "$a" --batched --prompts prompts
	expect_status 2
	logprobs -e "$a" --batched --prompt a
	expect_status 2
	err_has "one prompt is no batch"
}

@test "what the cache helps to has to be what is computed anew" {
	two "cached=3" "cached=3 stale=0.01"
	logprobs -e "$a" --cached
	expect_status 0
	out_has "$a, without its cache and with it"
	logprobs -e "$a" -e "$b" --cached --json
	expect_status 1
	keys
	expect_json '[(l["part"], l["different"], round(l["max"], 9)) for l in lines
		if l["type"] == "total"]' "[('decode', 0, 0), ('decode', 6, 0.01)]"
	logprobs -e "$b" --cached --max-difference decode=0.011
	expect_status 0
}

@test "where tokens go apart, both have to be about as probable" {
	talker a
	logprobs -e "$url" --prompt abc --save a.json
	/usr/bin/python3 - <<-'END'
		import json
		answers = json.load(open("a.json"))
		token = answers[0]["meta_info"]["output_token_logprobs"][0]
		token[0] -= 0.5
		token[1] += 1
		json.dump(answers, open("a.json", "w"))
	END
	logprobs -e "$url" a.json --max-difference 0.6
	expect_status 0
	logprobs -e "$url" a.json --max-difference 0.4
	expect_status 1
	err_has "decode: they go apart at token 0 with tokens whose probabilities differ by 0.5, \
where 0.4 is allowed"
	logprobs -e "$url" a.json --mean-difference 0.6
	expect_status 1
	err_has "the first drawn token is another, so nothing can be compared"
}

@test "so many prompts are in flight at once as are wanted" {
	talker a slow=0.2
	logprobs -e "$url" --save one.json
	expect_status 0
	[ "$(tail -n 1 a.out | cut -d ' ' -f 3)" = 1 ]
	logprobs -e "$url" one.json --parallel 4
	expect_status 0
	[ "$(tail -n 1 a.out | cut -d ' ' -f 3)" = 4 ]
}

@test "tokens out of a cache are told, and flushed where that is wanted" {
	talker a cached=3
	logprobs -e "$url" --save a.json
	expect_status 0
	err_has "warning: $url: 18 tokens of 6 prompts came from the cache"
	run ! grep -q flush a.out
	logprobs -e "$url" --save a.json --flush-first --json
	expect_status 0
	keys
	grep -q flush a.out
	expect_json '[(l["cached_tokens"], l["cached_prompts"]) for l in lines
		if l["type"] == "asked"]' "[(18, 6)]"
}

@test "servers that do not answer as they should" {
	talker much extra=1
	logprobs -e "$url" --save a.json
	expect_status 5
	err_has "prompt 1: POST /generate: the answer has 17 drawn tokens, where 16 were asked for"
	for reply in 400 empty text nan huge deep many null other abort; do
		talker "$reply" reply=$reply
		echo '{"input_ids": [5]}' >prompts
		logprobs -e "$url" --prompts prompts --save a.json
		expect_status 5
		[[ $err == *"POST /generate"* ]] || explain "no sentence"
		case $reply in
		400) err_has 'refused (HTTP 400): "return_logprob is not supported"' &&
			err_has "does not return the logarithms" ;;
		empty) err_has "the answer has no input_token_logprobs" ;;
		abort) err_has 'aborted the request: "paused?[31m"' ;;
		other) err_has "the answer has other tokens (1) than the prompt (1)" ;;
		esac
	done
	talker hang reply=hang
	SECONDS=0
	logprobs -e "$url" --save a.json --timeout 500ms
	expect_status 10
	[ "$SECONDS" -lt 30 ] || explain "took $SECONDS s" # not the default of 60 s
	err_has "no complete answer after"
	err_has "wsync-ctl resume"
	[ ! -e a.json ]
	logprobs -e 127.0.0.1:"$(free_port)" --save a.json
	expect_status 4
}

@test "what cannot be asked" {
	logprobs -e 127.0.0.1:1
	expect_status 2
	err_has "a second --endpoint, a FILE of saved answers, --save"
	logprobs
	expect_status 2
	echo '{"meta_info": {"input_token_logprobs": [], "output_token_logprobs": []}}' >a.json
	for wrong in "a.json a.json -e h:1" "a.json a.json --prompt x" "a.json a.json --batched" \
		"a.json -e h:1 --batched" \
		"-e h:1 --batched --teacher-forced" "-e h:1 -e h:2 --save x" \
		"-e h:1 a.json --teacher-forced --save x" \
		"-e h:1 --save x --parallel 65" "-e h:1 --save x --max-new-tokens 0"; do
		# shellcheck disable=SC2086
		logprobs $wrong
		expect_status 2
	done
	logprobs -e h:1 --save x --prompt ""
	expect_status 2
	logprobs -e h:1 a.json
	expect_status 3
	for line in '{' '{}' '{"text": ""}' '{"text": "a", "input_ids": [1]}' '{"input_ids": []}' \
		'{"input_ids": [-1]}' \
		'{"input_ids": [1.5]}' '{"input_ids": [4294967296]}' \
		'{"text": "a", "max_new_tokens": 0}'; do
		printf 'first\n%s\n' "$line" >prompts
		logprobs -e h:1 --save x --prompts prompts
		expect_status 3
		err_has "prompts: line 2: "
	done
	: >prompts
	logprobs -e h:1 --save x --prompts prompts
	expect_status 3
	err_has "prompts: has no prompts"
}

moe() {
	echo '{"num_hidden_layers": 3, "num_experts_per_tok": 2, "n_routed_experts": 8,
	       "first_k_dense_replace": 1, "model_type": "deepseek_v3"}' >config.json
}

@test "experts of endpoints are compared, in the shape of their config" {
	moe
	two "experts=8 model=$scratch" "experts=8 moved=2"
	routing -e "$a"
	expect_status 0
	out_has "routing   $a: prompt 1: 39 tokens x 3 layers x 2 of 8 experts, \
1 of the layers without"
	routing -e "$b"
	expect_status 2
	err_has "the model path of $b, 'hub/name', cannot be read here"
	talker c experts=8
	routing -e "$a" -e "$url" --json
	expect_status 0
	keys
	expect_json '[(l["rows"], l["equal"]) for l in lines if l["type"] == "agreement"][-1]' \
		"(1122, 1122)"
	routing -e "$a" -e "$b" --prompt abc --json
	expect_status 1
	keys
	expect_json '[(l["rows"], l["equal"], l["token"], l["layer"]) for l in lines
		if l["type"] == "agreement"]' "[(36, 34, 16, 2)]"
	err_has "$b: 34 of 36 rows are equal"
	routing -e "$a" -e "$b" --min-equal 99%
	expect_status 1
	routing -e "$a" -e "$b" --min-equal 98%
	expect_status 0
	out_has "6 prompts: 1110 of 1122 rows"
}

@test "experts are saved, compared with what was saved, and written for numpy" {
	moe
	two "experts=8 model=$scratch" "experts=8 model=$scratch seed=2"
	routing -e "$a" --save a.json
	expect_status 0
	routing -e "$a" a.json
	expect_status 0
	routing -e "$b" a.json
	expect_status 1
	routing a.json a.json --config .
	expect_status 0
	routing a.json --config .
	expect_status 0
	routing -e "$a" --prompt abc --npy a.npy
	expect_status 0
	[ "$(head -c 128 a.npy | grep -a -o '(18, 3, 2)')" = "(18, 3, 2)" ]
	routing -e "$a" --npy b.npy
	expect_status 2
	routing -e "$a" -e "$b" --npy b.npy
	expect_status 2
	routing -e "$a" a.json --prompt abc
	expect_status 1
	err_has "a.json has answers to 6 prompts"
}

@test "experts that cannot be, or are not told" {
	moe
	two "experts=9 model=$scratch" "model=$scratch"
	routing -e "$a"
	expect_status 1
	err_has "there is no such expert"
	routing -e "$b"
	expect_status 5
	err_has "--enable-return-routed-experts"
	talker c reply=400
	routing -e "$url" --config .
	expect_status 5
	talker d reply=abort
	routing -e "$url" --config .
	expect_status 5
	routing a.json --prompt x --config .
	expect_status 2
}
