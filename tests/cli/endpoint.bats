#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The embedded endpoint as a program: starting, answering, misbehaving, ending.
load helpers

# ready ARGUMENT...: starts an endpoint on a free port; sets $url.
ready() {
	start endpoint wsync-endpoint --listen 127.0.0.1:0 --json "$@"
	eventually grep -q '"ready"' endpoint.out
	url=$(sed -n 's/.*"url":"\([^"]*\)".*/\1/p' endpoint.out)
}

# ask METHOD PATH [BODY [HEADER]]: $status is curl's, $out the body and a line with the HTTP status.
ask() {
	try curl -sS -m 180 -w '\n%{http_code}' -X "$1" \
		${3+--data-binary "$3"} ${4+-H "$4"} "$url$2"
}

expect_http() { [ "${out##*$'\n'}" = "$1" ] || explain "expected HTTP status $1"; }

@test "the endpoint says that it is ready and ends by the signal it got" {
	start endpoint wsync-endpoint --listen 127.0.0.1:0
	eventually grep -q '^ready at http://127\.0\.0\.1:[0-9]*$' endpoint.out
	kill -TERM "$pid"
	status=0
	wait "$pid" || status=$?
	expect_status 143
}

@test "json lines frame the run" {
	ready
	kill -TERM "$pid"
	wait "$pid" || true
	out=$(<endpoint.out)
	golden endpoint-json
}

@test "a port that is taken is an error with a name" {
	ready
	try wsync-endpoint --listen "${url#http://}"
	expect_status 8
	err_has "port ${url##*:}: Address already in use"
}

@test "wrong options are usage errors" {
	try wsync-endpoint --fault break:health:1
	expect_status 2
	err_has "fault 'break:health:1': unknown kind: use refuse, hang, drop, die, flip, slow, \
garbage, wrong-length, batch-variant, stale or corrupt"
	try wsync-endpoint --listen nowhere
	expect_status 2
	err_has "listen 'nowhere': not of the form HOST:PORT"
	try wsync-endpoint --tp 65
	expect_status 2
	try wsync-endpoint --keep disk
	expect_status 2
	try wsync-endpoint --lineage vllm
	expect_status 2
}

@test "an open endpoint on every interface is warned about" {
	start endpoint wsync-endpoint --listen 0.0.0.0:0
	eventually grep -q ready endpoint.out
	grep -q 'wsync-endpoint: warning: .*--api-key-file' endpoint.err
}

@test "a fault that hangs does not keep the endpoint from ending" {
	ready --fault hang:health:1
	try curl -sS -m 1 "$url/health"
	expect_status 28
	ask GET /health
	expect_http 200
	kill -TERM "$pid"
	eventually sh -c "! kill -0 $pid 2>/dev/null"
}

@test "a fault that dies ends the process at once" {
	ready --fault die:flush_cache:2
	ask GET /flush_cache
	expect_http 200
	ask GET /flush_cache
	expect_status 52
	status=0
	wait "$pid" || status=$?
	expect_status 8
}

@test "a body that is too long is refused and the endpoint lives" {
	ready
	head -c 4096 /dev/zero | tr '\0' ' ' >spaces
	ask POST /pause_generation @spaces
	expect_http 400
	head -c $((258 << 20)) /dev/zero | tr '\0' ' ' >much
	ask POST /pause_generation @much
	expect_http 413
	ask GET /health
	expect_http 200
}

# ---- deaths ----

nowhere='{"names": ["a"], "dtypes": ["int8"], "shapes": [[1]], "group_name": "nowhere"}'

@test "a request that kills a scheduler ends the endpoint with status 12" {
	endpoint e --lineage sglang-2026
	ask POST /update_weights_from_distributed "$nowhere"
	[ "$status" = 52 ] || explain "expected an empty reply"
	finished e 12
	expect_json 'lines[-1]["ok"], lines[-1]["exit"], lines[-1]["error"]["code"]' \
		"(False, 12, 'crashed')"
	err_has "the emulated scheduler hit an exception: AssertionError: Group nowhere not in []"
}

@test "under a supervisor it comes back at the same address, and empty" {
	endpoint e --lineage xorl --restart-on-death --fault die:flush_cache:1
	ask POST /update_weight_version '{"new_version": "7"}'
	expect_http 200
	ask POST /update_weights_from_distributed "$nowhere"
	[ "$status" = 52 ] || explain "expected an empty reply"
	eventually eval '[ "$(grep -c ready e.out)" = 2 ]'
	[ "$(grep -o 'http://[0-9.:]*' e.out | uniq | wc -l)" = 1 ] ||
		explain "expected the same address"
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
	eventually eval '[ "$(grep -c ready e.out)" = 2 ]'
	ask GET /health
	expect_http 200
}

@test "answers are slow, garbled or cut on request" {
	endpoint e --fault slow:health:1 --fault garbage:model_info:1 \
		--fault wrong-length:v1/models:1 \
		--fault-delay 300ms
	try curl -sS -m 180 -o /dev/null -w '%{http_code} %{time_total}' "$url/health"
	[[ $out == "200 0."[3-9]* || $out == "200 "[1-9]* ]] || explain "expected a slow answer"
	try curl -sS -m 180 -o body "$url/model_info"
	expect_status 0
	[ "$(head -c 1 body | xxd -p)" = 16 ]
	ask GET /v1/models
	[ "$status" = 18 ] || explain "expected a partial file"
	ask GET /v1/models
	expect_http 200
}
