#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Pushes to endpoints that have released memory. A server dies of being asked for memory twice, and
# of weights that come while theirs are released; wsync-endpoint --lineage sglang-2026 does that
# too.
load helpers

prepare() {
	safetensors one.safetensors a:F32:64,32 b:F32:64,32 c:F32:64,32
	safetensors two.safetensors --seed 2 a:F32:64,32 b:F32:64,32 c:F32:64,32
}

expect_state() { # URL RELEASED PAUSED
	expect_journal "$1" 's["released"], s["paused"]' "($2, $3)"
}

is_asked() { [ "$(journal "$1" "paths.count('$2')")" = "$3" ]; }

# asleep NAME MEMORY OPTION...: an endpoint that has the weights of one.safetensors, version 7, and
# released MEMORY.
asleep() {
	endpoint "$1" --lineage sglang-2026 --memory-saver drop --checksums "${@:3}"
	try wsync-push one.safetensors -e "$url" --weight-version 7
	expect_status 0
	try wsync-ctl sleep --tags "$2" -e "$url"
	expect_status 0
}

# killed ROUTE N OPTION...: a push of two.safetensors to $url, killed when the endpoint has got that
# request N times.
killed() {
	start push wsync-push two.safetensors -e "$url" --bucket-size 8KiB \
		--weight-version 8 "${@:3}"
	eventually is_asked "$url" "$1" "$2"
	kill -KILL "$pid"
	wait "$pid" || true
}

expect_two() { # URL
	expect_state "$1" '[]' False
	try wsync-verify weights two.safetensors -e "$1"
	expect_status 0
	try wsync-ctl repair
	expect_out "nothing to repair"
}

# What a failed push to $url with both kinds of memory has left must be.
expect_left() {
	expect_status "$1"
	err_has "$url: left paused: its weights were released and are not complete; \
still released: kv_cache"
	err_has "hint: when the cause is gone: wsync-ctl repair --again, \
or push again with --asleep recorded"
	expect_state "$url" "['kv_cache']" True
}

@test "weights that were woken and not sent are no weights to answer with" {
	asleep one weights --fault hang:flush_cache:3
	try wsync-push two.safetensors -e "$url" --asleep weights --bucket-timeout 2s \
		--weight-version 8
	expect_status 10
	err_has "left paused: its weights were released and are not complete"
	expect_state "$url" '[]' True
	try wsync-ctl repair
	expect_status 9
	err_has "its weights were released and are not complete"
	expect_state "$url" '[]' True
	try wsync-ctl repair --again
	expect_status 0
	expect_two "$url"
}

@test "nor are they when the push was killed before it sent anything" {
	asleep one weights --fault hang:flush_cache:3
	killed /flush_cache 3 --asleep weights
	try wsync-ctl repair --json
	expect_status 9
	expect_json '[(l["ok"], l["state"], l["paused"], l["asleep"]) for l in lines
		if l["type"] == "endpoint"]' \
		"[(False, 'partial', True, None)]"
	try wsync-ctl repair --again
	expect_status 0
	expect_two "$url"
}

@test "released weights are not woken by a push that sends a part of them" {
	asleep one weights,kv_cache
	for part in "--include a" "--exclude c" "--sender 1/2 --lock turns" \
		"--include a --dry-run"; do
		# shellcheck disable=SC2086  # words
		try wsync-push two.safetensors -e "$url" --asleep weights,kv_cache \
			--weight-version 8 $part
		expect_status 2
		err_has "$url: its weights were released and have no values, and --"
		err_has "sends only a part of them"
		err_has "hint: push all of them; \
or wake them and keep the endpoint paused until every part is sent: wsync-ctl pause"
	done
	expect_state "$url" "['weights', 'kv_cache']" False
	is_asked "$url" /pause_generation 1 # of the first push
	# The way that the hint shows.
	try wsync-ctl pause -e "$url"
	try wsync-ctl wake --tags weights -e "$url"
	expect_status 0
	for part in "--include a" "--exclude a"; do
		# shellcheck disable=SC2086  # words
		try wsync-push two.safetensors -e "$url" $part --pause none
		expect_status 0
	done
	try wsync-ctl wake --tags kv_cache -e "$url"
	try wsync-ctl resume -e "$url"
	expect_status 5
	err_has "its weights were released and are not complete"
	try wsync-ctl resume -e "$url" --force
	expect_status 0
	expect_two "$url"
}

