#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Somebody else at work at the same endpoint, with another state directory or by hand.
load helpers

prepare() { safetensors small.safetensors {a,b,c,d,e,f}.weight:F32:64,16 >/dev/null; }

buckets=(--bucket-size 4KiB --bucket-timeout 300s)

# held STEP N OPTION...: a push that stands still while it waits for the answer to the N-th request
# to STEP, which the endpoint gives late. $pid; its output: held.out and held.err.
held() {
	local step=$1 n=$2
	shift 2
	start held wsync-push small.safetensors -e "$url" "${buckets[@]}" --json "$@"
	eventually requested "/$step" "$n"
	kill -STOP "$pid"
}

# goes_on STATUS: the push does, and ends so.
goes_on() {
	kill -CONT "$pid"
	finished held "$1"
}

# tell PATH BODY: what somebody else does.
tell() { curl -sS -m 180 -d "$2" "$url/$1" >/dev/null; }
relabel() { tell update_weight_version "{\"new_version\":\"$1\",\"abort_all_requests\":false}"; }

# expect_state STATE PAUSED LABEL: as the push says of the endpoint, and as it is.
expect_state() {
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' "[('$1', $2)]"
	expect_journal "$url" 's["paused"], s["weight_version"]' "($2, '$3')"
}

@test "a push that runs within another is seen by the outer one" {
	endpoint e
	meddle "$url" /update_weights_from_distributed 3 \
		"wsync-push small.safetensors -e $url --bucket-size 4KiB --state-dir inner \
--weight-version B"
	try wsync-push small.safetensors -e "$url" "${buckets[@]}" --state-dir outer \
		--weight-version A
	expect_status 5
	err_has "its weight version is 'B', and not 'default': somebody else is at work there"
}

@test "a push that fails after another one has resumed its endpoint leaves it paused" {
	endpoint e
	meddle "$url" /update_weights_from_distributed 6 \
		"wsync-push small.safetensors -e $url --state-dir inner; \
truncate -s 0 small.safetensors"
	try wsync-push small.safetensors -e "$url" "${buckets[@]}" --state-dir outer --json
	expect_status 3
	expect_state partial True default
}

# until_there FILE: a shell command for `meddle` that waits for FILE. After three minutes it fails,
# and the proxy closes the connection without an answer.
until_there() { printf 'timeout 180 sh -c "until [ -e %s ]; do sleep 0.05; done"' "$1"; }

@test "a push that ends within another is seen by the other one" {
	endpoint e
	direct=$url
	meddle "$direct" /update_weights_from_distributed 3 \
		"touch second.there; $(until_there first.done)"
	meddle "$direct" /update_weights_from_distributed 2 "(status=0
		wsync-push small.safetensors -e $url --bucket-size 4KiB --state-dir second \
--weight-version B 2>second.err || status=\$?
		echo \$status >second.status) & $(until_there second.there)"
	try wsync-push small.safetensors -e "$url" "${buckets[@]}" --state-dir first \
		--weight-version A
	expect_status 0
	touch first.done
	eventually test -s second.status
	[ "$(<second.status)" = 5 ] || explain "the second ended with $(<second.status)"
	grep -q "its weight version is 'A', and not 'default': somebody else is at work there" \
		second.err || explain "$(<second.err)"
}

@test "another weight version in the middle of a push ends it without its own version" {
	endpoint e --fault slow:update_weights_from_distributed:2 --fault-delay 4s
	held update_weights_from_distributed 2 --weight-version mine --on-partial pause
	relabel theirs
	tell continue_generation '{}' # and the other push ends
	goes_on 5
	err_has "$url: its weight version is 'theirs', and not 'default': \
somebody else is at work there"
	err_has "--state-dir"
	expect_state partial True theirs
}

@test "a push without a weight version sees that of another" {
	endpoint e --fault slow:update_weights_from_distributed:2 --fault-delay 4s
	held update_weights_from_distributed 2
	relabel theirs
	goes_on 5
	err_has "its weight version is 'theirs', and not 'default'"
	expect_state partial True theirs
}

@test "a version that comes after the verification is not set over that of another" {
	endpoint e --fault slow:update_weights_from_distributed:6 --fault-delay 4s
	held update_weights_from_distributed 6 --weight-version mine --verify hash
	relabel theirs
	goes_on 5
	err_has "its weight version is 'theirs', and not 'default'"
	expect_state partial True theirs
}

@test "another weight version at the end than ours is somebody else's" {
	endpoint e --fault slow:update_weight_version:1 --fault-delay 4s
	held update_weight_version 1 --weight-version mine --verify hash
	eventually answered update_weight_version
	relabel theirs
	goes_on 5
	err_has "its weight version is 'theirs', and not 'mine'"
	expect_state partial True theirs
}

