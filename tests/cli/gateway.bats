#!/usr/bin/env bats
# wsync-gateway, driven by curl as a script written for xorl's training server drives that.
load helpers

# Starts a program in the background and sets the variable to the URL that it says it is ready at.
start_up() { # start_up VARIABLE PROGRAM...
	local name=$1 log="$scratch/$1.json"
	shift
	rm -f "$log" # of an earlier one, whose line would be found
	"$@" --json >"$log" 2>"$log.err" 3>&- &
	background+=($!)
	eventually grep -q '"ready"' "$log" || explain "$name: $(<"$log.err")"
	printf -v "$name" '%s' "$(sed -n 's/.*"type":"ready","url":"\([^"]*\)".*/\1/p' "$log")"
	[ -n "${!name}" ] || explain "no $name: $(<"$log.err")"
}

prepare() {
	/usr/bin/python3 "$repo/tests/cli/small_model.py" qwen3 "$scratch/ckpt" >/dev/null
	start_up one wsync-endpoint --listen 127.0.0.1:0
	start_up gateway wsync-gateway --listen 127.0.0.1:0
}

# call PATH [BODY [HEADER]]: $code is the HTTP status, $out the body.
json="Content-Type: application/json"
call() {
	try curl -sS -m 180 -w '\n%{http_code}' ${2+-H "$json" -d "$2"} ${3+-H "$3"} "$gateway$1"
	code=${out##*$'\n'}
	out=${out%$'\n'*}
}
expect_code() { [ "$code" = "$1" ] || explain "expected HTTP $1, got $code"; }
port_of() { echo "${1##*:}"; }
register() { call /add_inference_endpoint "{\"host\":\"127.0.0.1\",\"port\":$(port_of "$1")}"; }
version_of() { curl -sS "$1/model_info" | grep -o '"weight_version":"[^"]*"'; }
paused_by() { curl -sS "$1/wsync/journal" | grep -c pause_generation; }
is_paused() { [ "$(paused_by "$1")" != 0 ]; }

@test "add, list, sync, remove, at both spellings" {
	for prefix in "" /api/v1; do
		call $prefix/add_inference_endpoint \
			"{\"host\":\"127.0.0.1\",\"port\":$(port_of "$one"),\"world_size\":8}"
		expect_code 200
		out_has '"success":true'
		out_has '"tp_size":1'
		call $prefix/list_inference_endpoints
		expect_code 200
		out_has '"healthy":true'
		out_has '"count":1'
		call $prefix/sync_inference_weights \
			"{\"source\":\"$scratch/ckpt\",\"master_address\":\"localhost\",
			\"group_name\":\"sync_group_0\",\"buffer_size_mb\":512,\"weight_version\":\"v$prefix\"}"
		expect_code 200
		out_has '"success":true'
		out_has '"state":"committed"'
		[ "$(version_of "$one")" = "\"weight_version\":\"v$prefix\"" ]
		call $prefix/remove_inference_endpoint \
			"{\"host\":\"127.0.0.1\",\"port\":$(port_of "$one")}"
		out_has '"success":true'
	done
	call /remove_inference_endpoint "{\"host\":\"127.0.0.1\",\"port\":$(port_of "$one")}"
	expect_code 200
	out_has '"success":false'
}

@test "the answer claims no weight version that an endpoint did not take" {
	proxy "$one" "if path == '/update_weight_version': answer = (200, \
'{\"success\":true,\"message\":\"ok\"}')"
	register "$url"
	call /sync_inference_weights "{\"source\":\"$scratch/ckpt\",\"weight_version\":\"mine\"}"
	expect_code 200
	out_has '"success":true'
	out_has '"weight_version":null'
	out_has "it did not take the weight version 'mine'"
}

@test "an endpoint is registered once, and wsync-register sees it" {
	register "$one"
	register "$one"
	expect_code 200
	out_has '"success":false'
	out_has 'already registered'
	try wsync-register list
	out_has "$one"
}

@test "one that does not answer is not registered, and one that died is listed as not healthy" {
	call /add_inference_endpoint '{"host":"127.0.0.1","port":1}'
	expect_code 200
	out_has '"success":false'
	register "$one"
	kill "${background[0]}"
	wait "${background[0]}" || true
	call /list_inference_endpoints
	out_has '"healthy":false'
	out_has '"count":1'
}

@test "what is sent is what was asked for: FP8, set before or with the sync, and back" {
	# of numbers, unlike ckpt
	/usr/bin/python3 "$repo/tests/cli/scaled_model.py" scaled >/dev/null
	register "$one"
	call /api/v1/set_sync_quantization '{"quantization":"fp8","skip_modules":["lm_head"]}'
	expect_code 200
	out_has '"weight_block_size":[128,128]'
	call /set_sync_quantization '{"quantization":{"quant_method":"fp8","fmt":"e4m3","weight_block_size":16,
		"modules_to_not_convert":["o_proj"]}}'
	expect_code 200
	out_has '"modules_to_not_convert":["o_proj"]'
	call /sync_inference_weights "{\"source\":\"$scratch/scaled/bf16\"}"
	expect_code 200
	try wsync-list-weights -e "$one"
	out_has weight_scale_inv
	out_lacks o_proj.weight_scale_inv
	start_up two wsync-endpoint --listen 127.0.0.1:0
	call /remove_inference_endpoint "{\"host\":\"127.0.0.1\",\"port\":$(port_of "$one")}"
	register "$two"
	call /sync_inference_weights \
		"{\"source\":\"$scratch/scaled/bf16\",\"quantization\":{\"quant_method\":\"bf16\"}}"
	expect_code 200
	try wsync-list-weights -e "$two"
	out_lacks weight_scale_inv
}

@test "pools choose, and no endpoint is a refusal" {
	call /sync_inference_weights "{\"source\":\"$scratch/ckpt\"}"
	expect_code 400
	out_has 'no inference endpoint is registered'
	register "$one"
	call /sync_inference_weights "{\"source\":\"$scratch/ckpt\",\"pools\":[\"others\"]}"
	expect_code 400
	out_has "pools: no endpoint is registered in pool 'others'; known pools: default"
	call /sync_inference_weights \
		"{\"source\":\"$scratch/ckpt\",\"pools\":[\"default\",\"others\"]}"
	expect_code 400
	out_has "'others'"
	[ "$(paused_by "$one")" = 0 ]
}

@test "a key that is not known is refused, and the known ones are listed" {
	register "$one"
	local port sync="source, lora, weight_version, pause_mode, cache_invalidation_mode, \
flush_cache, quantization, skip_modules,"
	sync+=" master_address, master_port, group_name, buffer_size_mb, model_id"
	local quantization="quant_method, fmt, activation_scheme, scale_fmt, weight_block_size,"
	quantization+=" modules_to_not_convert, dequantize"
	local source="\"source\":\"$scratch/ckpt\""
	local host="host, port, worker_port, world_size, pool, receiver_kv_cache_dtype, \
sync_weights"
	port=$(port_of "$one")
	while IFS='|' read -r path body key known; do
		call "$path" "$body"
		expect_code 400
		out_has "unknown key '$key'; known keys: $known\"}"
	done <<-END
		/sync_inference_weights|{"source":"$scratch/ckpt","pool":"default"}|pool|pools, $sync
		/api/v1/sync_inference_weights|{"source":"$scratch/ckpt","Pools":["default"]}|Pools|pools, $sync
		/sync_inference_weights|{$source,"quantization":{"quant_method":"bf16","block":1}}|block|$quantization
		/add_inference_endpoint|{"host":"127.0.0.1","port":$port,"pools":["x"]}|pools|$host, $sync
		/remove_inference_endpoint|{"host":"127.0.0.1","port":$port,"url":"x"}|url|host, port
		/set_sync_quantization|{"quantisation":"fp8"}|quantisation|quantization, skip_modules
	END
	[ "$(paused_by "$one")" = 0 ]
	call /list_inference_endpoints
	out_has '"count":1'
	# What xorl's clients and transformers write is known.
	call /remove_inference_endpoint "{\"host\":\"127.0.0.1\",\"port\":$port}"
	call /add_inference_endpoint \
		"{\"host\":\"127.0.0.1\",\"port\":$port,\"receiver_kv_cache_dtype\":null,\"master_port\":0}"
	out_has '"success":true'
	call /set_sync_quantization '{"quantization":{"quant_method":"fp8","dequantize":false}}'
	expect_code 200
	call /set_sync_quantization '{"quantization":{"quant_method":"fp8","dequantize":true}}'
	expect_code 400
}

@test "an empty list is not a list that is missing" {
	start_up gateway wsync-gateway --listen 127.0.0.1:0 --source "$scratch/ckpt"
	register "$one"
	while IFS='|' read -r key instead; do
		call /sync_inference_weights "{\"$key\":[]}"
		expect_code 400
		out_has "$key: the list is empty; leave the key out for $instead"
	done <<-END
		source|the gateway's --source
		lora|the gateway's --lora
		pools|all endpoints
	END
	[ "$(paused_by "$one")" = 0 ]
	call /sync_inference_weights '{"source":null,"lora":null,"pools":null}'
	expect_code 200
}

# sync NAME BODY: a sync in the background; its answer will be in NAME.answer.
sync() {
	curl -sS -m 120 -H "$json" -d "$2" "$gateway/sync_inference_weights" >"$1.answer" 2>&1 3>&- &
	background+=($!)
}
add() { call /add_inference_endpoint \
	"{\"host\":\"127.0.0.1\",\"port\":$(port_of "$1"),\"pool\":\"$2\"}"; }

@test "syncs run in the order of their requests, with the endpoints that are registered then" {
	start_up two wsync-endpoint --listen 127.0.0.1:0
	start_up gone wsync-endpoint --listen 127.0.0.1:0
	start_up gateway wsync-gateway --listen 127.0.0.1:0 --lock-wait 100s -v
	add "$one" first
	add "$gone" second
	# The first sync waits for a push by somebody else, until the lock is closed.
	mkdir -p "$XDG_STATE_HOME/wsync/locks"
	exec 7>"$XDG_STATE_HOME/wsync/locks/localhost:$(port_of "$one").lock"
	flock 7
	local name n=0
	sync v1 "{\"source\":\"$scratch/ckpt\",\"pools\":[\"first\"],\"weight_version\":\"v1\"}" \
		7>&-
	eventually grep -q "sync: begins" gateway.json.err
	for name in v2 v3 v4 v5; do
		local pool=first
		[ $name != v3 ] || pool=second
		sync $name "{\"source\":\"$scratch/ckpt\",\"pools\":[\"$pool\"],\"weight_version\":\"$name\"}" 7>&-
		n=$((n + 1))
		eventually grep -q "sync: waits for $n before it" gateway.json.err
	done
	add "$two" second
	call /remove_inference_endpoint "{\"host\":\"127.0.0.1\",\"port\":$(port_of "$gone")}"
	out_has '"success":true'
	exec 7>&-
	for name in v1 v2 v3 v4 v5; do
		eventually grep -q '"success":true' $name.answer
	done
	ended() { /usr/bin/python3 -c 'import json
lines = [json.loads(l) for l in open("gateway.json") if l.endswith("}\n")]
print(" ".join(l["weight_version"] for l in lines if l["type"] == "result"))'; }
	all_ended() { [ "$(ended)" = "v1 v2 v3 v4 v5" ]; }
	eventually all_ended || explain "$(ended)"
	[ "$(version_of "$two")" = '"weight_version":"v3"' ]
	expect_journal "$gone" 'paths.count("/pause_generation")' 0
}

@test "a sync whose endpoint is removed while it waits is refused" {
	start_up two wsync-endpoint --listen 127.0.0.1:0
	start_up gateway wsync-gateway --listen 127.0.0.1:0 --lock-wait 100s -v
	add "$one" first
	add "$two" second
	mkdir -p "$XDG_STATE_HOME/wsync/locks"
	exec 7>"$XDG_STATE_HOME/wsync/locks/localhost:$(port_of "$one").lock"
	flock 7
	sync v1 "{\"source\":\"$scratch/ckpt\",\"pools\":[\"first\"]}" 7>&-
	eventually grep -q "sync: begins" gateway.json.err
	sync v2 "{\"source\":\"$scratch/ckpt\",\"pools\":[\"second\"]}" 7>&-
	eventually grep -q "sync: waits for 1 before it" gateway.json.err
	call /remove_inference_endpoint "{\"host\":\"127.0.0.1\",\"port\":$(port_of "$two")}"
	exec 7>&-
	eventually grep -q "no endpoint is registered in pool 'second'; known pools: first" \
		v2.answer
	eventually grep -q '"success":true' v1.answer
	expect_journal "$two" 'paths.count("/pause_generation")' 0
}

@test "a flush never meets a pause that a server does not survive" {
	register "$one"
	call /sync_inference_weights "{\"source\":\"$scratch/ckpt\",\"pause_mode\":\"retract\"}"
	expect_code 200
	out_has '"pause_mode":"abort"'
	out_has '"flush_cache":true'
	call /sync_inference_weights \
		"{\"source\":\"$scratch/ckpt\",\"pause_mode\":\"in_place\",\"cache_invalidation_mode\":\"none\"}"
	expect_code 200
	out_has '"pause_mode":"in_place"'
	out_has '"flush_cache":false'
}

@test "what is wrong with a request is told, and nobody is paused" {
	register "$one"
	while IFS='|' read -r path body expected part; do
		call "$path" "$body"
		expect_code "$expected"
		out_has "$part"
	done <<-END
		/add_inference_endpoint|{"host":"x"}|422|"loc":["body","port"]
		/add_inference_endpoint|{"host":"x","port":70000}|422|out of range
		/add_inference_endpoint|{"host":"a/b","port":1}|422|"loc":["body","host"]
		/add_inference_endpoint|{"host":"x","port":1,"pool":"a b"}|400|pool
		/sync_inference_weights|{}|422|"loc":["body","source"]
		/sync_inference_weights|{|422|not JSON
		/sync_inference_weights|[]|422|not an object
		/sync_inference_weights|{"source":"/none"}|400|"code":"input"
		/sync_inference_weights|{"source":7}|422|"loc":["body","source"]
		/sync_inference_weights|{"source":"/none","pause_mode":"no"}|422|"loc":["body","pause_mode"]
		/sync_inference_weights|{"source":"/none","model_id":"s1"}|400|model_id
		/sync_inference_weights|{"source":"/none","buffer_size_mb":0}|422|buffer_size_mb
		/set_sync_quantization|{}|422|"loc":["body","quantization"]
		/set_sync_quantization|{"quantization":"int3"}|400|not one of
		/set_sync_quantization|{"quantization":{"quant_method":"fp8","scale_fmt":"ue8m0"}}|400|scale_fmt
		/set_sync_quantization|{"quantization":{"quant_method":"fp8","weight_block_size":[0,1]}}|400|weight_block_size
		/set_sync_quantization|{"quantization":{"quant_method":"fp8","fmt":"e5m2"}}|400|only 'e4m3'
		/nothing|{}|404|Not Found
		/list_inference_endpoints|{}|405|Method Not Allowed
	END
	[ "$(paused_by "$one")" = 0 ]
}

@test "the answer of a failed sync says which endpoint has what" {
	start_up bad wsync-endpoint --listen 127.0.0.1:0 \
		--fault refuse:update_weights_from_distributed:1
	register "$one"
	register "$bad"
	call /sync_inference_weights "{\"source\":\"$scratch/ckpt\",\"weight_version\":\"v2\"}"
	expect_code 500
	out_has '"success":false'
	out_has '"detail":'
	out_has '"endpoints_synced":[{'
	call /sync_inference_weights "{\"source\":\"$scratch/ckpt\",\"weight_version\":\"\"}"
	out_has "the weight version is empty"
	call /sync_inference_weights '{"source":"no {config} here"}' # not a field of the library
	eventually grep -q '"message":"open no {config} here:' "$scratch/gateway.json"
	call /sync_inference_weights "{\"source\":\"$scratch/ckpt\",\"weight_version\":\"v3\"}"
	expect_code 200
}

@test "sync_weights synchronizes the one that is added" {
	call /add_inference_endpoint \
		"{\"host\":\"127.0.0.1\",\"port\":$(port_of \
		"$one"),\"sync_weights\":true,\"source\":\"$scratch/ckpt\",\"weight_version\":\"a\"}"
	expect_code 200
	out_has '"weights_synced":true'
	[ "$(version_of "$one")" = '"weight_version":"a"' ]
}


@test "a key, hosts and roots: who may ask, whom to reach, what to send" {
	printf 'secret\n' >key
	chmod 600 key
	mkdir inside
	ln -s "$scratch/ckpt" inside/link
	cp -r "$scratch/ckpt" inside/ckpt
	start_up gateway wsync-gateway --listen 127.0.0.1:0 --require-key-file key \
		--allow-host '127.*' --source-root inside
	call /list_inference_endpoints
	expect_code 401
	call /health
	expect_code 200
	call /add_inference_endpoint '{"host":"example.org","port":1}' \
		'Authorization: Bearer secret'
	expect_code 400
	call /add_inference_endpoint "{\"host\":\"127.0.0.1\",\"port\":$(port_of "$one")}" \
		'x-api-key: secret'
	out_has '"success":true'
	for source in "$scratch/ckpt" "$scratch/inside/link" "$scratch/inside/../ckpt" /etc \
		synthetic:qwen3-0.6b; do
		call /sync_inference_weights "{\"source\":\"$source\"}" 'x-api-key: secret'
		expect_code 400
		out_has 'not below a directory'
	done
	call /sync_inference_weights "{\"source\":\"$scratch/inside/ckpt\"}" 'x-api-key: secret'
	expect_code 200
}

@test "a source of the gateway's own: a script needs no change" {
	start_up gateway wsync-gateway --listen 127.0.0.1:0 --source "$scratch/ckpt"
	register "$one"
	call /sync_inference_weights '{"master_address":"127.0.0.1","group_name":"policy_sync"}'
	expect_code 200
	out_has '"success":true'
}

@test "metrics of the last push, behind the key where there is one" {
	metrics() { /usr/bin/python3 "$repo/tests/cli/exposition.py" m.prom "$1"; }
	call /metrics
	expect_code 200
	printf '%s' "$out" >m.prom
	[ "$(metrics 'names, len(samples["wsync_push_info"])')" = \
		"(['wsync_build_info', 'wsync_push_info'], 0)" ]
	register "$one"
	call /sync_inference_weights "{\"source\":\"$scratch/ckpt\"}"
	expect_code 200
	call /sync_inference_weights "{\"source\":\"$scratch/ckpt\",\"quantization\":\"fp8\"}"
	[ "$code" != 200 ] || explain "an endpoint that keeps no FP8 takes it"
	call /metrics
	printf '%s' "$out" >m.prom
	[ "$(metrics '([v("wsync_push_runs_total", outcome=o) for o in ("success", "failure")],
		v("wsync_push_success"))')" = \
		"(['1', '1'], '0')" ]
	[ "$(metrics "v('wsync_push_endpoint_state', endpoint='$one', state='untouched')")" = 1 ]
	[ "$(curl -sS -o /dev/null -w '%{content_type}' "$gateway/metrics")" = \
		"text/plain; version=0.0.4; charset=utf-8" ]
	printf 'secret\n' >key
	chmod 600 key
	start_up gateway wsync-gateway --listen 127.0.0.1:0 --require-key-file key
	call /metrics
	expect_code 401
}

@test "a signal ends the running push, and the endpoint is resumed if asked for" {
	start_up gateway wsync-gateway --listen 127.0.0.1:0 --on-partial resume
	start_up slow wsync-endpoint --listen 127.0.0.1:0 \
		--fault hang:update_weights_from_distributed:1
	register "$slow"
	curl -sS -m 180 -H "$json" -d "{\"source\":\"$scratch/ckpt\"}" "$gateway/sync_inference_weights" \
		>/dev/null 2>&1 3>&- &
	background+=($!)
	eventually is_paused "$slow"
	kill "${background[2]}" # not SIGINT, which a background job of a script ignores
	eventually eval '! kill -0 "${background[2]}" 2>/dev/null'
	curl -sS "$slow/wsync/journal" >journal
	grep -q continue_generation journal || explain "$(<journal)"
}

@test "a client that leaves does not end its push, and the next one is served" {
	start_up slow wsync-endpoint --listen 127.0.0.1:0 \
		--fault slow:update_weights_from_distributed:1
	register "$slow"
	curl -sS -H "$json" -d "{\"source\":\"$scratch/ckpt\",\"weight_version\":\"left\"}" \
		"$gateway/sync_inference_weights" \
		>left.out 2>&1 3>&- &
	local client=$!
	eventually is_paused "$slow"
	kill "$client"
	wait "$client" || true
	was_left() { version_of "$slow" | grep -q '"left"'; }
	eventually was_left
	call /sync_inference_weights "{\"source\":\"$scratch/ckpt\",\"weight_version\":\"next\"}"
	expect_code 200
	out_has '"success":true'
	[ "$(curl -sS "$slow/wsync/journal" | grep -o continue_generation | wc -l)" = 2 ]
}

@test "a gateway whose output nobody reads goes on, and says later what it left out" {
	try /usr/bin/python3 "$repo/tests/cli/unread.py" "$one" "$scratch/ckpt"
	expect_status 0
	[[ $out =~ ^stdout\ [1-9] ]] || explain "stdout: nothing was left out"
	[[ $out =~ stderr\ [1-9] ]] || explain "stderr: nothing was left out"
	try env WSYNC_REGISTRY="$scratch/another.json" /usr/bin/python3 \
		"$repo/tests/cli/unread.py" "$one" "$scratch/ckpt" one
	expect_status 0
	[[ $out =~ ^stdout\ [1-9] ]] || explain "of one pipe: nothing was left out"
}

# refused TEXT OPTION...: the gateway does not start.
refused() {
	local text=$1
	shift
	try timeout 30 wsync-gateway "$@"
	expect_status 2
	err_has "$text"
}

@test "the endpoints' API key goes only to hosts that the operator allows" {
	printf 'secret\n' >key
	chmod 600 key
	refused "API key of the endpoints without --allow-host" --listen 127.0.0.1:0 \
		--api-key-file key
	WSYNC_API_KEY_FILE=key refused "without --allow-host" --listen 127.0.0.1:0
	refused "may receive the key of --admin-api-key-file" --listen 127.0.0.1:0 \
		--admin-api-key-file key
	refused "the keys of --api-key-file and --admin-api-key-file" --listen 127.0.0.1:0 \
		--api-key-file key --admin-api-key-file key
	local pattern
	for pattern in "" http://gpu7 gpu7:0 gpu7:x gpu7:70000 "gpu7 gpu8" u@gpu7; do
		refused "not of the form HOST or HOST:PORT" --listen 127.0.0.1:0 \
			--allow-host "$pattern"
	done
	start_up closed wsync-endpoint --listen 127.0.0.1:0 --api-key-file key
	start_up other wsync-endpoint --listen 127.0.0.2:0
	start_up gateway wsync-gateway --listen 127.0.0.1:0 --api-key-file key \
		--allow-host "127.0.0.1:$(port_of "$closed")" --source "$scratch/ckpt"
	register "$closed"
	out_has '"success":true'
	# An allowed host, another port; and an endpoint that the operator registered elsewhere.
	register "$one"
	expect_code 400
	out_has "may not be registered here"
	try wsync-register add "$other"
	expect_status 0
	expect_journal "$other" 'len(paths)' "$(requests "$other")"
	local before
	before=$(requests "$other")
	call /list_inference_endpoints
	out_has '"count":2'
	call /sync_inference_weights '{}'
	expect_code 400
	out_has "$other is registered, but its host is not allowed here (--allow-host)"
	call /remove_inference_endpoint "{\"host\":\"127.0.0.1\",\"port\":$(port_of "$closed")}"
	register "$closed"
	out_has '"success":true'
	[ "$(requests "$other")" = "$before" ] || explain "$other was asked"
	try wsync-register remove "$other"
	call /sync_inference_weights '{}'
	expect_code 200
}
requests() { curl -sS "$1/wsync/journal" | /usr/bin/python3 -c '
import json, sys
print(len([r for r in json.load(sys.stdin)["requests"] if r["path"] != "/wsync/journal"]))'; }

@test "names match names label by label, and addresses match addresses in every spelling" {
	local host expected port
	# No port of these hosts is open. A name is not looked up unless it is allowed.
	start_up gateway wsync-gateway --listen 127.0.0.1:0 --connect-timeout 1s \
		--allow-host '127.*' --allow-host 'node*.invalid' --allow-host '*.pod.invalid' \
		--allow-host 'Host.invalid' --allow-host '[0:0::1]' --allow-host 'p.invalid:7'
	while read -r expected host port; do
		call /add_inference_endpoint "{\"host\":\"$host\",\"port\":${port:-1}}"
		expect_code "$expected"
		[ "$expected" != 400 ] || out_has "may not be registered here"
		[ "$expected" != 200 ] || out_has '"success":false'
	done <<-END
		200 127.0.0.1
		200 127.1
		200 0x7f000001
		200 2130706433
		200 0.0.0.0
		200 ::ffff:127.0.0.1
		400 127.evil.invalid
		400 127.0.0.1.invalid
		400 10.0.0.1
		400 127.0.0.1.2
		200 ::1
		200 [::1]
		200 0:0:0:0:0:0:0:1
		400 ::2
		200 node7.invalid
		200 NODE7.INVALID
		200 node7.invalid.
		400 node7.evil.invalid
		400 node.evil.node7.invalid
		200 a.pod.invalid
		200 a.b.pod.invalid
		400 pod.invalid
		400 apod.invalid
		400 a.pod.invalid.evil
		200 host.invalid
		400 host.invalid.evil
		400 xhost.invalid
		200 p.invalid 7
		400 p.invalid 8
		422 a@127.0.0.1
		422 127.0.0.1/
	END
}

# ask HEADER...: the status of a sync request with these headers.
ask() {
	local header args=()
	for header; do args+=(-H "$header"); done
	curl -sS -o answer -w '%{http_code}' "${args[@]}" -d '{"source":"/none"}' \
		"$gateway/sync_inference_weights"
}

@test "a web page can neither ask for a sync nor read an answer" {
	local port header path health
	port=$(port_of "$gateway")
	for header in "Host: evil.example" "Host: evil.example:$port" "Host: 127.0.0.1:x" "Host;" \
		"Host: 127.0.0.1.evil.example:$port" "Host: localhost.evil.example:$port" \
		"Host: 127.1:$port" "Host: [::1" "Host: [x]:$port" "Host: localhost:" \
		"Origin: http://evil.example" "Origin: null" "Origin: http://127.0.0.1" \
		"Origin: http://localhost:$port" "Origin: https://127.0.0.1:$port" \
		"Origin: http://127.0.0.1:$port.evil.example"; do
		[ "$(ask "$json" "$header")" = 403 ] || explain "$header: $(<answer)"
		for path in list_inference_endpoints metrics none; do
			[ "$(curl -sS -o answer -w '%{http_code}' -H "$header" \
				"$gateway/$path")" = 403 ] || explain "$header: /$path: $(<answer)"
		done
		# Load balancers and kubelets ask for the health by names of their own.
		[[ "$header" == Host* ]] && health=200 || health=403
		for path in health api/v1/health; do
			[ "$(curl -sS -o answer -w '%{http_code}' -H "$header" \
				"$gateway/$path")" = $health ] || explain "$header: $(<answer)"
		done
	done
	[ "$(curl -sS0 -o answer -w '%{http_code}' -H Host: "$gateway/health")" = 200 ]
	[ "$(curl -sS0 -o answer -w '%{http_code}' -H Host: "$gateway/metrics")" = 403 ]
	for header in "Host: 127.0.0.1:$port" "Host: localhost" "Host: LOCALHOST:$port" \
		"Host: 127.0.0.1:1" "Host: localhost:8080" "Host: [::1]:1" "Host: 127.0.0.1 " \
		"Host: [::1]:$port" "Host: [::1]" "Host: 10.1.2.3" "Origin: http://127.0.0.1:$port"; do
		[ "$(ask "$json" "$header")" = 400 ] || explain "$header: $(<answer)"
	done
	for header in "Content-Type:" "Content-Type: text/plain" \
		"Content-Type: application/x-www-form-urlencoded" \
		"Content-Type: text/plain; application/json" "Content-Type: application/jsonp" \
		"Content-Type: text/plain, application/json" "Content-Type: application/json, a/b"; do
		[ "$(ask "$header")" = 415 ] || explain "$header: $(<answer)"
	done
	for path in add_inference_endpoint remove_inference_endpoint set_sync_quantization; do
		[ "$(curl -sS -o answer -w '%{http_code}' -X POST "$gateway/api/v1/$path")" = 415 ] ||
			explain "/$path: $(<answer)"
	done
	[ "$(ask "Content-Type: Application/JSON; charset=utf-8")" = 400 ] || explain "$(<answer)"
}

@test "a gateway that others reach has a key, and the key serves instead of the Host" {
	local listen
	printf 'secret\n' >key
	chmod 600 key
	for listen in 0.0.0.0:0 '[::]:0'; do
		refused "without a key anyone" --listen "$listen"
	done
	start_up gateway wsync-gateway --listen 0.0.0.0:0 --require-key-file key
	gateway=http://127.0.0.1:$(port_of "$gateway")
	[ "$(ask "$json")" = 401 ] || explain "$(<answer)"
	[ "$(ask "$json" "x-api-key: secret" "Host: gateway.cluster.example")" = 400 ]
	[ "$(ask "$json" "x-api-key: wrong" "Host: gateway.cluster.example")" = 403 ]
	[ "$(ask "$json" "x-api-key: secret" "Origin: http://evil.example")" = 403 ]
	[ "$(ask "x-api-key: secret")" = 415 ]
}

@test "no link in a checkpoint leads out of the source roots" {
	local ckpt root="$scratch/root" links=() name
	mkdir -p "$root" outside
	cp -r "$scratch/ckpt" "$root/plain"
	cp -r "$scratch/ckpt" outside/ckpt
	printf '{}' >outside/secret
	for name in model.safetensors config.json; do
		cp -r "$scratch/ckpt" "$root/$name.out"
		ln -sf "$scratch/outside/ckpt/$name" "$root/$name.out/$name"
		links+=("$root/$name.out")
	done
	cp -r "$scratch/ckpt" "$root/other.out"
	ln -s ../../outside/secret "$root/other.out/tokenizer.json"
	cp -r "$scratch/ckpt" "$root/index.out"
	ln -s "$scratch/outside/secret" "$root/index.out/model.safetensors.index.json"
	cp -r "$scratch/ckpt" "$root/chain.out"
	ln -s "$scratch/outside" "$root/way"
	ln -s ../way/secret "$root/chain.out/extra.json"
	mkdir "$root/deep.out"
	cp -r "$scratch/ckpt" "$root/deep.out/rank0"
	ln -s /etc "$root/deep.out/rank0/etc"
	printf '{"tp":1,"shards":[["rank0"]]}' >"$root/deep.out/shards.json"
	links+=("$root/other.out" "$root/index.out" "$root/chain.out" "$root/deep.out/shards.json"
		"$root/config.json.out/model.safetensors")
	# the layout of the Hub's cache: links to files of the same root
	mkdir -p "$root/hub/blobs" "$root/hub/snapshot"
	for name in "$scratch/ckpt"/*; do
		cp "$name" "$root/hub/blobs/"
		ln -s "../blobs/${name##*/}" "$root/hub/snapshot/"
	done
	ln -s hub/snapshot "$root/latest"
	mkdir -p "$root/hub/models--Q--M/snapshots" cache/snapshots
	cp -r "$root/plain" "$root/hub/models--Q--M/snapshots/abc"
	cp -r "$root/plain" cache/snapshots/abc
	ln -s "$scratch/cache" "$root/hub/models--Q--Outside"
	export HF_HUB_CACHE=$root/hub
	start_up gateway wsync-gateway --listen 127.0.0.1:0 --source-root "$root"
	register "$one"
	for ckpt in "${links[@]}"; do
		call /sync_inference_weights "{\"source\":\"$ckpt\"}"
		expect_code 400
		out_has "does not lead to a file below a directory that sources may come from"
	done
	call /sync_inference_weights "{\"source\":\"$root/plain\",\"lora\":\"$root/other.out\"}"
	out_has "does not lead to a file below"
	[ "$(paused_by "$one")" = 0 ]
	for ckpt in plain hub/snapshot latest; do
		call /sync_inference_weights "{\"source\":\"$root/$ckpt\"}"
		expect_code 200
	done
	call /sync_inference_weights '{"source":"hf:Q/M"}'
	expect_code 200
	for ckpt in hf:Q/Outside hf:Q/None hf:../M; do
		call /sync_inference_weights "{\"source\":\"$ckpt\"}"
		expect_code 400
		out_has "not below a directory that sources may come from"
	done
}

@test "an answer names options, never fields of the library" {
	: >file
	start_up gateway wsync-gateway --listen 127.0.0.1:0 --state-dir file/below
	register "$one"
	call /sync_inference_weights "{\"source\":\"$scratch/ckpt\"}"
	[ "$code" != 200 ] || explain "pushed without records"
	out_has '"hint":"--state-dir names a directory'
	out_lacks '{state_dir}'
}

@test "a body is limited by what its route takes" {
	/usr/bin/python3 -c 'print("[" + "0," * 200000 + "0]")' >much
	local path
	for path in sync_inference_weights add_inference_endpoint set_sync_quantization \
		remove_inference_endpoint; do
		call /$path @much
		expect_code 413
	done
	head -c 20000 much >much.less
	call /remove_inference_endpoint @much.less
	expect_code 413
	call /sync_inference_weights @much.less
	expect_code 422
}

@test "syncs whose clients have left do not keep others out" {
	start_up gateway wsync-gateway --listen 127.0.0.1:0 --lock-wait 100s -v
	register "$one"
	mkdir -p "$XDG_STATE_HOME/wsync/locks"
	exec 7>"$XDG_STATE_HOME/wsync/locks/localhost:$(port_of "$one").lock"
	flock 7
	sync v1 "{\"source\":\"$scratch/ckpt\",\"weight_version\":\"v1\"}" 7>&-
	eventually grep -q "sync: begins" gateway.json.err
	/usr/bin/python3 "$repo/tests/cli/leavers.py" "$gateway" "$scratch/ckpt" 7>&- ||
		explain "$(<gateway.json.err)"
	sync v2 "{\"source\":\"$scratch/ckpt\",\"weight_version\":\"v2\"}" 7>&-
	exec 7>&-
	eventually grep -q '"success":true' v2.answer
	grep -q '"success":true' v1.answer
	# What nobody waited for was not pushed.
	[ "$(version_of "$one")" = '"weight_version":"v2"' ]
	[ "$(grep -c "sync: begins" gateway.json.err)" = 2 ]
}
