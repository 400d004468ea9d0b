#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Several senders of one group: each sends what it has, the first speaks with the endpoints.
load helpers

split() { /usr/bin/python3 "$repo/tests/cli/split_model.py" "$@"; }

# edit FROM TO EXPRESSION: the model in TO has these of the tensors of the model in FROM.
edit() {
	PYTHONPATH=$repo/tests/cli /usr/bin/python3 -c 'import sys
from split_model import read, write
tensors = read(sys.argv[1] + "/model.safetensors")
write(sys.argv[2] + "/model.safetensors", eval(sys.argv[3]))' "$@"
}

# sends I/N SOURCE OPTION...: that sender, in the background. Its output: I.out and I.err.
sends() {
	local which=$1
	shift
	start "${which%/*}" timeout -k 5 600 wsync-push "$@" --protocol ep-scatter \
		--sender "$which" \
		--master-address 127.0.0.1 --master-port "$port"
}

# first N SOURCE OPTION...: sender 1 of N.
first() {
	local n=$1
	shift
	try wsync-push "$@" --protocol ep-scatter --sender "1/$n" --master-address 127.0.0.1 \
		--master-port "$port"
}

# ended STATUS PID...: with that status.
ended() {
	local want=$1 pid got
	shift
	for pid in "$@"; do
		got=0
		wait "$pid" || got=$?
		[ "$got" = "$want" ] || explain "a sender ended with $got, not $want: $(cat ?.err)"
	done
}

prepare() { port=$(free_port); }

# server [OPTION...]: an endpoint at $url with the model in m/, whose halves are r1/ and r2/.
server() {
	likely_model qwen3_moe
	split m 2 r
	endpoint a --lineage xorl-legacy --model m --tp 2 "$@"
}

@test "several senders, each with the experts it trained, into servers of several sizes" {
	likely_model qwen3_moe
	for sizes in 1 2 "4 --ep 1"; do
		endpoint "tp${sizes// /}" --lineage xorl-legacy --model m --tp $sizes
		urls+=("$url")
	done
	for n in 1 2 4; do
		split m $n r
		pids=()
		for i in $(seq 2 $n); do sends "$i/$n" "r$i" --json; pids+=("$pid"); done
		first $n r1 -e "${urls[0]}" -e "${urls[1]}" -e "${urls[2]}" --weight-version "v$n" \
			--json
		expect_status 0
		expect_json '(sorted({e["state"] for e in lines[-1]["endpoints"]}),
			[l["world_size"] for l in lines if l["type"] == "plan"],
			[l["rank_offset"] for l in lines if l.get("phase") == "connect" and "ok" in l])' \
			"(['committed'], [$((n + 7))], [$n, $((n + 1)), $((n + 3))])"
		ended 0 "${pids[@]}"
		holds "${urls[@]}"
		try wsync-ctl version -e "${urls[2]}"
		out_has "v$n"
	done
	out=$(<2.out)
	expect_json '[(l["sender"], l["senders"]) for l in lines if l["type"] == "plan"]' "[(2, 4)]"
	expect_json '(lines[-1]["ok"], lines[-1]["endpoints"],
		lines[-1]["bytes"] == lines[-1]["wire_bytes"] > 0)' \
		"(True, [], True)"
	expect_json 'sum(l["bytes"] for l in lines
		if l["type"] == "bucket") == lines[-1]["bytes"]' True
}

@test "senders that all have everything divide it among them" {
	likely_model qwen3_moe
	endpoint a --lineage xorl-legacy --model m --tp 4 --ep 2
	for n in 2 3; do
		pids=()
		for i in $(seq 2 $n); do sends "$i/$n" m --json; pids+=("$pid"); done
		first $n m -e "$url" --json
		expect_status 0
		ended 0 "${pids[@]}"
		sizes=$(json 'lines[-1]["wire_bytes"]')
		for i in $(seq 2 $n); do out=$(<$i.out); \
			sizes+=" $(json 'lines[-1]["wire_bytes"]')"; done
		holds "$url"
		sizes=$sizes /usr/bin/python3 -c 'import os
s = [int(x) for x in os.environ["sizes"].split()]
assert max(s) < 1.6 * min(s), s'
	done
}

