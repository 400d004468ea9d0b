#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# What wsync-push writes down, and wsync-ctl repair where it should not simply believe it. What is
# left by pushes that were killed is tried in tests/peers/test_fault_matrix.py.
load helpers

prepare() { safetensors small.safetensors a:F32:64,32 b:F32:64,32 c:F32:64,32; }

# Leaves a record: a push of which one endpoint refuses the second bucket, and stays paused.
leave() { # NAME OPTIONS...
	endpoint "$1" --fault refuse:update_weights_from_distributed:2 "${@:2}"
	status=0
	try wsync-push small.safetensors -e "$url" --bucket-size 8KiB --on-partial pause \
		--weight-version 7
	expect_status 5
	records=(state/wsync/pushes/*.json)
	[ -e "${records[0]}" ] || explain "no record"
}

@test "nothing is left by a push that ends well, and there is nothing to repair" {
	endpoint one
	try wsync-push small.safetensors -e "$url"
	expect_status 0
	[ -z "$(ls state/wsync/pushes)" ]
	try wsync-ctl repair
	expect_status 0
	expect_out "nothing to repair"
}

@test "half an update is told of until a push succeeds, and the push is repeated as it was" {
	leave one
	try wsync-ctl repair --json
	expect_status 9
	expect_json '[(l["process"], l["phase"], l["weight_version"], l["sources"], l["repeatable"])
		for l in lines if l["type"] == "transaction"]' \
		"[('ended', 'transfer', '7', ['small.safetensors'], True)]"
	expect_json '[(l["state"], l["paused"], l["resumed"], l["left_group"]) for l in lines
		if l["type"] == "endpoint"]' \
		"[('partial', True, False, True)]"
	expect_json 'lines[-1]["exit"], lines[-1]["error"]["endpoint"]' "(9, '$url')"
	mkdir elsewhere && cd elsewhere || return
	try wsync-ctl repair --again --json
	expect_status 0
	expect_json '[(l["ok"], l["exit"]) for l in lines if l["type"] == "again"]' "[(True, 0)]"
	try wsync-ctl version -e "$url"
	expect_out 7
	try wsync-ctl repair
	expect_out "nothing to repair"
}

# late_endpoint OPTIONS...: the first request to join reaches it only when the file `go` is there.
late_endpoint() {
	local direct
	endpoint one "$@"
	direct=$url
	proxy "$direct" 'run("touch asked; while [ -e asked ] && [ ! -e go ]; do sleep 0.05; done")'
	proxy "$direct" 'if path == "/init_weights_update_group" and nth == 1: url = args[0]' \
		pass "$url"
}

# An endpoint that takes up the request to join after the push has ended: it waits for a group that
# is gone.
late() { # OPTIONS...
	late_endpoint "$@"
	try wsync-push small.safetensors -e "$url" --init-timeout 300ms
	expect_status 10
	err_has "did not answer the request to join group"
	records=(state/wsync/pushes/*.json)
	[ -e "${records[0]}" ] || explain "no record"
}
joins() { shown | grep -q '"groups":\["'; }

@test "an endpoint that joins when the push is over is freed by the next push" {
	late --tp 2
	touch go
	eventually joins
	try wsync-push small.safetensors -e "$url" --init-timeout 30s
	expect_status 0
	[ -z "$(ls state/wsync/pushes)" ]
}

@test "an endpoint that joins when the push is over is freed by repair" {
	late
	try wsync-ctl repair
	expect_status 0
	out_has "may still take up the request to join"
	touch go
	eventually joins
	try wsync-ctl repair
	expect_status 0
	out_has "in order"
	out_lacks "may still"
	try wsync-ctl repair
	expect_out "nothing to repair"
	try wsync-push small.safetensors -e "$url" --init-timeout 30s
	expect_status 0
}

@test "info says who has paused an endpoint, as far as it was written down" {
	endpoint fresh
	try wsync-ctl info -e "$url"
	out_lacks "paused by"
	leave one
	try wsync-ctl info -e "$url"
	expect_status 0
	[[ $out =~ "$url: paused by a push "[0-9]+" s ago (process "[0-9]+" on "[^\ ]*"), \
which has ended: run wsync-ctl repair" ]] ||
		explain "nobody has paused it"
	try wsync-ctl info -e "$url" --json
	expect_json '[(l["paused_by"]["process"], l["paused_by"]["file"][-5:]) for l in lines
		if l["type"] == "endpoint"]' \
		"[('ended', '.json')]"
	try wsync-ctl info -e "$url" --json --state-dir elsewhere
	expect_json '[l["paused_by"] for l in lines if l["type"] == "endpoint"]' "[None]"
	try wsync-ctl repair --again
	expect_status 0
	try wsync-ctl info -e "$url"
	out_lacks "paused by"
	printf '{' >state/wsync/pushes/1-2.json
	try wsync-ctl info -e "$url"
	expect_status 0
	err_has "warning: "
}

@test "health says it too, since a paused server is healthy" {
	leave one
	try wsync-ctl health -e "$url"
	expect_status 0
	[[ $out == *"healthy"*"$url: paused by a push "*", which has ended: run wsync-ctl repair" \
		]] || explain "healthy, no more"
	try wsync-ctl health -e "$url" --json
	expect_json '[(l["ok"], l["paused_by"]["process"]) for l in lines
		if l["type"] == "endpoint"]' "[(True, 'ended')]"
}

@test "an endpoint that begins to join after its push was killed is let go" {
	endpoint one --tp 2 --fault slow:init_weights_update_group:1
	start push wsync-push small.safetensors -e "$url"
	eventually requested /init_weights_update_group 1
	kill -KILL "$pid"
	wait "$pid" || true
	eventually joins
	try wsync-ctl repair -t 20s
	expect_status 0
	try wsync-push small.safetensors -e "$url"
	expect_status 0
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "an endpoint that joins after the repair of its dead push stays recorded until then" {
	late_endpoint
	start push wsync-push small.safetensors -e "$url"
	eventually test -e asked
	kill -KILL "$pid"
	wait "$pid" || true
	try wsync-ctl repair
	expect_status 0
	out_has "may still take up the request to join"
	touch go
	eventually joins
	# A rank tries to connect about once a second, a slow one less often.
	settles() { try wsync-ctl repair; [ "$status" = 0 ] && [[ $out != *"may still"* ]]; }
	eventually settles
	try wsync-push small.safetensors -e "$url" --init-timeout 30s
	expect_status 0
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "a second push is refused while one is under way, or waits for it" {
	endpoint one --fault hang:update_weights_from_distributed:2
	start first wsync-push small.safetensors -e "$url" --bucket-size 8KiB --weight-version 7
	local first=$pid
	eventually requested /update_weights_from_distributed 2
	try wsync-push small.safetensors -e "$url"
	expect_status 5
	err_has "process $first "
	try wsync-push small.safetensors -e "$url" --lock-wait 100ms
	expect_status 10
	err_has "process $first "
	try wsync-ctl repair
	expect_status 0
	curl -sS "$url/wsync/journal" | grep -q '"paused":true' || explain "the living was repaired"
	start second wsync-push small.safetensors -e "$url" --lock-wait 20s
	sleep 0.2
	kill -KILL "$first"
	wait "$pid" || explain "the one that waited failed"
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "the later push is made again also where the clock was put back between them" {
	leave one --fault hang:update_weights_from_distributed:4
	sed -i -E 's/"began":[0-9]+/"began":99999999999/' "${records[0]}"
	start push wsync-push small.safetensors -e "$url" --bucket-size 8KiB --weight-version 8 \
		--json
	eventually requested /update_weights_from_distributed 4
	kill -KILL "$pid"
	wait "$pid" || status=$?
	try wsync-ctl repair --again --json
	expect_status 0
	expect_json '[l["weight_version"] for l in lines if l["type"] == "transaction"]' \
		"['7', '8']"
	try wsync-ctl version -e "$url"
	expect_out 8
}

@test "of two pushes that died with the same plan only the later is made again" {
	leave one
	later=${records[0]}
	sed -E 's/"began":[0-9]+/"began":1000000000/; s/"weight_version":"7"/"weight_version":"6"/' "$later" \
		>state/wsync/pushes/1-1.json
	chmod 600 state/wsync/pushes/1-1.json
	try wsync-ctl repair --again --json
	expect_status 0
	expect_json '[l["weight_version"] for l in lines if l["type"] == "transaction"]' \
		"['6', '7']"
	expect_json '[l["file"].rsplit("/")[-1] == "1-1.json" for l in lines
		if l["type"] == "again"]' '[False]'
	try wsync-ctl version -e "$url"
	expect_out 7
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "of two pushes that died by different names of an endpoint only the later is made again" {
	endpoint one --fault refuse:update_weights_from_distributed:2 \
		--fault hang:update_weights_from_distributed:4
	try wsync-push small.safetensors -e "${url/127.0.0.1/localhost}" --bucket-size 8KiB \
		--weight-version 8
	expect_status 5
	start push wsync-push small.safetensors -e "$url" --bucket-size 8KiB --weight-version 9 \
		--json
	eventually requested /update_weights_from_distributed 4
	kill -KILL "$pid"
	wait "$pid" || true
	try wsync-ctl repair --again --json
	expect_status 0
	expect_json '[l["weight_version"] for l in lines if l["type"] == "transaction"]' \
		"['8', '9']"
	expect_json 'len([l for l in lines if l["type"] == "again"])' 1
	try wsync-ctl version -e "$url"
	expect_out 9
}

@test "an option that wsync-push does not take any more is named, and nothing is lost" {
	leave one
	sed -i 's/"args":\[/&"--ue8m0",/' "${records[0]}"
	try wsync-ctl repair --again
	expect_status 2
	err_has "--ue8m0: with --quantize fp8 only"
	err_has "hint: wsync-push refuses an option that was recorded, maybe by another version: \
push by hand, without it"
	try wsync-ctl repair
	expect_status 9
	try wsync-push small.safetensors -e "$url"
	expect_status 0
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "--timeout bounds a repair and the pushes that it repeats" {
	leave one --fault hang:update_weights_from_distributed:3
	local began=$SECONDS
	try wsync-ctl repair --again --timeout 3s --json
	expect_status 10
	((SECONDS - began < 60)) || explain "it took $((SECONDS - began)) s"
	expect_json '[(l["ok"], l["exit"]) for l in lines if l["type"] == "again"]' "[(False, 10)]"
	compgen -G "state/wsync/pushes/*.json"
	try wsync-ctl repair --again --timeout 1ms
	[ "$status" = 10 ] || expect_status 9 # as far as it came
	compgen -G "state/wsync/pushes/*.json"
	try wsync-ctl repair --again --timeout 30s
	expect_status 0
	try wsync-ctl repair
	expect_out "nothing to repair"
}

# stays_partial OPTIONS...: this push arrives, but leaves the mixture, its record and the weight
# version.
stays_partial() {
	local before=$(cat "${records[0]}")
	try wsync-push "$@" -e "$url" --weight-version 8 --json
	expect_status 9
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('partial', True)]"
	expect_json 'lines[-1]["error"]["code"], lines[-1]["error"]["endpoint"]' \
		"('partial', '$url')"
	[ "$before" = "$(cat "${records[0]}")" ] || explain "the record of the earlier push changed"
	try wsync-ctl version -e "$url"
	out_lacks 8
	try wsync-ctl repair
	expect_status 9
	err_has "hint: push everything again: wsync-ctl repair --again, \
or wsync-push SOURCE -e $url"
}
# completes OPTIONS...: this push ends the mixture.
completes() {
	try wsync-push "$@" -e "$url" --weight-version 9
	expect_status 0
	try wsync-ctl version -e "$url"
	expect_out 9
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "a push of a part does not end the mixture that another push has left" {
	leave one
	stays_partial small.safetensors --include a
	stays_partial small.safetensors --exclude a
	try wsync-push small.safetensors -e "$url" --include a
	expect_status 9
	err_has "process "
	err_has " left a push of 3 tensors incomplete, and this push of 1 tensor is another part"
	err_has "hint: push everything again: wsync-ctl repair --again, \
or wsync-push SOURCE -e $url, without --include, --exclude and --sender"
	completes small.safetensors
}

@test "a push of a part that fails after its transfer does not resume the mixture" {
	endpoint one --fault refuse:update_weights_from_distributed:2
	direct=$url
	# After the second push has sent its part, its check of the weight version is refused.
	proxy "$url" "
if __import__('os').path.exists('$scratch/armed'):
    if path == '/update_weights_from_distributed': kept['sent'] = True
    if path == '/model_info' and 'sent' in kept: answer = (400, 'no')"
	try wsync-push small.safetensors -e "$url" --bucket-size 8KiB --weight-version 7
	expect_status 5
	touch armed
	try wsync-push small.safetensors -e "$url" --include a --weight-version 8 --json
	expect_status 5
	err_has "model_info"
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('partial', True)]"
	curl -sS "$direct/wsync/journal" | grep -q '"paused":true' || explain "it was resumed"
	rm armed
	completes small.safetensors
}

# leave_part [OPTION...]: like leave, by a push of b and c.
leave_part() {
	endpoint one --fault refuse:update_weights_from_distributed:2 "$@"
	direct=$url
	# PYTHON in this file runs when the weight version is asked for after a push of a.
	proxy "$url" "
import os
if os.path.exists('$scratch/after_a'):
    if path == '/update_weights_from_distributed': kept['sent'] = True
    if path == '/model_info' and 'sent' in kept: exec(open('$scratch/after_a').read())"
	try wsync-push small.safetensors -e "$url" --include '[bc]' --bucket-size 8KiB
	expect_status 5
}

# a_is_partial: a push of b and c completes only these two, and a push of everything ends the
# mixture.
a_is_partial() {
	rm -f after_a
	try wsync-push small.safetensors -e "$url" --include '[bc]' --bucket-size 8KiB
	expect_status 9
	err_has "left a push of 1 tensor incomplete, and this push of 2 tensors is another part"
	completes small.safetensors
}

@test "a part that another push has spoiled does not count as complete" {
	leave_part
	echo "answer = (200, '{\"weight_version\": \"theirs\"}')" >after_a
	try wsync-push small.safetensors -e "$url" --include a
	expect_status 5
	err_has "its weight version is 'theirs'"
	a_is_partial
}

@test "a part whose endpoint goes away after the transfer does not count as complete" {
	leave_part
	echo "raise ConnectionError" >after_a
	try wsync-push small.safetensors -e "$url" --include a
	expect_status 4
	a_is_partial
}

@test "a part whose hashes differ does not count as complete" {
	leave_part --keep memory --checksums --fault corrupt:update_weights_from_distributed:3:flip
	try wsync-push small.safetensors -e "$url" --include a --verify hash
	expect_status 1
	err_has "1 tensor differs from what was sent"
	a_is_partial
}

@test "a part whose source changes after the transfer does not count as complete" {
	# large enough that only the hashes use pread(2)
	safetensors small.safetensors {a,b,c}:U8:1048576
	leave_part --checksums
	mkfifo fifo
	HANG="pread small 1048576" HANG_FIFO=fifo LD_PRELOAD=$tools/hang_io.so \
		ASAN_OPTIONS=verify_asan_link_order=0 \
		start push wsync-push small.safetensors -e "$url" --include a --verify hash
	eventually grep -qr '"inherited":true' state/wsync/pushes # the transfer is over
	touch small.safetensors
	timeout 600 sh -c ': >fifo'
	finished push 3
	err_has "the file was overwritten"
	a_is_partial
}

@test "a smaller source whose names cannot be checked does not end a mixture" {
	leave one
	safetensors few.safetensors a:F32:64,32
	safetensors thin.safetensors x:F32:64 y:F32:64 z:F32:64
	stays_partial few.safetensors
	stays_partial few.safetensors --verify none
	stays_partial thin.safetensors
	url=${url/127.0.0.1/localhost}
	try wsync-push few.safetensors -e "$url"
	expect_status 9
	url=${url/localhost/127.0.0.1}
	try wsync-push few.safetensors -e "$url"
	err_has " left a push of 3 tensors incomplete, and this push of 1 tensor is smaller, \
without a check of its names"
	safetensors many.safetensors a:F32:64,32 b:F32:64,32 c:F32:64,32 d:F32:1
	completes many.safetensors --bucket-size 4KiB
}

@test "a checked push of everything ends any mixture" {
	llama m
	endpoint one --model m --fault refuse:update_weights_from_distributed:2
	try wsync-push m -e "$url" --bucket-size 8KiB --on-partial pause
	expect_status 5
	records=(state/wsync/pushes/*.json)
	sed -i -E 's/"tensors":[0-9]+,"bytes":[0-9]+/"tensors":999,"bytes":99999999/' \
		"${records[0]}"
	stays_partial m --verify none
	stays_partial m --include '*layers.0*'
	completes m
}

@test "two parts that failed are each completed by their own push, in any order" {
	safetensors six.safetensors a:F32:64,32 b:F32:64,32 c:F32:64,32 d:F32:64,32 e:F32:64,32 \
		f:F32:64,32
	endpoint one --fault refuse:update_weights_from_distributed:2 \
		--fault refuse:update_weights_from_distributed:4 \
		--fault refuse:update_weights_from_distributed:6
	local part parts=('[ab]' '[cd]' '[ef]')
	for part in "${parts[@]}"; do
		try wsync-push six.safetensors -e "$url" --include "$part" --bucket-size 8KiB \
			--on-partial pause
		expect_status 5
	done
	for part in '[cd]' '[ef]'; do
		try wsync-push six.safetensors -e "$url" --include "$part" --bucket-size 8KiB \
			--weight-version 8
		expect_status 9
	done
	completes six.safetensors --include '[ab]' --bucket-size 64KiB # other buckets, as good
}

@test "a sender's turn after one that failed does not end the round, and both come again" {
	safetensors four.safetensors a:F32:64,32 b:F32:64,32 c:F32:64,32 d:F32:64,32
	endpoint one --fault refuse:update_weights_from_distributed:2
	local turn
	for turn in 1:ab:5 2:cd:9 1:ab:0 2:cd:0; do
		IFS=: read -r sender part expected <<<"$turn"
		try wsync-push four.safetensors -e "$url" --sender "$sender/2" --lock L \
			--include "[$part]" \
			--bucket-size 8KiB --on-partial pause --weight-version 7
		expect_status "$expected"
	done
	try wsync-ctl version -e "$url"
	expect_out 7
	try wsync-ctl repair
	expect_out "nothing to repair"
}

# lines_of STATE_HOME: results of a source that fails, of a part of it, and of all of it.
lines_of() {
	safetensors few.safetensors a:F32:64,32
	endpoint "${1##*/}" --fault refuse:update_weights_from_distributed:2
	printf 'small.safetensors\t7\nfew.safetensors\t8\n' >list
	XDG_STATE_HOME=$1 STDIN=list try wsync-push --stdin -e "$url" --bucket-size 8KiB \
		--on-partial pause --json
	expect_json '[(l["exit"], [e["state"] for e in l["endpoints"]]) for l in lines
		if l["type"] == "result"]' \
		"[(5, ['partial']), (9, ['partial'])]"
	try wsync-ctl version -e "$url"
	out_lacks 8
}

