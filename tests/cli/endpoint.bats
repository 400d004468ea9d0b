#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The embedded endpoint as a program: starting, answering, misbehaving, ending.
load helpers

# ready ARGUMENT...: starts an endpoint on a free port; sets $url.
ready() {
	start endpoint wsync-endpoint --listen 127.0.0.1:0 --json "$@"
	eventually 20 grep -q '"ready"' endpoint.out
	url=$(sed -n 's/.*"url":"\([^"]*\)".*/\1/p' endpoint.out)
}

# ask METHOD PATH [BODY [HEADER]]: $status is curl's, $out the body and a line with the HTTP status.
ask() {
	try curl -sS -m 10 -w '\n%{http_code}' -X "$1" ${3+--data-binary "$3"} ${4+-H "$4"} "$url$2"
}

expect_http() { [ "${out##*$'\n'}" = "$1" ] || explain "expected HTTP status $1"; }

@test "the endpoint says that it is ready and ends by the signal it got" {
	start endpoint wsync-endpoint --listen 127.0.0.1:0
	eventually 20 grep -q '^ready at http://127\.0\.0\.1:[0-9]*$' endpoint.out
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
	err_has "fault 'break:health:1': kind is none of refuse, hang, drop, die, flip, slow, garbage, wrong-length, batch-variant, stale"
	try wsync-endpoint --listen nowhere
	expect_status 2
	err_has "listen 'nowhere': not of the form HOST:PORT"
	try wsync-endpoint --tp 65
	expect_status 2
	try wsync-endpoint --keep disk
	expect_status 2
}

@test "information routes answer as servers do" {
	ready --tp 2 --model-path org/model --dtype float16
	ask GET /health
	expect_http 200
	ask GET /server_info
	expect_http 200
	out_has '"tp_size":2'
	out_has '"dtype":"float16"'
	ask GET /v1/models
	out_has '"id":"org/model"'
	ask GET /nope
	expect_http 404
	out_has '{"detail":"Not Found"}'
	ask GET /continue_generation
	expect_http 405
}

@test "requests are judged and journalled" {
	ready
	ask POST /init_weights_update_group '{"master_address":"127.0.0.1"}'
	expect_http 400
	out_has '"object":"error"'
	ask POST /update_weights_from_distributed \
		'{"names":["a"],"dtypes":["int8"],"shapes":[[1]],"weight_version":"3"}'
	expect_http 400
	out_has 'Please call `init_weights_update_group` first.'
	ask GET /wsync/journal
	expect_http 200
	out=${out%$'\n'*}
	[ "$(json '[(r["path"], r["status"], r.get("flush_cache")) for r in lines[0]["requests"]]')" = \
		"[('/init_weights_update_group', 400, None), ('/update_weights_from_distributed', 400, True)]" ]
}

@test "a busy endpoint flushes only after an abort" {
	ready --busy 3
	ask GET /flush_cache
	expect_http 400
	ask POST /pause_generation '{"mode":"retract"}'
	out_has '"status":"ok"'
	ask GET /flush_cache
	expect_http 400
	ask POST /pause_generation '{"mode":"abort"}'
	ask POST /flush_cache
	expect_http 200
	out_has "Cache flushed."
}

@test "a key is asked for everywhere but at health" {
	(umask 077 && echo sesame >key)
	ready --api-key-file key
	ask GET /model_info
	expect_http 401
	out_has '{"error":"Unauthorized"}'
	ask POST /pause_generation '{}' 'Authorization: Bearer wrong'
	expect_http 401
	ask POST /pause_generation '{}' 'Authorization: Bearer sesame'
	expect_http 200
	ask GET /health
	expect_http 200
}

@test "an open endpoint on every interface is warned about" {
	start endpoint wsync-endpoint --listen 0.0.0.0:0
	eventually 20 grep -q ready endpoint.out
	grep -q 'wsync-endpoint: warning: .*--api-key-file' endpoint.err
}

@test "a fault that drops closes the connection without an answer" {
	ready --fault drop:pause_generation:1
	ask POST /pause_generation '{}'
	expect_status 52
	ask POST /pause_generation '{}'
	expect_http 200
}

@test "a fault that hangs does not keep the endpoint from ending" {
	ready --fault hang:health:1
	try curl -sS -m 1 "$url/health"
	expect_status 28
	ask GET /health
	expect_http 200
	kill -TERM "$pid"
	eventually 5 sh -c "! kill -0 $pid 2>/dev/null"
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