@test "a source of any sender that changes while it is sent is no success" {
	server
	for changed in r1 r2; do
		meddle "$url" /receive_weights_ep_scatter 1 "touch $changed/model.safetensors"
		sends 2/2 r2 --json
		first 2 r1 -e "$url" --weight-version new --json
		expect_status 3
		expect_json "'$changed/model.safetensors: \
the file was overwritten' in lines[-1]['error']['message']" True
		expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
			"[('partial', True)]"
		ended 3 "$pid"
	done
}

@test "an endpoint that cannot be resumed is a failure of all senders" {
	server --fault refuse:continue_generation:1 \
		--fault refuse:continue_generation:2 --fault refuse:continue_generation:3
	sends 2/2 r2
	first 2 r1 -e "$url" --json
	expect_status 5
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('committed', True)]"
	ended 5 "$pid"
}

@test "what a sender that is not the first says" {
	server
	sends 2/2 r2 -v
	first 2 r1 -e "$url"
	expect_status 0
	ended 0 "$pid"
	holds "$url"
	grep -q "^bucket .*1 of 2" 2.out || explain "$(cat 2.out)"
	grep -q "^pushed " 2.out || explain "$(cat 2.out)"
}

@test "what no sender has, or two have otherwise, is refused before anybody is paused" {
	server
	sends 2/2 r2 --exclude '*experts.7.up_proj*'
	first 2 r1 -e "$url"
	expect_status 5
	err_has "parameter model.layers.1.mlp.experts.w13_weight must be sent whole"
	ended 5 "$pid"
	grep -q "sender 1: .*must be sent whole" 2.err || explain "$(cat 2.err)"
	# What an --include of everything leaves out is missed as without it.
	split m 2 s
	for i in s1 s2; do edit $i $i '[t for t in tensors if t[0] != "model.norm.weight"]'; done
	sends 2/2 s2
	first 2 s1 -e "$url" --include '*'
	expect_status 5
	err_has "model.norm.weight"
	ended 5 "$pid"
	sends 2/2 r2
	first 2 r1 -e "$url" --include '*layers.*'
	expect_status 5
	err_has "no sender has model.embed_tokens.weight"
	ended 5 "$pid"
	sends 2/2 r2
	first 2 r1 -e "$url" --exclude '*layers.0.self_attn.[qkv]_proj*' \
		--exclude '*layers.0.self_attn.*norm*' --verify names
	[ "$status" = 0 ] || expect_status 5
	ended "$status" "$pid"
	/usr/bin/python3 "$repo/tests/cli/small_model.py" qwen3_moe f --dtype F32
	split f 2 f
	sends 2/2 f2
	first 2 r1 -e "$url"
	expect_status 5
	err_has "is bfloat16 at sender 1 and float32 at sender 2"
	ended 5 "$pid"
}

@test "senders of two steps do not make one push" {
	server
	sends 2/2 r2 --weight-version 8
	first 2 r1 -e "$url" --weight-version 7
	expect_status 2
	err_has "sender 1 sends round 7, and sender 2 sends round 8"
	ended 2 "$pid"
	grep -q "sender 1: sender 1 sends round 7, and sender 2 sends round 8" 2.err ||
		explain "$(cat 2.err)"
	# Also where sender 1 names none, and where the versions are the same.
	sends 2/3 r2 --weight-version 7 --round job1-7
	others=("$pid")
	sends 3/3 r2 --weight-version 7 --round job2-7
	others+=("$pid")
	first 3 r1 -e "$url" --weight-version 7 --round ''
	expect_status 2
	err_has "--round: the ID is empty"
	first 3 r1 -e "$url"
	expect_status 2
	err_has "sender 2 sends round job1-7, and sender 3 sends round job2-7"
	ended 2 "${others[@]}"
	expect_journal "$url" 'paths.count("/pause_generation")' 0
	# One that names none cannot be compared.
	sends 2/2 r2
	first 2 r1 -e "$url" --weight-version 7
	expect_status 0
	err_has "1 of 2 senders name no round (the first is sender 2)"
	ended 0 "$pid"
	sends 2/2 r2 --round 7
	first 2 r1 -e "$url" --weight-version 7
	expect_status 0
	err_lacks "do not say"
	ended 0 "$pid"
	try wsync-push --stdin -e "$url" --protocol ep-scatter --sender 1/2 --master-port 1 \
		--round 7
	expect_status 2
	err_has "each line has its version, after a tab"
}