@test "weights that were woken and are incomplete are not completed by a part of them" {
	asleep one weights --fault refuse:update_weights_from_distributed:3
	try wsync-push two.safetensors -e "$url" --bucket-size 8KiB --asleep weights
	expect_status 5
	try wsync-push two.safetensors -e "$url" --asleep recorded --include a
	expect_status 2
	err_has "hint: push all of them first, with --asleep recorded"
	expect_state "$url" '[]' True
	try wsync-push two.safetensors -e "$url" --asleep recorded
	expect_status 0
	# Caches alone may sleep while a part is sent.
	try wsync-ctl sleep --tags kv_cache -e "$url"
	try wsync-push two.safetensors -e "$url" --asleep kv_cache --include a
	expect_status 0
	expect_two "$url"
}

@test "a push that failed after it woke weights is repeated without a second wake" {
	asleep one weights,kv_cache --fault refuse:update_weights_from_distributed:3
	try wsync-push two.safetensors -e "$url" --bucket-size 8KiB --asleep weights,kv_cache
	expect_left 5
	# The same command again would wake the weights again, and without --asleep the caches would
	# stay released.
	try wsync-push two.safetensors -e "$url" --asleep weights,kv_cache
	expect_status 2
	err_has "an earlier push or wsync-ctl left kv_cache released, with incomplete weights, \
and --asleep says weights,kv_cache"
	err_has "hint: give --asleep recorded; if the server was restarted since, \
or others changed its memory: wsync-ctl repair --forget --endpoint $url"
	try wsync-push two.safetensors -e "$url"
	expect_status 2
	err_has "--asleep is missing"
	expect_state "$url" "['kv_cache']" True
	try wsync-ctl repair --again
	expect_status 0
	expect_two "$url"
	is_asked "$url" /resume_memory_occupation 2
}

@test "--asleep recorded wakes what is still released, and nothing where nothing is" {
	asleep one weights,kv_cache --fault refuse:update_weights_from_distributed:3
	try wsync-push two.safetensors -e "$url" --bucket-size 8KiB --asleep weights,kv_cache
	expect_left 5
	try wsync-push two.safetensors -e "$url" --asleep recorded
	expect_status 0
	expect_two "$url"
	try wsync-push two.safetensors -e "$url" --asleep recorded
	expect_status 0
	is_asked "$url" /resume_memory_occupation 2
}

@test "a push that was killed in its transfer is repeated with what is still released" {
	asleep one weights,kv_cache --fault hang:update_weights_from_distributed:3
	killed /update_weights_from_distributed 3 --asleep weights,kv_cache
	try wsync-ctl repair
	expect_status 9
	out_has "still released: kv_cache"
	expect_state "$url" "['kv_cache']" True
	try wsync-ctl repair --again
	expect_status 0
	expect_two "$url"
}

@test "a push that was killed while it verified: repair wakes the caches, then resumes" {
	asleep one weights,kv_cache --fault hang:weights_checker:1
	killed /weights_checker 1 --asleep weights,kv_cache --verify hash
	try wsync-ctl repair --dry-run
	out_has "still released: kv_cache"
	expect_state "$url" "['kv_cache']" True
	try wsync-ctl repair
	expect_status 0
	out_has "resumed  committed"
	expect_two "$url"
	try wsync-ctl ready -e "$url"
	expect_status 0
	[ "$(journal "$url" "[p for p in paths if p in ('/resume_memory_occupation', \
'/continue_generation')][-2:]")" = \
		"['/resume_memory_occupation', '/continue_generation']" ] ||
		explain "$(journal "$url" paths)"
}