@test "a smaller source of the same process leaves the record of the one that failed" {
	lines_of "$XDG_STATE_HOME"
	try wsync-ctl repair --again --json
	expect_status 0
	expect_json '[(l["weight_version"], l["sources"]) for l in lines
		if l["type"] == "transaction"]' \
		"[('7', ['small.safetensors']), ('8', ['few.safetensors'])]"
	try wsync-ctl version -e "$url"
	expect_out 8
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "without a state directory a process remembers what it left" {
	touch file
	lines_of "$scratch/file"
}

@test "a dry run asks and changes nothing" {
	leave one
	before=$(cat "${records[0]}")
	try wsync-ctl repair --dry-run --again --resume-partial
	expect_status 9
	[ "$before" = "$(cat "${records[0]}")" ]
	out_has "left paused"
}

@test "a mixture is resumed where that is wanted, and stays one" {
	leave one
	try wsync-ctl repair --resume-partial --json
	expect_status 9
	expect_json '[(l["state"], l["paused"], l["resumed"]) for l in lines
		if l["type"] == "endpoint"]' "[('partial', False, True)]"
	try wsync-ctl repair --json
	expect_status 9
}

@test "what is forgotten is forgotten, one endpoint or all" {
	leave one
	try wsync-ctl repair --forget -e 127.0.0.1:9
	expect_status 0
	[ -e "${records[0]}" ]
	try wsync-ctl repair --forget --dry-run
	[ -e "${records[0]}" ]
	try wsync-ctl repair --forget -e "$url"
	expect_status 0
	[ ! -e "${records[0]}" ]
	try wsync-ctl repair --forget --again
	expect_status 2
}

