#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The three completion files are run in their shells: they offer what the programs' own tables have.
load helpers

# wanted: "LINE<TAB>WORD" for what a program's table offers where a line ends so.
wanted() {
	local p
	for p in $(programs); do
		"$bin/$p" --dump-options | awk -F '\t' -v p="$p" '
			$4 == "command" { print p " \t" $1; next }
			{ print p " --\t--" $1 }
			$4 == "choice" { n = split($5, of, "|")
			                 for (i = 1; i <= n; i++) print p " --" $1 " \t" of[i] }'
	done | sort
}
# offers_as_wanted COMPLETE: that command, given the lines, offers every word and no other.
offers_as_wanted() {
	wanted >wanted
	cut -f 1 wanted | uniq >lines
	# A program whose table is empty would not be asked.
	diff <(programs | sed 's/$/ --/' | sort) <(grep -e ' --$' lines) >&2
	"$1" <lines | sort >offered
	diff wanted offered >&2
}
prepare() { export WSYNC_REGISTRY=$scratch/registry.json; }

# ---- bash ----

# bash_offers <LINES: "LINE<TAB>WORD" for each word that bash would offer.
bash_offers() {
	bash --norc -c '
		. /usr/share/bash-completion/bash_completion
		. "$1/completions/wsync.bash"
		while IFS= read -r COMP_LINE; do
			COMP_POINT=${#COMP_LINE}
			# As readline does it: : and = are words of their own.
			mapfile -t COMP_WORDS < <(sed "s/[:=]/\n&\n/g; s/ /\n/g" <<<"$COMP_LINE" |
				sed "1!{/^$/d}")
			[[ $COMP_LINE == *" " || ${#COMP_WORDS[@]} = 0 ]] && COMP_WORDS+=("")
			COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
			_wsync "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" \
				"${COMP_WORDS[COMP_CWORD - 1]}" </dev/null
			printf "$COMP_LINE\t%s\n" "${COMPREPLY[@]}"
		done' bash "$repo"
}
# complete_bash LINE: the words alone, sorted.
complete_bash() { bash_offers <<<"$1" | cut -f 2 | sort; }

needs() {
	local what
	for what; do
		command -v "$what" >/dev/null || [ -f "$what" ] || skip "no $what"
	done
}
needs_bash() { needs /usr/share/bash-completion/bash_completion; }

@test "bash: every option, choice and command of every program, and no other" {
	needs_bash
	offers_as_wanted bash_offers
}

@test "bash: part of a value after an equals sign" {
	needs_bash
	[ "$(complete_bash "wsync-list-weights --format=ta")" = table ]
}

@test "bash: tensor names of a source on the line" {
	needs_bash
	safetensors a.safetensors model.norm.weight:F32:2 lm_head.weight:F32:2
	[ "$(complete_bash "wsync-list-weights a.safetensors --include mod")" = model.norm.weight ]
	[ "$(complete_bash "wsync-list-weights --include mod")" = "" ]
}

@test "bash: a name with a command in it is quoted, and never run" {
	needs_bash
	safetensors a.safetensors 'x$(touch ran)`touch ran`;touch ran:F32:2'
	[ "$(complete_bash "wsync-list-weights a.safetensors --include x")" = \
		'x\$\(touch\ ran\)\`touch\ ran\`\;touch\ ran' ]
	touch 'b$(touch ran).json'
	# Readline replaces only what follows the colon.
	[ "$(complete_bash "wsync-list-weights cuda-ipc:b")" = 'b\$\(touch\ ran\).json' ]
	[ ! -e ran ]
}

@test "bash: checkpoints, directories and synthetic models are sources" {
	needs_bash
	mkdir ckpt && touch b.safetensors notes.txt
	[[ $(complete_bash "wsync-list-weights " | tr '\n' ' ') =~ \
		^"b.safetensors ckpt home "("state ")?$ ]]
	# Readline replaces only what follows the colon.
	complete_bash "wsync-list-weights synthetic:qwen3-0" | grep -qx qwen3-0.6b
}

@test "bash, fish, zsh: files and directories are references" {
	local shells=0 line="wsync-verify --like "
	mkdir ckpt && touch saved.jsonl
	if [ -f /usr/share/bash-completion/bash_completion ]; then
		complete_bash "$line" | grep -qx ckpt
		complete_bash "$line" | grep -qx saved.jsonl
		shells=$((shells + 1))
	fi
	if command -v fish >/dev/null; then
		fish_offers <<<"$line" | cut -f 2 | grep -qx ckpt/
		fish_offers <<<"$line" | cut -f 2 | grep -qx saved.jsonl
		shells=$((shells + 1))
	fi
	if command -v zsh >/dev/null; then
		zsh_specs wsync-verify | grep -qE "^wsync-verify.*--like\[.*:dir:_files$"
		shells=$((shells + 1))
	fi
	[ "$shells" -gt 0 ] || skip "no bash-completion, fish or zsh"
}

@test "bash: memory of a GPU is a source by its manifest" {
	needs_bash
	touch m.json
	[ "$(complete_bash "wsync-push cuda-i" | tr '\n' ' ')" = "cuda-ipc: " ]
	[ "$(complete_bash "wsync-push hf" | tr '\n' ' ')" = "hf: " ]
	[ "$(complete_bash "wsync-push cuda-ipc:m" | tr '\n' ' ')" = "m.json " ]
}

@test "bash: endpoints of the registry" {
	needs_bash
	[ -x "$bin/wsync-register" ] || skip "not built"
	"$bin/wsync-register" add --no-check gpu7:30000 >/dev/null
	complete_bash "wsync-list-weights --endpoint " | grep -qx http://gpu7:30000
}

# ---- fish ----

# fish_offers <LINES: "LINE<TAB>WORD" for each word that fish would offer; where options are asked
# for, the words are options.
fish_offers() {
	fish --no-config -c 'source $argv[1]/completions/wsync.fish
		while read -l line
			set -l words (complete -C $line </dev/null | string split -f 1 \t)
			string match -q "* --" -- $line; and set words (string match -- "--*" $words)
			printf "$line\t%s\n" $words
		end' "$repo"
}

@test "fish: every option, choice and command of every program, and no other" {
	needs fish
	offers_as_wanted fish_offers
}

@test "fish: tensor names of a source on the line" {
	needs fish
	safetensors a.safetensors model.norm.weight:F32:2 lm_head.weight:F32:2
	[ "$(fish_offers <<<"wsync-list-weights a.safetensors --include mod" | cut -f 2)" = \
		model.norm.weight ]
}

# ---- zsh ----

# zsh_specs PROGRAM...: "PROGRAM<TAB>SPECIFICATION" for each that the file hands to _arguments.
zsh_specs() {
	zsh -f -c '
		_arguments() { print -rl -- "$service	"${^@} }
		_call_program() { shift; "$@" }
		for service in ${@:2}; do (
			words=($service "") CURRENT=2
			. $1/completions/_wsync
		) done' zsh "$repo" "$@"
}
# zsh_offers <LINES: the same from these specifications.
zsh_offers() {
	zsh_specs $(programs) | perl -ne '
		($p, $_) = /^(\S+)\t(.*)/ or next;
		print map "$p \t$_\n", split / /, $1 if /^1:command:\((.*)\)$/;
		s/^(\([^)]*\)|\*)*(--[a-z0-9-]+)// or next;
		$option = $2;
		print "$p --\t$option\n";
		print map "$p $option \t$_\n", split / /, $1 if /:\(([^)]*)\)$/' |
		sort -u | awk -F '\t' 'NR == FNR { asked[$0]; next } $1 in asked' lines -
}

@test "zsh: the file is for every program" {
	for p in $(programs); do
		head -n 1 "$repo/completions/_wsync" | grep -qw -e "$p" ||
			{ echo "$p" >&2; return 1; }
	done
}

@test "zsh: every option, choice and command of every program, and no other" {
	needs zsh
	offers_as_wanted zsh_offers
}

# A real zsh on a terminal of its own, with completion loaded, is given a line and a tab.
@test "zsh: a line on a terminal is completed" {
	needs zsh
	/usr/bin/python3 -c 'import os; os.openpty()' 2>/dev/null || skip "no pseudo-terminals here"
	timeout 180 zsh -f >zsh.out 2>&1 <<-END
		zmodload zsh/zpty
		zpty -b shell zsh -f -i
		zpty -w shell "PS1=; fpath=($repo/completions \\\$fpath); autoload -U compinit"
		zpty -w shell "compinit -u -D; echo loa''ded"
		zpty -r -m shell text '*loaded*'
		zpty -w -n shell \$'wsync-list-weights --conn\t'
		zpty -r -m shell text '*--connect-timeout*'
		print -r -- "\$text"
		zpty -d shell
	END
	grep -q -e --connect-timeout zsh.out
}
