#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-push into vLLM servers of each dialect, which wsync-endpoint emulates from vLLM's sources. A
# real vLLM is in tests/peers/test_vllm.py.
load helpers

dialects="0.20 0.24 0.27 0.33"

models() {
	llama m
	llama n '' --seed 7
}

# vllm NAME VERSION OPTION...: a server with the model n; sets $url.
vllm() {
	endpoint "$1" --lineage "vllm-$2" --model "$PWD/n" "${@:3}"
	curl -sS -H 'Content-Type: application/json' -d "{\"method\":\"reload_weights\",
		\"kwargs\":{\"weights_path\":\"$PWD/n\"}}" "$url/collective_rpc" >/dev/null
}

sums() { curl -sS "$1/wsync/checksums" | sed 's/"url":"[^"]*"//'; }

# as_loaded TP: the checksums of n and m where vLLM's reload has loaded them, in $of_n and $of_m.
as_loaded() {
	vllm oracle 0.33 --tp "$1"
	of_n=$(sums "$url")
	curl -sS -H 'Content-Type: application/json' -d "{\"method\":\"reload_weights\",
		\"kwargs\":{\"weights_path\":\"$PWD/m\"}}" "$url/collective_rpc" >/dev/null
	of_m=$(sums "$url")
	[ "$of_n" != "$of_m" ] || explain "two models with the same checksums"
}

expect_sums() { [ "$(sums "$1")" = "$2" ] || explain "$1 has other weights"; }

# posts URL: the routes that were posted to, but the two that only ask the workers something.
posts() {
	journal "$1" "' '.join(r['path'][1:] for r in j['requests'] if r['method'] == 'POST'
		and r['path'] not in ('/collective_rpc', '/weights_checker', '/weight_checker'))"
}

@test "each dialect gets its requests, and all bytes: packed or not, in one bucket or many" {
	local v tp how
	models
	for tp in 1 2; do
		as_loaded "$tp"
		for v in $dialects; do
			vllm "at-$v" "$v" --tp "$tp"
			for how in "" "--load-format none" "--bucket-size 8KiB" \
				"--bucket-size 8KiB --load-format none" "--backend disk"; do
				# shellcheck disable=SC2086 # words
				try wsync-push m -e "$url" $how
				expect_status 0
				expect_sums "$url" "$of_m"
				# shellcheck disable=SC2086 # words
				try wsync-push n -e "$url" $how
				expect_status 0
				expect_sums "$url" "$of_n"
			done
		done
	done
}

@test "the requests of each dialect, in order" {
	local v begin="init_weight_transfer_engine pause reset_prefix_cache" end="resume"
	models
	for v in $dialects; do
		vllm "at-$v" "$v"
		try wsync-push m -e "$url" --bucket-size 90KiB
		expect_status 0
		local middle="start_weight_update update_weights update_weights"
		middle+=" finish_weight_update"
		[ "$v" != 0.20 ] || middle="update_weights update_weights"
		[ "$(posts "$url")" = "$begin $middle $end" ] || explain "$v: $(posts "$url")"
	done
	# up to 0.20 an update is one request, so no layer is cut
	vllm old 0.20
	try wsync-push m -e "$url" --bucket-size 1KiB --json
	expect_status 0
	expect_json '[l["tensors"] for l in lines if l["type"] == "bucket"]' "[1, 9, 9, 1, 1]"
}

@test "two servers are in one group, and both get everything" {
	local v
	models
	as_loaded 2
	for v in 0.20 0.33; do
		vllm "one-$v" "$v" --tp 2
		local one=$url
		vllm "two-$v" "$v" --tp 2
		try wsync-push m -e "$one" -e "$url" --json
		expect_status 0
		expect_json '[l["world_size"] for l in lines if l["type"] == "plan"]' "[5]"
		expect_sums "$one" "$of_m"
		expect_sums "$url" "$of_m"
	done
}

