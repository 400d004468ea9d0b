# SPDX-License-Identifier: Apache-2.0
# Completion of wsync's programs for bash; bash-completion finds this file by each program's name.
# Kept by hand: tests/cli/completions.bats compares the tables with what each program says of itself.

# One word for each option: --name, or --name=VALUES where it takes a value. VALUES are the choices
# joined by |, or FILE, URL, TENSOR, FAULT, or ANY for what cannot be guessed.
_wsync_options() {
	echo "--json --quiet --verbose --color=auto|always|never --help --version"
	case $1 in
	wsync-push) echo "
		--endpoint=URL -e=URL --pool=ANY --registry=FILE --api-key-file=FILE --ca-file=FILE
		--config=FILE --map=FILE --sharded=tp=2|tp=4|tp=8
		--include=TENSOR --exclude=TENSOR --weight-version=ANY --stdin --dry-run
		--quantize=none|fp8|fp8-tensor --block-size=128x128|64x64 --skip-modules=ANY
		--scale-rule=xorl|slime --ue8m0 --unpack --lora=FILE --lora-rounding=fold|two-step
		--lora-partial --correction=FILE --trust-values --scratch=128MiB|256MiB|512MiB|1GiB
		--backend=auto|gloo|nccl|tensor|disk|ipc --disk-dir=FILE --disk-path=ANY --disk-keep=0|1|2
		--gpu=0|1|2|3|4|5|6|7 --ipc-device=uuid|0|1|2|3 --nccl-lib=FILE --nccl-from=FILE --transform-on=auto|cpu|gpu
		--lineage=auto|sglang-0.4|sglang-0.5|sglang-2026|xorl-legacy|xorl|session|slime
		--asleep=weights|kv_cache|weights,kv_cache|weights,kv_cache,cuda_graph|recorded
		--protocol=auto|update|session|two-phase|receive|ep-scatter --two-phase=bucket|whole
		--bucket-size=128MiB|256MiB|512MiB|1GiB
		--load-format=auto|none|flattened_bucket|safetensors --flush=last|never|every
		--pause=abort|retract|in_place|none --on-partial=pause|resume --verify=names|hash|none
		--sender=ANY --lock=FILE --round=ANY
		--master-address=ANY --master-port=ANY --group-name=ANY --state-dir=FILE
		--lock-wait=ANY
		--connect-timeout=ANY --init-timeout=ANY --bucket-timeout=ANY --timeout=ANY -t=ANY
		--trace=FILE --metrics=FILE --progress=auto|none" ;;
	wsync-list-weights) echo "
		--include=TENSOR --exclude=TENSOR --format=table|names|tsv --hash
		--as-sent --runtime --config=FILE --map=FILE --sharded=tp=2|tp=4|tp=8
		--quantize=none|fp8|fp8-tensor --block-size=128x128|64x64 --skip-modules=ANY
		--scale-rule=xorl|slime --ue8m0 --unpack --lora=FILE --lora-rounding=fold|two-step
		--lora-partial --correction=FILE --trust-values --scratch=128MiB|256MiB|512MiB|1GiB
		--tp=1|2|4|8 --ep=1|2|4|8 --attention-tp=1|2|4|8 --rank=ANY
		--endpoint=URL -e=URL --pool=ANY --prefix=ANY --registry=FILE
		--api-key-file=FILE --ca-file=FILE --connect-timeout=ANY --timeout=ANY -t=ANY" ;;
	wsync-verify) echo "
		--config=FILE --map=FILE --sharded=tp=2|tp=4|tp=8 --include=TENSOR --exclude=TENSOR
		--quantize=none|fp8|fp8-tensor --block-size=128x128|64x64 --skip-modules=ANY
		--scale-rule=xorl|slime --ue8m0 --unpack --lora=FILE --lora-rounding=fold|two-step
		--lora-partial --correction=FILE --trust-values --scratch=128MiB|256MiB|512MiB|1GiB
		--endpoint=URL -e=URL --pool=ANY --registry=FILE --api-key-file=FILE --ca-file=FILE
		--connect-timeout=ANY --timeout=ANY -t=ANY --tp=1|2|4|8 --ep=1|2|4|8
		--attention-tp=1|2|4|8 --list=FILE --scan --limit=ANY
		--against=FILE --max-error=0.05|0.15 --expect=ANY --npy=FILE --min-equal=0.99|0.999
		--max-difference=ANY --mean-difference=ANY --max-k3=ANY --teacher-forced --batched --cached
		--prompt=ANY --prompts=FILE --max-new-tokens=ANY --parallel=1|4|16 --flush-first --save=FILE
		--samples=ANY --seed=ANY --threads=1|2|4|8 --twice --reset --yes
		--backend=auto|gloo|nccl|tensor|disk|ipc --disk-dir=FILE --disk-path=ANY --disk-keep=0|1|2
		--gpu=0|1|2|3|4|5|6|7 --ipc-device=uuid|0|1|2|3 --nccl-lib=FILE --nccl-from=FILE --transform-on=auto|cpu|gpu
		--lineage=auto|sglang-0.4|sglang-0.5|sglang-2026|xorl-legacy|xorl|session|slime
		--protocol=auto|update|session|two-phase|receive|ep-scatter --two-phase=bucket|whole
		--bucket-size=128MiB|256MiB|512MiB|1GiB
		--load-format=auto|none|flattened_bucket|safetensors --flush=last|never|every
		--pause=abort|retract|in_place|none --on-partial=pause|resume
		--master-address=ANY --master-port=ANY --group-name=ANY --state-dir=FILE
		--lock-wait=ANY
		--init-timeout=ANY --bucket-timeout=ANY --progress=auto|none" ;;
	wsync-register) echo "
		--world-size=ANY --no-check --pool=ANY --api-key-file=FILE --ca-file=FILE --connect-timeout=ANY
		--timeout=ANY -t=ANY --registry=FILE" ;;
	wsync-ctl) echo "
		--endpoint=URL -e=URL --pool=ANY --registry=FILE --api-key-file=FILE --ca-file=FILE
		--connect-timeout=ANY --timeout=ANY -t=ANY --mode=abort|retract|in_place --wait=ANY
		--tags=weights|kv_cache|cuda_graph --master-address=ANY --master-port=ANY --keep
		--lineage=auto|sglang-0.4|sglang-0.5|sglang-2026|xorl-legacy|xorl|session|slime
		--state-dir=FILE --again --dry-run --resume-partial --assume-dead --forget" ;;
	wsync-gateway) echo "
		--listen=ANY --require-key-file=FILE --source=FILE --source-root=FILE
		--allow-host=ANY --registry=FILE --api-key-file=FILE --ca-file=FILE --config=FILE --map=FILE
		--sharded=tp=2|tp=4|tp=8 --quantize=none|fp8|fp8-tensor
		--block-size=128x128|64x64 --skip-modules=ANY --scale-rule=xorl|slime --ue8m0
		--unpack --lora=FILE --lora-rounding=fold|two-step --lora-partial
		--correction=FILE --trust-values --scratch=128MiB|256MiB|512MiB|1GiB
		--backend=auto|gloo|nccl|tensor|disk|ipc --disk-dir=FILE --disk-path=ANY --disk-keep=0|1|2
		--gpu=0|1|2|3|4|5|6|7 --ipc-device=uuid|0|1|2|3 --nccl-lib=FILE --nccl-from=FILE --transform-on=auto|cpu|gpu
		--lineage=auto|sglang-0.4|sglang-0.5|sglang-2026|xorl-legacy|xorl|session|slime
		--protocol=auto|update|session|two-phase|receive|ep-scatter
		--two-phase=bucket|whole --bucket-size=128MiB|256MiB|512MiB|1GiB
		--load-format=auto|none|flattened_bucket|safetensors --flush=last|never|every
		--pause=abort|retract|in_place|none --on-partial=pause|resume
		--verify=names|hash|none --master-address=ANY --master-port=ANY --group-name=ANY
		--state-dir=FILE --lock-wait=ANY --connect-timeout=ANY --init-timeout=ANY
		--bucket-timeout=ANY --timeout=ANY -t=ANY" ;;
	wsync-bench) echo "
		--samples=ANY --warmup=ANY --time=10s|1m|10m --progress=auto|none --csv --plot=FILE --check --size=64MiB|256MiB|1GiB
		--on=cpu|gpu --to=host|gpu
		--model=qwen3-0.6b|qwen3-8b|qwen3-30b-a3b|qwen3-235b-a22b|deepseek-v3 --cold --most=ANY
		--quantize=none|fp8|fp8-tensor --block-size=128x128|64x64 --skip-modules=ANY
		--scale-rule=xorl|slime --ue8m0 --unpack --lora=FILE --lora-rounding=fold|two-step
		--lora-partial --correction=FILE --trust-values --scratch=128MiB|256MiB|512MiB|1GiB
		--endpoint=URL -e=URL --pool=ANY --registry=FILE --api-key-file=FILE --ca-file=FILE
		--local=1|2|4|8 --keep=none|hash|memory --connect-timeout=ANY --tp=1|2|4|8
		--timeout=ANY -t=ANY --receivers=1|2|4|8 --remote=1|2|4|8 --listen=ANY --join=ANY
		--host=ANY --min-size=ANY --max-size=ANY --factor=2|4|8 --count=1|8|20 --total=256MiB|1GiB|4GiB
		--backend=auto|gloo|nccl|tensor|disk|ipc --gpu=0|1|2|3|4|5|6|7 --ipc-device=uuid|0|1|2|3 --nccl-lib=FILE --nccl-from=FILE --transform-on=auto|cpu|gpu
		--lineage=auto|sglang-0.4|sglang-0.5|sglang-2026|xorl-legacy|xorl|session|slime
		--protocol=auto|update|session|two-phase|receive|ep-scatter
		--two-phase=bucket|whole --bucket-size=128MiB|256MiB|512MiB|1GiB
		--load-format=auto|none|flattened_bucket|safetensors --flush=last|never|every
		--pause=abort|retract|in_place|none --on-partial=pause|resume
		--verify=names|hash|none --master-address=ANY --master-port=ANY --group-name=ANY
		--state-dir=FILE --lock-wait=ANY --init-timeout=ANY --bucket-timeout=ANY
		--keep-group --alone --buckets=64MiB|256MiB|512MiB|1GiB
		--formats=none|flattened_bucket --quantizations=none|fp8|fp8-tensor
		--link=100Gb|200Gb|400Gb|800Gb --senders=1|2|4|8 --at-once --endpoints=1|2|4|8 --nics=1|2|4|8
		--source-rate=ANY --make-rate=ANY --apply-rate=ANY --per-bucket=ANY --fixed=ANY
		--tree --no-pipelining
		--disk-dir=FILE
		--disk-path=ANY
		--disk-keep=0|1|2" ;;
	wsync-endpoint) echo "
		--listen=ANY --api-key-file=FILE --tp=1|2|4|8 --ep=1|2|4|8 --model=FILE
		--lineage=lenient|sglang-0.4|sglang-0.5|sglang-2026|xorl-legacy|xorl|session|slime
		--backend=gloo|nccl|ipc --gpu=0|1|2|3|4|5|6|7 --shared-gpu --nccl-init=auto|lazy|eager
		--nccl-lib=FILE --nccl-from=FILE
		--keep=memory|hash|none --checksums --torch=2.6|1.13
		--model-path=ANY --served-model-name=ANY --dtype=bfloat16|float16|float32
		--quantization=ANY --memory-saver=none|drop|backup
		--return-routed-experts --init-timeout=ANY --receive-timeout=ANY --ready-timeout=ANY --complete-timeout=ANY --busy=ANY --fault=FAULT
		--fault-delay=ANY --restart-on-death" ;;
	esac
}

