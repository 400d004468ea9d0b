#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The registry against endpoints with canned answers.
load helpers

# engine NAME TP MODEL: an endpoint that only says what it is. Sets $url.
engine() {
	start "$1" /usr/bin/python3 "$repo/tests/cli/canned.py" \
		"/server_info=200:{\"tp_size\":$2,\"dtype\":\"bfloat16\",\"quantization\":null,\"version\":\"0.5.9\",\"served_model_name\":\"$3\"}" \
		'/model_info=200:{"weight_version":"7"}'
	eventually test -s "$1.out"
	url=http://127.0.0.1:$(head -n 1 "$1.out")
}

registry() { /usr/bin/python3 -c 'import json, sys
print(eval(sys.argv[1], {"r": json.load(open(sys.argv[2]))}))' "$1" \
	"$XDG_STATE_HOME/wsync/registry.json"; }

@test "the help is what it was" {
	try wsync-register --help
	expect_status 0
	golden register-help
}

@test "add asks the endpoint what it is and registers it" {
	engine a 2 qwen3
	try wsync-register add "$url/"
	expect_status 0
	expect_err ""
	expect_out "added $url in pool default: sglang-2026, tp 2, bfloat16, qwen3"
	[ "$(registry 'r["version"], len(r["endpoints"])')" = "(1, 1)" ]
	[ "$(registry 'r["endpoints"][0]["world_size"]')" = 2 ]
	[ "$(stat -c %a "$XDG_STATE_HOME/wsync/registry.json")" = 600 ]
	[ "$(stat -c %a "$XDG_STATE_HOME/wsync")" = 700 ]
}

@test "adding again updates, says so, and keeps the pool" {
	engine a 2 qwen3
	try wsync-register add "$url" --pool blue
	try wsync-register add "$url" --json
	expect_status 0
	expect_json '[l["type"] for l in lines]' "['start', 'endpoint', 'end']"
	expect_json 'lines[1]["updated"], lines[1]["pool"]' "(True, 'blue')"
	[ "$(registry 'len(r["endpoints"])')" = 1 ]
}

@test "an endpoint that is down is not registered, unless nobody asks it" {
	try wsync-register add "127.0.0.1:$(free_port)"
	expect_status 4
	err_has "cannot connect: Connection refused"
	[ ! -e "$XDG_STATE_HOME/wsync/registry.json" ]
	try wsync-register add gpu7.invalid:30000 --no-check --world-size 8
	expect_status 0
	expect_out "added http://gpu7.invalid:30000 in pool default"
	[ "$(registry 'r["endpoints"][0]["world_size"]')" = 8 ]
}

@test "an endpoint without a port is asked at port 80, and the hint says so" {
	(: </dev/tcp/127.0.0.1/80) 2>/dev/null && skip "something listens on port 80 here"
	try wsync-register add 127.0.0.1
	expect_status 4
	err_has "GET http://127.0.0.1/server_info: cannot connect: Connection refused"
	err_has "hint: no port is given, so this was port 80: \
inference servers listen on 30000 unless"
	try wsync-register add "127.0.0.1:$(free_port)"
	err_lacks "no port is given"
}

@test "of several endpoints all are added or none" {
	engine a 2 qwen3
	try wsync-register add "$url" "127.0.0.1:$(free_port)"
	expect_status 4
	[ ! -e "$XDG_STATE_HOME/wsync/registry.json" ]
	try wsync-register add "$url" "$url/"
	expect_status 2
	err_has "given twice"
}

@test "the world size must be the server's" {
	engine a 2 qwen3
	try wsync-register add "$url" --world-size 4
	expect_status 2
	err_has "--world-size 4, but the server has tp_size 2"
	[ ! -e "$XDG_STATE_HOME/wsync/registry.json" ]
	try wsync-register add "$url" --world-size 2
	expect_status 0
}

@test "a server of another kind is refused" {
	start other /usr/bin/python3 "$repo/tests/cli/canned.py"
	eventually test -s other.out
	try wsync-register add "127.0.0.1:$(head -n 1 other.out)"
	expect_status 5
	err_has "no such route (HTTP 404)"
	err_has "hint: is this an SGLang or vLLM server"
}

@test "what is no address is a usage error" {
	for bad in ftp://x user:pw@x:1 http://x:1/?a=b ::1:30000 x:99999 $'x\e[31m'; do
		try wsync-register add "$bad"
		expect_status 2
		err_has "endpoint '"
		err_lacks $'\e'
	done
}

@test "list shows a table, one pool, or JSON lines" {
	try wsync-register list
	expect_status 0
	expect_out "no endpoint is registered in $XDG_STATE_HOME/wsync/registry.json"
	engine a 2 qwen3
	wsync-register add -q "$url"
	engine b 4 $'q\\u001b[31m'
	wsync-register add -q "$url" --pool blue
	try wsync-register list
	expect_status 0
	golden register-list
	try wsync-register list --pool blue --json
	expect_json '[(l["url"], l["tp_size"]) for l in lines if l["type"] == "endpoint"]' \
		"[('$url', 4)]"
}

@test "remove forgets an endpoint, and says when it was not there" {
	wsync-register add -q --no-check a:1 b:1
	try wsync-register remove http://A:1/
	expect_status 0
	expect_out "removed http://a:1"
	try wsync-register remove a:1
	expect_status 3
	err_has "http://a:1: not registered in"
	[ "$(registry '[e["url"] for e in r["endpoints"]]')" = "['http://b:1']" ]
}

@test "check compares every endpoint with what is registered" {
	engine a 2 qwen3
	first=$url
	engine b 2 qwen3
	wsync-register add -q "$first" "$url"
	try wsync-register check
	expect_status 0
	expect_out "$first  ok
$url  ok"
	sed -i 's/"dtype":"bfloat16"/"dtype":"float16"/' "$XDG_STATE_HOME/wsync/registry.json"
	kill "$pid" && wait "$pid" || true
	try wsync-register check
	expect_status 1
	out_has "$first  differs  dtype 'bfloat16', registered as 'float16'"
	out_has "$url  down     GET $url/server_info: cannot connect: Connection refused"
	err_has "2 of 2 endpoints are down or not what is registered"
	try wsync-register check --json
	expect_json '[l["state"] for l in lines if l["type"] == "endpoint"]' "['differs', 'down']"
}

@test "a malformed registry is named, and left as it is" {
	mkdir -p "$XDG_STATE_HOME/wsync"
	echo '{"version":1,"endpoints":[{"url":"a:1"},{"url":"http://a:1"}]}' \
		>"$XDG_STATE_HOME/wsync/registry.json"
	for command in list check "add --no-check b:1" "remove a:1"; do
		# shellcheck disable=SC2086
		try wsync-register $command
		expect_status 3
		err_has "registry.json: endpoints[1]: http://a:1 is there twice"
		err_has "hint: fix the file, or move it away and register the endpoints again"
	done
	grep -q '"http://a:1"' "$XDG_STATE_HOME/wsync/registry.json"
}

@test "the option comes before the environment" {
	WSYNC_REGISTRY=$scratch/env.json wsync-register add -q --no-check a:1
	[ -e env.json ]
	WSYNC_REGISTRY=$scratch/env.json wsync-register add -q --no-check a:1 --registry option.json
	[ -e option.json ]
	XDG_STATE_HOME=relative wsync-register add -q --no-check a:1
	[ -e "$HOME/.local/state/wsync/registry.json" ]
	[ ! -e relative ]
}

@test "ten at once are all registered" {
	for i in 1 2 3 4 5 6 7 8 9 10; do
		wsync-register add -q --no-check "h$i:1" &
		background+=($!)
	done
	wait "${background[@]}"
	[ "$(registry 'len(r["endpoints"])')" = 10 ]
}

@test "check tells another lineage, unless the registry is older than lineages" {
	engine a 2 qwen3
	try wsync-register add "$url"
	[ "$(registry 'r["endpoints"][0]["lineage"]')" = "sglang-2026" ]
	sed -i 's/"lineage":"sglang-2026"/"lineage":"slime"/' "$XDG_STATE_HOME/wsync/registry.json"
	try wsync-register check
	expect_status 1
	out_has "lineage 'sglang-2026', registered as 'slime'"
	sed -i 's/"lineage":"slime",//' "$XDG_STATE_HOME/wsync/registry.json"
	try wsync-register check
	expect_status 0
}

@test "a command that a hint proposes is safe to paste" {
	wsync-register add --no-check 'http://127.0.0.1:9/$(touch$IFS$9pwned);x' --registry 'r;touch pwned'
	try wsync-register add --no-check 'http://localhost:9/$(touch$IFS$9pwned);x' \
		--registry 'r;touch pwned'
	expect_status 2
	err_has "hint: to register it by this name: wsync-register remove"
	bash -c "$(sed -n 's/^hint: to register it by this name: //p' <<<"$err")"
	try wsync-register list --registry 'r;touch pwned'
	out_lacks 127.0.0.1
	chmod go+w 'r;touch pwned'
	try wsync-register list --registry 'r;touch pwned'
	err_has "then run: chmod go-w"
	bash -c "$(sed -n 's/^hint: .*then run: //p' <<<"$err")"
	try wsync-register list --registry 'r;touch pwned'
	expect_status 0
	[ ! -e pwned ]
}

@test "this machine is registered by one of its names" {
	for other in localhost:7 '[::1]:7' http://127.1:7; do
		rm -rf "$scratch/state"
		wsync-register add --no-check gpu7:7 127.0.0.1:7 -q
		try wsync-register add --no-check gpu8:7 "$other"
		case $other in
		*127.1*) expect_status 0 ;;
		*)
			expect_status 2
			err_has "it is registered already, as http://127.0.0.1:7"
			err_has "hint: to register it by this name: wsync-register remove \
http://127.0.0.1:7 --registry $scratch/state/wsync/registry.json"
			try wsync-register list
			out_lacks gpu8 # all or none
			;;
		esac
	done
	# A registry that has both, which an older wsync or somebody's hand has made.
	echo '{"version":1,"endpoints":[{"url":"http://gpu7:7"},{"url":"http://localhost:7"},
		{"url":"http://[::1]:7","pool":"b"}]}' >r.json
	synthetic_push() { try wsync-push synthetic:qwen3-0.6b --registry r.json --dry-run "$@"; }
	synthetic_push
	expect_status 2
	err_has "r.json: http://localhost:7 and http://[::1]:7 are one endpoint"
	err_has "hint: wsync-register remove 'http://[::1]:7' --registry r.json"
	try wsync-register remove 'http://[::1]:7' --registry r.json
	expect_status 0
	synthetic_push --connect-timeout 1ms
	err_lacks "one endpoint"
}