@test "over NCCL: the id comes by the store, or with the request since 0.30" {
	[ -e "$build/tests/gpu/fake_cuda.so" ] || skip "built without CUDA"
	local v how
	models
	as_loaded 2
	gpu_libraries
	for v in $dialects; do
		vllm "at-$v" "$v" --tp 2 --backend nccl --shared-gpu
		for how in flattened_bucket none; do
			try wsync-push m -e "$url" --backend nccl --load-format "$how" \
				--bucket-size 16KiB
			expect_status 0
			expect_sums "$url" "$of_m"
			try wsync-push n -e "$url" --backend nccl --load-format "$how"
			expect_status 0
			expect_sums "$url" "$of_n"
		done
		try wsync-push m -e "$url"
		expect_status 5
		err_has "stock vLLM does not receive over gloo"
		err_has "hint: start vLLM with --worker-extension-cls wsync_vllm.WorkerExtension"
	done
}

@test "a version comes with the end of the update since 0.27, and is refused before" {
	models
	vllm new 0.33
	try wsync-push m -e "$url" --weight-version 7
	expect_status 0
	try wsync-ctl version -e "$url"
	expect_out 7
	try wsync-ctl version 8 -e "$url"
	expect_status 0
	try wsync-ctl version -e "$url"
	expect_out 8
	vllm old 0.24
	try wsync-push m -e "$url" --weight-version 7
	expect_status 5
	err_has "has no place for a weight version"
	expect_journal "$url" 's["paused"]' False
}

@test "hashes prove what 0.33 holds, and tell other weights" {
	models
	vllm new 0.33 --tp 2
	try wsync-push m -e "$url" --verify hash
	expect_status 0
	out_has "proven 15 of 15 parameters on 2 ranks, 100 % of the bytes"
	try wsync-verify weights m -e "$url"
	expect_status 0
	try wsync-verify weights n -e "$url"
	expect_status 1
	err_has "it does not hold these weights"
	local nothing
	nothing=$(sha256sum </dev/null) # of parameters that are kept elsewhere, as on a CPU
	proxy "$url" pass "if path == '/weight_checker':
	sums = reply['checksums']
	sums.update((k, '${nothing%% *}') for k in sums if 'down_proj' in k)"
	try wsync-push m -e "$url" --verify hash --min-coverage 50
	expect_status 0
	out_has "proven 13 of 15 parameters on 2 ranks"
	try wsync-verify weights m -e "$url"
	expect_status 11
	err_has "down_proj.weight at rank 0: the server keeps it in another form, and reports the"
	vllm old 0.27
	try wsync-push m -e "$url" --verify hash
	expect_status 5
	err_has "reports no checksums"
}

@test "wrong bytes are told by hash, and the server stays paused" {
	models
	vllm new 0.33 --fault flip:update_weights:1
	try wsync-push m -e "$url" --verify hash --json
	expect_status 1
	err_has "1 of 15 parameters differ, the first lm_head.weight at rank 0"
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('partial', True)]"
}

