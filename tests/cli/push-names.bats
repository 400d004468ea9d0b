#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# What wsync-push does about names before its first byte: what it refuses, and when it goes on.
load helpers

# asked ROUTE: whether the endpoint was asked for it.
asked() { curl -s "$url/wsync/journal" | grep -q "$1"; }

@test "a wrong prefix is refused before anything at the endpoint changes" {
	llama ckpt 's/^model\./transformer./'
	endpoint one --tp 2
	try wsync-push ckpt -e "$url"
	expect_status 1
	timeless
	golden push-names-prefix
	golden_err push-names-prefix-err
	for route in init_weights_update_group pause_generation update_weights; do
		if asked $route; then explain "$route was asked for"; fi
	done
	try wsync-push ckpt -e "$url" --verify none
	expect_status 0
	asked update_weights_from_distributed || explain "nothing was sent"
}

@test "names that fit are sent, and the summary says that they were compared" {
	llama ckpt
	endpoint one --tp 2 --model ckpt
	try wsync-push ckpt -e "$url" --weight-version 5
	expect_status 0
	out_has ", names verified, weight version 5 (format assumed by one parameter that the server shows)"
	out_lacks "names  "
	try wsync-push ckpt -e "$url" --verify hash -v
	expect_status 0
	out_has "21 tensors, no errors, checked against llama at tp 2 by ckpt/config.json"
	out_has ", verified by hash"
}

@test "JSON has a mismatch line for each finding, and the names in the end" {
	llama ckpt 's/^model\./transformer./'
	endpoint one --tp 2
	try wsync-push ckpt -e "$url" --json
	expect_status 1
	expect_json '(lines[-1]["names"]["checked"], lines[-1]["names"]["errors"] > 0,
		lines[-1]["verify"])' "(False, True, 'names')"
	expect_json '{l["url"] for l in lines if l["type"] == "mismatch"}' "{'$url'}"
	expect_json 'lines[-1]["endpoints"][0]["state"], lines[-1]["error"]["phase"]' \
		"('untouched', 'verify')"
	/usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" wsync-push \
		<<<"$out"
}

@test "with nothing to compare with the push goes on and says so" {
	llama ckpt
	rm ckpt/config.json
	endpoint one
	try wsync-push ckpt -e "$url"
	expect_status 0
	out_has "not checked: there is no config.json, and the endpoint lists only what it received"
	out_lacks "names verified"
	try wsync-push ckpt -e "$url" --json
	expect_status 0
	expect_json 'lines[-1]["names"]["checked"], lines[-1]["names"]["family"]' \
		"(False, 'generic')"
}

@test "a config that merely lies there and does not suit is no error of the push" {
	llama ckpt
	echo '{"architectures": ["LlamaForCausalLM"]}' >ckpt/config.json
	try wsync-push -n ckpt -v
	expect_status 0
	out_has 'not checked: '
	try wsync-push -n ckpt --config ckpt
	expect_status 3
}

@test "a dry run checks names with endpoints and without" {
	llama ckpt 's/^model\./transformer./'
	try wsync-push -n ckpt
	expect_status 1
	out_has "llama at tp 1"
	endpoint one --tp 2
	try wsync-push -n ckpt -e "$url"
	expect_status 1
	out_has "llama at tp 2"
	if asked init_weights_update_group; then explain "a group was formed"; fi
	llama good
	try wsync-push -n good
	expect_status 0
}

@test "--config stands in for a missing one" {
	llama ckpt 's/^model\.norm/model.form/'
	mv ckpt/config.json .
	try wsync-push -n ckpt
	expect_status 0
	try wsync-push -n ckpt --config config.json
	expect_status 1
	out_has "did you mean model.norm.weight?"
}

