#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The manual says what the programs do: options, commands, exit codes, JSON keys and
# cross-references are compared with the programs and the headers.
load helpers

# "-e, --endpoint URL", as it stands in help and pages, from the dump of the option table.
wanted_tags() {
	"$bin/$1" --dump-options | awk -F '\t' '$4 != "command" {
		arg = $3 != "-" ? " " $3 : $5 != "-" ? " " $5 : ""
		print ($2 == "-" ? "" : "-" $2 ", ") "--" ($4 == "switch" ? "[no-]" : "") $1 arg }' | sort
}
wanted_commands() {
	"$bin/$1" --dump-options |
		awk -F '\t' '$4 == "command" { print $1 ($3 == "-" ? "" : " " $3) }' | sort
}

# A page as plain text: page FILE.SECTION. It is made once.
page() {
	local text=$BATS_FILE_TMPDIR/$1
	[ -e "$text" ] ||
		scdoc <"$repo/man/$1.scd" | mandoc -T ascii -O width=200 | sed $'s/.\b//g' >"$text"
	cat "$text"
}
# section TITLE, of a page on stdin.
section() { awk -v t="$1" '/^[A-Z]/ { on = $0 == t; next } on'; }

needs_scdoc() {
	{ command -v scdoc && command -v mandoc; } >/dev/null || skip "no scdoc or mandoc"
}

@test "every program has a page with the sections in order" {
	needs_scdoc
	local found p order='^NAME;SYNOPSIS;DESCRIPTION;(COMMANDS;)?OPTIONS;EXIT STATUS;ENVIRONMENT;'
	order+='(READING A MISMATCH;)?(CHECKSUMS;)?(FILES;)?(NOTES;)?(SEVERAL SENDERS;)?'
	order+='(AFTER A CRASH;)?'
	order+='(CONCURRENT PUSHES;)?(BUCKET SIZES;)?(STAGED UPDATES;)?(WRITING A CHECKPOINT;)?'
	order+='(IPC BACKEND;)?(DISK BACKEND;)?(VLLM;)?(FILES;)?'
	order+='(CAVEATS;)?(BUGS;)?'
	order+='EXAMPLES;SEE ALSO;$'
	for p in $(programs); do
		found=$(page "$p.1" | grep -E '^[A-Z][A-Z ]*$' | tr '\n' ';')
		[[ $found =~ $order ]] ||
			{ echo "$p: $found" >&2; return 1; }
	done
}

@test "--help all lists the options of the table" {
	for p in $(programs); do
		diff <(wanted_tags "$p") \
			<(COLUMNS=100 "$bin/$p" --help all | sed -z 's/|\n */|/g' |
				sed -nE '/^  (-.,|   ) --/{ s/^ +//; s/  .*//; p; }' | sort) >&2
	done
}

@test "the page of a program has its options, letters, arguments and choices" {
	needs_scdoc
	for p in $(programs); do
		diff <(wanted_tags "$p") \
			<(page "$p.1" | section OPTIONS | sed -n 's/^ \{7\}\(-.*\)/\1/p' | sort) >&2
	done
}

@test "the page of a program with commands has all of them" {
	needs_scdoc
	for p in $(programs); do
		[ -n "$(wanted_commands "$p")" ] || continue
		diff <(wanted_commands "$p") \
			<(page "$p.1" | section COMMANDS | sed -n 's/^ \{7\}\([a-z].*\)/\1/p' |
			sort) >&2
	done
}

@test "no page speaks of an option that no program has" {
	known=$(for p in $(programs); do "$bin/$p" --dump-options | cut -f 1 | sed 's/^/--/'; done)
	# What servers and other programs understand.
	known+=$'\n--enable-dp-attention\n--random-seed\n--ipc\n--pid\n--'
	known+=$'\n--weight-transfer-config\n--worker-extension-cls\n--admin-api-key'
	known+=$'\n--enable-prompt-tokens-details'
	for f in "$repo"/man/*.scd; do
		said=$(grep -oE -e '--(\[no-\])?[a-z][a-z0-9-]+' "$f" | sed 's/\[no-\]//' | sort -u)
		unknown=$(grep -vxF -e "$known" <<<"$said" || true)
		[ -z "$unknown" ] || { printf '%s: %s\n' "${f##*/}" "$unknown" >&2; return 1; }
	done
}

@test "every exit code stands in wsync(7) with its word" {
	needs_scdoc
	# From the enumeration and the table of words: "3 input".
	words=$(sed -nE 's/.*\[(WS_[A-Z]+)\] = "([a-z]+)".*/\1 \2/p' \
		<(grep -oE '\[WS_[A-Z]+\] = "[a-z]+"' "$repo/lib/base/err.c"))
	wanted=$(sed -nE 's/^\t(WS_[A-Z]+) *= ([0-9]+).*/\1 \2/p' "$repo/include/wsync/err.h" |
		while read -r name number; do
			[ "$number" = 13 ] ||
				echo "$number $(awk -v n="$name" '$1 == n { print $2 }' \
				<<<"$words")"
		done)
	[ "$(wc -l <<<"$wanted")" = 13 ]
	diff <(echo "$wanted") \
		<(page wsync.7 | section "EXIT STATUS" | sed -nE 's/^ {7}([0-9]+ [a-z]+)$/\1/p') >&2
}