@test "a part of a fused layer is refused before the pause" {
	models
	vllm new 0.33
	try wsync-push m -e "$url" --include '*q_proj*'
	expect_status 1
	err_has "vLLM loads the module anew and gives the rest random values"
	expect_journal "$url" '[p for p in paths if p in ("/pause", "/init_weight_transfer_engine")]' \
		"[]"
	as_loaded 1
	expect_sums "$(sed -n 's/.*"url":"\([^"]*\)".*/\1/p' new.out | head -n 1)" "$of_n"
	vllm other 0.33
	try wsync-push m -e "$url" --include '*norm*' --include '*self_attn*'
	expect_status 0
}

@test "biases keep their values at 0.33, and are refused where that is not known" {
	local biased='s/^(.*(q_proj|k_proj|v_proj)).weight:BF16:([0-9]+),64$/&\n\1.bias:BF16:\3/'
	for dir in m n; do
		llama $dir "$biased" --seed ${#dir}$([ $dir = m ] || echo 7)
		sed -i 's/LlamaForCausalLM/Qwen2ForCausalLM/; s/"llama"/"qwen2"/' $dir/config.json
	done
	vllm new 0.33
	try wsync-push m -e "$url" --exclude '*.bias' --verify hash --json
	expect_status 0
	expect_json '[(l["not_sent"], l["coverage"] < 100) for l in lines if l["type"] == "proof"]' \
		"[(2, True)]"
	expect_json 'lines[-1]["left_out"]' \
		"[{'option': 'exclude', 'glob': '*.bias', 'tensors': 6, 'needed': 6}]"
	try wsync-verify weights n -e "$url" --include '*.bias'
	expect_status 0
	out_has "which are not covered"
	try wsync-push m -e "$url" --include '*.bias'
	expect_status 1
	err_has "a part of model.layers.0.self_attn.qkv_proj is sent"
	vllm old 0.27
	try wsync-push m -e "$url" --exclude '*.bias'
	expect_status 1
	err_has "a part of model.layers.0.self_attn.qkv_proj is sent"
	expect_journal "$url" '[p for p in paths if p == "/pause"]' "[]"
}

@test "a tensor that the server does not know leaves it partial and paused" {
	models
	llama x '$a strange.weight:BF16:8'
	vllm new 0.33
	try wsync-push x -e "$url" --verify none --json
	expect_status 5
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('partial', True)]"
	err_has "hint: push again: a whole update makes the weights complete"
	try wsync-push m -e "$url" --verify hash
	expect_status 0
	expect_journal "$url" 's["paused"]' False
}

@test "with several workers a failed request means a restart, which the next push finds out" {
	models
	llama x '$a strange.weight:BF16:8'
	vllm new 0.33 --tp 2
	try wsync-push x -e "$url" --verify none
	expect_status 5
	err_has "hint: restart the server"
	try wsync-push m -e "$url"
	expect_status 5
	err_has "its workers answer earlier requests instead of the last one"
	expect_journal "$url" 's["paused"]' True
	try wsync-ctl repair -e "$url"
	expect_status 9
	err_has "hint: restart the server, whose workers answer earlier requests; then push"
}

@test "an update in which a push was killed is finished, and begun anew" {
	models
	as_loaded 2
	local v
	for v in 0.24 0.33; do
		vllm "at-$v" "$v" --tp 2
		local direct=$url
		proxy "$url" pass 'kept[path] = kept.get(path, 0) + 1
if path == "/update_weights" and kept[path] == 2:
	__import__("os").kill(int(open("push.pid").read()), 9)'
		start push bash -c 'echo $$ >push.pid
			exec wsync-push m -e "$0" --bucket-size 8KiB' "$url"
		finished push 137
		[[ $(posts "$direct") == *start_weight_update*update_weights ]] ||
			explain "$(posts "$direct")"
		try wsync-push m -e "$url"
		expect_status 0
		expect_sums "$direct" "$of_m"
	done
}

@test "a start that fails at some worker leaves it partial and paused" {
	models
	vllm new 0.33
	local direct=$url
	proxy "$url" 'if path == "/start_weight_update" and nth == 1: answer = (500, "{}")'
	try wsync-push m -e "$url" --json
	expect_status 5
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('partial', True)]"
	expect_journal "$direct" 's["paused"]' True
	try wsync-push m -e "$url"
	expect_status 0
}

@test "a part is not sent to a server that may hold parts of a failed update" {
	models
	vllm new 0.33
	curl -sS -X POST "$url/pause" >/dev/null
	try wsync-push m -e "$url" --include '*norm*'
	expect_status 5
	err_has "some of its layers may need all their tensors"
	[[ $(posts "$url") != *start_weight_update* ]] || explain "$(posts "$url")"
	try wsync-ctl resume -e "$url"
	try wsync-push m -e "$url" --include '*norm*'
	expect_status 0
}

@test "a push of a part that failed is completed by the same push" {
	models
	vllm new 0.33 --fault drop:update_weights:1
	try wsync-push m -e "$url" --include '*norm*' --json
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('partial', True)]"
	try wsync-ctl resume -e "$url"
	expect_status 5
	try wsync-ctl resume -e "$url" --force
	expect_status 5
	err_has "the first prompt may crash a vLLM"
	try wsync-push m -e "$url" --include '*norm*'
	expect_status 0
	expect_journal "$url" 's["paused"]' False
}

