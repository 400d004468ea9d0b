#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# What all programs have in common, asked of each of them.
load helpers

commands_of() { "$bin/$1" --dump-options | awk -F '\t' '$4 == "command" { print $1 }'; }
# Names of the options in a help on stdin.
options_shown() { sed -nE 's/^  (-.,|   ) --(\[no-\])?([a-z0-9-]+).*/\3/p' | sort; }

@test "help goes to stdout, ends with where the rest is and exits 0" {
	for p in $(programs); do
		COLUMNS=100 try "$p" --help
		expect_status 0
		expect_err ""
		[ "${out%%$'\n'*}" != "${out#Usage: $p}" ] || explain "no usage line"
		out_has "Examples:"
		out_has "  -V, --version"
		[[ ${out##*$'\n'} =~ \
			^More:\ ($p\ COMMAND\ --help,\ )?$p\ --help\ all,\ man\ $p$ ]] ||
			explain "no pointer to the rest"
		for topic in all $(commands_of "$p"); do
			try "$p" --help "$topic"
			expect_status 0
			expect_err ""
			[ "${out##*$'\n'}" = "See $p(1)." ] || explain "no pointer to the page"
		done
	done
}

@test "help fits a screen" {
	for p in $(programs); do
		for width in 80 100; do
			COLUMNS=$width try "$p" --help
			[ "$(wc -l <<<"$out")" -le 45 ] || explain "more than 45 lines"
		done
	done
}

@test "help fits the width it is given" {
	for p in $(programs); do
		for topic in "" all $(commands_of "$p"); do
			for width in 60 80 100; do
				# Examples are not wrapped: they fit 80 columns.
				# shellcheck disable=SC2086 # none or one word
				COLUMNS=$width "$p" --help $topic | awk -v width=$width '
					NR == 1 || /^$/ { w = width } /^Examples:/ { w = 80 }
					length($0) > w { print; wide = 1 } END { exit wide }' >&2 ||
					{ echo "$p $topic: wider than $width" >&2; return 1; }
			done
		done
	done
}

@test "the help of a command has its options and no others" {
	for p in $(programs); do
		for c in $(commands_of "$p"); do
			try "$p" --help "$c"
			[[ $out == "Usage: $p $c "* ]] || explain "no usage line of $c"
			out_lacks "Commands:"
			diff <(options_shown <<<"$out") <("$p" --dump-options |
				awk -F '\t' -v c="$c" \
				'$4 != "command" && ($7 == "-" || index("," $7 ",", "," c ",")) { print $1 }' |
				sort) >&2 || explain "options of $c"
		done
	done
}

@test "a command's help leaves out what the command refuses or ignores" {
	try wsync-verify flags --help
	out_has --expect
	out_lacks --scan
	out_lacks --include
	try wsync-verify scales --help
	out_has --progress # it reads the source too
	try wsync-verify flags --scan
	expect_status 2
	err_has "--scan: no option of 'flags', only of: names"
	try wsync-verify flags --include x
	expect_status 2
	err_has "no endpoint is registered"
}

@test "--help takes its subject before, after and between other words" {
	local page line
	try wsync-ctl pause --help
	[[ $out == "Usage: wsync-ctl pause "* ]] || explain "not the help of pause"
	page=$out
	for line in "--help pause" "--help=pause" "-h pause" "-e x --help pause" "pause -h" \
		"pause -e x --help" \
		"--help -e x pause" "pause extra --help"; do
		# shellcheck disable=SC2086 # words
		try wsync-ctl $line
		expect_status 0
		expect_out "$page"
	done
	try wsync-ctl --help=all
	page=$out
	for line in "--help all" "-h all" "pause --help all" "-h all pause"; do
		# shellcheck disable=SC2086 # words
		try wsync-ctl $line
		expect_status 0
		expect_out "$page"
	done
	try wsync-push --help
	page=$out
	for line in "--help ckpt/" "ckpt/ --help" "-h ckpt/ -n" "--help --no-such-option" \
		"all --help"; do
		# shellcheck disable=SC2086 # words
		try wsync-push $line
		expect_status 0
		expect_out "$page"
	done
	try wsync-push --help=ckpt/
	expect_status 2
	err_has "wsync-push: --help: invalid value 'ckpt/', must be all"
	try wsync-ctl --help=paus
	expect_status 2
	err_has "wsync-ctl: --help: invalid value 'paus', must be all or a command"
}

@test "an endpoint where only options are taken is answered with --endpoint" {
	local line
	for line in "info gpu7:30000" "version 8 gpu7:30000"; do
		# shellcheck disable=SC2086 # words
		try wsync-ctl $line
		expect_status 2
		err_has "${line%% *}: unexpected argument 'gpu7:30000', \
did you mean '--endpoint gpu7:30000'?"
	done
	try wsync-bench control http://gpu7:30000
	expect_status 2
	err_has "control: unexpected argument 'http://gpu7:30000', \
did you mean '--endpoint http://gpu7:30000'?"
	try wsync-bench transport gpu7:30000 # has no --endpoint
	expect_status 2
	err_lacks "did you mean"
	try wsync-ctl pause retract
	expect_status 2
	err_lacks "did you mean"
}

@test "the first line of --version is the name and the number" {
	for p in $(programs); do
		try "$p" --version
		expect_status 0
		[[ ${out%%$'\n'*} =~ ^$p\ [0-9]+\.[0-9]+\.[0-9]+$ ]] || explain "first line"
		out_has libcurl/
		[[ ${out##*$'\n'} =~ ^(CUDA kernels for( sm_[0-9]+)+|built without CUDA)$ ]] ||
			explain "last line"
	done
}

@test "an unknown option is one line, a pointer to --help and status 2" {
	for p in $(programs); do
		try "$p" --no-such-thing
		expect_status 2
		expect_out ""
		expect_err "$p: unknown option '--no-such-thing'
Try '$p --help'."
		try "$p" -Z
		expect_status 2
		err_has "unknown option '-Z'"
	done
}

@test "a mistyped option is answered with the nearest one" {
	for p in $(programs); do
		try "$p" --jsom
		expect_status 2
		err_has "did you mean '--json'?"
	done
}

@test "a flag takes no value and a choice only its own" {
	for p in $(programs); do
		try "$p" --json=1
		expect_status 2
		err_has "--json: takes no value"
		try "$p" --color sometimes
		expect_status 2
		err_has "--color: invalid choice 'sometimes', must be one of auto, always, never"
		try "$p" --color
		expect_status 2
		err_has "--color: needs a value"
	done
}

@test "a limit of 0 is refused, and none is the word for no limit" {
	for p in $(programs); do
		try "$p" --dump-options
		for o in $(awk -F '\t' '$4 == "duration" { print $1 }' <<<"$out" |
			grep 'timeout$'); do
			try "$p" "--$o" 0
			expect_status 2
			err_has "--$o: invalid DURATION '0', must be more than 0; \
none means no limit"
			try "$p" "--$o" none --version
			expect_status 0
		done
	done
}

@test "control characters of an argument do not reach the terminal" {
	for p in $(programs); do
		try "$p" $'--\e[31mred'
		expect_status 2
		err_lacks $'\e'
	done
}

@test "--dump-options has seven fields a line, the common options and no doubles" {
	for p in $(programs); do
		try "$p" --dump-options
		expect_status 0
		bad=$(awk -F '\t' 'NF != 7 || /\t\t/ || $2 !~ /^.$/ || $4 !~ /^(flag|switch|count|string|list|size|duration|uint|choice|call|help|version|command)$/' <<<"$out")
		[ -z "$bad" ] || explain "malformed: $bad"
		for o in json quiet verbose color help version; do
			grep -q "^$o	" <<<"$out" || explain "no --$o"
		done
		doubles=$(awk -F '\t' '$4 != "command" { print $1 } $2 != "-" { print $2 }' \
			<<<"$out" | sort | uniq -d)
		[ -z "$doubles" ] || explain "twice: $doubles"
		# Daily letters mean the same in every program.
		wrong=$(awk -F '\t' '($2 == "n" && $1 != "dry-run") || ($2 == "o" && $1 != "output")' <<<"$out")
		[ -z "$wrong" ] || explain "letter: $wrong"
	done
}

@test "output that cannot be written is status 8" {
	for p in $(programs); do
		status=0
		"$p" --help >/dev/full 2>err || status=$?
		out= err=$(<err) last="$p --help >/dev/full"
		expect_status 8
		expect_err "$p: writing standard output: No space left on device"
		status=0
		"$p" --version >&- 2>err || status=$?
		out= err=$(<err) last="$p --version >&-"
		expect_status 8
	done
}

@test "a reader that leaves is met with silence, not with success" {
	for p in $(programs); do
		{ status=0; "$p" --help 2>err || status=$?; echo $status >status; } | true
		eventually test -s status
		out= err=$(<err) status=$(<status) last="$p --help | true"
		# The reader may have been quick enough to leave after the last byte.
		[ "$status" = 8 ] || [ "$status" = 0 ] || explain "status"
		expect_err ""
	done
}

@test "closed descriptors 0 to 2 do no harm" {
	for p in $(programs); do
		status=0
		timeout 180 "$p" --help <&- >&- 2>&- || status=$?
		out= err= last="$p with everything closed"
		expect_status 8
		status=0
		timeout 180 "$p" --no-such-thing <&- >out 2>&- || status=$?
		expect_status 2
		[ ! -s out ]
	done
}

@test "an option that was removed says what to use instead" {
	try wsync-push m --lock-lease 3s
	expect_status 2
	err_has "--lock-lease: was removed with the lock service: use --lock FILE"
	try wsync-push m --lock-key-file=k
	expect_status 2
	err_has "--lock-key-file: was removed"
	try wsync-push m -e localhost:1 --sender 1/2 --lock http://localhost:1/a --round 1
	expect_status 2
	err_has "--lock URL: was removed"
	try wsync-push m --prove-flush hello
	expect_status 2
	err_has "--prove-flush: was removed: use wsync-verify caches --between"
}

@test "requests to this machine, in any notation, never go to a proxy" {
	canned proxy
	local proxy=$url host
	endpoint one
	for host in 127.1 0x7f000001 2130706433 0.0.0.0 '[::ffff:127.0.0.1]' LOCALHOST; do
		http_proxy=$proxy try wsync-list-weights -e "http://$host:${url##*:}"
		expect_status 0
	done
	for host in '[::]' localhost. "$(hostname)"; do
		http_proxy=$proxy try wsync-list-weights -e "http://$host:${url##*:}"
	done
	[ "$(wc -l <proxy.out)" = 1 ] || explain "$(<proxy.out)"
	http_proxy=$proxy try wsync-list-weights -e http://192.0.2.1:1
	[ "$(wc -l <proxy.out)" -gt 1 ] || explain "not by the proxy"
}

@test "no message has the password of an address" {
	local at
	for at in http://user:SECRET@127.0.0.1:1 user:SECRET@127.0.0.1:1; do
		for command in "push x -e" "push" "push x --json -e" "list-weights" "verify" "ctl" \
			"ctl status -e" "register add" "register remove" "bench push -e" \
			"bench transport --join" "bench transport --remote 1 --listen" \
			"gateway --listen" "endpoint --listen" \
			"push x -e http://127.0.0.1:1 --api-key-file"; do
			# shellcheck disable=SC2086
			try wsync-$command "$at"
			[ "$status" -ne 0 ] || explain "$at is no address"
			out_lacks SECRET
			err_lacks SECRET
		done
	done
}