@test "a source without a config is of the model that the endpoint runs, where that is here" {
	llama model
	llama fused '/self_attn.[kv]_proj/d; s/^(.*self_attn.)q_proj.weight:BF16:64,64/\1qkv_proj.weight:BF16:128,64/'
	rm fused/config.json
	endpoint one --model-path "$PWD/model"
	try wsync-push fused -e "$url" -v
	expect_status 0
	out_has "plan      21 tensors"
	out_has "21 tensors, no errors, checked against llama at tp 1 by $PWD/model/config.json"
	try wsync-verify names fused -e "$url"
	expect_status 0
	out_has "21 tensors, no errors"
	try wsync-push fused -n
	expect_status 0
	out_has "plan      17 tensors"
}

@test "what each rank saved is joined on the way" {
	llama ckpt
	sizes='s/(q_proj.*|[kv]_proj.*|gate_proj.*|up_proj.*):([0-9]+),64$/\1:HALF\2,64/;
		s/(embed_tokens.*|lm_head.*):([0-9]+),64$/\1:HALF\2,64/;
		s/(o_proj.*|down_proj.*):64,([0-9]+)/\1:64,HALF\2/;
		s/HALF128/64/; s/HALF64/32/; s/HALF32/16/'
	for rank in 0 1; do
		llama shards/tp_rank_$rank "$sizes"
		mv shards/tp_rank_$rank/config.json shards/
	done
	endpoint one --model ckpt
	try wsync-push shards --sharded tp=2 -e "$url"
	expect_status 0
	out_has "21 tensors, 176.6 KiB"
	out_has "names verified"
	try wsync-push shards/tp_rank_0 shards/tp_rank_1 --sharded tp=2 -e "$url" --config shards \
		--verify hash
	expect_status 0
}

