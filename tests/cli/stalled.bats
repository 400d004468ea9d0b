#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# A reader of stdout or stderr that stops reading holds up no push, no deadline and no clean-up.
load helpers

prepare() {
	safetensors small.safetensors a.weight:BF16:64,32 b.weight:F32:1000 c:U8:7 >/dev/null
}

# stalled OPTION... PROGRAM...: stalled.py's words are in $out.
stalled() { try /usr/bin/python3 "$repo/tests/cli/stalled.py" "$@"; }

# each WORDS OPTION...: stalled.py at the same time with each kind of reader, pushing to an endpoint of its own, the
# second of whose three buckets never ends. All have to say WORDS. URL stands for the endpoint.
each() {
	local how words=$1 jobs=()
	shift
	for how in tty stdout stderr both; do
		endpoint "$how" --fault hang:update_weights_from_distributed:2
		mkdir "of-$how"
		(cd "of-$how" && exec timeout 60 /usr/bin/python3 "$repo/tests/cli/stalled.py" "--$how" --endpoint "$url" \
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
	each $'10\nresumed []' wsync-push ../small.safetensors --bucket-size 4KiB --bucket-timeout 1s -e URL -vv
}

@test "a push with a progress line on a stopped terminal ends at its deadline and resumes" {
	endpoint one --fault hang:update_weights_from_distributed:2
	stalled --tty --endpoint "$url" wsync-push small.safetensors --bucket-size 4KiB -t 1s -e "$url"
	expect_out $'10\nresumed []'
}

@test "a signal resumes the endpoint whatever is stuck" {
	each $'-15\nresumed []' --at URL update_weights_from_distributed --signal TERM \
		wsync-push ../small.safetensors --bucket-size 4KiB -e URL -vv
}

@test "a second signal kills at once, whatever is stuck" {
	endpoint one --fault hang:continue_generation:1
	stalled --both --endpoint "$url" --at "$url" continue_generation --signal TERM --signal TERM \
		wsync-push small.safetensors -e "$url" -vv
	[[ $out == $'-15\npaused '* ]] || explain "it cleaned up"
}

@test "output that nobody takes is dropped, counted and status 8, and the weights are there" {
	endpoint one
	stalled --stdout wsync-push small.safetensors -e "$url" --json -v --weight-version 3
	expect_out 8
	grep -Eq '^wsync-push: the last [0-9]+ lines of standard output were dropped: nobody read them$' err ||
		explain "stderr: $(<err)"
	stalled --stderr wsync-push small.safetensors -e "$url" --json -vv --weight-version 4
	expect_out 8
	out=$(<out)
	expect_json 'lines[-1]["type"], lines[-1]["ok"], lines[-1]["weight_version"]' "('end', True, '4')"
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
		print(p.poll(), first + p.stdout.read() == open("whole", "rb").read(), p.wait(10))
		p = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
		os.read(p.stdout.fileno(), 100)
		p.terminate()
		print(p.wait(5))
	PY
	[ "$output" = $'None True 0\n-15' ] || { echo "$output" >&2; false; }
}

# The pipe of 4 KiB is emptied so slowly that a write of a whole piece takes longer than the grace.
@test "a reader who is slow loses nothing" {
	endpoint one
	run /usr/bin/python3 - "$url" <<-'PY'
		import fcntl, os, subprocess, sys, time
		end, start = os.pipe()
		fcntl.fcntl(start, 1031, 4096)  # F_SETPIPE_SZ
		p = subprocess.Popen(["wsync-push", "small.safetensors", "-e", sys.argv[1], "--bucket-size", "1KiB",
		                      "-vv"], stdout=start, stderr=start)
		os.close(start)
		text = b""
		while chunk := os.read(end, 256):
		    text += chunk
		    time.sleep(0.12 if p.poll() is None else 0)
		lines = text.decode().splitlines()
		print(p.wait(10), any(l.startswith("pushed ") for l in lines), "left out" in text.decode(), len(text) > 6000)
	PY
	[ "$output" = "0 True False True" ] || { echo "$output" >&2; false; }
}
