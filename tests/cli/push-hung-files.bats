#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# A file system that stops answering (tests/tools/hang_io.c): deadlines and signals end the push all
# the same, and the endpoints that are whole are resumed.
load helpers

prepare() {
	local i names=()
	for i in 0 1 2 3 4 5 6 7; do names+=("w$i:U8:1048576"); done
	safetensors source.safetensors "${names[@]}"
	mkfifo fifo
	export HANG_FIFO=$scratch/fifo
}

# hangs COMMAND...: with that library, which HANG or SLOW tells what to do.
hangs() { LD_PRELOAD="$tools/hang_io.so" ASAN_OPTIONS=verify_asan_link_order=0 "$@"; }

# hung WHAT OPTION...: a push whose file system hangs as WHAT says, into $url.
hung() {
	rm -f fifo.reached
	HANG=$1 hangs try wsync-push source.safetensors -e "$url" --bucket-size 2MiB --json "${@:2}"
	[ -e fifo.reached ] || explain "nothing hung"
}

# ends STATE PAUSED: the end line of $out says so of the endpoint, and the endpoint itself of its
# pause.
ends() {
	expect_json '[(l["error"]["code"], [(e["state"], e["paused"]) for e in l["endpoints"]])
	for l in lines
		if l["type"] == "end"]' "[('timeout', [('$1', $2)])]"
	err_has "hangs in a file system"
	paused "$2"
}

paused() { expect_journal "$url" 's["paused"]' "$1"; }
nothing_to_repair() {
	try wsync-ctl repair
	expect_status 0
	out_has "nothing to repair"
}

@test "the sender hangs in the middle: the push ends, and the partial endpoint stays paused" {
	endpoint one
	hung "sendfile source 5000000" -t 5
	expect_status 10
	ends partial True
	expect_journal "$url" 's["groups"]' '[]'
	unset HANG
	try wsync-push source.safetensors -e "$url"
	expect_status 0
	paused False
	nothing_to_repair
}

@test "a bucket's deadline is enough" {
	endpoint one
	hung "sendfile source 5000000" --bucket-timeout 5 --on-partial resume
	expect_status 10
	ends partial False
}

@test "the thread of the push hangs before the first byte: the endpoint is resumed" {
	endpoint one
	hung "fadvise source 3000000" -t 5
	expect_status 10
	ends untouched False
	nothing_to_repair
}

@test "an endpoint that has released memory stays paused, and its record keeps that" {
	endpoint one --lineage sglang-2026 --memory-saver drop
	try wsync-ctl sleep --tags kv_cache -e "$url"
	expect_status 0
	hung "fadvise source 3000000" -t 5 --asleep kv_cache
	expect_status 10
	ends untouched True
	try wsync-ctl repair
	expect_status 0
	paused False
	requested /resume_memory_occupation ||
		explain "it was resumed without its memory"
	nothing_to_repair
}

@test "an endpoint that another process has paused stays paused" {
	endpoint one --lineage session
	curl -sS -d '{}' "$url/pause_generation" >/dev/null
	hung "fadvise source 3000000" -t 5
	expect_status 10
	ends untouched True
	expect_journal "$url" 'paths.count("/continue_generation")' 0
	nothing_to_repair
}

@test "the thread that reads for --backend tensor hangs" {
	endpoint one
	hung "pread source 5000000" --bucket-timeout 15 --backend tensor
	expect_status 10
	ends partial True
}

@test "the record of the push cannot be written: the endpoint is resumed" {
	endpoint one
	hung "fsync state/wsync/pushes 2" -t 5
	expect_status 10
	ends untouched False
}

@test "a source that hangs before anything is asked: the deadlines hold, and the locks are free" {
	endpoint one
	hung "any source 0" -t 1
	expect_status 10
	ends untouched False
	hung "any source 0" --bucket-timeout 1
	expect_status 10
	try wsync-push source.safetensors -e "$url"
	expect_status 0
}

@test "a signal ends a push whose thread takes none" {
	endpoint one
	HANG="fadvise source 3000000" hangs start push wsync-push source.safetensors -e "$url" \
		--bucket-size 2MiB --json
	eventually test -e fifo.reached
	kill -TERM "$pid"
	finished push 143
	expect_json 'lines[-1]["error"]["code"], lines[-1]["endpoints"][0]["state"]' \
		"('cancelled', 'untouched')"
	paused False
	nothing_to_repair
}

