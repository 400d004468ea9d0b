#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# A server that is replaced by another one during a push, or one of several behind one address:
# every request is answered with success, and no server has everything.
load helpers

prepare() {
	llama m
	endpoint a
	a=$url
	a_pid=$pid
	endpoint b
	b=$url
}

# dies: python that kills a, and waits until all its threads have ended, which hold its connections.
dies() {
	echo "
    import os, time
    os.kill($a_pid, 9)
    try:
        while ') Z ' not in open('/proc/$a_pid/stat').read() or \
len(os.listdir('/proc/$a_pid/task')) > 1: time.sleep(.01)
    except OSError: pass # it is gone"
}

# replaced RULE: a proxy of a; where RULE (python over path and nth) becomes true, a dies and b
# takes its place.
replaced() {
	url=$a
	replies "
if ($1) and not kept:$(dies)
    kept['url'] = '$b'
if kept: url = kept['url']"
}

# refused PHASE: the push failed in that phase, and says why.
refused() {
	expect_status 4
	expect_json 'lines[-1]["error"]["phase"]' "$1"
	expect_json '"another server answers than at the beginning of the push" in lines[-1]["error"]["message"]' True
	expect_json 'lines[-1]["endpoints"][0]["state"]' partial
}

@test "tensor: a server that is replaced between buckets fails, without the version" {
	replaced 'path == "/update_weights_from_tensor" and nth == 3'
	try wsync-push m -e "$url" --backend tensor --bucket-size 16KiB --weight-version new --json
	refused transfer
	expect_json 'lines[-1]["endpoints"][0]["paused"]' True
	# it has a part, and answers nobody
	expect_journal "$b" 'j["state"]["paused"], j["state"]["weight_version"]' "(True, 'default')"
	try wsync-push m -e "$b" --backend tensor --bucket-size 16KiB --weight-version new
	expect_status 0
	expect_journal "$b" 'j["state"]["paused"], j["state"]["weight_version"]' "(False, 'new')"
}

@test "a server that is replaced when it is to be resumed is no success, by any way of sending" {
	local backend
	for backend in tensor disk gloo; do
		endpoint a
		a=$url
		a_pid=$pid
		replaced 'path == "/continue_generation"'
		try wsync-push m -e "$url" --backend "$backend" --json
		refused resume
		expect_json 'lines[-1]["endpoints"][0]["paused"]' False
	done
}

@test "... nor over gloo, when the server tells nothing of itself" {
	url=$a
	replies "
if path == '/continue_generation':$(dies)
    url = '$b'
if path == '/server_info': answer = 200, '{\"tp_size\":1,\"version\":\"0.5.15\"}'"
	try wsync-push m -e "$url" --json
	expect_status 4
	expect_json '"a server left group" in lines[-1]["error"]["message"]' True
	expect_json 'lines[-1]["endpoints"][0]["state"]' partial
}

@test "two servers behind one address are refused before anything changes" {
	local backend
	for backend in tensor disk gloo; do
		url=$a
		replies "url = ('$a', '$b')[count % 2]"
		try wsync-push m -e "$url" --backend "$backend" --bucket-size 16KiB --json
		expect_status 4
		expect_json '"several servers answer" in lines[-1]["error"]["message"]' True
		expect_json '[(e["ok"], e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
			"[(False, 'untouched', False)]"
	done
}

# A proxy whose patience is shorter than the server's: the server does what it was asked to, and
# nobody hears of it.
@test "an answer of a proxy in the server's place is no refusal: the endpoint is resumed" {
	endpoint e
	direct=$url
	safetensors small.safetensors a.weight:F32:64,16
	replies 'import urllib.request
if path == "/pause_generation":
    urllib.request.urlopen(urllib.request.Request(url + path, b"{}",
                                                  {"Content-Type": "application/json"}))
    answer = 504, "<html>504 Gateway Time-out</html>"'
	try wsync-push small.safetensors -e "$url" --json
	expect_status 5
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('untouched', False)]"
	curl -sS --max-time 180 "$direct/wsync/journal" | grep -q '"paused":false' ||
		explain "left paused"
}

@test "the result says what was established of the server" {
	try wsync-push m -e "$a" --json
	expect_status 0
	expect_json '[(e["ok"], e["evidence"]["word"], e["evidence"]["instance"]["strength"],
		e["evidence"]["instance"]["end"]) for e in lines[-1]["endpoints"]]' \
		"[(True, 'committed', 'sure', 'same')]"
	expect_json 'lines[-1]["endpoints"][0]["evidence"]["names"]' own-config
	try wsync-push m -e "$a" --json # now it lists what it has received
	expect_json 'lines[-1]["endpoints"][0]["evidence"]["names"]' list
	endpoint fresh
	try wsync-push m -e "$url" --json --config m/config.json
	expect_json 'lines[-1]["endpoints"][0]["evidence"]["names"]' rules
	# Only a seed, and no group: whether it was restarted cannot be known.
	url=$a
	replies "if path == '/server_info': answer = 200, '{\"tp_size\":1,\"version\":\"0.5.15\",\"random_seed\":1}'"
	try wsync-push m -e "$url" --backend tensor --json --verify none
	expect_status 0
	expect_json '[(e["ok"], e["state"], e["evidence"]["word"]) for e in lines[-1]["endpoints"]]' \
		"[(True, 'committed', 'acknowledged')]"
}

@test "--require refuses what is not established before anything changes" {
	try wsync-push m -e "$a" --require bytes
	expect_status 2
	err_has '--require bytes needs --verify hash'
	try wsync-push m -e "$a" --require names --verify none
	expect_status 2
	endpoint empty
	try wsync-push m -e "$url" --require names --json
	expect_status 5
	err_has 'the names were not compared with anything of the servers (--require names)'
	[ "$(journal "$url" 'paths.count("/pause_generation")')" = 0 ] || explain "it was paused"
	try wsync-push m -e "$url"
	expect_status 0
	try wsync-push m -e "$url" --exclude '*layers.0*' --verify hash --require bytes
	[ "$status" != 0 ] || explain "a part is no proof of all bytes"
}

@test "--require values reads what is sent as it is, and refuses it before the pause" {
	local bad dtype bytes
	while read -r dtype bytes bad; do
		safetensors zeros.safetensors --holes "a:$dtype:600,600" b:I32:7 >/dev/null
		try wsync-push zeros.safetensors -e "$a" --verify none --require values --json
		expect_status 0
		expect_json 'lines[-1]["endpoints"][0]["evidence"]["values_read"]' True
		/usr/bin/python3 - "$bytes" "$bad" <<-'END'
			import struct, sys
			with open("zeros.safetensors", "r+b") as f:
			    n, = struct.unpack("<Q", f.read(8))
			    f.seek(8 + n + 300001 * int(sys.argv[1]))
			    f.write(bytes.fromhex(sys.argv[2]))
		END
		try wsync-push zeros.safetensors -e "$a" --verify none --require values
		expect_status 3
		err_has "tensor 'a' has"
		err_has "at element 300001 (--require values)"
		out_has "untouched $a"
	done <<-END
		BF16 2 c07f
		F16 2 007c
		F32 4 000080ff
		F64 8 000000000000f87f
		F8_E4M3 1 ff
		F8_E5M2 1 7c
	END
	try wsync-push zeros.safetensors -e "$a" --verify none
	expect_status 0
	try wsync-push zeros.safetensors -e "$a" --require values --trust-values
	expect_status 2
}
