#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Lines of --stdin: what a line that fails early leaves of the process's own record, of the records
# of other pushes, and of what is known to be released.
load helpers

prepare() {
	safetensors one.safetensors a:F32:64,32 b:F32:64,32 c:F32:64,32
	safetensors two.safetensors --seed 2 a:F32:64,32 b:F32:64,32 c:F32:64,32
}

# line N TEXT: the N-th line, and its result.
line() {
	printf '%b\n' "$2" >&7
	eventually results "$1"
}
# no_more STATUS RESULT...: the end, with each line's success.
no_more() {
	exec 7>&-
	finished push "$1" "$push"
	shift
	expect_json '" ".join("yes" if l["ok"] else "no" for l in lines if l["type"] == "result")' \
		"$*"
}
has_released() { expect_journal "$url" 's["released"], s["paused"]' "($1, $2)"; } # LIST PAUSED
asleep() { # MEMORY OPTION...
	endpoint one --lineage sglang-2026 --memory-saver drop --checksums "${@:2}"
	try wsync-push one.safetensors -e "$url" --weight-version 7
	expect_status 0
	[ -z "$1" ] || try wsync-ctl sleep --tags "$1" -e "$url"
	expect_status 0
}

@test "a record that cannot be written any more stays as it was" {
	endpoint one --fault refuse:update_weights_from_distributed:2
	# the limit is for files, not for pipes
	lines_to --bucket-size 8KiB --state-dir own "> >(cat) 2> >(cat >&2)"
	line 1 one.safetensors
	prlimit --pid "$push" --fsize=0
	line 2 two.safetensors
	exec 7>&-
	eventually grep -q '"type":"end".*"exit":8' push.out
	wait "$push" || true
	try wsync-ctl repair --state-dir own
	expect_status 9
	try wsync-push two.safetensors --include b -e "$url" --state-dir own
	expect_status 9
	try wsync-push two.safetensors -e "$url" --state-dir own
	expect_status 0
	try wsync-ctl repair --state-dir own
	expect_out "nothing to repair"
}

@test "a line that fails early does not write the record of an earlier line again" {
	endpoint one --fault refuse:update_weights_from_distributed:4
	lines_to
	line 1 'one.safetensors\t1'
	try wsync-push two.safetensors -e "$url" --weight-version 2
	expect_status 0
	try wsync-push one.safetensors -e "$url" --include '[ab]' --bucket-size 8KiB \
		--weight-version 3
	expect_status 5
	line 2 missing.safetensors
	no_more 3 yes no
	try wsync-ctl repair --json
	expect_status 9
	expect_json '[l["weight_version"] for l in lines if l["type"] == "transaction"]' "['3']"
}