@test "ranks whose replicas differ are refused before anything is paused" {
	llama ckpt
	sizes='s/(q_proj.*|[kv]_proj.*|gate_proj.*|up_proj.*):([0-9]+),64$/\1:HALF\2,64/;
		s/(embed_tokens.*|lm_head.*):([0-9]+),64$/\1:HALF\2,64/;
		s/(o_proj.*|down_proj.*):64,([0-9]+)/\1:64,HALF\2/;
		s/HALF128/64/; s/HALF64/32/; s/HALF32/16/'
	for rank in 0 1; do
		llama shards/tp_rank_$rank "$sizes"
		cp ckpt/config.json shards/
		/usr/bin/python3 "$repo/tests/cli/numbers.py" tame \
			shards/tp_rank_$rank/model.safetensors
	done
	endpoint one
	try wsync-push shards --sharded tp=2 -e "$url" --verify hash
	expect_status 0
	try wsync-verify weights shards --sharded tp=2 -e "$url"
	expect_status 0
	norm=model.layers.1.input_layernorm.weight
	/usr/bin/python3 "$repo/tests/cli/numbers.py" put shards/tp_rank_1/model.safetensors $norm \
		0 63 0.25
	endpoint two
	for words in "push -e $url" "push -e $url --verify none" \
		"push -e $url --verify hash --quantize fp8 --block-size 16x16" \
		"push -n" "push -n -e $url" "verify names -e $url" "verify names -e $url --scan" \
		"verify weights -e $url"; do
		# shellcheck disable=SC2086 # words
		try wsync-${words%% *} ${words#* } shards --sharded tp=2
		expect_status 3
		err_has "tensor '$norm': rank 1 and rank 0 have different bytes"
		err_has "(shards/tp_rank_1/model.safetensors, shards/tp_rank_0/model.safetensors)"
		if asked pause_generation ||
			asked update_weights_from; then explain "it was begun"; fi
	done
	try wsync-push shards --sharded tp=2 -e "$url" --exclude "$norm"
	expect_status 0
	try wsync-push shards --sharded tp=2 -e "$url" --trust-values
	expect_status 0
	try wsync-list-weights --as-sent shards --sharded tp=2
	expect_status 0
}

@test "what --include leaves out is not missing" {
	llama ckpt
	endpoint one
	try wsync-push ckpt -e "$url" --include '*layers.1*'
	expect_status 0
	out_has "9 tensors"
}

@test "the same source line after line is checked each time, the list is asked for once" {
	llama good
	llama bad 's/^model\./transformer./'
	endpoint one
	out=$(printf 'good\nbad\ngood\n' | wsync-push -e "$url" --stdin --json 2>/dev/null) || true
	expect_json '[l["ok"] for l in lines if l["type"] == "result"]' "[True, False, True]"
	[ "$(curl -s "$url/wsync/journal" | grep -o list_weights | wc -l)" = 1 ] ||
		explain "asked again"
}

@test "names that wrappers lengthened are sent without that" {
	llama ckpt 's/^model\.layers\.1\./model.layers.1._orig_mod./'
	endpoint one
	try wsync-push ckpt -e "$url" --verify hash
	expect_status 0
	try wsync-list-weights -e "$url" --format names
	out_has model.layers.1.mlp.up_proj.weight
	out_lacks _orig_mod
}

# remote DIR OPTION...: an endpoint that runs the model of DIR, which cannot be read here and is not
# listed.
remote() {
	local dir=$1
	shift
	endpoint remote --model "$dir" --lineage sglang-2026 --model-path some/model "$@"
}

# another KEY VALUE: the checkpoint ckpt/ without its second layer, or with another value of its
# config, in other/.
another() {
	rm -rf other && llama other "${3:-}"
	sed -i -E "s/\"$1\": [^,}]*/\"$1\": $2/" other/config.json
}

@test "names that fit the source's own config are not called verified" {
	llama ckpt
	remote ckpt
	try wsync-push ckpt -e "$url" --metrics push.prom
	expect_status 0
	out_has ", names fit their own config.json (the server's was not read)"
	out_lacks "names verified"
	grep -q 'wsync_push_verify{outcome="unknown"} 1' push.prom || explain "the metric"
	try wsync-push ckpt -e "$url" --json
	expect_status 0
	expect_json 'lines[-1]["names"]["checked"], lines[-1]["names"]["own_config"]' \
		"(False, True)"
	expect_json 'lines[-1]["names"]["why"]' \
		"the server's config.json cannot be read here, \
and the endpoint does not list its weights"
	/usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" wsync-push \
		<<<"$out"
	try wsync-push ckpt -e "$url" --config ckpt
	expect_status 0
	out_has ", names verified"
	try wsync-verify names ckpt -e "$url"
	expect_status 11
	out_has "21 tensors, no errors"
	err_has "the names were not compared with the server: they fit the source's own config.json"
	err_has "--config DIR names the server's config.json"
	try wsync-verify names ckpt -e "$url" --config ckpt
	expect_status 0
}

@test "a server with more layers, fewer layers or another width is found before the pause" {
	llama ckpt
	remote ckpt
	another num_hidden_layers 1 /layers.1/d
	try wsync-push other -e "$url"
	expect_status 1
	err_has "num_hidden_layers: the server has a model.layers.1, \
and other/config.json says num_hidden_layers 1"
	try wsync-verify names other -e "$url"
	expect_status 1
	# and of a part
	try wsync-push other -e "$url" --include '*layers.0*'
	expect_status 1
	err_has "num_hidden_layers: the server has a model.layers.1"
	another num_hidden_layers 3 'p; s/layers.1/layers.2/; t; d'
	try wsync-push other -e "$url"
	expect_status 1
	err_has "the server has model.layers.0 and no model.layers.2, \
and other/config.json says num_hidden_layers 3"
	another hidden_size 32 's/:64$/:32/; s/:64,64/:64,32/; s/:(128|32),64/:\1,32/; s/:64,128/:32,128/; s/(o_proj.*):64,32/\1:32,64/'
	sed -i 's/"num_key/"head_dim": 16, "num_key/' other/config.json
	try wsync-push other -e "$url"
	expect_status 1
	err_has "the server's norms have more than 32 numbers, \
and other/config.json says hidden_size 32"
	out_has "untouched $url"
}

@test "sizes are measured for a family without rules too" {
	llama ckpt
	remote ckpt
	curl -s "$url/model_info" | sed 's/LlamaForCausalLM/NewForCausalLM/; s/"llama"/"new"/' >info
	proxy "$url" "
if path == '/model_info': answer = (200, open('info').read())"
	sed -i 's/LlamaForCausalLM/NewForCausalLM/; s/"llama"/"new"/' ckpt/config.json
	try wsync-push ckpt -e "$url" --dry-run
	expect_status 0
	out_lacks "names verified"
	another num_hidden_layers 1 /layers.1/d
	sed -i 's/LlamaForCausalLM/NewForCausalLM/; s/"llama"/"new"/' other/config.json
	try wsync-push other -e "$url"
	expect_status 1
	err_has "the server has a model.layers.1, and other/config.json says num_hidden_layers 1"
	out_has "untouched $url"
	try wsync-verify names other -e "$url"
	expect_status 1
}

@test "rules of a model_type verify no names of another architecture, and still refuse" {
	llama ckpt
	sed -i 's/LlamaForCausalLM/LlamaForSequenceClassification/' ckpt/config.json
	endpoint one --model-path "$PWD/ckpt"
	for again in first second; do # the second finds the tensors of the first at the endpoint
		try wsync-push ckpt -e "$url"
		expect_status 0
		out_has ", names not compared"
	done
	try wsync-push ckpt -e "$url" --require names
	expect_status 5
	err_has "no rules are known for architecture 'LlamaForSequenceClassification'"
	try wsync-verify names ckpt -e "$url"
	expect_status 11
	another num_attention_heads 8 /layers.1.input_layernorm/d
	try wsync-push other -e "$url"
	expect_status 1
	out_has "model.layers.1.input_layernorm.weight"
}

@test "one sender compares each source with what the server showed" {
	llama ckpt
	remote ckpt
	another num_hidden_layers 1 /layers.1/d
	out=$(printf 'ckpt\nother\nckpt\n' | wsync-push -e "$url" --stdin --json 2>/dev/null) ||
		true
	expect_json '[l["ok"] for l in lines if l["type"] == "result"]' "[True, False, True]"
}

@test "a server that tells another model is compared with that one" {
	llama ckpt
	remote ckpt
	another model_type '"mistral"'
	sed -i 's/LlamaForCausalLM/MistralForCausalLM/' other/config.json
	try wsync-push other -e "$url" # the parameters are the same
	expect_status 0
	out_has "the server runs llama (LlamaForCausalLM), \
and other/config.json says mistral (MistralForCausalLM): names are compared with llama"
	another model_type '"qwen3"' \
		'/layernorm.weight:BF16:64$/p; s/^(model.layers.*)post_attention_layernorm.weight:BF16:64$/\1self_attn.q_norm.weight:BF16:16/; s/^(model.layers.*)input_layernorm.weight:BF16:64$/\1self_attn.k_norm.weight:BF16:16/'
	sed -i 's/LlamaForCausalLM/Qwen3ForCausalLM/' other/config.json
	try wsync-push other -n
	expect_status 0
	try wsync-push other -e "$url"
	expect_status 1
	out_has "the server runs llama"
	out_has "model.layers.0.self_attn.q_norm.weight"
	another model_type '"phi3"' # of a family without rules
	sed -i 's/LlamaForCausalLM/Phi3ForCausalLM/' other/config.json
	try wsync-push other -e "$url"
	expect_status 0
	out_has "not checked: no family is known for architecture 'Phi3ForCausalLM'"
}

@test "tensors that only the endpoint holds are a no of --verify hash, as of wsync-verify weights" {
	llama ckpt
	remote ckpt --tp 2
	try wsync-push ckpt -e "$url" --verify hash
	expect_status 0
	another tie_word_embeddings true /lm_head/d
	try wsync-push other -e "$url" --verify hash
	expect_status 1
	err_has "$url: it holds 1 tensor that this push did not send"
	out_has "rank 1: lm_head.weight: unexpected"
	out_has "partial   $url, left paused: it holds 1 tensor"
	try wsync-verify weights other -e "$url"
	expect_status 1
	try wsync-push ckpt -e "$url" --verify hash
	expect_status 0
	# What the choice leaves out is no difference, and named as not covered; lm_head is not.
	try wsync-push other -e "$url" --verify hash --exclude '*mlp*' --exclude 'lm_head*'
	expect_status 0
	out_has ", what was sent verified by hash (6 of 20 tensors left out by --exclude), not \
covered: 7 of the server's parameters"
	try wsync-push other -e "$url" --verify hash --exclude '*mlp*'
	expect_status 1
	err_has "it holds 1 tensor that this push did not send"
	try wsync-push ckpt -e "$url" --verify hash
	expect_status 0
	# Who sends a part does not know what the others send.
	for part in "--include *norm*" "--sender 1/2 --lock l --round 1"; do
		# shellcheck disable=SC2086 # words
		try wsync-push other -e "$url" --verify hash $part
		expect_status 0
	done
}

@test "a glob hides nothing but what it names" {
	llama ckpt
	llama gap '/layers.1/d'
	endpoint one --model ckpt
	for words in "push " "push --verify hash" "push -n" "verify names"; do
		# shellcheck disable=SC2086 # words
		try wsync-${words%% *} ${words#* } gap -e "$url" --exclude nothing.here
		expect_status 1
		err_has "nothing is sent for layer 1"
		err_has "warning: --exclude nothing.here matches no tensor"
		if asked pause_generation; then explain "it was begun"; fi
	done
	try wsync-push gap --write out --exclude nothing.here
	expect_status 1
	try wsync-push gap -e "$url" --exclude '*.layers.1.*' --verify hash --json
	expect_status 0
	expect_json 'lines[-1]["left_out"]' \
		"[{'option': 'exclude', 'glob': '*.layers.1.*', 'tensors': 0, 'needed': 9}]"
	try wsync-ctl status -e "$url" --state-dir "$XDG_STATE_HOME/wsync"
	out_lacks "100 %"
}

@test "senders find together what all of them lack" {
	llama ckpt
	llama gap '/model.norm/d'
	endpoint one --model ckpt
	try wsync-push gap -e "$url" --sender 1/2 --lock l --round 1 --include '*layers.0*'
	expect_status 0
	try wsync-push gap -e "$url" --sender 2/2 --lock l --round 1 --exclude '*layers.0*'
	expect_status 1
	err_has "model.norm.weight"
	try wsync-push ckpt -e "$url" --sender 2/2 --lock l --round 1 --exclude '*layers.0*'
	expect_status 0
	out_has "names verified"
}

@test "an endpoint without a model refuses other shapes before the pause" {
	llama ckpt
	endpoint one
	try wsync-push ckpt -e "$url"
	expect_status 0
	out_lacks "names verified"
	try wsync-push ckpt -e "$url"
	expect_status 0
	out_has "names verified"
	llama other 's/:128,64$/:256,64/; s/:64,128$/:64,256/'
	sed -i 's/"intermediate_size": 128/"intermediate_size": 256/; s/: 128,/: 256,/' \
		other/config.json
	for words in "push " "verify names"; do
		# shellcheck disable=SC2086 # words
		try wsync-${words%% *} ${words#* } other -e "$url"
		expect_status 1
		err_has "sent, and the endpoint has received"
	done
}

@test "usage" {
	try wsync-push x --sharded 2 -e localhost:1
	expect_status 2
	err_has "must be like tp=8"
	try wsync-push x --verify nothing -e localhost:1
	expect_status 2
	llama ckpt
	try wsync-push -n ckpt --map missing.map
	expect_status 3
	err_has missing.map
}