@test "an endpoint that is gone stays written down" {
	leave one
	kill "$pid"
	wait "$pid" || true
	try wsync-ctl repair
	expect_status 9
	try wsync-ctl repair --again
	expect_status 9
	err_has "was not pushed to again: "
	sed -i 's/"state":"partial"/"state":"untouched"/' "${records[0]}"
	try wsync-ctl repair
	expect_status 4
	[ -e "${records[0]}" ]
}

@test "a record that is cut, forged or foreign is told of and not acted upon" {
	leave one
	good=$(cat "${records[0]}")
	head -c 200 <<<"$good" >"${records[0]}"
	try wsync-ctl repair --again --json
	expect_status 3
	expect_json '[(l["process"], l["code"]) for l in lines if l["type"] == "transaction"]' \
		"[('unreadable', 'input')]"
	err_has "not JSON"
	printf '%s' "$good" | sed 's/"args":\[/"args":["evil",/' >"${records[0]}"
	try wsync-ctl repair --again
	expect_status 3
	err_has "'args' is missing or wrong"
	printf '%s' "$good" >"${records[0]}"
	chmod 666 "${records[0]}"
	try wsync-ctl repair --again
	expect_status 3
	err_has "others can write it"
	chmod 600 "${records[0]}"
	chmod 777 state/wsync/pushes
	try wsync-ctl repair --again
	expect_status 3
	err_has "others can write there"
	# A push goes on without, and says so.
	try wsync-push small.safetensors -e "$url"
	expect_status 0
	err_has "if this process is killed, nobody will know what it left"
	try wsync-push small.safetensors -e "$url" --state-dir state/wsync
	expect_status 3
}