@test "a push that fails when the weights are whole wakes the caches, then resumes" {
	asleep one weights,kv_cache --fault refuse:update_weight_version:2
	try wsync-push two.safetensors -e "$url" --asleep weights,kv_cache --weight-version 8
	expect_status 5
	try wsync-ctl repair # which gives it the weight version
	expect_status 0
	out_has "has got weight version 8"
	expect_two "$url"
}

@test "what is written down before a wake says that it may have been obeyed" {
	asleep one weights,kv_cache --fault hang:resume_memory_occupation:1
	killed /resume_memory_occupation 1 --asleep weights,kv_cache
	try wsync-ctl repair --json
	expect_status 9
	expect_json '[(l["state"], l["paused"], l["asleep"], l["unsure"]) for l in lines
		if l["type"] == "endpoint"]' \
		"[('committed', False, 'kv_cache', 'weights'), ('partial', True, 'kv_cache', 'weights')]"
	err_has "hint: restart the server"
	try wsync-push two.safetensors -e "$url" --asleep recorded
	expect_status 5
	err_has "to wake its weights was not answered, and may have been obeyed"
	try wsync-push two.safetensors -e "$url" --asleep weights,kv_cache --include a
	expect_status 2
	is_asked "$url" /resume_memory_occupation 1
}

# What is not answered is obeyed all the same, perhaps later.
@test "sleep, wake and pause are recorded before their request" {
	for how in kill timeout; do
		for what in sleep:release_memory_occupation:1 wake:resume_memory_occupation:1 \
			pause:pause_generation:2; do
			IFS=: read -r command route nth <<<"$what"
			endpoint one --lineage sglang-2026 --memory-saver drop \
				--fault "hang:$route:$nth"
			try wsync-push one.safetensors -e "$url" --weight-version 7
			[ $command != wake ] || try wsync-ctl sleep -e "$url"
			if [ $how = kill ]; then
				start ctl wsync-ctl $command -e "$url"
				eventually is_asked "$url" "/$route" "$nth"
				kill -KILL "$pid"
				wait "$pid" || true
			else
				try wsync-ctl $command -e "$url" --timeout 500ms
				expect_status 10
			fi
			# not known whether it has weights at all; or paused
			try wsync-ctl ready -e "$url" --json
			expect_status 1
			expect_json '[l["reason"] for l in lines if l["type"] == "endpoint"]' \
				"['$([ $command = pause ] && echo paused || echo partial)']"
			[ $command = pause ] && continue
			try wsync-push one.safetensors -e "$url" --only-stale --weight-version 7
			expect_status 5
			err_has "hint: restart the server"
			try wsync-push two.safetensors -e "$url" --asleep recorded
			expect_status 5
			err_has "hint: restart the server"
			try wsync-ctl wake -e "$url"
			expect_status 5
			err_has "was not answered, and to ask again may crash the server"
			try wsync-ctl repair -e "$url"
			expect_status 9
			err_has "hint: restart the server"
			try wsync-ctl resume -e "$url"
			expect_status 5
		done
	done
}

@test "a push that is refused before it wakes anything leaves the records of wsync-ctl" {
	for paused in no yes; do
		asleep one weights,kv_cache --fault refuse:init_weights_update_group:2
		[ $paused = no ] || try wsync-ctl pause -e "$url"
		try wsync-push two.safetensors -e "$url" --asleep recorded
		expect_status 5
		expect_journal "$url" 's["released"]' "['weights', 'kv_cache']"
		try wsync-ctl ready -e "$url"
		expect_status 1
		try wsync-push two.safetensors -e "$url" --asleep recorded
		expect_status 0
		expect_two "$url"
	done
}

@test "a repair that wakes or resumes ends what wsync-ctl has recorded" {
	asleep one kv_cache --fault hang:update_weight_version:2
	try wsync-ctl pause -e "$url"
	killed /update_weight_version 2 --asleep kv_cache
	try wsync-ctl repair
	expect_status 0
	try wsync-ctl ready -e "$url"
	expect_status 0
	expect_two "$url"
}