_wsync_commands() {
	case $1 in
	wsync-register) echo add remove list check ;;
	wsync-verify) echo names weights scales flags routing logprobs ;;
	wsync-bench) echo kernels load control transport push sweep plan ;;
	wsync-ctl) echo info health pause resume flush repair sleep wake init-group destroy-group version ;;
	esac
}

# What stands for the values of an option, or nothing.
_wsync_values() {
	local w
	for w in $(_wsync_options "$1"); do
		[[ $w == "$2="* ]] && echo "${w#*=}"
	done
}

_wsync_reply() { # WORDS CUR
	mapfile -t COMPREPLY < <(compgen -W "$1" -- "$2")
	declare -F __ltrim_colon_completions >/dev/null && __ltrim_colon_completions "$2"
	return 0
}

# Endpoints of the registry: reads one file, asks nobody.
_wsync_urls() {
	_wsync_reply "$(wsync-register list --json 2>/dev/null |
		sed -n 's/.*"type":"endpoint","url":"\([^"]*\)".*/\1/p')" "$1"
}

# Names of the tensors of the sources on the line: reads headers only.
_wsync_tensors() {
	local sources=() w
	for w in "${words[@]:1}"; do
		case $w in
		synthetic:* | cuda-ipc:* | *.safetensors | *.index.json) sources+=("$w") ;;
		*) [ -d "$w" ] && sources+=("$w") ;;
		esac
	done
	[ ${#sources[@]} -gt 0 ] || return 0
	_wsync_reply "$(timeout 2 wsync-list-weights "${sources[@]}" --format names 2>/dev/null)" "$1"
}

_wsync_sources() {
	if [[ $1 == synthetic* ]]; then
		_wsync_reply "synthetic:qwen3-0.6b synthetic:qwen3-8b synthetic:qwen3-30b-a3b
			synthetic:qwen3-235b-a22b synthetic:deepseek-v3 synthetic:llama-3.1-8b
			synthetic:glm-4.5-air synthetic:gpt-oss-20b" "$1"
		return
	fi
	if [[ $1 == cuda-ipc:* ]]; then
		_wsync_reply "$(compgen -G "${1#*:}*.json" | sed 's/^/cuda-ipc:/')" "$1"
		return
	fi
	compopt -o filenames 2>/dev/null
	mapfile -t COMPREPLY < <(compgen -d -- "$1"; compgen -G "$1*.safetensors"; compgen -G "$1*.json"
		[ -n "$1" ] && compgen -W cuda-ipc: -- "$1")
}

_wsync_faults() {
	local kind routes="init_weights_update_group update_weights_from_distributed
		update_weights_from_tensor update_weights_from_disk pause_generation
		continue_generation destroy_weights_update_group flush_cache update_weight_version generate
		wire/store wire/connect wire/payload"
	for kind in refuse hang drop die flip slow garbage wrong-length; do
		[[ $1 == $kind:* ]] || continue
		_wsync_reply "$(printf "$kind:%s:1 " $routes)" "$1"
		return
	done
	if [[ $1 == corrupt:*:*:* ]]; then
		_wsync_reply "$(printf "${1%:*}:%s " flip truncate permute drop copy swap retype,as=float16 \
			drop-bucket stale-bucket repeat-bucket swap-buckets)" "$1"
		return
	elif [[ $1 == corrupt:* ]]; then
		compopt -o nospace 2>/dev/null
		_wsync_reply "$(printf "corrupt:%s:1: " update_weights_from_distributed update_weights_from_tensor \
			update_weights_from_disk complete_weights_update receive_weights \
			receive_weights_ep_scatter)" "$1"
		return
	fi
	compopt -o nospace 2>/dev/null
	_wsync_reply "refuse: hang: drop: die: flip: slow: garbage: wrong-length: corrupt: batch-variant:generate:1 stale:flush_cache:1" "$1"
}

_wsync_value() { # VALUES CUR
	case $1 in
	ANY) ;;
	FILE)
		compopt -o filenames 2>/dev/null
		mapfile -t COMPREPLY < <(compgen -f -- "$2")
		;;
	URL) _wsync_urls "$2" ;;
	TENSOR) _wsync_tensors "$2" ;;
	FAULT) _wsync_faults "$2" ;;
	*) _wsync_reply "${1//|/ }" "$2" ;;
	esac
}

