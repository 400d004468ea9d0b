#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The embedded endpoint as a vLLM server, as a program: its HTTP, a reload from disk, crashes and
# faults. Its updates over a group are in tests/unit/test_serve_vllm_gloo.c.
load helpers

# ready VERSION ARGUMENT...: starts a server of this lineage; sets $url.
ready() {
	start endpoint wsync-endpoint --listen 127.0.0.1:0 --json --lineage "vllm-$1" "${@:2}"
	eventually grep -q '"ready"' endpoint.out
	url=$(sed -n 's/.*"url":"\([^"]*\)".*/\1/p' endpoint.out)
}

# ask METHOD PATH [BODY]: $status is curl's, $out the body, $code the HTTP status.
ask() {
	try curl -sS -m 180 -w '\n%{http_code}' -X "$1" \
		${3+-H 'Content-Type: application/json' --data-binary "$3"} "$url$2"
	code=${out##*$'\n'}
	out=${out%$'\n'*}
}

# answers METHOD PATH CODE TEXT [BODY]
answers() {
	ask "$1" "$2" ${5+"$5"}
	[ "$code" = "$3" ] || explain "expected HTTP status $3, got $code"
	out_has "$4"
}

reload() { answers POST /collective_rpc 200 '{"results":[null,null]}' \
	"{\"method\":\"reload_weights\",\"kwargs\":{\"weights_path\":\"$1\"}}"; }

@test "each version reports itself and refuses the routes of others" {
	local v
	for v in 0.20 0.24 0.27 0.33; do
		ready "$v"
		ask GET /version
		[[ $out == "{\"version\":\"$v."*+wsync.* ]] || explain "another version"
		answers POST /flush_cache 404 '{"detail":"Not Found"}'
		answers GET /pause 405 '{"detail":"Method Not Allowed"}'
		answers GET '/server_info?config_format=json' 200 '"backend":"nccl"'
		kill "$pid"
		wait "$pid" || true
	done
}

@test "memory wakes by each tag of the query" {
	ready 0.33
	answers POST '/sleep?level=1' 200 '{"status":"sleeping","level":1}'
	answers POST '/wake_up?tags=weights' 200 '{"status":"sleeping","tags":["weights"]}'
	answers POST '/sleep?level=1' 200 sleeping
	answers POST '/wake_up?tags=kv_cache&tags=weights' 200 '"status":"awake"'
}

@test "the key guards the routes of OpenAI and no others" {
	(umask 077 && echo secret >key)
	ready 0.27 --api-key-file key
	answers GET /v1/models 401 '{"error":"Unauthorized"}'
	answers POST /pause 200 paused
	try curl -sS -H 'Authorization: Bearer secret' "$url/v1/models"
	out_has '"owned_by":"vllm"'
}

@test "a checkpoint is reloaded, and the same weights give the same answers" {
	llama a
	llama b '' --seed 7
	ready 0.33 --model a --tp 2
	local prompt='{"prompt":[1,2,3],"max_tokens":4,"logprobs":1}' first second
	reload "$PWD/a"
	answers POST /v1/completions 200 token_logprobs "$prompt"
	first=$(json 'lines[0]["choices"]')
	answers POST /weight_checker 200 dp0:pp0:pcp0:tp1:model.norm.weight '{"action":"checksum"}'
	echo "{\"action\":\"compare\",\"baseline\":$(json 'json.dumps(lines[0]["checksums"])')}" \
		>compare
	reload "$PWD/b"
	answers POST /weight_checker 200 '"match":false' "$(<compare)"
	# the cache of prompts is of the old weights
	answers POST /reset_prefix_cache 200 '{"success":true}'
	answers POST /v1/completions 200 token_logprobs "$prompt"
	second=$(json 'lines[0]["choices"]')
	[ "$first" != "$second" ] || explain "other weights gave the same answer"
	reload "$PWD/a"
	answers POST /reset_prefix_cache 200 '{"success":true}'
	answers POST /weight_checker 200 '{"match":true,"mismatches":[]}' "$(<compare)"
	answers POST /v1/completions 200 token_logprobs "$prompt"
	[ "$first" = "$(json 'lines[0]["choices"]')" ] || explain "the same weights differ"
	answers POST /collective_rpc 500 "Worker failed with error 'Cannot find any model weights" \
		'{"method":"reload_weights","kwargs":{"weights_path":"/tmp/no/where"}}'
}

@test "a prompt in the middle of an update ends the server" {
	ready 0.24
	answers POST /start_weight_update 200 started '{}'
	ask POST /v1/completions '{"prompt":[1],"max_tokens":1}'
	expect_status 52
	finished endpoint 12
	err_has "between start_weight_update and finish_weight_update"
}

@test "a paused server lets prompts wait, and 0.33 rejects them" {
	ready 0.27
	answers POST /pause 200 paused
	start prompt curl -sS -X POST --data-binary '{"prompt":[1],"max_tokens":1}' \
		-H 'Content-Type: application/json' "$url/v1/completions"
	prompt=$pid
	eventually sh -c "curl -sS '$url/wsync/journal' | grep -q /v1/completions"
	[ ! -s prompt.out ] || explain "a paused server has answered"
	answers POST /resume 200 resumed
	finished prompt 0 "$prompt"
	out_has '"choices"'
	ready 0.33
	answers POST /pause 200 paused
	answers POST /v1/completions 503 'Generation is paused.' '{"prompt":[1],"max_tokens":1}'
}

@test "faults have the names of the routes" {
	ready 0.33 --fault refuse:start_weight_update:1 --fault drop:is_paused:1 \
		--fault garbage:weight_info:1 --fault die:finish_weight_update:1
	answers POST /start_weight_update 400 'refused on request: fault refuse:start_weight_update'
	answers POST /start_weight_update 200 started
	ask GET /is_paused
	expect_status 52
	try curl -sS "$url/weight_info"
	out_lacks weight_version
	ask POST /finish_weight_update
	expect_status 52
	finished endpoint 8
	try wsync-endpoint --lineage vllm-0.20 --fault refuse:start_weight_update:1
	expect_status 2
	err_has "no such route"
}

@test "options of SGLang's servers are refused" {
	try wsync-endpoint --lineage vllm-0.33 --torch 1.13
	expect_status 2
}