@test "caches whose wake is not answered keep the server paused until it is restarted" {
	asleep one weights,kv_cache --fault hang:resume_memory_occupation:2
	try wsync-push two.safetensors -e "$url" --asleep recorded --bucket-timeout 1s
	expect_status 10
	err_has "left paused"
	err_has "hint: whether its kv_cache came back is not known: restart the server"
	expect_state "$url" "['kv_cache']" True
	try wsync-ctl repair
	expect_status 9
	try wsync-push two.safetensors -e "$url" --asleep recorded
	expect_status 5
	expect_state "$url" "['kv_cache']" True
}

@test "an endpoint whose weights are still released stays paused, and repair says so" {
	asleep one weights,kv_cache --fault refuse:resume_memory_occupation:1
	try wsync-push two.safetensors -e "$url" --asleep weights,kv_cache
	expect_status 5
	err_has "left paused: still released: weights,kv_cache"
	expect_state "$url" "['weights', 'kv_cache']" True
	try wsync-ctl repair
	expect_status 9
	expect_state "$url" "['weights', 'kv_cache']" True
	try wsync-ctl repair --again
	expect_status 0
	expect_two "$url"
}

@test "caches that could not be woken are woken by repair" {
	asleep one weights,kv_cache --fault refuse:resume_memory_occupation:2
	try wsync-push two.safetensors -e "$url" --asleep weights,kv_cache
	expect_status 5
	err_has "hint: the weights have arrived; to wake the rest and resume: wsync-ctl repair"
	expect_state "$url" "['kv_cache']" True
	try wsync-ctl repair
	expect_status 0
	expect_two "$url"
}

@test "of several endpoints each is woken as it needs, from one source of --stdin to the next" {
	asleep one weights,kv_cache
	local first=$url
	asleep two weights,kv_cache --fault refuse:resume_memory_occupation:1
	printf '%s\n' two.safetensors two.safetensors >lines
	STDIN=lines try wsync-push --stdin -e "$first" -e "$url" --asleep weights,kv_cache \
		--json
	expect_status 5
	expect_json '[l["ok"] for l in lines if l["type"] == "result"]' "[False, True]"
	expect_two "$first"
	expect_two "$url"
}

@test "several endpoints that a failed push left differently are repeated in one push" {
	asleep one weights,kv_cache
	local first=$url
	asleep two weights,kv_cache --fault refuse:resume_memory_occupation:1
	try wsync-push two.safetensors -e "$first" -e "$url" --asleep weights,kv_cache
	expect_status 5
	expect_state "$first" "['kv_cache']" True
	expect_state "$url" "['weights', 'kv_cache']" True
	try wsync-ctl repair --again
	expect_status 0
	expect_two "$first"
	expect_two "$url"
}

