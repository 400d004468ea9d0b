#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# One call at a time, against endpoints with canned answers.
load helpers

# engine NAME ANSWER...: sets $url; NAME.out tells what was asked.
engine() {
	local name=$1
	shift
	start "$name" /usr/bin/python3 "$repo/tests/cli/canned.py" "$@"
	eventually test -s "$name.out"
	url=http://127.0.0.1:$(head -n 1 "$name.out")
}

well=('/server_info=200:{"tp_size":2,"ep_size":2,"dtype":"bfloat16","version":"0.5.9","served_model_name":"qwen3"}'
	'/model_info=200:{"weight_version":"7"}' '/health=200:' '/flush_cache=200:Cache flushed.'
	'/pause_generation=200:{"status":"ok","message":"Generation paused successfully."}'
	'/continue_generation=200:{"status":"ok","message":"Generation continued successfully."}'
	'/update_weight_version=200:{"success":true,"message":"Weight version updated to 8"}')

asked() { tail -n 1 "$1.out"; }

@test "the help is what it was" {
	try wsync-ctl --help
	expect_status 0
	golden ctl-help
}

@test "without an endpoint it says how to name one" {
	try wsync-ctl info
	expect_status 2
	err_has "no endpoint is registered"
	err_has "hint: give --endpoint URL, or register one: wsync-register add URL"
}

@test "info shows what an endpoint is" {
	engine a "${well[@]}"
	try wsync-ctl info --endpoint "$url"
	expect_status 0
	expect_err ""
	golden ctl-info
	try wsync-ctl info --endpoint "$url" --json
	expect_json 'lines[1]["tp_size"], lines[1]["ep_size"], lines[1]["weight_version"]' \
		"(2, 2, '7')"
}

@test "the registered endpoints are asked, or those of a pool" {
	engine a "${well[@]}"
	wsync-register add -q "$url" --pool blue
	wsync-register add -q --no-check "127.0.0.1:$(free_port)" --pool red
	try wsync-ctl health --pool blue
	expect_status 0
	out_has "$url  healthy"
	try wsync-ctl health
	expect_status 9
	err_has "health: failed on 1 of 2 endpoints"
	try wsync-ctl health --pool green
	expect_status 2
	err_has "no endpoint in pool 'green'"
	try wsync-ctl health --pool blue --endpoint "$url"
	expect_status 2
}

@test "pause says its mode, resume says nothing" {
	engine a "${well[@]}"
	for mode in abort retract in_place; do
		try wsync-ctl pause --mode $mode --endpoint "$url"
		expect_status 0
		out_has "$url  paused"
		[ "$(grep ^POST a.out | tail -n 1)" = \
			"POST /pause_generation {\"mode\":\"$mode\"}" ]
	done
	try wsync-ctl resume --endpoint "$url"
	expect_status 0
	[ "$(asked a)" = "POST /continue_generation {}" ]
}

@test "version shows the bare label, and sets it without aborting requests" {
	engine a "${well[@]}"
	try wsync-ctl version --endpoint "$url"
	expect_status 0
	expect_out 7
	try wsync-ctl version 8 --endpoint "$url"
	expect_status 0
	[ "$(asked a)" = 'POST /update_weight_version {"new_version":"8","abort_all_requests":false}' ]
	try wsync-ctl version '' --endpoint "$url"
	expect_status 2
	err_has "the weight version is empty"
	[ "$(asked a)" = 'POST /update_weight_version {"new_version":"8","abort_all_requests":false}' ]
}

@test "a refusal is in the server's words, bounded and printable" {
	engine a $'/pause_generation=400:{"success":false,"message":"no\\u001b[31m way"}' \
		'/health=503:' \
		'/continue_generation=401:{"error":"Unauthorized"}' '/flush_cache=400:busy'
	try wsync-ctl pause --endpoint "$url"
	expect_status 5
	expect_out ""
	expect_err "wsync-ctl: $url: POST /pause_generation: refused (HTTP 400): \"no?[31m way\""
	try wsync-ctl health --endpoint "$url"
	expect_status 5
	err_has "GET /health: refused (HTTP 503)"
	try wsync-ctl resume --endpoint "$url"
	expect_status 5
	err_has "--api-key-file"
	try wsync-ctl flush --wait 0 --endpoint "$url"
	expect_status 5
	err_has 'refused (HTTP 400): "busy"'
	try wsync-ctl version 8 --endpoint "$url"
	expect_status 5
	err_has "the server has no such route (HTTP 404)"
}