@test "a sender that does not come is named, and the others end" {
	likely_model qwen3_moe
	split m 4 r
	endpoint a --lineage xorl-legacy --model m --tp 2
	sends 2/4 r2
	first 4 r1 -e "$url" --init-timeout 1s
	expect_status 10
	err_has "senders 3, 4 of 4 did not come within 1 s"
	err_has "--master-port $port"
	ended 10 "$pid"
	grep -q "sender 1: senders 3, 4 of 4 did not come" 2.err || explain "$(cat 2.err)"
	sends 3/4 r3 --init-timeout 1s
	ended 4 "$pid"
	grep -q "sender 1 was not found" 3.err || explain "$(cat 3.err)"
}

@test "a sender that dies ends all of them, and nobody stays paused" {
	likely_model qwen3_moe
	split m 3 r
	endpoint a --lineage xorl-legacy --model m --tp 2
	sends 2/3 r2
	dying=$pid
	sends 1/3 r1 -e "$url"
	leader=$pid
	sleep 0.7
	kill -KILL $(cat /proc/$dying/task/$dying/children)
	ended 6 "$leader"
	grep -q "sender 2 (127.0.0.1:[0-9]*) left the rendezvous" 1.err || explain "$(cat 1.err)"
	# And the first.
	sends 1/3 r1 -e "$url"
	leader=$pid
	sends 2/3 r2 --init-timeout 3s
	sleep 0.7
	kill -KILL $(cat /proc/$leader/task/$leader/children)
	got=0
	wait "$pid" || got=$?
	[ "$got" = 4 ] || [ "$got" = 6 ] || explain "sender 2 ended with $got: $(cat 2.err)"
	try wsync-ctl health -e "$url"
	expect_status 0
}

child_of() { cat "/proc/$1/task/$1/children"; }

# Two senders, the endpoint answers the pause after two seconds: in $leader and $other, both of them
# children of what counts their time.
until_paused() {
	server --fault slow:pause_generation:1
	sends 2/2 r2 --init-timeout 4s --bucket-timeout 10s
	other=$pid
	sends 1/2 r1 -e "$url" --init-timeout 4s --bucket-timeout 10s
	leader=$pid
	eventually requested /pause_generation
}

@test "a sender that dies while the endpoints are paused: they are resumed" {
	until_paused
	kill -KILL $(child_of $other)
	ended 6 "$leader"
	grep -q "sender 2 (127.0.0.1:[0-9]*) left the rendezvous" 1.err || explain "$(cat 1.err)"
	requested /continue_generation || explain "nobody was resumed"
	sends 2/2 r2
	first 2 r1 -e "$url"
	expect_status 0
	holds "$url"
}

@test "a sender that is interrupted says so to the first" {
	until_paused
	kill -TERM $(child_of $other)
	ended 143 "$other"
	ended 6 "$leader"
	grep -q "sender 2: .*cancelled" 1.err || explain "$(cat 1.err)"
	requested /continue_generation || explain "nobody was resumed"
}

@test "what only another sender has, and no server, is warned about" {
	likely_model qwen3_moe
	split m 2 r
	edit r2 r2 'tensors + [("model.strange.weight", "BF16", [2], b"1234")]'
	endpoint a --lineage xorl-legacy --model m --tp 2
	sends 2/2 r2
	first 2 r1 -e "$url"
	expect_status 0
	err_has "1 tensor of the other senders has no place in a server and is not sent, \
the first model.strange.weight"
	ended 0 "$pid"
}

@test "a sender that hangs is named when the deadline passes" {
	until_paused
	kill -STOP $(child_of $other)
	ended 10 "$leader"
	grep -q "sender 2\|rank 1" 1.err || explain "$(cat 1.err)"
	requested /continue_generation || explain "nobody was resumed"
	kill -CONT $(child_of $other)
	got=0
	wait "$other" || got=$?
	[ "$got" != 0 ] || explain "sender 2 says that all is well"
}

@test "the first sender dies while the endpoints are paused: the others end, and repair resumes" {
	until_paused
	kill -KILL $(child_of $leader)
	ended 6 "$other"
	grep -q "sender 1 is gone" 2.err || explain "$(cat 2.err)"
	try wsync-ctl repair
	expect_status 0
	requested /continue_generation || explain "nobody was resumed"
	sends 2/2 r2
	first 2 r1 -e "$url"
	expect_status 0
}