@test "a line of --stdin says what was released since the one before" {
	asleep one weights,kv_cache
	lines_to --asleep weights,kv_cache --state-dir own
	printf 'one.safetensors\t8\n' >&7
	eventually grep -q '"type":"result"' push.out
	try wsync-ctl sleep --tags weights,kv_cache -e "$url"
	expect_status 0
	printf 'two.safetensors\t9\tweights,kv_cache\none.safetensors\t\tdisk\ntwo.safetensors\n' \
		>&7
	exec 7>&-
	finished push 2 "$push"
	expect_json '[(l["ok"], l["source"]) for l in lines if l["type"] == "result"]' \
		"[(True, 'one.safetensors'), (True, 'two.safetensors'), (False, \
'one.safetensors'), (True, 'two.safetensors')]"
	err_has "'disk' is none of weights, kv_cache and cuda_graph"
	rm state/wsync/pushes/*.json # wsync-ctl wrote them where this push does not look
	expect_two "$url"
	try wsync-ctl version -e "$url"
	expect_out 9
}

@test "a line of --stdin that is refused leaves --asleep to the next line" {
	asleep one weights,kv_cache
	printf 'two.safetensors\t8\tbogus\ntwo.safetensors\t9\n' >lines
	STDIN=lines try wsync-push --stdin -e "$url" --asleep weights,kv_cache --json
	expect_status 2
	expect_json '[l["ok"] for l in lines if l["type"] == "result"]' "[False, True]"
	expect_json '[[e["state"] for e in l["endpoints"]] for l in lines if l["type"] == "end"]' \
		"[['committed']]"
	expect_two "$url"
}

@test "what the third field of a refused line lists is left to the next line" {
	for next in '' $'\t\trecorded'; do
		asleep one weights,kv_cache
		# The lines before are refused early, by the lock of another push, and late, by
		# their plan.
		mkdir -p state/wsync/locks
		lines_to
		exec 8>"state/wsync/locks/localhost:${url##*:}.lock"
		flock 8
		printf 'two.safetensors\t8\tweights,kv_cache\n' >&7
		eventually grep -q '"type":"result"' push.out
		exec 8>&-
		printf 'missing.safetensors\ntwo.safetensors%s\n' "$next" >&7
		exec 7>&-
		finished push 3
		expect_json '[l["ok"] for l in lines if l["type"] == "result"]' \
			"[False, False, True]"
		expect_two "$url"
	done
}

@test "a line of --stdin forgets the record of another push that was repaired" {
	asleep one weights,kv_cache --fault refuse:resume_memory_occupation:2
	try wsync-push two.safetensors -e "$url" --asleep weights,kv_cache
	expect_status 5
	lines_to --asleep recorded
	printf 'missing.safetensors\n' >&7
	eventually results 1
	try wsync-push two.safetensors -e "$url" --asleep recorded
	expect_status 0
	# The server dies of being asked to wake its caches once more.
	printf 'two.safetensors\n' >&7
	eventually results 2
	exec 7>&-
	wait "$pid" || true
	out=$(<push.out)
	expect_json '[l["ok"] for l in lines if l["type"] == "result"]' "[False, True]"
	expect_two "$url"
}

@test "--asleep that contradicts the record of one endpoint is noted of none" {
	asleep one kv_cache
	local first=$url
	asleep two weights,kv_cache --fault refuse:update_weights_from_distributed:3
	try wsync-push two.safetensors -e "$url" --bucket-size 8KiB --asleep weights,kv_cache
	expect_left 5
	printf 'two.safetensors\t8\tweights\ntwo.safetensors\t9\n' >lines
	STDIN=lines try wsync-push --stdin -e "$first" -e "$url" --asleep kv_cache --json
	expect_status 2
	expect_json '[l["ok"] for l in lines if l["type"] == "result"]' "[False, True]"
	expect_two "$first"
	expect_two "$url"
}

@test "wsync-ctl sleep and wake correct the records of pushes" {
	asleep one weights,kv_cache --fault refuse:update_weights_from_distributed:3
	try wsync-push two.safetensors -e "$url" --bucket-size 8KiB --asleep weights,kv_cache
	expect_left 5
	try wsync-ctl wake --tags kv_cache -e "$url" --state-dir state/wsync
	expect_status 0
	try wsync-ctl sleep --tags weights -e "$url"
	expect_status 0
	try wsync-ctl repair
	expect_status 9
	out_has "still released: weights"
	try wsync-push two.safetensors -e "$url" --asleep weights
	expect_status 0
	expect_two "$url"
}

@test "what wsync-ctl did by hand counts for ready, for a push and for repair" {
	endpoint one --lineage sglang-2026 --memory-saver drop
	try wsync-push one.safetensors -e "$url"
	try wsync-ctl pause -e "$url"
	try wsync-ctl ready -e "$url" --json
	expect_status 1
	expect_json '[(l["reason"], l["message"].split(",")[0]) for l in lines
		if l["type"] == "endpoint"]' "[('paused', 'it is paused by wsync-ctl')]"
	try wsync-ctl repair
	expect_status 0
	expect_out "nothing to repair"
	expect_state "$url" '[]' True # it was meant
	try wsync-ctl resume -e "$url"
	try wsync-ctl ready -e "$url"
	expect_status 0

	try wsync-ctl sleep --tags weights,kv_cache -e "127.0.0.1:${url##*:}"
	for given in "" "--asleep kv_cache"; do
		# shellcheck disable=SC2086  # words
		try wsync-push two.safetensors -e "$url" $given
		expect_status 2
		err_has "weights"
	done
	try wsync-ctl ready -e "$url"
	expect_status 1
	err_has "its weights are released, since wsync-ctl"
	try wsync-ctl wake --tags weights,kv_cache -e "$url"
	expect_status 0
	for command in ready repair resume; do
		try wsync-ctl $command -e "$url"
		[ "$status" != 0 ] || explain "$command takes weights that have no values"
	done
	try wsync-push two.safetensors -e "$url" --include a
	expect_status 9
	expect_state "$url" '[]' True # the rest has no values
	try wsync-push two.safetensors -e "$url"
	expect_status 0
	expect_two "$url"
	try wsync-ctl ready -e "$url"
	expect_status 0
}

@test "a pause by hand ends with the pause of a push, or with the server" {
	endpoint one --lineage sglang-2026 --memory-saver drop \
		--fault refuse:update_weights_from_distributed:1
	try wsync-ctl pause -e "$url"
	try wsync-push one.safetensors -e "$url" --on-partial resume
	expect_status 5
	expect_state "$url" '[]' False
	[ -z "$(grep -l by_hand state/wsync/pushes/*)" ]
	try wsync-push one.safetensors -e "$url"
	expect_status 0

	# Caches that are in no other record stay in this one.
	endpoint two --lineage sglang-2026 --memory-saver drop \
		--fault refuse:update_weights_from_distributed:1
	try wsync-ctl sleep --tags kv_cache -e "$url"
	try wsync-push one.safetensors -e "$url" --pause none
	[ "$status" != 0 ] || explain "nothing was refused"
	grep -l by_hand state/wsync/pushes/* | xargs grep -q '"asleep":"kv_cache"'

	endpoint three --lineage sglang-2026
	try wsync-ctl pause -e "$url"
	again "$pid" --lineage sglang-2026
	try wsync-ctl ready -e "$url"
	expect_status 0
	try wsync-ctl resume -e "$url"
	expect_status 0
	! grep -l "$url" state/wsync/pushes/* || explain "a record of an earlier start stays"
}

@test "a copy of the weights comes back whole" {
	endpoint one --lineage sglang-2026 --memory-saver backup
	try wsync-push one.safetensors -e "$url"
	try wsync-ctl sleep --tags weights -e "$url"
	try wsync-ctl wake --tags weights -e "$url"
	expect_status 0
	try wsync-ctl ready -e "$url"
	expect_status 0
	[ -z "$(ls state/wsync/pushes)" ]
}

# again PID OPTION...: the server that had this process at $url was restarted there.
again() {
	local port=${url##*:}
	kill "$1"
	wait "$1" || true
	endpoint again --listen "127.0.0.1:$port" --checksums "${@:2}"
}

@test "a push that is refused does not pause a server that was restarted" {
	asleep one kv_cache --fault refuse:resume_memory_occupation:1
	try wsync-push two.safetensors -e "$url" --asleep kv_cache
	expect_status 5
	expect_state "$url" "['kv_cache']" True
	again "$pid" --lineage sglang-2026 --memory-saver drop
	try wsync-push absent.safetensors -e "$url"
	expect_status 3
	expect_state "$url" '[]' False
	is_asked "$url" /pause_generation 0
}

@test "what was released before a restart is no matter of pushes, wake and repair" {
	asleep one weights,kv_cache
	again "$pid" --lineage sglang-2026 --memory-saver drop
	try wsync-ctl wake -e "$url"
	expect_status 0
	out_has "no memory is recorded as released since it started"
	is_asked "$url" /resume_memory_occupation 0
	try wsync-ctl repair
	expect_out "nothing to repair"

	try wsync-ctl sleep -e "$url"
	again "$pid" --lineage sglang-2026 --memory-saver drop
	try wsync-ctl repair
	expect_status 0
	out_has "was restarted since"
	try wsync-ctl sleep -e "$url"
	again "$pid" --lineage sglang-2026 --memory-saver drop
	try wsync-push two.safetensors -e "$url" --weight-version 8 --only-stale
	expect_status 0
	is_asked "$url" /resume_memory_occupation 0
	expect_two "$url"

	# Released between two lines, in the record of the process itself.
	lines_to
	printf 'one.safetensors\n' >&7
	eventually results 1
	try wsync-ctl sleep -e "$url"
	again "${background[-2]}" --lineage sglang-2026 --memory-saver drop 7>&-
	printf 'two.safetensors\n' >&7
	exec 7>&-
	finished push 0 "$push"
	is_asked "$url" /resume_memory_occupation 0
	expect_two "$url"
}

@test "wake takes back what is recorded as released, and nothing else" {
	asleep one kv_cache
	try wsync-ctl wake --tags weights,kv_cache -e "$url"
	expect_status 5
	err_has "$url: the memory of weights is awake"
	try wsync-ctl wake -e "$url"
	expect_status 0
	try wsync-ctl wake -e "$url"
	expect_status 5
	err_has "no record says that its memory is released"
	err_has "hint: wake only released memory: if others released it, list it: wsync-ctl wake --tags"
	try wsync-ctl sleep -e "$url"
	try wsync-ctl wake --tags weights -e "$url"
	expect_status 0
	local one=$url
	endpoint awake --lineage sglang-2026
	try wsync-ctl wake -e "$one" -e "$url"
	expect_status 0
	is_asked "$url" /resume_memory_occupation 0
	url=$one
	expect_state "$url" '[]' False
	# The record knows that all of it is awake.
	for list in weights kv_cache "weights --pause none"; do
		# shellcheck disable=SC2086  # words
		try wsync-push two.safetensors -e "$url" --asleep $list
		expect_status 2
		err_has "left nothing released"
	done
	is_asked "$url" /resume_memory_occupation 3
	try wsync-ctl resume -e "$url"
	expect_status 5
	err_has "hint: push all weights: wsync-push SOURCE -e $url --asleep recorded; --force"
	try wsync-ctl repair --again
	expect_status 9
	err_has "hint: push everything: wsync-push SOURCE -e $url --asleep recorded"
	try wsync-push two.safetensors -e "$url" --asleep recorded
	expect_status 0
	expect_two "$url"
}

@test "repair reports weights that wsync-ctl released, as ready does" {
	asleep one weights,kv_cache
	for again in "" --again; do
		# shellcheck disable=SC2086  # words
		try wsync-ctl repair $again
		expect_status 9
		out_has "still released: weights,kv_cache"
		err_has "hint: push everything"
	done
	expect_state "$url" "['weights', 'kv_cache']" False
	# What a push has woken is in its record alone.
	try wsync-ctl pause -e "$url"
	try wsync-push two.safetensors -e "$url" --asleep recorded
	expect_status 0
	try wsync-ctl ready -e "$url"
	expect_status 0
	expect_two "$url"
}

@test "a line of --stdin that fails before its pause does not pause a server that was restarted" {
	endpoint one --fault refuse:update_weights_from_distributed:2
	local server=$pid
	lines_to --bucket-size 8KiB
	printf 'two.safetensors\n' >&7
	eventually grep -q '"type":"result"' push.out
	expect_state "$url" '[]' True
	again "$server" 7>&-
	printf 'absent.safetensors\n' >&7
	exec 7>&-
	finished push 3 "$push"
	expect_json '[(l["ok"], l["endpoints"][0]["state"]) for l in lines
		if l["type"] == "result"]' \
		"[(False, 'partial'), (False, 'untouched')]"
	expect_state "$url" '[]' False
	is_asked "$url" /pause_generation 0
}

@test "released weights are not read" {
	local command
	asleep one weights,kv_cache
	for command in "wsync-verify weights one.safetensors" "wsync-list-weights --checksum" \
		"wsync-verify names one.safetensors" "wsync-push -n one.safetensors --verify hash" \
		"wsync-ctl ready one.safetensors --verify hash" \
		"wsync-push one.safetensors --weight-version 7 --only-stale --verify hash"; do
		# shellcheck disable=SC2086  # words
		try $command -e "$url"
		[ "$status" != 0 ] || [[ $command == *names* ]] || explain "$command"
		is_asked "$url" /weights_checker 0 || explain "$command: $(journal "$url" paths)"
	done
	try wsync-verify weights one.safetensors -e "$url"
	expect_status 5
	err_has "its weights are released, and to read them may crash it"

	# A vLLM says it itself.
	endpoint two --lineage vllm-0.33
	try wsync-ctl sleep -e "$url"
	expect_status 0
	expect_journal "$url" 's["released"]' "['weights', 'kv_cache']"
	rm state/wsync/pushes/*.json
	try wsync-verify weights one.safetensors -e "$url"
	expect_status 5
	expect_journal "$url" "[p for p in paths if 'checker' in p]" "[]"
}

@test "only a pause is sent while a push is at work" {
	endpoint one --lineage sglang-2026 --memory-saver drop \
		--fault hang:update_weights_from_distributed:1
	start push wsync-push two.safetensors -e "$url"
	local push=$pid
	eventually is_asked "$url" /update_weights_from_distributed 1
	# Nothing is decided from records that the push may still change: wake would be refused
	# for a server without released memory, and resume for one with mixed weights.
	for command in sleep wake "wake --tags kv_cache" resume "version 77" "init-group g"; do
		# shellcheck disable=SC2086  # words
		try wsync-ctl $command -e "$url"
		expect_status 5
		err_has "is at work on it"
	done
	try wsync-ctl pause -e "$url"
	expect_status 0
	kill -KILL "$push"
	wait "$push" || true
	try wsync-ctl resume -e "$url"
	expect_status 5
	err_has "it has some old and some new weights"
}

@test "pause and resume are recorded in the directory that is named" {
	endpoint one --lineage sglang-2026
	try wsync-ctl pause --state-dir own -e "$url"
	expect_status 0
	try wsync-ctl ready --state-dir own -e "$url"
	expect_status 1
	err_has "paused by wsync-ctl"
	try wsync-ctl resume --state-dir own -e "$url"
	try wsync-ctl ready --state-dir own -e "$url"
	expect_status 0
}

@test "a server that reports a pause knows more than a record, and a record who did it" {
	endpoint one --lineage session
	try wsync-ctl pause -e "$url"
	try wsync-ctl ready -e "$url"
	err_has "it is paused by wsync-ctl"
	try wsync-push one.safetensors -e "$url"
	expect_status 0
	err_lacks "somebody else"
	try wsync-ctl pause -e "$url"
	try wsync-ctl resume -e "$url" --state-dir elsewhere
	try wsync-ctl ready -e "$url"
	expect_status 0
}

@test "a server that lacks memory is not resumed, and nothing is sent that cannot be recorded" {
	asleep one kv_cache
	try wsync-ctl resume -e "$url"
	expect_status 5
	err_has "its caches are released, and the first prompt may crash it"
	err_has "hint: take it back: wsync-ctl wake -e $url"
	rm -f state/wsync/pushes/.lock
	mkdir state/wsync/pushes/.lock
	try wsync-ctl sleep --tags weights -e "$url"
	[ "$status" = 8 ] || explain "$status"
	expect_state "$url" "['kv_cache']" False
}