@test "an update that a line could not end is ended before the next, or stays recorded" {
	endpoint one --lineage session --fault hang:end_weight_update:1 \
		--fault hang:end_weight_update:2 --fault hang:end_weight_update:3
	lines_to --bucket-timeout 6s
	line 1 one.safetensors
	line 2 missing.safetensors
	grep -q '"middle":"session"' state/wsync/pushes/*.json ||
		explain "$(cat state/wsync/pushes/*.json)"
	line 3 missing.safetensors
	grep -q '"middle":""' state/wsync/pushes/*.json ||
		explain "$(cat state/wsync/pushes/*.json)"
	line 4 two.safetensors
	no_more 3 no no no yes
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "an update that a line could not end is ended before the next, without records" {
	endpoint one --lineage session --fault hang:end_weight_update:1 \
		--fault hang:end_weight_update:2
	unset HOME XDG_STATE_HOME
	lines_to --bucket-timeout 6s
	line 1 one.safetensors
	line 2 two.safetensors
	no_more 10 no yes
}

@test "a prepared update that a line left is completed after it refused the next line" {
	endpoint one --lineage xorl-legacy --fault hang:complete_weights_update:1 \
		--fault hang:complete_weights_update:2 --fault hang:complete_weights_update:3
	lines_to --bucket-timeout 6s --protocol two-phase
	line 1 one.safetensors
	line 2 two.safetensors
	line 3 two.safetensors
	no_more 5 no no yes
	expect_json '[l["endpoints"][0]["state"] for l in lines if l["type"] == "result"]' \
		"['partial', 'partial', 'committed']"
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "released memory is not forgotten where a line could not be recorded" {
	asleep weights,kv_cache
	mkdir -p own/pushes
	chmod g+w own/pushes # is refused
	lines_to --state-dir own --asleep weights,kv_cache
	line 1 two.safetensors
	chmod g-w own/pushes
	line 2 two.safetensors
	no_more 3 no yes
	has_released '[]' False
}

@test "released memory is not forgotten where a line that keeps its group could not be recorded" {
	asleep ''
	lines_to --state-dir own "> >(cat) 2> >(cat >&2)" # the limit is for files, not for pipes
	line 1 one.safetensors
	curl -sS -m 180 -d '{"tags":["weights"]}' "$url/release_memory_occupation"
	prlimit --pid "$push" --fsize=0:
	line 2 'two.safetensors\t8\tweights'
	prlimit --pid "$push" --fsize=unlimited:
	line 3 two.safetensors
	exec 7>&-
	eventually grep -q '"type":"end"' push.out
	no_more 8 yes no yes
	has_released '[]' False
}

@test "what is released is added up until a line has recorded it" {
	asleep weights
	lines_to
	line 1 'missing.safetensors\t8\tweights'
	try wsync-ctl sleep --tags kv_cache -e "$url"
	line 2 'two.safetensors\t8\tkv_cache'
	no_more 3 no yes
	has_released '[]' False
}

@test "the record of the process has what wsync-ctl released between two lines" {
	asleep ''
	lines_to
	line 1 one.safetensors
	try wsync-ctl sleep --tags weights -e "$url"
	line 2 'missing.safetensors\t2\tweights'
	try wsync-ctl sleep --tags kv_cache -e "$url"
	line 3 two.safetensors
	no_more 3 yes no yes
	has_released '[]' False
}

@test "a server whose weights were woken is not left as it was found, though no byte was sent" {
	endpoint one --lineage session --memory-saver drop \
		--fault refuse:update_weights_from_distributed:2
	try wsync-push one.safetensors -e "$url"
	try wsync-ctl sleep --tags weights -e "$url"
	curl -sS -m 180 -d '{}' "$url/pause_generation" >/dev/null
	try wsync-push two.safetensors -e "$url" --asleep weights
	expect_status 5
	err_lacks "stays paused, as it was found"
	err_has "left paused: its weights were released and are not complete"
	grep -q '"state":"partial","paused":true' state/wsync/pushes/*.json ||
		explain "$(cat state/wsync/pushes/*.json)"
}

@test "a record that cannot be read is warned of" {
	endpoint one --fault refuse:update_weights_from_distributed:2
	try wsync-push one.safetensors -e "$url" --bucket-size 8KiB
	expect_status 5
	sed -i 's/"schema":1/"schema":3/' state/wsync/pushes/*.json
	try wsync-push two.safetensors -e "$url" --include b
	err_has "cannot read the record of an earlier push: "
}

@test "a process that is killed between two lines leaves its group to repair, and nothing else" {
	endpoint one
	lines_to
	line 1 one.safetensors
	line 2 two.safetensors
	kill -KILL "$push"
	wait "$push" || true
	exec 7>&-
	try wsync-ctl repair --json
	expect_status 0
	expect_json '[(l["state"], l["paused"], l["left_group"]) for l in lines
		if l["type"] == "endpoint"]' \
		"[('committed', False, True)]"
	curl -sS "$url/wsync/journal" | grep -q '"groups":\[\]' || explain "still in its group"
	[ -z "$(ls state/wsync/pushes)" ] || explain "a record stays"
}

@test "the record of a process that is between two lines can be forgotten" {
	endpoint one --fault refuse:update_weights_from_distributed:2 \
		--fault hang:update_weights_from_distributed:6
	lines_to --bucket-size 8KiB
	line 1 one.safetensors
	try wsync-push two.safetensors -e "$url" --include b
	expect_status 9
	try wsync-ctl repair --forget --endpoint "$url"
	expect_status 0
	try wsync-push two.safetensors -e "$url" --include b
	expect_status 0
	# At work it is left alone.
	printf 'two.safetensors\n' >&7
	eventually requested /update_weights_from_distributed 6
	try wsync-ctl repair --forget --endpoint "$url"
	expect_status 5
	err_has "is at work on it"
	try wsync-ctl repair --forget
	expect_status 0
	kill -TERM "$push"
	wait "$push" || true
}

@test "an unrecorded list of a line does not contradict the next, also without records" {
	asleep weights
	unset HOME XDG_STATE_HOME
	lines_to
	line 1 'missing.safetensors\t8\tweights'
	try curl -sS -m 180 -d '{"tags":["kv_cache"]}' "$url/release_memory_occupation"
	line 2 'two.safetensors\t8\tkv_cache'
	no_more 3 no yes
	has_released '[]' False
}

@test "a list that the record contradicts is told, also if a line before it was locked out" {
	asleep weights,kv_cache --fault refuse:resume_memory_occupation:2
	try wsync-push two.safetensors -e "$url" --asleep weights,kv_cache # leaves kv_cache
	expect_status 5
	lines_to
	exec 8>"state/wsync/locks/localhost:${url##*:}.lock"
	flock 8
	line 1 'two.safetensors\t8\tweights,kv_cache'
	exec 8>&-
	line 2 two.safetensors
	has_released "['kv_cache']" True
	line 3 'two.safetensors\t8\trecorded'
	no_more 2 no no yes
	has_released '[]' False
}

@test "without a state directory a line that sent nothing is not remembered" {
	endpoint one
	direct=$url
	proxy "$url" "
if path == '/update_weights_from_distributed' and nth == 2: answer = (400, 'no')
if path == '/server_info' and __import__('os').path.exists('$scratch/armed'): answer = (500, 'no')"
	unset HOME XDG_STATE_HOME
	safetensors other.safetensors --seed 3 a:F32:64,32 zz:F32:4,4
	lines_to --include "'[ab]'" --bucket-size 8KiB
	line 1 two.safetensors
	touch armed
	line 2 other.safetensors
	rm armed
	line 3 two.safetensors
	no_more 5 no no yes
}

@test "a part does not complete what an earlier line left, also if the endpoint cannot be locked" {
	safetensors part.safetensors --seed 3 a:F32:64,32
	endpoint one --fault refuse:update_weights_from_distributed:2
	lines_to --bucket-size 8KiB
	line 1 one.safetensors
	mv state/wsync/locks locks
	: >state/wsync/locks
	line 2 part.safetensors
	grep -q '"state":"partial"' state/wsync/pushes/*.json ||
		explain "$(cat state/wsync/pushes/*.json)"
	line 3 two.safetensors
	no_more 9 no no yes
	rm state/wsync/locks
	mv locks state/wsync/locks
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "a line that cannot lock its endpoint is recorded all the same" {
	endpoint one --fault refuse:update_weights_from_distributed:5
	lines_to --bucket-size 8KiB
	line 1 one.safetensors
	mv state/wsync/locks locks
	: >state/wsync/locks
	line 2 two.safetensors
	no_more 5 yes no
	err_has "other pushes are not kept away"
	err_has "left paused: it has some old and some new weights"
	err_has "wsync-ctl repair --again"
	rm state/wsync/locks
	mv locks state/wsync/locks
	try wsync-ctl repair --again
	expect_status 0
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "a line that is refused because it cannot be recorded leaves no record of a pause" {
	endpoint one
	lines_to --state-dir own "> >(cat) 2> >(cat >&2)" # the limit is for files, not for pipes
	line 1 one.safetensors
	prlimit --pid "$push" --fsize=0:
	line 2 two.safetensors
	prlimit --pid "$push" --fsize=unlimited:
	exec 7>&-
	eventually grep -q '"type":"end"' push.out
	no_more 8 yes no
	try wsync-ctl repair --state-dir own
	expect_out "nothing to repair"
}

@test "a line that cannot be recorded does not make a mixture of what a record calls whole" {
	endpoint one --fault refuse:continue_generation:1 --fault refuse:continue_generation:2 \
		--fault refuse:continue_generation:3 \
		--fault refuse:update_weights_from_distributed:5
	lines_to --bucket-size 8KiB "> >(cat) 2> >(cat >&2)" # the limit is for files, not for pipes
	line 1 one.safetensors
	grep -q '"state":"committed","paused":true' state/wsync/pushes/*.json ||
		explain "$(cat state/wsync/pushes/*.json)"
	prlimit --pid "$push" --fsize=0:
	line 2 two.safetensors
	exec 7>&-
	eventually grep -q '"type":"end"' push.out
	no_more 8 no no
	expect_json '[l["endpoints"][0]["state"] for l in lines if l["type"] == "result"]' \
		"['committed', 'untouched']"
	err_has "make room in the state directory"
	try wsync-ctl repair
	expect_status 0
	has_released '[]' False
	try wsync-verify weights one.safetensors -e "$url"
	expect_status 0
}

@test "a line does not leave its own group because an earlier group had that name" {
	endpoint one --fault refuse:update_weights_from_distributed:2
	proxy "$url" "
if path == '/destroy_weights_update_group' and nth == 2: raise ConnectionError" "
if path == '/destroy_weights_update_group' and not kept: kept['left'] = True; raise ConnectionError"
	lines_to --bucket-size 8KiB --group-name mine
	line 1 one.safetensors
	line 2 two.safetensors
	grep -q '"phase":"destroy","state":"untouched","paused":false,"grouped":true' \
		state/wsync/pushes/*.json ||
		explain "$(cat state/wsync/pushes/*.json)"
	line 3 one.safetensors
	no_more 5 no yes yes
	expect_json '[l["message"] for l in lines if l["type"] == "warning"
		and "making a new one" in l["message"]]' "[]"
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "what is recorded in memory only does not name wsync-ctl repair" {
	safetensors part.safetensors --seed 3 a:F32:64,32
	endpoint one --fault refuse:update_weights_from_distributed:2
	unset HOME XDG_STATE_HOME
	lines_to --bucket-size 8KiB
	line 1 one.safetensors
	line 2 part.safetensors
	no_more 9 no no
	err_has "push everything again: wsync-push SOURCE"
	err_lacks "wsync-ctl repair"
}

@test "a part does not complete weights that wsync-ctl wake woke between two lines" {
	safetensors part.safetensors --seed 3 a:F32:64,32
	asleep ''
	lines_to
	line 1 one.safetensors
	try wsync-ctl sleep --tags weights -e "$url"
	try wsync-ctl wake --tags weights -e "$url"
	line 2 part.safetensors
	line 3 two.safetensors
	no_more 9 yes no yes
	expect_json 'len([l for l in lines if l["type"] == "endpoint" and l["phase"] == "init"])' 2
	try wsync-ctl repair
	expect_out "nothing to repair"
	try wsync-verify weights two.safetensors -e "$url"
	expect_status 0
}

@test "weights that wsync-ctl wake woke after the last line stay recorded" {
	asleep ''
	lines_to
	line 1 one.safetensors
	try wsync-ctl sleep --tags weights -e "$url"
	try wsync-ctl wake --tags weights -e "$url"
	no_more 0 yes
	try wsync-ctl repair
	expect_status 9
	err_has "its weights were released and are not complete"
}

@test "a server is not partial because the record of a good line cannot be updated" {
	endpoint one
	proxy "$url" "
if path == '/update_weights_from_distributed': run('touch held; \
timeout 600 sh -c \"until [ -e go ]; do sleep 0.05; done\"')"
	lines_to "> >(cat) 2> >(cat >&2)" # the limit is for files, not for pipes
	printf 'one.safetensors\n' >&7
	eventually test -e held
	prlimit --pid "$push" --fsize=0:
	touch go
	eventually grep -q '"type":"result"' push.out
	prlimit --pid "$push" --fsize=unlimited:
	line 2 missing.safetensors
	exec 7>&-
	eventually grep -q '"type":"end"' push.out
	no_more 3 yes no
	expect_json '[(l["endpoints"][0]["state"], l["endpoints"][0]["paused"]) for l in lines
		if l["type"] == "result"]' \
		"[('committed', False), ('untouched', False)]"
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "an update that a line could not end, and the next one did, is not ended once more" {
	endpoint one --lineage slime --quantization compressed-tensors \
		--fault hang:post_process_weights:2 \
		--fault hang:post_process_weights:3 --fault hang:post_process_weights:4
	lines_to --bucket-timeout 6s
	line 1 one.safetensors
	line 2 two.safetensors
	line 3 one.safetensors
	no_more 10 no yes yes
	local n
	# 4, and twice by each line that succeeded
	expect_journal "$url" 'paths.count("/post_process_weights")' 8
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "an update that a line could not end is ended before the next, also without locks" {
	endpoint one --lineage session --fault hang:end_weight_update:1 \
		--fault hang:end_weight_update:2
	mkdir -p state/wsync
	: >state/wsync/locks
	lines_to --bucket-timeout 6s
	line 1 one.safetensors
	line 2 two.safetensors
	no_more 10 no yes
}

@test "a server that wsync-ctl put to sleep between two lines is not called paused" {
	asleep ''
	lines_to
	line 1 one.safetensors
	try wsync-ctl sleep --tags kv_cache -e "$url"
	line 2 'missing.safetensors\t2\tkv_cache'
	no_more 3 yes no
	expect_json '[l["endpoints"][0]["paused"] for l in lines if l["type"] == "result"]' \
		"[False, False]"
	err_lacks "left paused"
}

@test "an update that a line could not end or record is ended before the next" {
	endpoint one --lineage session --fault hang:end_weight_update:1 \
		--fault hang:end_weight_update:2
	# the limit is for files, not for pipes
	lines_to --bucket-timeout 6s "> >(cat) 2> >(cat >&2)"
	printf 'one.safetensors\n' >&7
	eventually requested /end_weight_update
	prlimit --pid "$push" --fsize=0:
	eventually grep -q '"type":"result"' push.out
	prlimit --pid "$push" --fsize=unlimited:
	line 2 two.safetensors
	exec 7>&-
	eventually grep -q '"type":"end"' push.out
	no_more 10 no yes
	try wsync-ctl repair # the file still names the group that was left
	expect_status 0
}

@test "a line without a source fails with a result, and only a CR at the end is no part of a line" {
	endpoint one --lineage sglang-2026
	cp two.safetensors $'two.safetensors\rx'
	printf 'one.safetensors\t1\r\n\r\n\n\t5\n\t\t\n\t\r\ntwo.safetensors\rx\t6\n' >lines
	STDIN=lines try wsync-push --stdin -e "$url" --json
	expect_status 2
	expect_json '[(l["source"], l["ok"], l["exit"]) for l in lines if l["type"] == "result"]' \
		"[('one.safetensors', True, 0), ('line 4 of stdin', False, 2), ('line 5 of stdin', False, 2), ('line 6 of stdin', False, 2), ('two.safetensors\\rx', True, 0)]"
	err_has "the line has no source before its first tab"
	try wsync-ctl version -e "$url"
	out_has 6
}