@test "an endpoint that refuses or dies ends all senders, and they may come again" {
	server --fault refuse:receive_weights_ep_scatter:1
	sends 2/2 r2 --bucket-timeout 10s
	first 2 r1 -e "$url" --bucket-timeout 10s
	expect_status 5
	ended 5 "$pid"
	grep -q "sender 1: " 2.err || explain "$(cat 2.err)"
	requested /destroy_weights_update_group || explain "it may have joined before it refused"
	sends 2/2 r2
	first 2 r1 -e "$url"
	expect_status 0
	ended 0 "$pid"
	holds "$url"
	endpoint b --lineage xorl-legacy --model m --tp 2 --fault die:receive_weights_ep_scatter:1
	sends 2/2 r2 --bucket-timeout 10s
	first 2 r1 -e "$url" --bucket-timeout 10s
	expect_status 6
	ended 6 "$pid"
	grep -q "sender 1: " 2.err || explain "$(cat 2.err)"
}

@test "a dry run of all of them says what each would send" {
	server
	sends 2/2 r2 --dry-run
	first 2 r1 -e "$url" --dry-run
	expect_status 0
	ended 0 "$pid"
	grep -q "nothing was sent" 2.out || explain "$(cat 2.out)"
	sends 2/2 r2
	first 2 r1 -e "$url" --dry-run
	expect_status 2
	err_has "sender 1 is a dry run and sender 2 is not"
	ended 2 "$pid"
}

@test "push after push by --stdin" {
	server
	for i in 1 2; do for k in 1 2 3 4 5; do printf 'r%s\tv%s\n' "$i" "$k"; done >lines$i; done
	start 2 timeout -k 5 600 bash -c "wsync-push --stdin --protocol ep-scatter --sender 2/2 \
		--master-address 127.0.0.1 --master-port $port <lines2"
	STDIN=lines1 try wsync-push --stdin -e "$url" --protocol ep-scatter --sender 1/2 \
		--master-address 127.0.0.1 --master-port "$port" --json
	expect_status 0
	ended 0 "$pid"
	expect_json '[l["ok"] for l in lines if l["type"] == "result"]' \
		"[True, True, True, True, True]"
	holds "$url"
	try wsync-ctl version -e "$url"
	out_has v5
}

@test "senders of one group need a place to meet" {
	likely_model qwen3_moe
	try wsync-push m -e localhost:1 --sender 1/2 --protocol ep-scatter
	expect_status 2
	err_has "the senders meet at the first one's port"
	try wsync-push m --sender 2/2 --protocol ep-scatter --master-port 1
	expect_status 2
	err_has "the first one's address"
	try wsync-push m --sender 2/2 --protocol ep-scatter --master-port 1 --backend nccl
	expect_status 2
}

@test "a dry run of several senders of one group needs the endpoints, at the first" {
	likely_model qwen3_moe
	try wsync-push m --dry-run --sender 1/2 --protocol ep-scatter --master-port 1 \
		--init-timeout 1s
	expect_status 2
	err_has "sender 1 of 2 needs the endpoints"
}

# over_in_time STATUS: the last one ended with that status and without any patience but --timeout.
over_in_time() {
	expect_status "$1"
	[ "$SECONDS" -lt 60 ] || explain "it waited $SECONDS s: $err"
}

@test "turns and locks are waited for no longer than the push may take" {
	likely_model qwen3_moe
	exec 8>turns
	flock 8
	SECONDS=0
	try wsync-push m -e localhost:1 --sender 1/2 --lock turns --round 1 \
		--timeout 500ms
	over_in_time 10
	err_has "is still at work on it after"
	mkdir -p "$XDG_STATE_HOME/wsync/locks"
	exec 9>"$XDG_STATE_HOME/wsync/locks/localhost:1.lock"
	flock 9
	SECONDS=0
	try wsync-push m -e localhost:1 --timeout 500ms --lock-wait 5m
	over_in_time 10
	err_has "is still at work on it after"
}

# lines N I: as many, of r$i, with versions.
lines() { for k in $(seq "$1"); do printf 'r%s\tv%s\n' "$2" "$k"; done; }