@test "an update that somebody else has begun is not ended" {
	models
	as_loaded 2
	vllm one 0.33 --tp 2
	curl -sS -X POST "$url/pause" >/dev/null
	curl -sS -d '{}' "$url/start_weight_update" >/dev/null
	try wsync-push m -e "$url"
	expect_status 5
	err_has "it is inside an update that no push recorded here has begun"
	expect_journal "$url" 's["paused"]' True
	curl -sS -X POST "$url/finish_weight_update" >/dev/null
	try wsync-push m -e "$url"
	expect_status 0
	expect_sums "$url" "$of_m"
}

@test "layers forget what a failed update left there, before they get all parts" {
	models
	as_loaded 1
	local v k
	for v in 0.24 0.33; do
		for k in 3 4 5; do
			vllm "at-$v-$k" "$v" --fault "drop:update_weights:$k"
			try wsync-push m -e "$url" --bucket-size 1KiB --json
			expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
				"[('partial', True)]"
			try wsync-push m -e "$url" --bucket-size 1KiB
			expect_status 0
			expect_sums "$url" "$of_m"
		done
	done
}

@test "what vLLM cannot do is refused before anything is asked of it" {
	models
	vllm new 0.33
	try wsync-push m -e "$url" --pause none
	expect_status 5
	err_has "between the begin and the end of an update"
	try wsync-push m -e "$url" --pause retract
	expect_status 5
	err_has "cannot send running requests back"
	try wsync-push m -e "$url" --protocol update
	expect_status 5
	err_has "it takes vllm"
	try wsync-push m -e "$url" --verify none --include '*norm*'
	expect_status 5
	err_has "it was not checked that --include and --exclude leave layers whole"
	try wsync-push m -e "$url" --lineage vllm-0.20
	expect_status 5
	err_has "whose requests differ from those of --lineage vllm-0.20"
	local one=$url
	endpoint sglang --lineage session
	try wsync-push m -e "$one" -e "$url"
	expect_status 5
	err_has "no protocol suits all endpoints"
	try wsync-push m -e "$one" -e "$url" --backend disk
	expect_status 5
	err_has "are servers of different kinds"
	try wsync-push m -e "$url" --pause wait
	expect_status 5
	err_has "only vLLM's does"
	curl -sS -X POST "$one/sleep?level=1" >/dev/null
	try wsync-push m -e "$one"
	expect_status 5
	err_has "sleeps, and an update may crash it"
	try wsync-push m -e "$one" --asleep weights,kv_cache
	expect_status 0
	expect_journal "$one" 's["paused"]' False
	vllm old 0.20 # it runs again when it is woken, and is paused again
	curl -sS -X POST "$url/sleep?level=1" >/dev/null
	try wsync-push m -e "$url" --asleep weights,kv_cache
	expect_status 0
	[[ $(posts "$url") == *" pause wake_up pause update_weights wake_up resume" ]] ||
		explain "$(posts "$url")"
}

@test "what wsync-ctl released at a vLLM comes back, paused before or not" {
	models
	for version in 0.20 0.33; do
		vllm "v$version" "$version"
		for way in "no|recorded|" "yes|recorded|" "yes|weights,kv_cache|" \
			"yes|weights,kv_cache,cuda_graph|--tags weights,kv_cache"; do
			IFS='|' read -r paused list tags <<<"$way"
			[ "$paused" = no ] || try wsync-ctl pause -e "$url"
			# shellcheck disable=SC2086  # words
			try wsync-ctl sleep -e "$url" $tags
			expect_status 0
			# It keeps a copy of its weights.
			try wsync-ctl ready -e "$url" --json
			expect_json '[l["reason"] for l in lines if l["type"] == "endpoint"]' \
				"['paused']"
			try wsync-ctl repair
			expect_status 0
			try wsync-push m -e "$url"
			expect_status 2
			err_has "left weights,kv_cache released, and --asleep is missing"
			try wsync-push m -e "$url" --asleep "$list"
			expect_status 0
			expect_journal "$url" 's["paused"], s["released"]' "(False, [])"
			try wsync-ctl ready -e "$url"
			expect_status 0
			try wsync-ctl repair
			expect_out "nothing to repair"
		done
		try wsync-ctl sleep -e "$url"
		STDIN=<(printf 'm\nm\n') try wsync-push --stdin -e "$url" --asleep recorded
		expect_status 0
		try wsync-ctl pause -e "$url"
		try wsync-ctl sleep -e "$url"
		try wsync-ctl wake -e "$url"
		expect_status 0
		try wsync-ctl ready -e "$url" # it runs again
		expect_status 0
		expect_journal "$url" 's["paused"], s["released"]' "(False, [])"
	done
}

