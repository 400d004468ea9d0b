#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The layers of HACKING.md: which headers a folder finds, and what the library may know of the
# programs.
load helpers

@test "each folder finds the headers of its layers and no others" {
	diff - <(cd "$repo" && env -u MAKEFLAGS make -s --no-print-directory CUDA=0 \
		--eval='show:; @printf "%s\n" $(foreach l, \
		$(sort $(notdir $(patsubst %/,%,$(filter-out lib/vllm/,$(wildcard lib/*/)))) \
		cmd gateway),"$l: $(sort \
		$(foreach d,$(patsubst -I%,%,$(INC_$l)), \
		$(if $(filter lib/%,$d),$(word 2,$(subst /, ,$d)),$d)))")' show) \
		>&2 <<-END
base: base
bench: base bench check client diagnose gpu group model names net proof push staging state \
transform verify
check: base check model names
client: base check client model names net
cmd: cmd/common
diagnose: base check client diagnose gpu group model names net staging transform
endpoint: base check endpoint gpu httpd model names net proof transform
fleet: base check client diagnose fleet gpu group model names net proof push staging state \
transform verify
gateway: httpd
gpu: base gpu
group: base check client gpu group model names net staging transform
httpd: base httpd net
model: base model names
names: base names
net: base net
proof: base model names proof transform
push: base check client diagnose gpu group model names net proof push staging state transform verify
staging: base gpu model names staging transform
state: base check client gpu group model names net staging state transform
transform: base model names transform
verify: base check client model names net proof state transform verify
	END
	# and each is compiled with its own list
	for d in "$repo"/lib/*/; do
		d=$(basename "$d")
		[ "$d" != vllm ] || continue # Python
		grep -qxF "\$(BUILD)/obj/lib/$d/%.o: LAYER = \$(INC_$d)" "$repo/Makefile" ||
			explain "no rule for lib/$d"
	done
	! grep -rnE '#include "(\.\.|lib|cmd)/' "$repo"/{lib,include,cmd} >&2
}

@test "no two files of lib, include and cmd have one name" {
	find "$repo"/{lib,include,cmd} -name '*.[ch]' -printf '%f\n' | sort | uniq -d >twice
	[ ! -s twice ] || explain "$(cat twice)"
}

@test "no two functions have one name" {
	# A linker takes the first that an archive has.
	nm -g --defined-only "$build"/libwsync*.a 2>nm.err | awk '$2 ~ /[TDB]/ { print $3 }' |
		sort >names
	grep -qx ws_push_open names
	[ -z "$(uniq -d names)" ] || explain "$(uniq -d names)"
}

# What the library's sentences have in braces, but for the facts that hang_fill() puts there.
fields_named() {
	grep -rhoE --include='*.c' '"([^"\\]|\\.)*"' "$repo/lib" | grep -oE '\{[a-z][a-z_0-9]+\}' |
		tr -d '{}' | sort -u |
		grep -vxE 'who|peer|key|address|port|group|waited|still|starved|ifname|longer'
	grep -hoE '\{ "[a-z]+_ns"' "$repo"/lib/push/{push_watchdog,group_test}.c | grep -oE '[a-z_]+'
}

@test "the programs have an option for each field that the library names" {
	fields_named | sort -u >named
	awk '/renamed\[\]/ { on = 1 } /^};/ { on = 0 } on' "$repo/cmd/common/ui_words.c" |
		grep -oE '"[^"]+", "[^"]+"' | tr -d '",' >words
	awk '/alike\[\]/ { on = 1 } /^};/ { on = 0 } on' "$repo/cmd/common/ui_words.c" |
		grep -oE '"[^"]+"' | tr -d '"' |
		awk '{ option = $0; gsub("-", "_"); print $0, option }' >>words
	loose=$(grep -rnE --include='*.c' \
		'"([^"\\]|\\.)*([^ ("]\{('"$(paste -sd '|' named)"')\}|\{[a-z_]+\}/)' \
		"$repo/lib" || true)
	[ -z "$loose" ] || { echo "not a word of its own: $loose" >&2; return 1; }
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
	expect_json 'lines[-1]["error"]["message"]' "--ipc-device is for --backend ipc"
	# a path that should have been a template stays as it is
	try wsync-push "$scratch/{model}" --dry-run --json
	expect_status 3
	err_has "open $scratch/{model}: "
	[[ $(json 'lines[-1]["error"]["message"]') == "open $scratch/{model}: "* ]]
	try wsync-push "{model}/ckpt" --dry-run
	expect_status 3
	err_has "open {model}/ckpt: "
	# and so does the name of a field
	try wsync-push "{pause}" --dry-run
	err_has "open {pause}: "
	echo "{pause}" >lines
	STDIN=lines try wsync-push --stdin --dry-run
	err_has "open {pause}: "
}