@test "turns of two senders with --stdin, whose groups are kept" {
	likely_model qwen3_moe
	split m 2 r
	endpoint a --model m --tp 2
	lines 20 1 >lines1
	lines 20 2 >lines2
	start s2 timeout -k 5 600 bash \
		-c "wsync-push --stdin -e $url --sender 2/2 --lock turns --json <lines2"
	start s1 timeout -k 5 600 bash \
		-c "wsync-push --stdin -e $url --sender 1/2 --lock turns --json <lines1"
	wait "${background[-1]}" "${background[-2]}" || explain "$(cat s1.err s2.err)"
	for i in 1 2; do
		out=$(<s$i.out) err=$(<s$i.err)
		expect_json 'sum(l["ok"] for l in lines if l["type"] == "result")' 20
		err_lacks "comes again"
	done
	holds "$url"
	try wsync-ctl version -e "$url"
	out_has v20
	# one group for each sender
	expect_journal "$url" 'sum("init_weights" in p for p in paths)' 2
}

@test "endpoints paused around all turns answer nobody between them" {
	likely_model qwen3_moe
	split m 3 r
	for lineage in sglang-0.5 sglang-2026 xorl-legacy xorl slime; do
		endpoint $lineage --lineage $lineage --model m --tp 2
		rm -f turns turns.round
		try wsync-ctl pause -e "$url"
		expect_status 0
		for i in 1 2 3; do
			try wsync-push r$i -e "$url" --pause none --sender $i/3 --lock turns \
				--weight-version 6
			expect_status 0
		done
		try wsync-ctl resume -e "$url"
		expect_status 0
		expect_journal "$url" '" ".join(p for p in paths if "_generation" in p)' \
			"/pause_generation /continue_generation"
		holds "$url"
		try wsync-ctl version -e "$url"
		out_has 6
	done
	endpoint s --lineage session --model m --tp 2
	try wsync-push r1 -e "$url" --pause none --sender 1/3 --lock turns2 --round 1
	expect_status 5
	err_has "it must not run requests then"
}

@test "the stages of a pipeline are one checkpoint, and a name is in one of them" {
	likely_model qwen3_moe
	for i in 0 1 2; do
		mkdir stage$i
		cp m/config.json stage$i
		edit m stage$i "[t for t in tensors if $i == (0 if '.layers.0.' in t[0]
			or 'embed' in t[0] else 1 if '.layers.1.' in t[0] else 2)]"
	done
	endpoint a --model m --tp 2
	try wsync-push stage0 stage1 stage2 -e "$url" --verify hash --weight-version 9
	expect_status 0
	out_has "verified by hash"
	holds "$url"
	try wsync-push stage0 stage1 -e "$url"
	expect_status 1
	out_has "lm_head.weight"
	mkdir twice
	cp m/config.json twice
	edit m twice '[t for t in tensors if t[0] == "model.norm.weight"]'
	try wsync-push stage0 stage1 stage2 twice -e "$url"
	expect_status 3
	err_has "model.norm.weight"
	err_has "stage2/model.safetensors"
	err_has "twice/model.safetensors"
}

# turn I [OPTION...]: the turn of sender I of 2 in round 5, with its half of m/.
turn() {
	local -A half=([1]=--include [2]=--exclude)
	try wsync-push m -e "$url" --sender "$1/2" --lock "${lock:-lock}" "${half[$1]}" \
		'*layers.0.*' --weight-version "${version:-5}" "${@:2}"
}

@test "a push of other weights between two turns ends the round, and the same turn does not" {
	local how lock
	llama m
	llama n '' --seed 7
	for how in "" "--weight-version 4" "--include *layers.0.*"; do
		endpoint "a${#how}"
		lock=lock${#how}
		try wsync-push n -e "$url"
		turn 1
		expect_status 0
		turn 1
		expect_status 0
		# shellcheck disable=SC2086 # words
		try wsync-push n -e "$url" $how
		expect_status 0
		turn 2
		expect_status 9
		err_has "another push has changed its weights since the turns before in round 5"
		expect_journal "$url" 'paths.count("/pause_generation")' 4
		turn 1
		expect_status 0
		turn 2
		expect_status 0
	done
}

@test "no turn of an older version changes anything" {
	llama m
	llama n '' --seed 7
	endpoint a
	try wsync-push n -e "$url" --weight-version 5
	for which in 1 2; do
		version=3 turn $which
		expect_status 5
		err_has "has weight version 5, and 3 is older"
	done
	expect_journal "$url" 'paths.count("/pause_generation")' 1
	version=3 turn 1 --allow-older
	expect_status 0
}
