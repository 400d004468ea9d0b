#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# A reader of stdout or stderr that stops reading does not delay a push, its deadlines or its
# clean-up. What happens at signals, and at a limit of file sizes.
load helpers

prepare() {
	safetensors small.safetensors a.weight:BF16:64,32 b.weight:F32:1000 c:U8:7 >/dev/null
}

# stalled OPTION... PROGRAM...: stalled.py's words are in $out.
stalled() { try /usr/bin/python3 "$repo/tests/cli/stalled.py" "$@"; }

# each WORDS OPTION...: stalled.py at the same time with each kind of reader, pushing to an endpoint
# of its own, the second of whose three buckets never ends. All have to say WORDS. URL stands for
# the endpoint.
each() {
	local how words=$1 jobs=()
	shift
	for how in tty stdout stderr both; do
		endpoint "$how" --fault hang:update_weights_from_distributed:2
		mkdir "of-$how"
		(cd "of-$how" && exec timeout 600 /usr/bin/python3 "$repo/tests/cli/stalled.py" \
			"--$how" --endpoint "$url" \
			"${@//URL/$url}" >said 2>&1 3>&-) &
		jobs+=($!)
	done
	wait "${jobs[@]}" || true
	for how in tty stdout stderr both; do
		out=$(<"of-$how/said") last="$how: $*"
		expect_out "$words"
	done
}

@test "a push whose output is stuck ends at its deadline and resumes" {
	each $'10\nresumed []' wsync-push ../small.safetensors --bucket-size 4KiB \
		--bucket-timeout 1s --on-partial resume -e URL -vv
}

@test "output to a file is never given up, however late its disk is" {
	try env SLOW="write .err 2500" LD_PRELOAD="$tools/hang_io.so" \
		ASAN_OPTIONS=verify_asan_link_order=0 wsync-push small.safetensors -e 127.0.0.1:1
	expect_status 4
	err_has "cannot connect"
}

@test "a push with a progress line on a stopped terminal ends at its deadline and resumes" {
	endpoint one --fault hang:update_weights_from_distributed:2
	stalled --tty --endpoint "$url" wsync-push small.safetensors --bucket-size 4KiB -t 1s \
		--on-partial resume -e "$url"
	expect_out $'10\nresumed []'
}

@test "a signal resumes the endpoint whatever is stuck" {
	each $'-15\nresumed []' --at URL update_weights_from_distributed --signal TERM \
		wsync-push ../small.safetensors --bucket-size 4KiB --on-partial resume -e URL -vv
}

@test "a second signal kills at once, whatever is stuck" {
	endpoint one --fault hang:continue_generation:1
	stalled --both --endpoint "$url" --at "$url" continue_generation --signal TERM \
		--signal TERM \
		wsync-push small.safetensors -e "$url" -vv
	[[ $out == $'-15\npaused '* ]] || explain "it cleaned up"
}

@test "output that nobody takes is dropped, counted and status 8, and the weights are there" {
	endpoint one
	stalled --stdout wsync-push small.safetensors -e "$url" --json -v --weight-version 3
	expect_out 8
	grep -Eq '^wsync-push: the last [0-9]+ lines of standard output were dropped, because nobody read them$' err ||
		explain "stderr: $(<err)"
	stalled --stderr wsync-push small.safetensors -e "$url" --json -vv --weight-version 4
	expect_out 8
	out=$(<out)
	expect_json 'lines[-1]["type"], lines[-1]["ok"], lines[-1]["weight_version"]' \
		"('end', True, '4')"
}

# As with less(1): what is printed is all that such a program is there for.
@test "a list waits for a reader who pauses, until a signal comes" {
	local names=()
	for i in {1..3000}; do names+=("model.layers.$i.mlp.down_proj.weight:U8:1"); done
	safetensors many.safetensors "${names[@]}" >/dev/null
	wsync-list-weights many.safetensors --json >whole
	run /usr/bin/python3 - <<-'PY'
		import fcntl, os, subprocess, time
		argv = ["wsync-list-weights", "many.safetensors", "--json"]
		p = subprocess.Popen(argv, stdout=subprocess.PIPE)
		first = os.read(p.stdout.fileno(), 100)
		time.sleep(1.5)  # longer than a push would wait
		print(p.poll(), first + p.stdout.read() == open("whole", "rb").read(), p.wait(180))
		p = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
		os.read(p.stdout.fileno(), 100)
		p.terminate()
		print(p.wait(180))
	PY
	[ "$output" = $'None True 0\n-15' ] || { echo "$output" >&2; false; }
}

