#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# What people see of a push: lines, the progress line, and what becomes of it at a signal.
load helpers

prepare() {
	safetensors small.safetensors a.weight:BF16:64,32 b.weight:F32:1000 c:U8:7 >/dev/null
}

@test "a push" {
	endpoint one --tp 2
	try wsync-push small.safetensors -e "$url" --bucket-size 4KiB --weight-version 7 \
		--verify hash
	expect_status 0
	expect_err ""
	timeless
	golden push-text
}

@test "a push with everything it can tell" {
	endpoint one --tp 2
	try wsync-push small.safetensors -e "$url" --bucket-size 4KiB -v
	expect_status 0
	timeless
	golden push-text-verbose
	err_has "wsync-push: POST $url/init_weights_update_group: HTTP 200 after TIME"
}

@test "a dry run" {
	try wsync-push -n small.safetensors --bucket-size 4KiB
	expect_status 0
	expect_err ""
	golden push-text-dry-run
}

@test "a push that is refused halfway" {
	endpoint one --fault refuse:update_weights_from_distributed:2
	try wsync-push small.safetensors -e "$url" --bucket-size 4KiB
	expect_status 5
	timeless
	golden push-text-refused
	golden_err push-text-refused-err
}

# hung: a push that hangs in its bucket for a second, on a terminal as far as it knows.
hung() {
	endpoint one --fault hang:update_weights_from_distributed:1
	WSYNC_FAKE_TTY=1 try wsync-push small.safetensors -e "$url" --bucket-timeout 1s "$@"
	expect_status 10
}

@test "the progress line is drawn in place and leaves nothing behind" {
	hung --bucket-timeout 3s
	[[ $err == *$'\rtransfer '*' bucket 1 of 1, 7.91 KiB'$'\033[K'* ]] ||
		explain "no progress line"
	draws=$(tr '\r' '\n' <<<"$err" | grep -c '^transfer')
	[ "$draws" -ge 3 ] && [ "$draws" -le 45 ] || explain "drawn $draws times in three seconds"
	err=$(/usr/bin/python3 "$repo/tests/cli/screen.py" <<<"$err")
	[[ $'\n'$err != *$'\n'"transfer "* ]] || explain "a progress line is left over"
	[[ $err == "wsync-push: bucket 1 of 1: "* ]] || explain "something is left over"
}

@test "the progress line fits a narrow terminal" {
	COLUMNS=50 hung
	widest=$(tr '\r\n' '\n\n' <<<"$err" | sed -n 's/\x1b\[[0-9;]*[mK]//g; /^transfer/p' | wc -L)
	[ "$widest" = 49 ] || explain "$widest columns of 50"
}

@test "no progress line where nobody would see it" {
	for how in --json -q --progress=none; do
		hung "$how"
		err_lacks $'\r'
	done
	export TERM=dumb
	hung
	err_lacks $'\r'
}

# A resume that hangs keeps the clean-up waiting; the second signal is for that.
signal_thrice() { # URL
	run /usr/bin/python3 - "$1" <<-'PY'
		import json, os, signal, subprocess, sys, time, urllib.request
		url = sys.argv[1]
		p = subprocess.Popen(["wsync-push", "small.safetensors", "-e", url],
		                     env=dict(os.environ, WSYNC_FAKE_TTY="1"),
		                     stdout=subprocess.DEVNULL,
		                     stderr=subprocess.PIPE, text=True)
		def asked(path):
		    with urllib.request.urlopen(url + "/wsync/journal", timeout=180) as reply:
		        return path in [r["path"] for r in json.load(reply)["requests"]]
		end = time.time() + 180
		while not asked("/continue_generation"):
		    assert time.time() < end
		    time.sleep(0.05)
		p.terminate()
		time.sleep(0.05)
		p.terminate()  # the same wish: timeout(1) tells its child, then its whole group
		try:
		    p.wait(0.5)
		    print("the first signal was enough")
		except subprocess.TimeoutExpired:
		    began = time.time()
		    p.terminate()
		    p.wait(180)
		    print(p.returncode == -signal.SIGTERM, time.time() - began < 8)
		print(p.stderr.read().count("interrupted, cleaning up (again to quit at once)\n"))
	PY
}

# Two signals within 0.3 s count as one. On a busy machine the second one may come later, so there
# are three tries.
@test "a signal ends the transfer, a second one ends the clean-up" {
	for try in 1 2 3; do
		endpoint "e$try" --fault hang:continue_generation:1
		signal_thrice "$url"
		[ "$output" != $'True True\n1' ] || return 0
	done
	echo "$output" >&2
	false
}

# timeout(1) sends its signal twice, and no shell script should have to know.
# On a busy machine a push may not have come to its pause by then, so it gets more time.
@test "a push ended by timeout cleans up" {
	for seconds in 1 8 64; do
		endpoint "after$seconds" --fault hang:update_weights_from_distributed:1
		try timeout --preserve-status "$seconds" wsync-push small.safetensors -e "$url" \
			--on-partial resume
		expect_status 143
		err_has "interrupted, cleaning up"
		curl -sS --max-time 180 "$url/wsync/journal" >journal
		! grep -q update_weights_from_distributed journal || break
	done
	grep -q update_weights_from_distributed journal || explain "the push never came so far"
	curl -sS --max-time 180 "$url/wsync/journal" | grep -q continue_generation ||
		explain "the endpoint is still paused"
}
