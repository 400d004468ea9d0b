#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The embedded endpoint as servers of several kinds, and how it dies as they do.
load helpers

# ask METHOD PATH [BODY]: $status is curl's, $out the body and a line with the HTTP status.
ask() {
	try curl -sS -m 10 -w '\n%{http_code}' -X "$1" ${3+--data-binary "$3"} "$url$2"
}

expect_http() { [ "${out##*$'\n'}" = "$1" ] || explain "expected HTTP status $1"; }

nowhere='{"names": ["a"], "dtypes": ["int8"], "shapes": [[1]], "group_name": "nowhere"}'

@test "a request that kills a scheduler ends the endpoint with status 12" {
	endpoint e --lineage sglang-2026
	ask POST /update_weights_from_distributed "$nowhere"
	[ "$status" = 52 ] || explain "expected an empty reply"
	status=0
	wait "$pid" || status=$?
	expect_status 12
	out=$(<e.out) err=$(<e.err)
	[ "$(json 'lines[-1]["ok"], lines[-1]["exit"], lines[-1]["error"]["code"]')" = "(False, 12, 'crashed')" ] ||
		explain "expected an end that says crashed"
	err_has "the emulated scheduler hit an exception: AssertionError: Group nowhere not in []"
}

@test "under a supervisor it comes back at the same address, and empty" {
	endpoint e --lineage xorl --restart-on-death --fault die:flush_cache:1
	ask POST /update_weight_version '{"new_version": "7"}'
	expect_http 200
	ask POST /update_weights_from_distributed "$nowhere"
	[ "$status" = 52 ] || explain "expected an empty reply"
	eventually 20 eval '[ "$(grep -c ready e.out)" = 2 ]'
	[ "$(grep -o 'http://[0-9.:]*' e.out | uniq | wc -l)" = 1 ] || explain "expected the same address"
	ask GET /model_info
	expect_http 200
	out_has '"weight_version":"default"'
	# The fault was for the first life.
	ask GET /flush_cache
	expect_http 200
	kill -TERM "$pid"
	status=0
	wait "$pid" || status=$?
	expect_status 143
}

@test "a fault that kills is survived by a supervisor too" {
	endpoint e --restart-on-death --fault die:health:1
	ask GET /health
	[ "$status" = 52 ] || explain "expected an empty reply"
	eventually 20 eval '[ "$(grep -c ready e.out)" = 2 ]'
	ask GET /health
	expect_http 200
}

@test "xorl-legacy answers where others die" {
	endpoint e --lineage xorl-legacy
	ask POST /update_weights_from_distributed "$nowhere"
	expect_http 400
	out_has "Please call \`init_weights_update_group\` first."
	ask GET '/list_weights?prefix=x'
	expect_http 200
	ask POST /list_weights
	expect_http 405
}

@test "old servers lack what came later" {
	endpoint e --lineage sglang-0.4
	ask GET /server_info
	expect_http 404
	ask GET /get_server_info
	expect_http 200
	ask POST /pause_generation '{}'
	expect_http 404
}

@test "an unknown lineage is a usage error" {
	try wsync-endpoint --lineage vllm
	expect_status 2
}

@test "an update outside of a session is refused" {
	endpoint e --lineage session
	ask POST /update_weights_from_distributed "$nowhere"
	expect_http 400
	out_has 'must run between begin_weight_update() and end_weight_update()'
	ask POST /begin_weight_update '{}'
	expect_http 200
	ask POST /end_weight_update '{}'
	expect_http 200
}

@test "released weights are gone, and come back with a backup" {
	llama ckpt
	for saver in none drop backup; do
		endpoint "$saver" --memory-saver "$saver"
		try wsync-push ckpt -e "$url" --verify none -q
		expect_status 0
		before=$(curl -s "$url/wsync/checksums")
		ask POST /release_memory_occupation '{"tags": ["weights"]}'
		expect_http 200
		ask POST /resume_memory_occupation '{"tags": ["weights"]}'
		expect_http 200
		after=$(curl -s "$url/wsync/checksums")
		[ "$([ "$before" = "$after" ] && echo same)" = "$([ "$saver" = drop ] || echo same)" ]
	done
}

@test "answers are slow, garbled or cut on request" {
	endpoint e --fault slow:health:1 --fault garbage:model_info:1 --fault wrong-length:v1/models:1 \
		--fault-delay 300ms
	try curl -sS -m 10 -o /dev/null -w '%{http_code} %{time_total}' "$url/health"
	[[ $out == "200 0."[3-9]* || $out == "200 "[1-9]* ]] || explain "expected a slow answer"
	try curl -sS -m 10 -o body "$url/model_info"
	expect_status 0
	[ "$(head -c 1 body | xxd -p)" = 16 ]
	ask GET /v1/models
	[ "$status" = 18 ] || explain "expected a partial file"
	ask GET /v1/models
	expect_http 200
}

@test "xorl's two-phase update is prepared once" {
	endpoint e --lineage xorl
	ask POST /prepare_weights_update "$nowhere"
	expect_http 400
	out_has "Group 'nowhere' is not initialized."
	ask POST /complete_weights_update '{}'
	expect_http 400
	out_has 'No weight update is in progress.'
}
