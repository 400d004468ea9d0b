#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-push --metrics: a file for Prometheus, read strictly.
load helpers

metrics() { /usr/bin/python3 "$repo/tests/cli/exposition.py" m.prom "$1"; }
# is EXPRESSION VALUE
is() { [ "$(metrics "$1")" = "$2" ] || explain "$1 is $(metrics "$1"), not $2"; }
success_at() { metrics 'v("wsync_push_last_success_timestamp_seconds")'; }

@test "a push that succeeds is told as its last line tells it" {
	llama m
	endpoint a --tp 2
	try wsync-push m -e "$url" --bucket-size 64KiB --verify hash --metrics m.prom --json
	expect_status 0
	is 'v("wsync_push_success"), v("wsync_push_exit_code"), v("wsync_push_endpoints")' \
		"('1', '0', '1')"
	is "v('wsync_push_endpoint_state', endpoint='$url', state='committed'), \
v('wsync_push_endpoint_success', endpoint='$url')" "('1', '1')"
	is "v('wsync_push_endpoint_state', endpoint='$url', state='partial'), \
v('wsync_push_endpoint_paused', endpoint='$url')" "('0', '0')"
	is 'v("wsync_push_verify", outcome="passed"), v("wsync_push_verify", outcome="failed")' \
		"('1', '0')"
	is 'v("wsync_push_info", backend="gloo", protocol="update", load_format="flattened_bucket",
		verify="hash")' 1
	local version compiler
	version=$(wsync-push --version | sed -n '1s/.* //p')
	compiler=$(wsync-push --version | sed -n '2s/^commit [^,]*, //p')
	is "v('wsync_build_info', version='$version', build='$compiler')" 1
	for key in bytes wire_bytes tensors buckets; do
		is "v('wsync_push_$key')" "$(json "lines[-1]['$key']")"
	done
	is 'v("wsync_push_duration_seconds")' \
		"$(json '"%d.%09d" % divmod(lines[-1]["ns"]["total"], 10**9)')"
	is '[v("wsync_push_phase_seconds", phase=p) for p in ("transfer", "resume")]' \
		"$(json '["%d.%09d" % divmod(lines[-1]["ns"][p], 10**9) for p in ("transfer",
			"resume")]')"
	is 'v("wsync_push_timestamp_seconds") == v("wsync_push_last_success_timestamp_seconds")' \
		True
	[ "$(stat -c %a m.prom)" = "$(printf '%o' $((0666 & ~$(umask))))" ]
	[ "$(ls)" = "$(printf '%s\n' a.err a.out home m m.names m.prom state)" ] ||
		explain "something is left: $(ls)"
}

@test "a push that fails says so, and when one succeeded last" {
	llama m
	endpoint a
	try wsync-push m -e "$url" --metrics m.prom
	expect_status 0
	local before
	before=$(success_at)
	try wsync-push m -e "http://127.0.0.1:$(free_port)" --metrics m.prom
	expect_status 4
	is 'v("wsync_push_success"), v("wsync_push_exit_code")' "('0', '4')"
	[ "$(success_at)" = "$before" ]
	is 'v("wsync_push_verify", outcome="unknown")' 1
	# Before anybody knew who is meant.
	try wsync-push m --metrics m.prom --registry none.json
	expect_status 2
	is 'v("wsync_push_success"), v("wsync_push_exit_code"), v("wsync_push_endpoints")' \
		"('0', '2', '0')"
	[ "$(success_at)" = "$before" ]
	try wsync-push m -e "$url" --metrics m.prom
	is 'v("wsync_push_success")' 1
	[ "$(success_at)" != "$before" ]
}

@test "which endpoint has what is told of each" {
	llama m
	endpoint a
	local first=$url
	endpoint b --fault refuse:update_weights_from_distributed:2
	try wsync-push m -e "$first" -e "$url" --bucket-size 64KiB --metrics m.prom
	[ "$status" != 0 ]
	is 'v("wsync_push_success"), v("wsync_push_exit_code")' "('0', '$status')"
	for u in "$first" "$url"; do
		is "[v('wsync_push_endpoint_state', endpoint='$u', state=s) for s in ('untouched', \
'partial', 'committed')]" \
			"['0', '1', '0']"
	done
}

@test "what is not what was sent is a check that failed" {
	llama m
	endpoint a --fault flip:update_weights_from_distributed:1
	try wsync-push m -e "$url" --verify hash --metrics m.prom --json
	expect_status 1
	is 'v("wsync_push_verify", outcome="failed"), v("wsync_push_exit_code")' "('1', '1')"
	is 'int(v("wsync_push_mismatches"))' "$(json 'sum(l["type"] == "mismatch" for l in lines)')"
}

@test "with --stdin the file is written after each line" {
	llama m
	endpoint a
	lines_to --metrics m.prom
	echo m >&7
	eventually test -s m.prom
	is 'v("wsync_push_runs_total", outcome="success"), v("wsync_push_success")' "('1', '1')"
	local before
	before=$(success_at)
	echo nowhere >&7
	eventually grep -q '^wsync_push_success 0' m.prom
	is 'v("wsync_push_exit_code"), v("wsync_push_runs_total", outcome="failure")' "('3', '1')"
	[ "$(success_at)" = "$before" ]
	echo m >&7
	eventually grep -q '^wsync_push_success 1' m.prom
	exec 7>&-
	finished push 3 # of the line that failed
	is 'v("wsync_push_runs_total", outcome="success")' 2
}

@test "a file that cannot be written is said before anybody is asked, and a dry run writes none" {
	llama m
	mkdir there
	for file in nowhere/m.prom there /dev/null m/config.json/x; do
		try wsync-push m -e http://127.0.0.1:1 --metrics "$file"
		expect_status 8
		err_has "--metrics: "
	done
	[ -c /dev/null ]
	for file in - ''; do
		try wsync-push m -e http://127.0.0.1:1 --metrics "$file"
		expect_status 2
	done
	try wsync-push m -e http://127.0.0.1:1 --metrics both --trace both
	expect_status 2
	[ ! -e both ]
	try wsync-push m -n --metrics m.prom
	expect_status 0
	[ ! -e m.prom ]
}

@test "one that cannot be written at the end is a warning" {
	llama m
	endpoint a
	mkdir there
	lines_to --metrics there/m.prom --trace there/t.json
	eventually grep -q '"start"' push.out
	rm -r there
	echo m >&7
	exec 7>&-
	wait "$pid"
	grep -q '"type":"warning".*--metrics: create' push.out
	grep -q '"type":"warning".*--trace: create' push.out
	[ "$(tail -n 1 push.out | cut -c 1-24)" = '{"type":"end","ok":true,' ]
}
