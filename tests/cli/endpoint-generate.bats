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
