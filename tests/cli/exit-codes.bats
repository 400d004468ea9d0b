#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Every exit code is provoked once by a real program, and its word stands at the end of the JSON
# stream.
load helpers

prepare() {
	safetensors small.safetensors a.weight:BF16:64,32 b.weight:F32:1000 >/dev/null
	for p in wsync-push wsync-endpoint; do
		[ -x "$bin/$p" ] || skip "$p is not built"
	done
}

# expect CODE WORD: the status, the end of the stream, and one sentence on stderr.
expect() {
	expect_status "$1"
	expect_json '(lines[-1]["type"], lines[-1]["ok"], lines[-1]["exit"],
		lines[-1]["error"]["code"])' "('end', False, $1, '$2')"
	err_has "$(json 'lines[-1]["error"]["message"]')"
	grep -q "^${last%% *}: " "$scratch/.err" ||
		explain "expected the program's name before the message"
}

@test "0: every endpoint has the new weights" {
	endpoint one
	try wsync-push small.safetensors -e "$url" --verify hash --json
	expect_status 0
	expect_json 'lines[-1]["ok"], lines[-1]["exit"], "error" in lines[-1]' "(True, 0, False)"
}

@test "1 mismatch: an endpoint holds other bytes than were sent" {
	endpoint one --fault flip:update_weights_from_distributed:1
	try wsync-push small.safetensors -e "$url" --verify hash --json
	expect 1 mismatch
}

@test "2 usage: an option that does not exist, and options that exclude each other" {
	try wsync-push small.safetensors --no-such-option --json
	expect_status 2
	expect_out ""
	try wsync-push small.safetensors -e 127.0.0.1:1 --pause in_place --flush last --json
	expect 2 usage
}

@test "3 input: a file that is shorter than its header says" {
	truncate -s -1 small.safetensors
	try wsync-push small.safetensors --dry-run --json
	expect 3 input
}

@test "4 unreachable: nothing listens" {
	try wsync-push small.safetensors -e "127.0.0.1:$(free_port)" --json
	expect 4 unreachable
}

@test "5 refused: the endpoint says no" {
	endpoint one --fault refuse:update_weights_from_distributed:1
	try wsync-push small.safetensors -e "$url" --json
	expect 5 refused
}

@test "6 data: endpoints whose torch releases cannot form one group" {
	endpoint old --torch 1.13
	old=$url
	endpoint new --torch 2.6
	try wsync-push small.safetensors -e "$old" -e "$url" --init-timeout 20 --json
	expect 6 data
}

@test "7 device: a data plane that this machine has not" {
	try wsync-push small.safetensors -e 127.0.0.1:1 --backend nccl \
		--nccl-lib /nowhere/libnccl.so.2 --json
	expect 7 device
}

@test "8 system: standard output is full" {
	[ -c /dev/full ] || skip "no /dev/full"
	status=0
	wsync-push --dry-run small.safetensors >/dev/full 2>err || status=$?
	[ "$status" = 8 ]
	grep -q 'writing standard output: No space left on device' err
}

@test "9 partial: one of two endpoints does not hold what was sent" {
	endpoint one --fault flip:update_weights_from_distributed:1
	one=$url
	endpoint two
	try wsync-push small.safetensors -e "$one" -e "$url" --verify hash --json
	expect 9 partial
}

@test "10 timeout: an endpoint never answers" {
	endpoint one --fault hang:update_weights_from_distributed:1
	try wsync-push small.safetensors -e "$url" --timeout 1 --json
	expect 10 timeout
}

@test "11 unknown: no token of the prompt was cached before" {
	llama m
	endpoint one --model m --lineage vllm-0.33
	try wsync-push m -e "$url" --json
	try wsync-verify caches -e "$url" --between true --tokens 8 --json
	expect 11 unknown
}

# Asks the parent of the program how it died: a shell cannot tell 130 from death by SIGINT.
@test "a signal: the program dies by it, and its stream has an end" {
	endpoint one --fault hang:update_weights_from_distributed:1
	/usr/bin/python3 - "$url" >outcome <<-'END'
		import signal, subprocess, sys, time
		p = subprocess.Popen(["wsync-push", "small.safetensors", "-e", sys.argv[1],
		                      "--json", "-v"],
		                     stdout=open("out", "w"), stderr=open("err", "w"),
		                     preexec_fn=lambda: signal.signal(signal.SIGINT,
		                                                      signal.default_int_handler))
		until = time.monotonic() + 180
		while "pause" not in open("out").read():
		    assert time.monotonic() < until
		    time.sleep(0.05)
		p.send_signal(signal.SIGINT)
		print(p.wait(180))
	END
	out=$(<out) err=$(<err) last=wsync-push status=$(<outcome)
	expect_status -2
	expect_json 'lines[-1]["type"], lines[-1]["ok"], lines[-1]["error"]["code"]' \
		"('end', False, 'cancelled')"
	err_has "interrupted, cleaning up"
}