# answered STEP: the endpoint has its new version.
answered() { curl -sS "$url/wsync/journal" | grep -q '"weight_version":"mine"'; }

@test "somebody who is done before the endpoint was paused: nothing is sent" {
	endpoint e --fault slow:init_weights_update_group:1 --fault-delay 4s
	held init_weights_update_group 1 --weight-version mine
	relabel theirs
	goes_on 5
	err_has "its weight version changed from 'default' to 'theirs' before this push began to \
send"
	expect_state untouched False theirs
	expect_journal "$url" 'paths.count("/update_weights_from_distributed")' 0
	try wsync-push small.safetensors -e "$url" --weight-version mine
	expect_status 0
}

@test "between two lines of --stdin anybody may set a version" {
	endpoint e
	lines_to
	echo small.safetensors >&7
	eventually results 1
	relabel theirs
	echo small.safetensors >&7
	exec 7>&-
	finished push 0
}

records() { find "$XDG_STATE_HOME/wsync/pushes" -name '*.json' -exec grep \
	-l '"state":"partial"' {} + | wc -l; }

@test "a line of --stdin that another push keeps out writes no record that was settled" {
	endpoint e --fault refuse:update_weights_from_distributed:2 \
		--fault slow:update_weights_from_distributed:10 --fault-delay 4s
	lines_to "${buckets[@]}"
	echo small.safetensors >&7
	eventually results 1
	[ "$(records)" = 1 ] || explain "the first line left no record"
	try wsync-push small.safetensors -e "$url" "${buckets[@]}"
	expect_status 0
	[ "$(records)" = 0 ] || explain "the record was not settled"
	held update_weights_from_distributed 10 7>&-
	local held=$pid
	echo small.safetensors >&7
	exec 7>&-
	wait "$push" || true
	pid=$held
	goes_on 0
	out=$(<push.out) err=$(<push.err)
	expect_json '[l["exit"] for l in lines if l["type"] == "result"]' "[5, 5]"
	err_has "at work on it"
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "one of two endpoints was somebody else's: partial" {
	endpoint one
	other=$url
	endpoint two --fault slow:update_weights_from_distributed:6 --fault-delay 4s
	held update_weights_from_distributed 6 -e "$other"
	relabel theirs
	goes_on 9
	err_has "1 of 2 endpoints updated"
	expect_json '[e["state"] for e in lines[-1]["endpoints"]]' "['partial', 'committed']"
}

@test "servers that tell whether they are paused show who resumes them in the middle" {
	endpoint e --lineage session --fault slow:update_weights_from_distributed:2 --fault-delay 4s
	held update_weights_from_distributed 2
	tell continue_generation '{}'
	goes_on 5
	err_has "it was resumed in the middle of this push: somebody else is at work there"
	expect_state partial True default
	try wsync-push small.safetensors -e "$url" --weight-version 3
	expect_status 0
	err_lacks "is paused"
}

@test "an update that another push has begun is left to it, paused as it was" {
	endpoint e --lineage session
	tell pause_generation '{}'
	tell begin_weight_update '{}'
	try wsync-push small.safetensors -e "$url" --json
	expect_status 5
	err_has "it is paused, but no push that is recorded here has paused it"
	err_has "already open"
	err_has "another push has begun an update there"
	err_has "stays paused, as it was found"
	expect_state untouched True default
	expect_journal "$url" 'paths.count("/continue_generation")' 0
	# Paused by hand, and nobody at work: a warning.
	tell end_weight_update '{}'
	try wsync-push small.safetensors -e "$url" --json
	expect_status 0
	err_has "somebody else may be at work there"
	# One that nobody has paused is resumed.
	tell begin_weight_update '{}'
	try wsync-push small.safetensors -e "$url" --json
	expect_status 5
	err_lacks "stays paused"
	expect_state untouched False default
}

@test "a push that is cancelled before it begins its update leaves a server paused as it was" {
	endpoint e --lineage session --fault slow:flush_cache:1 --fault-delay 4s
	tell pause_generation '{}'
	start p wsync-push small.safetensors -e "$url" --json
	eventually requested /flush_cache 1
	kill -TERM "$pid"
	finished p 143
	err_has "stays paused, as it was found"
	expect_state untouched True default
	expect_journal "$url" 'paths.count("/continue_generation")' 0
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "a server that was found paused is reported so if the push fails before its own pause" {
	endpoint e --lineage session
	direct=$url
	tell pause_generation '{}'
	proxy "$url" "if path == '/init_weights_update_group': answer = (400, 'no')"
	try wsync-push small.safetensors -e "$url" --json
	expect_status 5
	err_has "stays paused, as it was found"
	url=$direct
	expect_state untouched True default
}

@test "a partial server that somebody else has paused stays paused if the push changes nothing" {
	endpoint e --lineage session --fault refuse:update_weights_from_distributed:2
	direct=$url
	proxy "$url" "if path == '/flush_cache' and \
__import__('os').path.exists('$scratch/armed'): answer = (500, 'no')"
	try wsync-push small.safetensors -e "$url" "${buckets[@]}" --on-partial resume
	expect_status 5
	tell pause_generation '{}'
	touch armed
	try wsync-push small.safetensors -e "$url" --on-partial resume --json
	expect_status 5
	err_has "stays paused, as it was found"
	url=$direct
	expect_state partial True default
}

@test "a server whose other push ends before our pause does not stay paused" {
	endpoint e --lineage session --fault slow:update_weights_from_distributed:2 --fault-delay 2s
	direct=$url
	start other bash -c "wsync-push small.safetensors -e $url --bucket-size 4KiB --state-dir \
other --weight-version theirs
		touch $scratch/other.done"
	eventually requested /update_weights_from_distributed 2
	meddle "$direct" /init_weights_update_group 1 "$(until_there "$scratch/other.done")"
	try wsync-push small.safetensors -e "$url" --state-dir mine --weight-version mine --json
	expect_status 5
	err_has "its weight version changed from 'default' to 'theirs'"
	url=$direct
	expect_state untouched False theirs
}

@test "a push that died has paused it: that is known" {
	endpoint e --lineage session --fault slow:update_weights_from_distributed:2 --fault-delay 2s
	held update_weights_from_distributed 2
	kill -KILL "$pid"
	wait "$pid" || true
	try wsync-push small.safetensors -e "$url" --json
	expect_status 0
	err_lacks "somebody else"
}

# front URL [MEMBERS]: another address of that server, in $front; its /server_info has these Python
# members, too.
front() {
	local url=$1
	proxy "$1" pass "if path == '/server_info': reply.update(${2-})"
	front=$url
}

@test "one server by two names is refused before it is asked to join, both are named" {
	endpoint e --listen 0.0.0.0:0
	port=${url##*:}
	front "$url"
	for names in "127.0.0.1 127.0.0.2" "localhost 127.0.0.3" "127.0.0.1 $(hostname)" \
		"127.1 127.0.0.9"; do
		set -- $names
		getent ahostsv4 "$2" | grep -q . || continue
		try wsync-push small.safetensors -e "$1:$port" -e "$2:$port" --init-timeout 5s
		expect_status 2
		err_has "http://$1:$port"
		err_has "http://$2:$port"
		err_has "are one server"
	done
	try wsync-push small.safetensors -e "$url" -e "$front" --init-timeout 5s
	expect_status 2
	err_has "are one server"
	expect_journal "$url" 'paths.count("/init_weights_update_group")' 0
	expect_journal "$url" 'paths.count("/open_session")' 0 # its start tells it
	# Without that it is asked.
	front "$url" startup_time=None
	local seeded=$front
	front "$url" startup_time=None
	try wsync-push small.safetensors -e "$seeded" -e "$front" --init-timeout 5s
	expect_status 2
	err_has "are one server"
	expect_journal "$url" 'paths.count("/open_session") > 0' True
	# Other names of 127.0.0.1 need no question.
	for other in 127.1 '[::ffff:127.0.0.1]' 0.0.0.0 '[::1]' '[::]' localhost; do
		try wsync-push small.safetensors -e "127.0.0.1:$port" -e "$other:$port"
		expect_status 2
		err_has "endpoint http://$other:$port: given twice, also as http://127.0.0.1:$port"
	done
	try wsync-push small.safetensors -e "$url" -e "127.0.0.2:$port" --dry-run
	expect_status 0
}

@test "one vLLM by two names is refused, also if it has several processes" {
	endpoint e --listen 0.0.0.0:0 --lineage vllm-0.33
	port=${url##*:}
	try wsync-push small.safetensors -e "127.0.0.1:$port" -e "127.0.0.2:$port" --backend disk
	expect_status 2
	err_has "are one server"
	local ranks='
if isinstance(reply.get("vllm_config"), dict):
    rank = kept["rank"] = 1 - kept.get("rank", 0)
    config = reply["vllm_config"]
    config["parallel_config"].update(_api_process_rank=rank, _api_process_count=2)
    config["instance_id"] = str(int(config["instance_id"]) + rank)'
	proxy "http://127.0.0.1:$port" pass "$ranks"
	local first=$url
	proxy "http://127.0.0.1:$port" pass "$ranks"
	try wsync-push small.safetensors -e "$first" -e "$url" --backend disk
	expect_status 2
	err_has "are one server"
	expect_journal "http://127.0.0.1:$port" '[p for p in paths if "pause" in p]' "[]"
}

@test "two servers of one machine are two, also with one seed and one port" {
	endpoint one
	a=$url port=${url##*:}
	endpoint two --listen "127.0.0.2:$port"
	try wsync-push small.safetensors -e "$a" -e "$url"
	expect_status 0
	front "$a" random_seed=42,port=30000,host="'0.0.0.0'",startup_time=None
	a=$front
	front "$url" random_seed=42,port=30000,host="'0.0.0.0'",startup_time=None
	try wsync-push small.safetensors -e "$a" -e "$front"
	expect_status 0
	expect_journal "$url" 'paths.count("/open_session"), paths.count("/close_session")' "(1, 1)"
}

@test "if two names may be one server, and no request can tell, the diagnosis says so" {
	endpoint e --listen 0.0.0.0:0
	front "$url" dp_size=2,enable_dp_attention=True,startup_time=None
	a=$front
	front "$url" dp_size=2,enable_dp_attention=True,startup_time=None
	try wsync-push small.safetensors -e "$a" -e "$front" --init-timeout 2s
	expect_status 10
	err_has "$front: may be the same server as another endpoint: their answers are equal"
}

@test "a version that an endpoint does not take is a warning, and the result does not claim it" {
	endpoint e
	proxy "$url" "if path == '/update_weight_version': answer = (200, \
'{\"success\":true,\"message\":\"ok\"}')"
	try wsync-push small.safetensors -e "$url" --weight-version mine
	expect_status 0
	err_has "it did not take the weight version 'mine': it says 'default', as before"
	out_has "pushed "
	out_lacks "weight version mine"
	try wsync-push small.safetensors -e "$url" --weight-version mine --json
	expect_status 0
	expect_json 'lines[-1]["type"], lines[-1]["weight_version"]' "('end', None)"
}

@test "what cannot be told to servers is refused before the first request" {
	endpoint one
	local words long before
	long=$(printf '%0128d' 7)
	before=$(journal "$url" 'len(j["requests"])')
	for words in "--weight-version=caf\xe9" "--group-name=\xff\xfe" "--round=\xc3 --sender 1/2 --lock l" \
		"--disk-dir=d\xed\xa0\x80 --backend disk" "--disk-path=/\xf8 --backend disk" \
		"--weight-version=a\xe2\x80\xaeb" "--group-name=a\x01b" "--weight-version=$long" \
		"--group-name=${long:0:101}" "--master-address=\xe9"; do
		words=$(printf "%b" "$words")
		# shellcheck disable=SC2086  # words
		try wsync-push small.safetensors -e "$url" $words
		expect_status 2
		LC_ALL=C err_has "${words%%=*}"
	done
	try wsync-ctl version $'v\xe9' -e "$url"
	expect_status 2
	try wsync-ctl ready -e "$url" --weight-version $'v\xe9'
	expect_status 2
	try wsync-ctl destroy-group $'v\xe9' -e "$url"
	expect_status 2
	try wsync-ctl init-group $'v\xe9' -e "$url"
	expect_status 2
	printf 'small.safetensors\tv\xe9\n' >lines
	STDIN=lines try wsync-push --stdin -e "$url"
	expect_status 2
	try wsync-verify logprobs -e "$url" --prompt $'v\xe9'
	expect_status 2
	[ "$(journal "$url" 'len([r for r in j["requests"] if r["method"] == "POST"])')" = 0 ]
	[ "$(journal "$url" 'len(j["requests"])')" -le "$((before + 3))" ]
	# Those that are the user's own, and what is UTF-8, stay free.
	try wsync-push small.safetensors -e "$url" --trace $'t\xe9' --state-dir $'s\xe9' \
		--weight-version "${long:0:126}é" --verify none
	expect_status 2 # 128 bytes
	try wsync-push small.safetensors -e "$url" --trace $'t\xe9' --state-dir $'s\xe9' \
		--weight-version "${long:0:125}é" --verify none
	expect_status 0
	[ "$(wsync-ctl version -e "$url")" = "${long:0:125}é" ]
}

@test "an integer does not go back, however it is written" {
	endpoint one
	local has next
	while read -r has next code; do
		has=${has//_/ } next=${next//_/ }
		relabel "$has"
		try wsync-push small.safetensors -e "$url" --weight-version "$next" --verify none
		[ "$status" = "$code" ] || explain "from '$has' to '$next': expected $code"
	done <<-ROWS
		5 -1 5
		-1 -2 5
		+10 +9 5
		10 _9 5
		_10_ 009 5
		99999999999999999999 100 5
		-3 +2 0
		9 09 0
		9 ٣ 0
		9 1.0 0
	ROWS
}