_wsync_names() {
	local w
	for w in $(_wsync_options "$1"); do
		[[ $w == --* ]] && echo "${w%%=*}"
	done
}

# What is neither an option nor its value.
_wsync_argument() {
	case $1 in
	wsync-push | wsync-list-weights) _wsync_sources "$2" ;;
	wsync-register | wsync-ctl | wsync-verify | wsync-bench)
		local w commands
		commands=$(_wsync_commands "$1")
		for w in "${words[@]:1:cword-1}"; do
			[[ " $commands " == *" $w "* ]] || continue
			[ "$w" = remove ] && _wsync_urls "$2"
			[[ $1 == wsync-verify || $1 == wsync-bench ]] && _wsync_sources "$2"
			return 0
		done
		_wsync_reply "$commands" "$2"
		;;
	esac
}

_wsync() {
	local cur prev words cword program=${1##*/} values=
	# Words as the program sees them: readline splits at : and =, which URLs and --name=value contain.
	if declare -F _get_comp_words_by_ref >/dev/null; then
		_get_comp_words_by_ref -n := cur prev words cword
	else
		words=("${COMP_WORDS[@]}") cword=$COMP_CWORD
		cur=${words[cword]} prev=${words[cword - 1]}
	fi
	COMPREPLY=()
	if [[ $cur == --*=* ]]; then
		prev=${cur%%=*} cur=${cur#*=}
	fi
	[[ $prev == -* ]] && values=$(_wsync_values "$program" "$prev")
	if [ -n "$values" ]; then
		_wsync_value "$values" "$cur"
	elif [[ $cur == -* ]]; then
		_wsync_reply "$(_wsync_names "$program")" "$cur"
	else
		_wsync_argument "$program" "$cur"
	fi
}

complete -F _wsync wsync-push wsync-list-weights wsync-verify wsync-register wsync-ctl wsync-endpoint wsync-gateway wsync-bench