# With a pager, whose reader needs longer than the deadline and three seconds.
@test "a dry run with a deadline waits for a reader who pauses" {
	local names=()
	for i in {1..3000}; do names+=("model.layers.$i.mlp.down_proj.weight:U8:1"); done
	safetensors many.safetensors "${names[@]}" >/dev/null
	run /usr/bin/python3 - <<-'PY'
		import json, os, subprocess, time
		p = subprocess.Popen(["wsync-push", "many.safetensors", "--dry-run", "--timeout",
		                      "1s", "--json"],
		                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
		first = os.read(p.stdout.fileno(), 100)
		time.sleep(6)
		out, err = p.communicate(timeout=60)
		lines = [json.loads(l) for l in (first + out).splitlines()]
		print(p.returncode, sum(l["type"] == "tensor" for l in lines),
		      b"does not respond" in err, b"hangs" in err)
	PY
	[ "$output" = "0 3000 False False" ] || { echo "$output" >&2; false; }
}

# The pipe of 4 KiB is emptied so slowly that a write of a whole piece takes longer than the grace.
@test "a reader who is slow loses nothing" {
	endpoint one
	run /usr/bin/python3 - "$url" <<-'PY'
		import fcntl, os, subprocess, sys, time
		end, start = os.pipe()
		fcntl.fcntl(start, 1031, 4096)  # F_SETPIPE_SZ
		p = subprocess.Popen(["wsync-push", "small.safetensors", "-e", sys.argv[1],
		                      "--bucket-size", "1KiB",
		                      "-vv"], stdout=start, stderr=start)
		os.close(start)
		text = b""
		while chunk := os.read(end, 256):
		    text += chunk
		    time.sleep(0.12 if p.poll() is None else 0)
		lines = text.decode().splitlines()
		print(p.wait(180), any(l.startswith("pushed ") for l in lines),
		      "dropped here" in text.decode(), len(text) > 6000)
	PY
	[ "$output" = "0 True False True" ] || { echo "$output" >&2; false; }
}

@test "a timer that goes on ticking does not cut the clean-up short" {
	endpoint one --fault hang:continue_generation:1
	run /usr/bin/python3 - "$url" <<-'PY'
		import json, signal, subprocess, sys, time, urllib.request
		url = sys.argv[1]
		def journal():
		    return json.load(urllib.request.urlopen(url + "/wsync/journal", timeout=180))
		p = subprocess.Popen(["wsync-push", "small.safetensors", "-e", url, "--json"],
		                     stdout=subprocess.PIPE,
		                     stderr=subprocess.DEVNULL)
		end = time.monotonic() + 180
		while not any(r["path"] == "/continue_generation" for r in journal()["requests"]):
		    assert time.monotonic() < end
		    time.sleep(0.02)
		for _ in range(4):
		    p.send_signal(signal.SIGXCPU)
		    time.sleep(0.2)
		p.communicate(timeout=180)
		print(p.returncode == -signal.SIGXCPU, journal()["state"]["paused"])
	PY
	[ "$output" = "True False" ] || { echo "$output" >&2; false; }
}

# limited BYTES COMMAND...: files may not grow beyond that many bytes; stdout and stderr are files.
limited() { try prlimit --fsize="$1" "${@:2}"; }

@test "a limit of file sizes is an error, and no signal that leaves endpoints paused" {
	endpoint one
	limited 600 wsync-push small.safetensors -e "$url" --bucket-size 1KiB --json
	expect_status 8
	err_has "wsync-push: writing standard output: File too large"
	last_state() { curl -sS --max-time 180 "$url/wsync/journal" |
		/usr/bin/python3 -c 'import json, sys
s = json.load(sys.stdin)["state"]; print(s["paused"], s["groups"], s["weight_version"])'; }
	[ "$(last_state)" = "False [] default" ] || explain "$(last_state)"
	# Of the files that it writes itself the push needs none.
	limited 1000 wsync-push small.safetensors -e "$url" --trace trace.json \
		--metrics metrics.prom --weight-version 5
	expect_status 0
	err_has "--trace: write trace.json"
	err_has "File too large"
	[ "$(last_state)" = "False [] 5" ] || explain "$(last_state)"
	[ ! -e trace.json ] && [ ! -e metrics.prom ]
	limited 0 wsync-register add "$url" --registry registry.json
	expect_status 8
	limited 600 wsync-push small.safetensors -e "$url" --backend disk --disk-dir .
	expect_status 8
}
