#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# A push that waits in vain says what it saw, what that probably means and what to do; and its
# deadline ends it.
load helpers

prepare() {
	safetensors small.safetensors a.weight:BF16:64,64 b.weight:BF16:64,64
}

# hang COMMAND...: ends with status 10 after LIMIT (default 1) seconds, and within 45 more, which a
# busy machine may need. The default of --timeout is 60 s, those of --init-timeout and
# --bucket-timeout are 10 minutes. $told is the paragraph on one line, because it is wrapped.
hang() {
	local began=${EPOCHREALTIME/./}
	try "$@"
	took=$((${EPOCHREALTIME/./} - began))
	expect_status 10
	[ "$took" -lt $(((${LIMIT:-1} + 45) * 1000000)) ] || explain "took $took us"
	told=$(tr -s ' \n' ' ' <<<"$err")
}

told() { [[ $told == *"$1"* ]] || explain "expected among what was told: $1"; }

# The keys of a hang are documented; $cause is the cause.
documented() {
	/usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" wsync-push \
		<<<"$out"
	cause=$(json '[l["cause"] for l in lines if l["type"] == "hang"]')
}

@test "an endpoint that does not begin to join: nobody came to a loopback address; also as JSON" {
	endpoint one --tp 2 --fault hang:init_weights_update_group:1
	hang wsync-push small.safetensors -e "$url" --init-timeout 1s --json
	documented
	[ "$cause" = "['loopback']" ] || explain "$cause"
	told "0 of 2 ranks have joined group wsync-"
	told "not at the store: ranks 1, 2 of $url"
	told "$url: POST /init_weights_update_group sent, no answer in"
	told "/model_info is answered now"
	told "likely: the servers were told to connect to 127.0.0.1"
	told "try: give --master-address an address"
	err_lacks hint:
	[ "$(grep -c "^  [flt]" <<<"$err")" -ge 3 ]
	[ "$(wc -L <<<"$(grep '^  ' <<<"$err")")" -le 80 ]
	expect_json '[l["remedy"] for l in lines
		if l["type"] == "hang"] == [lines[-1]["error"]["hint"]]' True
	[ "$(json '[(l["phase"], l["option"], l["limit_ns"], l["world_size"], l["joined"],
	l["cancelled"],
		[r["store"] for r in l["ranks"]], l["endpoints"][0]["state"],
		l["endpoints"][0]["model_info"])
		for l in lines if l["type"] == "hang"]')" = \
		"[('init', 'init-timeout', 1000000000, 3, 0, False, ['absent', 'absent'], 'sent', \
'answers')]" ]
}

@test "a quiet push says the error and the remedy only" {
	endpoint one --fault hang:init_weights_update_group:1
	hang wsync-push small.safetensors -e "$url" --init-timeout 1s -q
	[ "$(wc -l <<<"$err")" = 2 ] || explain "more than that"
	err_has "hint: give --master-address"
}

@test "one rank of four never comes to the store" {
	endpoint one --tp 4 --fault hang:wire/store:1
	hang wsync-push small.safetensors -e "$url" --init-timeout 1s --json
	documented
	[ "$cause" = "['missing-ranks']" ] || explain "$cause"
	told "3 of 4 ranks have joined"
	told "likely: other ranks of the same server came, but not rank"
	told "try: look for that rank in the server's log"
}

@test "one endpoint of two stays away" {
	endpoint one --tp 2
	local first=$url
	endpoint two --fault hang:init_weights_update_group:1
	hang wsync-push small.safetensors -e "$first" -e "$url" --init-timeout 1s --json
	documented
	[ "$cause" = "['missing-endpoint']" ] || explain "$cause"
	told "not at the store: rank 3 of $url"
	told "no process of $url has"
}

@test "when all are silent none is blamed alone" {
	endpoint one --fault hang:init_weights_update_group:1
	first=$url
	endpoint two --fault hang:init_weights_update_group:1
	hang wsync-push small.safetensors -e "$first" -e "$url" --init-timeout 1s
	[[ $told =~ "the deadline passed without an answer from http://127.0.0.1:"[0-9]+" and 1 \
more" ]] || explain "only one"
}

@test "one rank joins and publishes no address" {
	endpoint one --tp 2 --fault hang:wire/connect:1
	hang wsync-push small.safetensors -e "$url" --init-timeout 1s --json
	documented
	[ "$cause" = "['not-published']" ] || explain "$cause"
	told "at the store, without an address of their own: rank"
}

@test "a process of another group is at the store" {
	endpoint one --fault hang:init_weights_update_group:1
	start push wsync-push small.safetensors -e "$url" --init-timeout 4s -v
	eventually grep -q "asked to join" push.err
	start stray /usr/bin/python3 "$repo/tests/cli/stray.py" \
		"$(sed -n 's/.*asked to join.* at 127.0.0.1:\([0-9]*\)$/\1/p' push.err)" \
		/old/old//cpu//0/0
	wait "${background[1]}" || status=$?
	[ "$status" = 10 ]
	told=$(tr -s ' \n' ' ' <push.err)
	told 'waits for "/old/old//cpu//0/0" of another group'
	told "likely: 127.0.0.1:"
	told "which is not of group 'wsync-"
	told "leave --group-name out"
}

