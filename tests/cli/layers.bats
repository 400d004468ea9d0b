#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# What the library may know of the programs.
load helpers

# What the library's sentences have in braces, but for the facts that hang_fill.c puts there.
fields_named() {
	grep -rhoE --include='*.c' '"([^"\\]|\\.)*"' "$repo/lib" | grep -oE '\{[a-z][a-z_0-9]+\}' | tr -d '{}' | sort -u |
		grep -vxE 'who|peer|key|address|port|group|waited|still|starved|ifname|longer'
	grep -hoE '\{ "[a-z]+_ns"' "$repo"/lib/push/{push_hang,forming}.c | grep -oE '[a-z_]+'
}

@test "the programs have an option for each field that the library names" {
	fields_named | sort -u >named
	awk '/renamed\[\]/ { on = 1 } /^};/ { on = 0 } on' "$repo/cmd/common/ui_words.c" |
		grep -oE '"[^"]+", "[^"]+"' | tr -d '",' >words
	awk '/alike\[\]/ { on = 1 } /^};/ { on = 0 } on' "$repo/cmd/common/ui_words.c" |
		grep -oE '"[^"]+"' | tr -d '"' | awk '{ option = $0; gsub("-", "_"); print $0, option }' >>words
	loose=$(grep -rnE --include='*.c' '"([^"\\]|\\.)*[^ ("]\{('"$(paste -sd '|' named)"')\}' "$repo/lib" || true)
	[ -z "$loose" ] || { echo "not at the beginning of a word: $loose" >&2; return 1; }
	diff named <(cut -d ' ' -f 1 words | sort) >&2
	known=$(for p in $(programs); do "$bin/$p" --dump-options | cut -f 1; done)
	unknown=$(cut -d ' ' -f 2 words | grep -vxF -e "$known" || true)
	[ -z "$unknown" ] || { echo "no program has $unknown" >&2; return 1; }
}

@test "a program says its option, in text and in JSON" {
	try wsync-push synthetic:qwen3-0.6b --dry-run --disk-dir x
	expect_status 2
	expect_err "wsync-push: --disk-dir and --disk-path are for --backend disk"
	try wsync-push synthetic:qwen3-0.6b --dry-run --ipc-device 1 --json
	[ "$(json 'lines[-1]["error"]["message"]')" = "--ipc-device is for --backend ipc" ]
	# a path that should have been a template stays as it is
	try wsync-push "$scratch/{model}" --dry-run --json
	expect_status 3
	err_has "open $scratch/{model}: "
	[[ $(json 'lines[-1]["error"]["message"]') == "open $scratch/{model}: "* ]]
}