@test "flush asks a busy server again until it gives up" {
	engine a '/flush_cache=400:busy'
	try wsync-ctl flush --wait 6 --endpoint "$url"
	expect_status 5
	[ "$(grep -c /flush_cache a.out)" -ge 2 ] || explain "it asked once"
}

@test "flush succeeds once a busy server has become idle" {
	endpoint e
	proxy "$url" "if path == '/flush_cache' and nth < 3: answer = (400, 'busy')"
	try wsync-ctl flush --wait 20 -e "$url"
	expect_status 0
	out_has "$url  flushed"
}

@test "an endpoint that is silent is given up at the deadline" {
	start silent /usr/bin/python3 -c 'import socket
s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1], flush=True)
while True: c = s.accept(); globals().setdefault("kept", []).append(c)'
	eventually test -s silent.out
	SECONDS=0
	try wsync-ctl health --timeout 500ms --endpoint "127.0.0.1:$(head -n 1 silent.out)"
	expect_status 10
	err_has "no complete answer after"
	[ "$SECONDS" -lt 30 ]
}

@test "an interrupt ends it by the signal" {
	start silent /usr/bin/python3 -c 'import socket, time
s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1], flush=True); time.sleep(60)'
	eventually test -s silent.out
	start ctl wsync-ctl health --endpoint "127.0.0.1:$(head -n 1 silent.out)"
	sleep 0.5
	kill -TERM "$pid"
	status=0
	wait "$pid" || status=$?
	[ "$status" = 143 ]
}

@test "the key comes from a file and is never shown" {
	start keyed /usr/bin/python3 -c '
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ok = self.headers.get("Authorization") == "Bearer sesame"
        self.send_response(200 if ok else 401); self.end_headers()
    def log_message(self, *a): pass
s = http.server.HTTPServer(("127.0.0.1", 0), H); print(s.server_address[1],
                                                       flush=True); s.serve_forever()'
	eventually test -s keyed.out
	url=http://127.0.0.1:$(head -n 1 keyed.out)
	try wsync-ctl health --endpoint "$url"
	expect_status 5
	(umask 077 && echo sesame >key)
	try wsync-ctl health -vv --endpoint "$url" --api-key-file key
	expect_status 0
	err_lacks sesame
	WSYNC_API_KEY_FILE=key try wsync-ctl health --endpoint "$url"
	expect_status 0
	chmod 644 key
	try wsync-ctl health --endpoint "$url" --api-key-file key
	expect_status 0
	err_has "others can read this key file"
	try wsync-ctl health --endpoint "$url" --api-key-file missing
	expect_status 3
}

@test "a server with two keys takes each for its own routes only" {
	safetensors s.safetensors a:F32:64,32
	(umask 077 && echo sesame >key && echo alibaba >admin)
	endpoint one --lineage sglang-2026 --api-key-file key --admin-api-key-file admin
	try wsync-push s.safetensors -e "$url" --api-key-file key
	expect_status 5
	err_has "--admin-api-key-file"
	try wsync-push s.safetensors -e "$url" --api-key-file admin
	expect_status 5
	try wsync-push s.safetensors -e "$url" --api-key-file key --admin-api-key-file admin \
		--verify hash -vv
	expect_status 0
	err_lacks sesame
	err_lacks alibaba
	WSYNC_API_KEY_FILE=key WSYNC_ADMIN_API_KEY_FILE=admin try wsync-ctl pause -e "$url"
	expect_status 0
	try wsync-ctl resume -e "$url" --admin-api-key-file admin
	expect_status 0
	try wsync-push s.safetensors -e "$url" --admin-api-key-file admin
	expect_status 5
	endpoint two --lineage sglang-2026 --admin-api-key-file admin
	try wsync-push s.safetensors -e "$url" --admin-api-key-file admin
	expect_status 0
	try wsync-push s.safetensors -e "$url" --api-key-file key
	expect_status 5
	try wsync-endpoint --lineage vllm-0.33 --admin-api-key-file admin
	expect_status 2
	WSYNC_ADMIN_API_KEY_FILE=admin endpoint three --lineage vllm-0.33
	endpoint four --lineage sglang-2026 --api-key-file key
	try wsync-push s.safetensors -e "$url" --api-key-file key --admin-api-key-file admin
	expect_status 5
	err_has "hint: the server refused the admin key"
	err_has "leave out --admin-api-key-file"
}