@test "behind a tunnel nobody finds the store at loopback" {
	unshare -rn true 2>/dev/null || skip "no network of one's own without privileges"
	start far unshare -rn /usr/bin/python3 "$repo/tests/cli/tunnel.py" far "$scratch/far.sock" \
		"$bin/wsync-endpoint" --listen 127.0.0.1:30000 --init-timeout 20s --json
	eventually grep -q '"ready"' far.out
	start near /usr/bin/python3 "$repo/tests/cli/tunnel.py" near "$scratch/far.sock"
	eventually test -s near.out
	LIMIT=2 hang wsync-push small.safetensors -e "127.0.0.1:$(<near.out)" --init-timeout 2s \
		--json
	documented
	[ "$cause" = "['loopback']" ] || explain "$cause"
	told "behind a tunnel"
}

@test "a server that takes up the update and receives nothing" {
	endpoint one --tp 3 --fault hang:update_weights_from_distributed:2
	hang wsync-push small.safetensors -e "$url" --bucket-size 8KiB --bucket-timeout 1s \
		--verify none --json
	documented
	[ "$cause" = "['not-receiving']" ] || explain "$cause"
	told "Of bucket 2 of 2, 8.00 KiB, rank 1 of $url took nothing; rank 2 of $url took nothing"
	told "1 of 2 answered before"
	told "hint: when the cause is gone: wsync-ctl repair --again"
	err_lacks 'bucket 2 of 2: bucket 2 of 2'
}

@test "a server that does not answer a pause" {
	endpoint one --fault hang:pause_generation:1
	hang wsync-push small.safetensors -e "$url" --bucket-timeout 1s --json
	documented
	[ "$cause" = "['busy']" ] || explain "$cause"
	told "(--bucket-timeout) in phase pause. $url: POST /pause_generation sent, no answer"
}

@test "the limit of the whole push is named as that" {
	endpoint one --fault hang:pause_generation:1
	hang wsync-push small.safetensors -e "$url" --timeout 1s
	told "(--timeout) in phase pause"
}

# Every thread of it, which takes a moment.
stopped() { ! grep -hvE '^[0-9]+ \(.*\) T ' /proc/"$1"/task/*/stat; }

@test "a server that is stopped answers nothing at all" {
	endpoint one --tp 2
	local server=$pid
	mkfifo sources
	wsync-push --stdin -e "$url" --bucket-timeout 1s --verify none --json \
		<sources >push.out 2>push.err 3>&- &
	background+=("$!")
	exec 4>sources
	echo small.safetensors >&4
	eventually grep -q '"type":"result"' push.out
	kill -STOP "$server"
	eventually stopped "$server"
	echo small.safetensors >&4
	exec 4>&-
	# by then it was asked whether it lives; and nobody waits for a stopped process longer than
	# that
	sleep 2.5
	kill -CONT "$server"
	wait "${background[1]}" || status=$?
	[ "$status" = 10 ]
	out=$(<push.out) err=$(<push.err)
	told=$(tr -s ' \n' ' ' <push.err)
	documented
	[ "$cause" = "['server-stopped']" ] || explain "$cause"
	told "in phase pause. $url: POST /pause_generation sent, no answer in"
	told "/model_info is not answered now"
}

@test "a server that is stopped before is not waited for longer than --connect-timeout" {
	endpoint one --tp 2
	kill -STOP "$pid"
	hang wsync-push small.safetensors -e "$url" --connect-timeout 1s --json
	kill -CONT "$pid"
	documented
	[ "$cause" = "['starting']" ] || explain "$cause"
	expect_json '[l["limit_ns"] for l in lines if l["type"] == "hang"]' '[1000000000]'
	told "in phase connect. $url: GET /"
}

@test "only the stopped one of two servers is said to be silent" {
	endpoint one --tp 2
	local stopped=$pid stopped_url=$url
	endpoint two --lineage vllm-0.33 --fault slow:version:1 --fault slow:version:2 \
		--fault slow:get_world_size:1 --fault-delay 100ms
	kill -STOP "$stopped"
	try wsync-push small.safetensors -e "$stopped_url" -e "$url" --connect-timeout 1s --json
	kill -CONT "$stopped"
	expect_status 10
	expect_json 'lines[-1]["error"]["endpoint"]' "$stopped_url"
	expect_json '[l["ok"] for l in lines if l["type"] == "endpoint"]' '[False, True]'
}

@test "wsync-ctl init-group explains itself in the same way" {
	endpoint one --tp 2 --fault hang:init_weights_update_group:1
	hang wsync-ctl init-group -e "$url" --timeout 1s
	told "(--timeout) in phase init. 0 of 2 ranks have joined group wsync-"
	told "try: give --master-address"
}

@test "after ten seconds of silence it says who is waited for, and when it is interrupted" {
	endpoint one --tp 2 --fault hang:init_weights_update_group:1
	start push wsync-push small.safetensors -e "$url" --json
	local who="for ranks 1, 2 of $url: not at the store" time
	eventually grep -q "^wsync-push: waiting [0-9]* s $who" push.err
	kill -TERM "$pid"
	wait "$pid" || status=$?
	[ "$status" = 143 ]
	out=$(<push.out) err=$(<push.err)
	documented
	[ "$(json '[(l["phase"], l["message"]) for l in lines if l["type"] == "waiting"]')" = \
		"[('init', '$(sed -n 's/^wsync-push: \(waiting .*\)/\1/p' push.err)')]" ] ||
		explain "another line"
	expect_json '[l["cancelled"] for l in lines if l["type"] == "hang"]' "[True]"
	told=$(tr -s ' \n' ' ' <push.err)
	[[ $told =~ "was waiting "[0-9.]+" s $who" ]] || explain "not said for what"
}
