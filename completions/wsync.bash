# SPDX-License-Identifier: Apache-2.0
# Completion of wsync's programs for bash; bash-completion finds this file by each program's name.
# Commands, options and choices come from the program itself: PROGRAM --dump-options (cmd/common/opt.h).

# Names come from files of strangers: never compgen -W, which runs the $(commands) in them.
_wsync_reply() { # CUR; the words are lines on standard input
	local word
	while IFS= read -r word; do
		[[ -n $word && $word == "$1"* ]] || continue
		printf -v word %q "$word"
		COMPREPLY+=("$word")
	done
	declare -F __ltrim_colon_completions >/dev/null && __ltrim_colon_completions "$1"
	return 0
}

_wsync_files() { # CUR
	compopt -o filenames 2>/dev/null
	mapfile -t COMPREPLY < <(compgen -f -- "$1")
}

# Endpoints of the registry: reads one file, sends no request.
_wsync_urls() {
	_wsync_reply "$1" < <(wsync-register list --json 2>/dev/null |
		sed -n 's/.*"type":"endpoint","url":"\([^"]*\)".*/\1/p')
}

# Names of the tensors of the sources on the line: reads headers only.
_wsync_tensors() {
	local sources=() w
	for w in "${words[@]:1}"; do
		case $w in
		synthetic:* | cuda-ipc:* | hf:* | *.safetensors | *.index.json) sources+=("$w") ;;
		*) [ -d "$w" ] && sources+=("$w") ;;
		esac
	done
	[ ${#sources[@]} -gt 0 ] || return 0
	_wsync_reply "$1" < <(timeout 2 wsync-list-weights "${sources[@]}" --format names \
		2>/dev/null)
}

_wsync_sources() {
	if [[ $1 == synthetic* ]]; then
		_wsync_reply "$1" < <(printf 'synthetic:%s\n' qwen3-0.6b qwen3-8b qwen3-30b-a3b \
			qwen3-235b-a22b deepseek-v3 llama-3.1-8b glm-4.5-air gpt-oss-20b)
	elif [[ $1 == cuda-ipc:* ]]; then
		_wsync_reply "$1" < <(compgen -G "${1#*:}*.json" | sed 's/^/cuda-ipc:/')
	else
		compopt -o filenames 2>/dev/null
		mapfile -t COMPREPLY < <(compgen -d -- "$1"; compgen -G "$1*.safetensors"; compgen -G "$1*.json"
			[ -n "$1" ] && compgen -W 'cuda-ipc: hf:' -- "$1")
	fi
}

_wsync_by_argument() { # ARGUMENT CUR: "FILE", "[SOURCE...]", "URL"
	case $1 in
	*URL*) _wsync_urls "$2" ;;
	*SOURCE*) _wsync_sources "$2" ;;
	*FILE* | *DIR* | *PATH* | *PYTHON*) _wsync_files "$2" ;;
	esac
}

# Fields of the table: name, letter, argument, kind, choices, help, commands.
_wsync() {
	local cur prev words cword table name letter argument kind choices _ command=
	# Words as the program sees them: readline splits at : and =, which URLs and --name=value contain.
	if declare -F _get_comp_words_by_ref >/dev/null; then
		_get_comp_words_by_ref -n := cur prev words cword
	else
		words=("${COMP_WORDS[@]}") cword=$COMP_CWORD
		cur=${words[cword]} prev=${words[cword - 1]}
	fi
	COMPREPLY=()
	[[ $cur == --*=* ]] && prev=${cur%%=*} cur=${cur#*=}
	table=$("$1" --dump-options 2>/dev/null) || return 0
	while IFS=$'\t' read -r name letter argument kind choices _; do
		[[ $prev == "--$name" || $prev == "-$letter" ]] && [[ $kind != command ]] || continue
		if [[ $choices != - ]]; then
			_wsync_reply "$cur" <<<"${choices//|/$'\n'}"
		elif [[ $argument == GLOB ]]; then
			_wsync_tensors "$cur"
		elif [[ $argument != - ]]; then
			_wsync_by_argument "$argument" "$cur"
		else
			break # it takes no value
		fi
		return 0
	done <<<"$table"
	if [[ $cur == -* ]]; then
		_wsync_reply "$cur" < <(awk -F '\t' '$4 != "command" { print "--" $1 }' <<<"$table")
		return 0
	fi
	case ${1##*/} in wsync-push | wsync-list-weights) command=SOURCE ;; esac
	while IFS=$'\t' read -r name letter argument kind _; do
		[[ $kind == command && " ${words[*]:1:cword-1} " == *" $name "* ]] && command=$argument
	done <<<"$table"
	if [ -n "$command" ]; then
		_wsync_by_argument "$command" "$cur"
	else
		_wsync_reply "$cur" < <(awk -F '\t' '$4 == "command" { print $1 }' <<<"$table")
	fi
}

complete -F _wsync wsync-push wsync-list-weights wsync-verify wsync-register wsync-ctl wsync-endpoint wsync-gateway wsync-bench