@test "an endpoint that is paused, flushed, labelled and resumed tells so in its journal" {
	start real wsync-endpoint --listen 127.0.0.1:0 --json --tp 2
	eventually grep -q '"ready"' real.out
	url=$(sed -n 's/.*"type":"ready".*"url":"\([^"]*\)".*/\1/p' real.out)
	wsync-register add -q "$url"
	wsync-ctl pause -q && wsync-ctl flush -q && wsync-ctl version -q 12 && wsync-ctl resume -q
	try wsync-ctl version
	expect_out 12
	try wsync-ctl info
	out_has "$url  12       2 "
	try /usr/bin/python3 -c 'import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())' \
		"$url/wsync/journal"
	for route in pause_generation flush_cache update_weight_version continue_generation; do
		out_has "$route"
	done
}

@test "a busy endpoint is flushed once it was paused" {
	start real wsync-endpoint --listen 127.0.0.1:0 --json --busy 2
	eventually grep -q '"ready"' real.out
	url=$(sed -n 's/.*"type":"ready".*"url":"\([^"]*\)".*/\1/p' real.out)
	try wsync-ctl flush --wait 0 -e "$url"
	expect_status 5
	err_has "hint: a server flushes only when nothing runs or waits"
	try wsync-ctl pause -e "$url"
	expect_status 0
	try wsync-ctl flush -e "$url"
	expect_status 0
}

@test "info tells the lineage, by the routes where there are any to see" {
	start a wsync-endpoint --listen 127.0.0.1:0 --lineage sglang-0.4
	eventually grep -q ready a.out
	url=$(grep -o 'http://[^ ]*' a.out)
	try wsync-ctl info -e "$url" --json
	expect_json '(lines[1]["lineage"], lines[1]["capabilities"]["update"],
		lines[1]["capabilities"]["pause"])' "('sglang-0.4', True, False)"
	try wsync-ctl info -e "$url" --lineage session
	out_has "session"
	out_has "weights   update destroy session"
	engine b '/server_info=200:{"version":"0.5.15"}' '/model_info=200:{}' \
		'/openapi.json=200:{"paths":{"/server_info":{},"/receive_weights":{}}}'
	try wsync-ctl info -e "$url" --json
	expect_json 'lines[1]["lineage"], lines[1]["capabilities"]["update"]' \
		"('xorl-legacy', False)"
	engine c '/server_info=200:{"version":"0.4.3"}' '/model_info=200:{}' \
		'/openapi.json=200:[[[[garbage'
	try wsync-ctl info -e "$url" --json
	expect_json 'lines[1]["lineage"]' "sglang-0.4"
}

@test "sleep waits for an idle endpoint, wake says what" {
	engine a "${well[@]}" '/release_memory_occupation=200:null' \
		'/resume_memory_occupation=200:null'
	try wsync-ctl sleep --tags weights,kv_cache -e "$url"
	expect_status 0
	out_has "$url  asleep"
	[ "$(asked a)" = 'POST /release_memory_occupation {"tags":["weights","kv_cache"]}' ]
	[ "$(tail -n 2 a.out | head -n 1)" = 'GET /flush_cache ' ]
	try wsync-ctl wake --tags weights -e "$url"
	out_has "$url  awake"
	[ "$(asked a)" = 'POST /resume_memory_occupation {"tags":["weights"]}' ]
	try wsync-ctl wake -e "$url"
	[ "$(asked a)" = 'POST /resume_memory_occupation {"tags":["kv_cache"]}' ]
	try wsync-ctl sleep -e "$url"
	try wsync-ctl wake -e "$url"
	[ "$(asked a)" = 'POST /resume_memory_occupation {}' ]
	try wsync-ctl sleep --tags weights,disk -e "$url"
	expect_status 2
	err_has "'disk' is none of weights, kv_cache and cuda_graph"
	engine b '/server_info=200:{}' '/flush_cache=400:busy' '/release_memory_occupation=200:null'
	try wsync-ctl sleep --wait 0 -e "$url"
	expect_status 5
	[ "$(asked b)" = 'GET /flush_cache ' ]
}