@test "a server is registered by one URL, whatever the addresses of its machine" {
	endpoint one --listen 0.0.0.0:0 --lineage sglang-2026
	local other port=${url##*:}
	try wsync-register add "127.0.0.1:$port" "127.0.0.2:$port"
	expect_status 2
	err_has "http://127.0.0.2:$port: it is the server that is also named http://127.0.0.1:$port"
	wsync-register add "127.0.0.1:$port" -q
	for other in 127.0.0.2 foo.localhost; do
		try wsync-register add "$other:$port"
		expect_status 2
		err_has "http://$other:$port: it is the server that is registered already as \
http://127.0.0.1:$port"
	done
	# A key goes to the servers of its pool only.
	(umask 077 && echo sesame >key)
	try wsync-register add "127.0.0.2:$port" --pool blue --api-key-file key
	expect_status 0
	try wsync-register add "127.0.0.3:$port" --api-key-file key
	expect_status 2
	wsync-register remove "127.0.0.2:$port" -q
	endpoint two --listen 127.0.0.3:0 --lineage sglang-2026
	wsync-register add "$url" -q # another server
	wsync-register add "127.0.0.1:$port" -q
	wsync-register add --no-check "127.0.0.2:$port" -q
}

@test "a registry that others can write is not used" {
	wsync-register add --no-check gpu7:7 -q
	local file=$scratch/state/wsync/registry.json
	for mode in 606 660; do
		chmod "$mode" "$file"
		for words in "wsync-register list" "wsync-register add --no-check gpu8:7" \
			"wsync-push synthetic:qwen3-0.6b" "wsync-ctl health"; do
			# shellcheck disable=SC2086  # words
			try $words
			expect_status 3
			err_has "$file: others can write it, so it is not trusted"
			err_has "hint: check what it holds, then run: chmod go-w $file"
		done
	done
	chmod 644 "$file"
	try wsync-register list
	expect_status 0
	# Whoever can write its directory can replace it; so it is with a key.
	chmod 777 "${file%/*}"
	for words in "wsync-register list" "wsync-register add --no-check gpu8:7" "wsync-ctl health"; do
		# shellcheck disable=SC2086  # words
		try $words
		expect_status 3
		err_has "${file%/*}: others can write there, so its files are not trusted"
		err_has "check what this one holds, then run: chmod o-w ${file%/*}"
	done
	chmod 755 "${file%/*}"
	mkdir open
	chmod 777 open
	echo secret >open/key
	try wsync-ctl health -e gpu7:7 --api-key-file open/key
	expect_status 3
	err_has "open: others can write there, so its files are not trusted"
	try wsync-register add --no-check gpu7:7 --registry open/registry.json
	expect_status 3
	chmod 1777 open
	wsync-register add --no-check gpu7:7 --registry open/registry.json -q
}