@test "a vLLM without dev mode, TRL's server and prime-rl's are recognized" {
	models
	canned stock '/version=200:{"version":"0.32.0"}' '/v1/models=200:{"data":[{"id":"m"}]}'
	try wsync-ctl info -e "$url"
	expect_status 0
	out_has vllm-0.33
	try wsync-push m -e "$url"
	expect_status 5
	err_has "hint: start it with VLLM_SERVER_DEV_MODE=1 in its environment"
	try wsync-ctl pause -e "$url"
	expect_status 5
	err_has "a vLLM can if it is started with VLLM_SERVER_DEV_MODE=1"
	canned trl '/get_world_size/=200:{"world_size":2}' '/health/=200:{"status":"ok"}'
	try wsync-push m -e "$url"
	expect_status 5
	err_has "is TRL's own server"
	canned prime '/version=200:{"version":"0.27.0"}' \
		'/openapi.json=200:{"paths":{"/version":{},"/init_broadcaster":{}}}'
	try wsync-push m -e "$url"
	expect_status 5
	err_has "is prime-rl's server"
}

@test "lifecycle commands speak vLLM's words, without asking first what it is" {
	models
	vllm new 0.33
	for command in pause flush resume health; do
		try wsync-ctl "$command" -e "$url"
		expect_status 0
	done
	for mode in wait in_place; do
		try wsync-ctl pause --mode "$mode" -e "$url"
		expect_status 0
		expect_journal "$url" 's["paused"]' True
	done
	try wsync-ctl pause --mode retract -e "$url"
	expect_status 5
	try wsync-ctl resume -e "$url"
	expect_status 0
	expect_journal "$url" 's["paused"]' False
	try wsync-ctl sleep -e "$url"
	expect_status 0
	try wsync-ctl wake -e "$url"
	expect_status 0
	vllm old 0.24 # its answer says nothing
	try wsync-ctl flush -e "$url"
	expect_status 5
	err_has "hint: this version of vLLM does not say whether it dropped the cache"
	for command in sleep wake; do
		try wsync-ctl "$command" -e "$url"
		expect_status 0
	done
	try wsync-verify weights n -e "$url"
	expect_status 11
	err_has "hint: vLLM reports checksums since 0.32; wsync-verify logprobs compares"
}

@test "a server that answers nothing is given up at the deadline" {
	models
	vllm new 0.33 --fault hang:update_weights:1
	local from=${EPOCHREALTIME/./}
	try wsync-push m -e "$url" --bucket-timeout 2s --json
	expect_status 10
	local took=$(((${EPOCHREALTIME/./} - from) / 1000))
	[ "$took" -lt 14000 ] || explain "took $took ms"
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('partial', True)]"
}

@test "logprobs of a vLLM are compared as those of other servers" {
	models
	vllm one 0.33
	local one=$url
	vllm two 0.20
	printf '{"input_ids":[5,6,7]}\n{"input_ids":[1,2,3]}\n' >prompts
	try wsync-verify logprobs -e "$one" -e "$url" --prompts prompts
	expect_status 0
	out_has "prefill   2 prompts, 4 tokens, mean difference 0, largest 0"
	try wsync-push m -e "$url"
	try wsync-verify logprobs -e "$one" -e "$url" --prompts prompts
	expect_status 1
	try wsync-verify logprobs -e "$one" --teacher-forced
	expect_status 0
	try wsync-verify logprobs -e "$one" --batched
	expect_status 0
	try wsync-ctl init-group g -e "$one"
	expect_status 0
}

# on NAME DEVICE [AFTER]: the endpoint at $url, as it would be on that device; sets $url.
on() {
	proxy "$url" pass "
if isinstance(reply.get('vllm_config'), dict):
    reply['vllm_config']['device_config'] = {'device': args[0]}
${2-}" "$1"
}