@test "a server with other names for it sleeps by these, one without them is refused" {
	engine a '/server_info=200:{}' '/flush_cache=200:Cache flushed.' '/sleep=200:' \
		'/wake_up=200:' \
		'/openapi.json=200:{"paths":{"/server_info":{},"/flush_cache":{},"/sleep":{},"/wake_up":{}}}'
	try wsync-ctl sleep -e "$url"
	expect_status 0
	[[ $(asked a) = "POST /sleep "* ]]
	try wsync-ctl wake --tags weights -e "$url"
	[[ $(asked a) = "POST /wake_up?tags=weights "* ]]
	try wsync-ctl sleep --tags weights -e "$url"
	expect_status 5
	err_has "can only sleep completely"
	engine b '/server_info=200:{}' '/openapi.json=200:{"paths":{"/server_info":{}}}'
	try wsync-ctl sleep -e "$url"
	expect_status 5
	err_has "has neither /release_memory_occupation nor /sleep"
}

@test "an endpoint that runs requests is not killed by a sleep" {
	start a wsync-endpoint --listen 127.0.0.1:0 --lineage sglang-2026 --busy 1
	eventually grep -q ready a.out
	url=$(grep -o 'http://[^ ]*' a.out)
	try wsync-ctl sleep --wait 0 -e "$url"
	expect_status 5
	try wsync-ctl pause -e "$url"
	try wsync-ctl sleep -e "$url"
	expect_status 0
	try wsync-ctl wake -e "$url"
	expect_status 0
	try wsync-ctl health -e "$url"
	expect_status 0
}

@test "an endpoint that refuses to be woken may not sleep" {
	start a wsync-endpoint --listen 127.0.0.1:0
	eventually grep -q ready a.out
	try wsync-ctl wake --tags weights -e "$(grep -o 'http://[^ ]*' a.out)"
	expect_status 5
	err_has "wake only released memory"
}

@test "init-group forms a group, and destroy-group ends it" {
	endpoint a --tp 2
	first=$url
	endpoint b
	try wsync-ctl init-group probe -e "$first" -e "$url" --json
	expect_status 0
	expect_json '[(l["rank_offset"], l["ranks"], l["world_size"], l["group"]) for l in lines
		if l["type"] == "endpoint"]' "[(1, 2, 4, 'probe'), (3, 1, 4, 'probe')]"
	try wsync-ctl init-group probe -e "$first"
	expect_status 5
	err_has "already been created"
	try wsync-ctl destroy-group probe -e "$first" -e "$url"
	expect_status 0
	out_has "$first  left"
	try wsync-ctl init-group probe -e "$first"
	expect_status 0
	out_has "ranks 1 to 2 of 3"
}

@test "a group that is kept is left at Ctrl-C, and its endpoints with it" {
	endpoint a
	start keeper "$bin/wsync-ctl" init-group mine --keep -e "$url"
	keeper=$pid
	eventually grep -q mine keeper.out
	kill -TERM "$keeper"
	status=0
	wait "$keeper" || status=$?
	[ "$status" = 143 ] || explain "expected 143"
	try wsync-ctl init-group mine -e "$url"
	expect_status 0
	out_has "rank 1 of 2"
}

@test "a group that is kept and loses an endpoint ends with status 6" {
	endpoint a
	server=$pid
	start keeper "$bin/wsync-ctl" init-group mine --keep -e "$url"
	keeper=$pid
	eventually grep -q mine keeper.out
	kill -KILL "$server"
	status=0
	wait "$keeper" || status=$?
	expect_status 6
	grep -q "a peer left group mine" keeper.err || explain "$(cat keeper.err)"
}

@test "a mode of pausing that a server does not know is refused, not ignored" {
	start a wsync-endpoint --listen 127.0.0.1:0 --lineage sglang-0.5
	eventually grep -q ready a.out
	url=$(grep -o 'http://[^ ]*' a.out)
	try wsync-ctl pause --mode retract -e "$url"
	expect_status 5
	err_has "$url: it knows one way to pause, which aborts its requests"
	try wsync-ctl pause -e "$url"
	expect_status 0
	try wsync-ctl pause --mode retract --lineage sglang-2026 -e "$url"
	expect_status 0
}