@test "a process that cannot be seen from here is left alone, unless it is known to be dead" {
	leave one
	sed -i -e 's/"ended":true/"ended":false/' -e 's/"host":"[^"]*"/"host":"elsewhere"/' \
		-e 's/"boot_id":"[^"]*"/"boot_id":"another"/' "${records[0]}"
	try wsync-ctl repair --json
	expect_status 9
	expect_json 'lines[-1]["ok"], lines[-1]["error"]["code"], lines[-1]["error"]["endpoint"]' \
		"(False, 'partial', '$url')"
	err_has "hint: repair it there; if that process is dead: wsync-ctl repair --assume-dead"
	sed -i 's/"state":"partial"/"state":"untouched"/' "${records[0]}"
	try wsync-ctl repair
	expect_status 4
	err_has "$url was left alone: process"
	sed -i 's/"state":"untouched"/"state":"partial"/' "${records[0]}"
	try wsync-ctl repair --assume-dead
	expect_status 9
}

@test "a push that succeeds settles older records, also of invisible processes" {
	leave one
	sed -i -e 's/"ended":true/"ended":false/' -e 's/"host":"[^"]*"/"host":"elsewhere"/' \
		-e 's/"boot_id":"[^"]*"/"boot_id":"another"/' "${records[0]}"
	cp -p "${records[0]}" grouped.json
	safetensors two.safetensors --seed 2 a:F32:64,32 b:F32:64,32 c:F32:64,32
	try wsync-push two.safetensors -e "$url" --weight-version 8
	expect_status 0
	err_has "left it with some old and some new weights"
	try wsync-ctl repair
	expect_out "nothing to repair"
	# Where its group is still to be left, that is all that is done.
	sed 's/"grouped":false/"grouped":true/' grouped.json >"${records[0]}"
	chmod 600 "${records[0]}"
	try wsync-push two.safetensors -e "$url" --weight-version 9
	expect_status 0
	try wsync-ctl repair
	expect_status 0
	err_has "in another container"
	try wsync-ctl repair --again --assume-dead
	expect_status 0
	try wsync-verify weights two.safetensors -e "$url"
	expect_status 0
	try wsync-ctl version -e "$url"
	expect_out 9
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "a push by another name of the endpoint completes the one that failed" {
	endpoint one --checksums --fault refuse:update_weights_from_distributed:2
	local other=${url/127.0.0.1/localhost}
	try wsync-push small.safetensors -e "$other" --bucket-size 8KiB --on-partial pause \
		--weight-version 8
	expect_status 5
	try wsync-ctl info -e "$url"
	out_has "$url: paused by a push "
	safetensors two.safetensors --seed 2 a:F32:64,32 b:F32:64,32 c:F32:64,32
	try wsync-ctl repair -e "$url" --dry-run
	expect_status 9
	out_has "$other"
	try wsync-push two.safetensors -e "$url" --weight-version 9
	expect_status 0
	err_has "left it with some old and some new weights"
	try wsync-ctl repair
	expect_out "nothing to repair"
	try wsync-push two.safetensors -e "$url" --include a --weight-version 9
	expect_status 0
	try wsync-ctl repair --again
	expect_status 0
	try wsync-verify weights two.safetensors -e "$url"
	expect_status 0
}

@test "a push that is refused at once leaves the record of an earlier one, to be repeated" {
	leave one
	try wsync-push small.safetensors -e "$url" --protocol two-phase
	expect_status 5
	try wsync-ctl repair --again
	expect_status 0
	try wsync-ctl version -e "$url"
	expect_out 7
}

@test "a push that failed and goes on does not claim what another has settled" {
	endpoint one --fault refuse:update_weights_from_distributed:2
	lines_to --bucket-size 8KiB
	printf 'small.safetensors\n' >&7
	eventually grep -q '"type":"result"' push.out
	try wsync-push small.safetensors -e "$url" --weight-version 8
	expect_status 0
	exec 7>&-
	wait "$push" || true
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "a state directory that cannot be made is a warning, and an error where it was named" {
	endpoint one
	touch file
	XDG_STATE_HOME=$scratch/file try wsync-push small.safetensors -e "$url"
	expect_status 0
	err_has "other pushes are not kept away"
	try wsync-push small.safetensors -e "$url" --state-dir file
	expect_status 8
	err_has "hint: --state-dir names a directory that this user can write"
	XDG_STATE_HOME='' HOME='' try wsync-push small.safetensors -e "$url"
	expect_status 0
	err_has "no place for the state directory"
}

@test "what was written down by another program cannot be pushed again" {
	leave one
	sed -i 's/"again":{[^}]*}/"again":null/' "${records[0]}"
	try wsync-ctl repair --again
	expect_status 3
	err_has "cannot be repeated from here"
}

@test "a push that fails in its last bucket sets no label, and a push by hand completes it" {
	safetensors whole.safetensors a.weight:BF16:64,64 b.weight:BF16:64,64
	cp whole.safetensors cut.safetensors
	endpoint one
	meddle "$url" /update_weights_from_distributed 2 "truncate -s 12000 cut.safetensors"
	try wsync-push cut.safetensors -e "$url" --bucket-size 8KiB --weight-version 7
	expect_status 3
	try wsync-ctl version -e "$url"
	out_lacks 7
	try wsync-ctl repair
	expect_status 9
	cp whole.safetensors cut.safetensors
	try wsync-ctl repair --again
	expect_status 3
	try wsync-push cut.safetensors -e "$url" --weight-version 7
	expect_status 0
	try wsync-verify weights whole.safetensors -e "$url"
	expect_status 0
	try wsync-ctl version -e "$url"
	out_has 7
}

@test "a line of --stdin that finds the endpoint locked does not resume it under the other push" {
	endpoint one --fault refuse:continue_generation:1 --fault refuse:continue_generation:2 \
		--fault refuse:continue_generation:3 --fault hang:update_weights_from_distributed:2
	lines_to
	echo small.safetensors >&7
	eventually results 1
	start second wsync-push small.safetensors -e "$url" 7>&-
	eventually requested /update_weights_from_distributed 2
	echo small.safetensors >&7
	exec 7>&-
	wait "$push" || true
	out=$(<push.out)
	expect_json '[(l["exit"], l["endpoints"][0]["paused"]) for l in lines
		if l["type"] == "result"]' "[(5, True), (5, False)]"
	expect_journal "$url" 'paths.count("/continue_generation")' 3
}

@test "a source that was overwritten since is not pushed again under its old version" {
	leave one
	mkdir elsewhere && cd elsewhere || return
	safetensors "$scratch/small.safetensors" --seed 2 a:F32:64,32 b:F32:64,32 c:F32:64,32
	try wsync-ctl repair --again --json
	expect_status 3
	expect_json '[l for l in lines if l["type"] == "again"]' "[]"
	err_has "wsync-ctl: $scratch/small.safetensors: the file changed after process "
	err_has " pushed it as version 7"
	err_has "hint: push the version that you mean: \
wsync-push SOURCE -e $url --weight-version VERSION"
	try wsync-ctl version -e "$url"
	out_lacks 7
	try wsync-ctl repair
	expect_status 9
	rm "$scratch/small.safetensors"
	try wsync-ctl repair --again
	expect_status 3
	err_has "small.safetensors: "
	err_has "hint: push the version that you mean"
	cd "$scratch" || return
	prepare
	completes small.safetensors
}

@test "an adapter that was overwritten since is not pushed again" {
	local lora=$BATS_TEST_DIRNAME/../data/lora
	cp -r "$lora/good/plain" l
	chmod -R u+w l
	endpoint one --fault refuse:update_weights_from_distributed:2
	try wsync-push "$lora/bases/dense" -e "$url" --lora l --bucket-size 1KiB --on-partial pause
	expect_status 5
	touch l/adapter_model.safetensors
	try wsync-ctl repair --again
	expect_status 3
	err_has "$scratch/l/adapter_model.safetensors: the file changed"
}

@test "a synthetic model is pushed again" {
	endpoint one --fault refuse:update_weights_from_distributed:2
	try wsync-push synthetic:qwen3-0.6b:7 -e "$url" --include 'model.layers.0.*' \
		--bucket-size 8MiB --on-partial pause
	expect_status 5
	try wsync-ctl repair --again
	expect_status 0
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "a line of --stdin that fails before it is recorded leaves the records as they are" {
	safetensors few.safetensors --seed 3 a:F32:64,32
	endpoint one
	direct=$url
	proxy "$url" "
if path == '/update_weights_from_distributed' and nth == 2: answer = (400, 'no')
if path == '/server_info' and __import__('os').path.exists('$scratch/armed'): answer = (500, 'no')"
	lines_to --backend tensor
	printf 'few.safetensors\n' >&7
	eventually grep -q '"type":"result"' push.out
	try wsync-push small.safetensors -e "$url" --bucket-size 8KiB
	expect_status 5
	touch armed
	printf 'small.safetensors\n' >&7
	exec 7>&-
	wait "$pid" || true
	rm armed
	try wsync-push few.safetensors -e "$url"
	expect_status 9
	err_has "left a push of 3 tensors incomplete"
	try wsync-push small.safetensors -e "$url"
	expect_status 0
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "0.0.0.0 is this machine: a part pushed to 127.0.0.1 does not complete what failed there" {
	endpoint one --fault refuse:update_weights_from_tensor:2
	try wsync-push small.safetensors -e "${url/127.0.0.1/0.0.0.0}" --backend tensor \
		--bucket-size 8KiB
	expect_status 5
	try wsync-push small.safetensors --include a -e "$url"
	expect_status 9
	try wsync-push small.safetensors -e "$url"
	expect_status 0
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "a restarted server owes nothing of the push that failed before" {
	local lineage port
	for lineage in lenient vllm-0.33; do
		endpoint "first-$lineage" --lineage "$lineage"
		port=${url##*:}
		try wsync-push synthetic:qwen3-0.6b -e "$url" --verify none
		expect_status 0
		try wsync-push synthetic:qwen3-8b -e "$url" --verify none
		expect_status 5
		try wsync-ctl ready -e "$url"
		expect_status 1
		kill -9 "$pid"
		wait "$pid" 2>/dev/null || true
		endpoint "second-$lineage" --lineage "$lineage" --listen "127.0.0.1:$port"
		try wsync-ctl ready -e "$url"
		expect_status 0
		try wsync-push synthetic:qwen3-0.6b -e "$url" --verify none
		expect_status 0
		err_has 'it was restarted since push'
		try wsync-push synthetic:qwen3-0.6b -e "$url" --verify none
		expect_status 0
		err_lacks 'restarted'
		try wsync-ctl repair
		expect_status 0
		out_has 'nothing to repair'
	done
}

@test "a record is found by another address of the server" {
	local port
	endpoint named --fault refuse:update_weights_from_distributed:2 --listen 0.0.0.0:0
	port=${url##*:}
	try wsync-push small.safetensors -e "127.0.0.2:$port" --bucket-size 4KiB
	[ "$status" != 0 ] || explain "nothing was refused"
	try wsync-ctl ready -e "127.0.0.1:$port"
	expect_status 1
	out_has 'partial'
	try wsync-push small.safetensors -e "127.0.0.1:$port"
	expect_status 0
	try wsync-ctl ready -e "127.0.0.2:$port"
	expect_status 0
}

@test "of a push that was killed and one that was refused only the first is made again" {
	safetensors wrong.safetensors x:F32:64,32 y:F32:64,32 z:F32:64,32 >/dev/null
	endpoint one --fault hang:update_weights_from_distributed:2 \
		--fault refuse:update_weights_from_distributed:4
	start push wsync-push small.safetensors -e "$url" --bucket-size 8KiB --weight-version 7
	eventually requested /update_weights_from_distributed 2
	kill -KILL "$pid"
	wait "$pid" || :
	try wsync-push wrong.safetensors -e "$url" --bucket-size 8KiB --weight-version 8
	expect_status 5
	try wsync-ctl repair --again --json
	expect_status 0
	expect_json '[l["ok"] for l in lines if l["type"] == "again"]' '[True]'
	try wsync-ctl version -e "$url"
	expect_out 7
	try wsync-ctl ready -e "$url"
	expect_status 0
}

@test "resume refuses a mixture also by another address" {
	endpoint named --fault refuse:update_weights_from_distributed:2 --listen 0.0.0.0:0
	try wsync-push small.safetensors -e "127.0.0.2:${url##*:}" --bucket-size 4KiB
	[ "$status" != 0 ] || explain "nothing was refused"
	try wsync-ctl resume -e "127.0.0.1:${url##*:}"
	expect_status 5
	err_has 'it has some old and some new weights'
}

@test "repair finds a record also by another address of the server" {
	endpoint named --fault refuse:update_weights_from_distributed:2 --listen 0.0.0.0:0
	try wsync-push small.safetensors -e "127.0.0.2:${url##*:}" --bucket-size 4KiB
	[ "$status" != 0 ] || explain "nothing was refused"
	try wsync-ctl repair -e "127.0.0.1:${url##*:}" --again
	expect_status 0
	try wsync-ctl ready -e "127.0.0.1:${url##*:}"
	expect_status 0
}

label() { curl -sS "$1/model_info" | /usr/bin/python3 -c 'import json, sys
print(json.load(sys.stdin)["weight_version"])'; }

# A push that ends between its last byte and its weight version leaves new weights, which look old.
@test "new weights get the weight version that a push could not set any more" {
	local how
	for how in refuse slow; do
		endpoint "at-$how" --fault "$how:update_weight_version:2" --fault-delay 60s
		try wsync-push small.safetensors -e "$url" --weight-version 1
		expect_status 0
		if [ "$how" = slow ]; then
			start push wsync-push small.safetensors -e "$url" --weight-version 2 \
				--pause none
			eventually expect_journal "$url" 'paths.count("/update_weight_version")' 2
			kill -KILL "$pid"
			wait "$pid" || :
		else
			try wsync-push small.safetensors -e "$url" --weight-version 2
			[ "$status" != 0 ] || explain "the push succeeded"
			err_has "hint: the new weights still have the old weight version"
		fi
		try wsync-ctl ready -e "$url" --weight-version 1
		expect_status 1
		try wsync-ctl repair -e "$url" -n
		out_has "lacks weight version 2"
		[ "$(label "$url")" = 1 ] || explain "--dry-run has set it"
		try wsync-ctl repair -e "$url"
		expect_status 0
		out_has "has got weight version 2"
		[ "$(label "$url")" = 2 ] || explain "it was not set"
		try wsync-ctl repair -e "$url"
		expect_out "nothing to repair"
	done
}

@test "a weight version that somebody else has set since is not replaced" {
	endpoint a --fault refuse:update_weight_version:2
	try wsync-push small.safetensors -e "$url" --weight-version 1
	try wsync-push small.safetensors -e "$url" --weight-version 2
	expect_status 5
	curl -sS -d '{"new_version":"7"}' "$url/update_weight_version" >/dev/null
	try wsync-ctl repair
	expect_status 0
	[ "$(label "$url")" = 7 ] || explain "it was replaced"
	try wsync-ctl repair
	expect_out "nothing to repair"
}