# joins OPTION...: $pid is a push whose second bucket is never answered by the endpoint $server, and
# whose thread of checksums hangs in the source.
joins() {
	endpoint one --fault hang:update_weights_from_distributed:2
	server=$pid
	HANG="pread source 3000000" hangs start push wsync-push source.safetensors -e "$url" \
		--bucket-size 2MiB --verify hash --json "$@"
	eventually test -e fifo.reached
	eventually requested /update_weights_from_distributed 2
}

# The main thread of $pid wakes up ten times a second while it waits for an answer, and not at all
# while it joins.
is_still() {
	local before
	before=$(grep voluntary "/proc/$pid/status")
	sleep 1
	[ "$before" = "$(grep voluntary "/proc/$pid/status")" ]
}

@test "a failed push has time to join its threads" {
	joins --bucket-timeout 10s
	eventually is_still
	# longer than the 3 s of silence after a deadline, and far from the 13 s of the clean-up
	sleep 4
	while kill -0 "$pid" 2>/dev/null; do timeout 1 sh -c ': >fifo' || true; done
	finished push 10
	err_has "bucket 2 of 4: the deadline passed without an answer from $url"
	err_lacks "hangs in a file system"
}

@test "a failed push whose threads do not end says that it does not respond" {
	joins
	kill -KILL "$server" # only now, or the push fails before its thread hangs
	finished push 10
	err_has "the deadline passed while this process does not respond"
}

@test "a thread that wakes up during the clean-up changes nothing any more" {
	endpoint one --fault slow:destroy_weights_update_group:1 --fault-delay 2s
	HANG="fadvise source 3000000" hangs start push wsync-push source.safetensors -e "$url" \
		--bucket-size 2MiB --json -t 5
	eventually test -e fifo.reached
	eventually requested /destroy_weights_update_group
	: >fifo
	finished push 10
	ends untouched False
	expect_journal "$url" 'paths.count("/update_weights_from_distributed")' 0
}

@test "with --stdin the line and the end are told" {
	endpoint one
	echo source.safetensors >lines
	status=0
	HANG="sendfile source 5000000" hangs timeout 600 wsync-push --stdin -e "$url" \
		--bucket-size 2MiB --json -t 5 <lines >out 2>err || status=$?
	out=$(<out) err=$(<err)
	expect_status 10
	expect_json '[(l["type"], l["exit"], l.get("results")) for l in lines
		if l["type"] in ("result", "end")]' \
		"[('result', 10, None), ('end', 10, 1)]"
}

@test "a gateway ends, since no other push could begin" {
	endpoint one
	local server=$url port=${url##*:}
	HANG="fadvise source 3000000" hangs start gateway wsync-gateway --listen 127.0.0.1:0 \
		--json --bucket-size 2MiB -t 5
	local gateway=$pid
	eventually grep -q '"ready"' gateway.out
	local at
	at=$(sed -n 's/.*"type":"ready".*"url":"\([^"]*\)".*/\1/p' gateway.out)
	curl -s -H "Content-Type: application/json" -d "{\"host\":\"127.0.0.1\",\"port\":$port}" "$at/add_inference_endpoint" >/dev/null
	run ! curl -s -H "Content-Type: application/json" \
		-d "{\"source\":\"$scratch/source.safetensors\"}" "$at/sync_inference_weights"
	finished gateway 10 "$gateway"
	err_has "hangs in a file system"
	url=$server
	paused False
}

@test "a slow disk is not blamed on the server" {
	endpoint one
	SLOW="sendfile source 1500" hangs try wsync-push source.safetensors -e "$url" \
		--bucket-size 8MiB --bucket-timeout 5 --json
	expect_status 10
	expect_json '[l["starved_ns"] > l["ns"] / 2 for l in lines if l["type"] == "hang"]' "[True]"
}

@test "a push of wsync-verify that hangs in a file system ends; without weights paused" {
	endpoint one
	try wsync-push source.safetensors -e "$url"
	expect_status 0
	HANG="sendfile source 5000000" hangs try wsync-verify weights source.safetensors \
		-e "$url" --reset --yes \
		--bucket-timeout 5s --json
	expect_status 10
	[ -e fifo.reached ] || explain "nothing hung"
	err_has "hangs in a file system"
	expect_json '[(l["error"]["code"], l["endpoints"]) for l in lines if l["type"] == "end"]' \
		"[('timeout', 1)]"
	paused True
	try wsync-ctl repair
	expect_status 9
}
