#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The three completion files are run in their shells: they offer what the programs' own tables have.
load helpers

options_of() { "$bin/$1" --dump-options | awk -F '\t' '$4 != "command" { print "--" $1 }' | sort; }
commands_of() { "$bin/$1" --dump-options | awk -F '\t' '$4 == "command" { print $1 }' | sort; }
# "--pause abort retract in_place none", one line for each choice.
choices_of() {
	"$bin/$1" --dump-options | awk \
		-F '\t' '$4 == "choice" { gsub("[|]", " ", $5); print "--" $1, $5 }'
}
prepare() { export WSYNC_REGISTRY=$scratch/registry.json; }

# ---- bash ----

# complete_bash WORD...: what bash would offer for the last word, sorted.
complete_bash() {
	bash --norc -c '
		. /usr/share/bash-completion/bash_completion
		. "$1/completions/wsync.bash"
		COMP_LINE="${*:2}" COMP_POINT=${#COMP_LINE}
		# As readline does it: : and = are words of their own.
		mapfile -t COMP_WORDS < <(sed "s/[:=]/\n&\n/g; s/ /\n/g" <<<"$COMP_LINE" | sed "1!{/^$/d}")
		[[ $COMP_LINE == *" " || ${#COMP_WORDS[@]} = 0 ]] && COMP_WORDS+=("")
		COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
		_wsync "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
		printf "%s\n" "${COMPREPLY[@]}"' bash "$repo" "$@" | sort
}

needs() {
	local what
	for what; do
		command -v "$what" >/dev/null || [ -f "$what" ] || skip "no $what"
	done
}
needs_bash() { needs /usr/share/bash-completion/bash_completion; }

@test "bash: every option of every program, and no other" {
	needs_bash
	for p in $(programs); do
		diff <(options_of "$p") <(complete_bash "$p" --) >&2 || { echo "$p" >&2; return 1; }
	done
}

@test "bash: the choices of every option" {
	needs_bash
	for p in $(programs); do
		while read -r option choices; do
			diff <(tr ' ' '\n' <<<"$choices" | sort) \
				<(complete_bash "$p" "$option" "") >&2 ||
				{ echo "$p $option" >&2; return 1; }
		done < <(choices_of "$p")
	done
}

@test "bash: the commands of every program" {
	needs_bash
	for p in $(programs); do
		[ -n "$(commands_of "$p")" ] || continue
		diff <(commands_of "$p") <(complete_bash "$p" "") >&2 ||
			{ echo "$p" >&2; return 1; }
	done
}

@test "bash: part of a value after an equals sign" {
	needs_bash
	[ "$(complete_bash wsync-list-weights --format=ta)" = table ]
}

@test "bash: tensor names of a source on the line" {
	needs_bash
	safetensors a.safetensors model.norm.weight:F32:2 lm_head.weight:F32:2
	[ "$(complete_bash wsync-list-weights a.safetensors --include mod)" = model.norm.weight ]
	[ "$(complete_bash wsync-list-weights --include mod)" = "" ]
}

@test "bash: checkpoints, directories and synthetic models are sources" {
	needs_bash
	mkdir ckpt && touch b.safetensors notes.txt
	[ "$(complete_bash wsync-list-weights "" |
		tr '\n' ' ')" = "b.safetensors ckpt home state " ] ||
		[ "$(complete_bash wsync-list-weights "" |
		tr '\n' ' ')" = "b.safetensors ckpt home " ]
	# Readline replaces only what follows the colon.
	complete_bash wsync-list-weights synthetic:qwen3-0 | grep -qx qwen3-0.6b
}

@test "bash: memory of a GPU is a source by its manifest" {
	needs_bash
	touch m.json
	[ "$(complete_bash wsync-push cuda-i | tr '\n' ' ')" = "cuda-ipc: " ]
	[ "$(complete_bash wsync-push cuda-ipc:m | tr '\n' ' ')" = "m.json " ]
}

@test "bash: endpoints of the registry" {
	needs_bash
	[ -x "$bin/wsync-register" ] || skip "not built"
	"$bin/wsync-register" add --no-check gpu7:30000 >/dev/null
	complete_bash wsync-list-weights --endpoint "" | grep -qx http://gpu7:30000
}

# ---- fish ----

# complete_fish LINE: what fish would offer, without descriptions, sorted.
complete_fish() {
	fish --no-config -c 'source $argv[1]/completions/wsync.fish; complete -C $argv[2]' "$repo" \
		"$1" |
		cut -f 1 | sort
}

@test "fish: every option of every program, and no other" {
	needs fish
	for p in $(programs); do
		diff <(options_of "$p") <(complete_fish "$p --" | grep '^--') >&2 ||
			{ echo "$p" >&2; return 1; }
	done
}

@test "fish: the choices of every option" {
	needs fish
	for p in $(programs); do
		while read -r option choices; do
			diff <(tr ' ' '\n' <<<"$choices" | sort) <(complete_fish "$p $option ") \
				>&2 ||
				{ echo "$p $option" >&2; return 1; }
		done < <(choices_of "$p")
	done
}

@test "fish: the commands of every program" {
	needs fish
	for p in $(programs); do
		[ -n "$(commands_of "$p")" ] || continue
		diff <(commands_of "$p") <(complete_fish "$p ") >&2 || { echo "$p" >&2; return 1; }
	done
}

@test "fish: tensor names of a source on the line" {
	needs fish
	safetensors a.safetensors model.norm.weight:F32:2 lm_head.weight:F32:2
	[ "$(complete_fish "wsync-list-weights a.safetensors --include mod")" = model.norm.weight ]
}

# ---- zsh ----

# specs_zsh PROGRAM: the specifications that the file hands to _arguments, one a line.
specs_zsh() {
	zsh -f -c '
		_arguments() { print -rl -- "$@" }
		_call_program() { shift; "$@" }
		service=$2 words=($2 "") CURRENT=2
		. $1/completions/_wsync' zsh "$repo" "$1"
}

@test "zsh: the file is for every program" {
	for p in $(programs); do
		head -n 1 "$repo/completions/_wsync" | grep -qw -e "$p" ||
			{ echo "$p" >&2; return 1; }
	done
}

@test "zsh: every option of every program, and no other" {
	needs zsh
	for p in $(programs); do
		diff <(options_of "$p") \
			<(specs_zsh "$p" | sed -nE 's/^(\([^)]*\)|\*)*(--[a-z0-9-]+).*/\2/p' |
			sort -u) >&2 ||
			{ echo "$p" >&2; return 1; }
	done
}

@test "zsh: the choices of every option" {
	needs zsh
	for p in $(programs); do
		while read -r option choices; do
			specs_zsh "$p" | grep -qE -e "^[*]?$option\[.*:\($choices\)$" ||
				{ echo "$p $option: $choices" >&2; return 1; }
		done < <(choices_of "$p")
	done
}

@test "zsh: the commands of every program" {
	needs zsh
	for p in $(programs); do
		[ -n "$(commands_of "$p")" ] || continue
		diff <(commands_of "$p") \
			<(specs_zsh "$p" | sed -nE 's/^1:command:\((.*)\)$/\1/p' | tr ' ' '\n' |
			sort) >&2 ||
			{ echo "$p" >&2; return 1; }
	done
}

# A real zsh on a terminal of its own, with completion loaded, is given a line and a tab.
@test "zsh: a line on a terminal is completed" {
	needs zsh
	/usr/bin/python3 -c 'import os; os.openpty()' 2>/dev/null || skip "no pseudo-terminals here"
	timeout 20 zsh -f >zsh.out 2>&1 <<-END
		zmodload zsh/zpty
		zpty -b shell zsh -f -i
		zpty -w shell "PS1=; fpath=($repo/completions \\\$fpath); autoload -U compinit; compinit -u -D; echo loa''ded"
		zpty -r -m shell text '*loaded*'
		zpty -w -n shell \$'wsync-list-weights --conn\t'
		zpty -r -m shell text '*--connect-timeout*'
		print -r -- "\$text"
		zpty -d shell
	END
	grep -q -e --connect-timeout zsh.out
}