# An extension of wsync that does not pack again.
old="
if path == '/collective_rpc':
    reply['results'] = [[w for w in r if w != 'wsync_packs'] if isinstance(r, list) else r
                        for r in reply['results']]"

# refused MODEL WORDS OPTION...: before the pause, unless it is allowed.
refused() {
	local keeps=$2
	local -a more=("${@:3}")
	set -- wsync-push "$1" -e "$url" --json
	for verify in names none; do
		try "$@" --verify "$verify" "${more[@]}"
		expect_status 5
		for word in "$keeps" '"state":"untouched"' '"verdict":"refused","by":"release"'; do
			out_has "$word"
		done
	done
	try "$@" "${more[@]}" --allow-unknown format
	expect_status 0
	out_has '"verdict":"allowed"'
	try wsync-push "$model" -e "$url" "${more[@]}" --allow-unknown format
	expect_status 0
	out_has "a part of the server's weights stays old, allowed by --allow-unknown"
}

@test "what a vLLM packed at its start, and does not pack again, is refused" {
	local model family
	for family in qwen3_moe qwen3; do
		model=$PWD/$family
		/usr/bin/python3 -S "$repo/tests/cli/small_model.py" $family "$model"
		endpoint "at-$family" --lineage vllm-0.33 --model "$model"
		local plain=$url
		on cpu
		try wsync-push "$model" -e "$url"
		expect_status 0
		url=$plain
		on cuda "$old"
		try wsync-push "$model" -e "$url"
		expect_status 0
		url=$plain
		on cpu "$old"
		if [ $family = qwen3 ]; then
			refused "$model" 'keep the old head'
		else
			refused "$model" 'vLLM packs experts'
			try wsync-push "$model" -e "$url" --exclude '*.experts.*'
			expect_status 0
		fi
		url=$plain
		on cpu "
if isinstance(reply.get('vllm_config'), dict):
    reply['vllm_config']['parallel_config']['worker_extension_cls'] = ''"
		refused "$model" '"keeps":"packed-' --backend disk
	done
}

@test "sinks and experts of gpt-oss reach no vLLM" {
	endpoint gpt --lineage vllm-0.33 --model "$repo/tests/data/lora/bases/gpt_oss"
	for verify in names none; do
		try wsync-push "$repo/tests/data/lora/bases/gpt_oss" -e "$url" --verify $verify
		expect_status 5
		err_has "is a vLLM with gpt-oss"
		err_has "start the server again, from the new checkpoint; --allow-unknown format"
	done
}

# begun N: the server at $url has been asked N times to form a group.
begun() { [ "$(journal "$url" "sum('init_weight_transfer' in r['path'] for r in j['requests'])")" = "$1" ]; }

# vLLM has one group without a name. A lock is what keeps pushes apart.
@test "the end of a push, or a test, does not take the group of another push away" {
	local session v
	models
	mkfifo lines
	for v in 0.20 0.33; do
		vllm "at-$v" "$v" --fault slow:update_weights:2 --fault-delay 3s
		start session bash -c "exec wsync-push --stdin -e $url <lines"
		session=$pid
		exec 7>lines
		echo m >&7
		eventually grep -q pushed session.out
		start push wsync-push n -e "$url"
		eventually begun 2
		try wsync-ctl init-group -e "$url"
		expect_status 5
		err_has "is at work on it"
		exec 7>&-
		finished session 0 "$session"
		finished push 0
	done
}

@test "a session whose group another push has replaced forms a new one" {
	local session
	models
	mkfifo lines
	vllm a 0.33
	start session bash -c "exec wsync-push --stdin -e $url <lines"
	session=$pid
	exec 7>lines
	echo m >&7
	eventually grep -q pushed session.out
	try wsync-push n -e "$url"
	expect_status 0
	printf '%s\n' m m >&7
	exec 7>&-
	finished session 0 "$session"
	# 1 for the first line, 1 for the other push, and 1 for the two that followed
	begun 3 || explain "other groups than one for each change of hands"
}

# remote NAME VERSION OPTION...: a server with the model n, whose path is on another machine.
remote() { endpoint "$1" --lineage "vllm-$2" --model "$PWD/n" --model-path elsewhere "${@:3}"; }