@test "pages pass mandoc's lint" {
	needs_scdoc
	for f in "$repo"/man/*.scd; do
		scdoc <"$f" >page
		# scdoc writes empty paragraphs, which are mere warnings.
		mandoc -T lint -W error page >&2 || { echo "$f" >&2; return 1; }
	done
}

@test "pages refer to pages that exist" {
	for f in "$repo"/man/*.scd; do
		for ref in $(grep -oE '\*wsync[a-z-]*\*\([0-9]\)' "$f" | tr -d '*' | sort -u); do
			name=${ref%(*} number=${ref#*(}
			[ -f "$repo/man/$name.${number%)}.scd" ] ||
				{ echo "${f##*/}: $ref" >&2; return 1; }
		done
	done
}

# documented PROGRAM <LINES: every key of every JSON line stands in wsync-json(5).
documented() { /usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" "$1"; }

@test "every JSON key of wsync-list-weights is documented" {
	safetensors a.safetensors w:BF16:4,4 v:F32:3
	try wsync-list-weights a.safetensors --hash --json
	expect_status 0
	documented wsync-list-weights <<<"$out"
	try wsync-list-weights a.safetensors --headers-only
	expect_status 0
	expect_json '[l["type"] for l in lines].count("checkpoint")' 1
	documented wsync-list-weights <<<"$out"
	try wsync-list-weights missing.safetensors --json
	expect_status 3
	documented wsync-list-weights <<<"$out"
}

@test "every JSON key of wsync-push is documented" {
	safetensors a.safetensors w:BF16:4,4 v:F32:3
	try wsync-push --dry-run --json a.safetensors
	expect_status 0
	documented wsync-push <<<"$out"
	endpoint one --fault flip:update_weights_from_distributed:1
	try wsync-push a.safetensors -e "$url" --verify hash --json -v
	expect_status 1
	documented wsync-push <<<"$out"
	out=$(printf 'a.safetensors\t7\nmissing\n' |
		wsync-push -e "$url" --stdin --json 2>/dev/null) || true
	expect_json '[l["type"] for l in lines].count("result")' 2
	documented wsync-push <<<"$out"
}

@test "every JSON key of wsync-register, wsync-ctl and wsync-endpoint is documented" {
	/usr/bin/python3 "$repo/tests/cli/small_model.py" qwen3 small
	endpoint one --tp 2 --model small
	for command in "add $url" "add --no-check 127.0.0.1:9" list check "remove 127.0.0.1:9"; do
		# shellcheck disable=SC2086 # words
		try wsync-register $command --json
		documented wsync-register <<<"$out"
	done
	for command in info health pause flush resume version "version 8" "info -e 127.0.0.1:9"; do
		# shellcheck disable=SC2086 # words
		try wsync-ctl $command --json
		documented wsync-ctl <<<"$out"
	done
	documented wsync-endpoint <one.out
}

@test "the registry's keys are documented" {
	endpoint one
	try wsync-register add "$url" --registry r.json
	expect_status 0
	for key in $(/usr/bin/python3 -c 'import json
r = json.load(open("r.json"))
print(*r, *r["endpoints"][0])'); do
		grep -q -e "\*$key\*" "$repo/man/wsync-registry.5.scd" ||
			{ echo "$key" >&2; return 1; }
	done
}

# scdoc takes a backslash away there too, unless it is doubled.
@test "examples are printed as they are typed" {
	needs_scdoc
	local f
	for f in "$repo"/man/*.scd; do
		page "$(basename "$f" .scd)" >printed
		/usr/bin/python3 - "$f" <<-'END'
			import sys
			printed = {line.strip() for line in open("printed")}
			inside, lost = False, []
			for line in open(sys.argv[1]):
			    if line.startswith("```"):
			        inside = not inside
			    elif inside and line.isascii() and line.replace("\\\\",
			                                                    "\\").strip() not \
			                                                            in printed:
			        lost.append(line)
			sys.exit(f"{sys.argv[1]}: not printed so:\n{''.join(lost)}" if lost else 0)
		END
	done
}

@test "what README.md and HACKING.md name in the tree is there" {
	local f p missing=
	cd "$repo" || return
	for f in README.md HACKING.md; do
		while read -r p; do
			compgen -G "$p" >/dev/null || missing+=" $f:$p"
		done < <(grep -oE '\b(cmd|lib|include|man|completions|tests)/[A-Za-z0-9_.*/-]*[A-Za-z0-9*/]' "$f" | sort -u)
	done
	[ -z "$missing" ] || { echo "not there:$missing" >&2; return 1; }
}