# asks COUNT: how often $url was asked for the names of its checksums, or for those of SGLang.
asks() {
	journal "$url" "sum(r['path'].endswith('_checker') for r in j['requests'])" | grep -qx "$1" ||
		explain "not asked $1 times"
}

@test "where its config.json is elsewhere, push and verify compare with what 0.33 lists" {
	models
	llama fewer /layers.1/d
	sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 1/' fewer/config.json
	remote told 0.33 --tp 2
	for how in "" "--config fewer" "--verify hash" "--dry-run"; do
		# shellcheck disable=SC2086 # words
		try wsync-push fewer -e "$url" $how
		expect_status 1
		err_has "model.layers.1"
	done
	[ -z "$(posts "$url")" ] || explain "something was changed"
	try wsync-verify names fewer -e "$url"
	expect_status 1
	remote right 0.33 --tp 2
	out=$(printf 'm\nn\nm\n' | wsync-push -e "$url" --stdin --json --require names) ||
		explain "a source was refused"
	asks 1
	try wsync-push m -e "$url"
	expect_status 0
	out_has ", names verified"
	asks 1 # this start of it was asked with this plan
	try wsync-push n -e "$url" --state-dir other
	expect_status 0
	out_has ", names verified"
	asks 2
	try wsync-push fewer -e "$url"
	expect_status 1
	asks 3
	# What vLLM has computed itself is a parameter of it too; what it loads must be sent.
	local more real=$url
	for more in 0:mla_attn.W_UV 0:qkv_proj.weight_scale 1:q_norm.weight; do
		proxy "$real" pass "if path == '/weight_checker':
	sums, norm = reply['checksums'], 'input_layernorm.weight'
	sums.update((k.replace(norm, 'self_attn.${more#*:}'), v) for k, v in list(sums.items()))"
		try wsync-push m -e "$url" --state-dir "$more"
		expect_status "${more%%:*}"
	done
	err_has q_norm
	# A server whose config.json can be read is not asked, nor one that cannot answer.
	vllm readable 0.33
	try wsync-push m -e "$url"
	expect_status 0
	asks 0
	remote old 0.27
	try wsync-push fewer -e "$url"
	expect_status 0
	out_has ", names fit their own config.json"
	asks 0
	remote silent 0.33
	proxy "$url" "
if path == '/weight_checker': answer = (500, '{}')"
	try wsync-push m -e "$url"
	expect_status 0
	out_has ", names fit their own config.json"
}

@test "what a start of 0.33 has listed is known to later pushes of the same plan alone" {
	models
	llama fewer /layers.1/d
	sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 1/' fewer/config.json
	# no rules are known for it
	cp -r m strange
	sed -i 's/LlamaForCausalLM/StrangeForCausalLM/; s/"llama"/"strange"/' strange/config.json
	remote plain 0.33
	for _ in 1 2 3; do
		try wsync-push strange -e "$url" --require names
		expect_status 0
		out_has ", names verified"
	done
	asks 1
	# A comparison with a config that was named is none with the list.
	remote late 0.33
	local real=$url
	proxy "$real" 'if path == "/weight_checker" and nth == 1: answer = (500, "{}")'
	try wsync-push fewer -e "$url" --config fewer
	expect_status 0
	try wsync-push fewer -e "$url" --require names
	expect_status 1
	err_has "model.layers.1"
	# A choice leaves layers out on purpose. A source that lacks them does not, and the plan is
	# the same.
	remote chosen 0.33
	try wsync-push m -e "$url" --exclude '*.layers.1.*'
	expect_status 0
	try wsync-push fewer -e "$url"
	expect_status 1
	err_has "model.layers.1"
	# A push that was refused in its middle is repeated.
	remote refuses 0.33 --fault refuse:update_weights:1
	try wsync-push m -e "$url" --require names
	expect_status 5
	try wsync-push m -e "$url" --require names
	expect_status 0
	asks 1
	# Beside a server that is new, or whose config is known, it is not asked again.
	real=$url
	vllm readable 0.33
	try wsync-push m -e "$url" -e "$real" --require names
	expect_status 0
	url=$real asks 1
}
