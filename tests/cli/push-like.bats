#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# References: names are compared with a checkpoint that the server can be started from, and those
# that are spelled otherwise are sent by its names.
load helpers

# no_rules DIR...: their config.json is of a family without rules.
no_rules() {
	local dir
	for dir; do
		sed -i 's/LlamaForCausalLM/FooForCausalLM/; s/"llama"/"foo"/' "$dir/config.json"
	done
}

@test "the path of the server's start is the reference, also after an update from disk" {
	llama base
	llama src 's/^/policy.net./'
	llama other 's/mlp.up_proj/mlp.upper/'
	endpoint one --model "$PWD/base" --lineage sglang-2026 --checksums
	try wsync-push src -e "$url" --verify hash
	expect_status 0
	out_has "21 names as in the reference: without policy.net"
	out_has "verified by hash"
	try wsync-push src -e "$url" --json
	expect_json '(lines[-1]["endpoints"][0]["evidence"]["names"],
		lines[-1]["names"]["related"])' \
		"('reference', [{'from': 'policy.net', 'to': '', 'names': 21}])"
	/usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" wsync-push \
		<<<"$out"
	try wsync-verify weights src -e "$url"
	expect_status 0
	try wsync-push "$PWD/base" -e "$url" --backend disk
	expect_status 0
	try wsync-push src -e "$url" --verify hash
	expect_status 0
	out_has "21 names as in the reference"
	try wsync-push src -e "$url" --exclude 'policy.net.lm_head.*'
	expect_status 2
	err_has "it matches policy.net.lm_head.weight, which is sent as lm_head.weight"
	try wsync-push other -e "$url"
	expect_status 1
	out_has "model.layers.0.mlp.upper.weight"
}

@test "a server that was started from a name on the Hub has its reference in the cache" {
	llama Q/M
	llama src 's/^model\./model.language_model./; s/^/actor./'
	export HF_HUB_CACHE=$PWD/cache
	mkdir -p cache/models--Q--M/{refs,snapshots}
	printf abc1234 >cache/models--Q--M/refs/main
	cp -r Q/M cache/models--Q--M/snapshots/abc1234
	endpoint one --model Q/M --lineage sglang-2026
	try wsync-push src -e "$url" -v
	expect_status 0
	out_has "21 tensors of Q/M as cached (2 renamings)"
	try wsync-push src -e "$url" --verify none
	expect_status 0
	rm cache/models--Q--M/snapshots/abc1234/model.safetensors
	try wsync-push src -e "$url"
	expect_status 1
}

@test "a reference that is of another architecture, or is half, is not used in silence" {
	llama base
	llama src 's/^/policy.net./'
	llama foo
	no_rules foo
	endpoint one --model "$PWD/base" --lineage sglang-2026
	try wsync-push src -e "$url" --like foo
	expect_status 3
	err_has "foo is of FooForCausalLM, and the server runs LlamaForCausalLM"
	cp -r base small
	sed -i 's/"intermediate_size": 128/"intermediate_size": 96/' small/config.json
	try wsync-push small -e "$url" --like small
	expect_status 3
	try wsync-push src -e "$url" --like nowhere
	expect_status 3
	err_has nowhere
	sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' foo/config.json
	try wsync-verify names src --like foo
	expect_status 3
	err_has "foo is no reference: it has no layer 2"
	err_has "its config.json has num_hidden_layers 3"
	try wsync-verify names src --config foo
	out_lacks "no errors"
}

@test "any family is compared with a reference or a saved list of its headers" {
	llama base
	llama src 's/^/policy.net./'
	llama gap '/layers.1.mlp.up_proj/d'
	no_rules base src gap
	try wsync-verify names src
	expect_status 11
	try wsync-verify names src --like base
	expect_status 0
	out_has "checked against 21 tensors of base (1 renaming)"
	wsync-list-weights base --headers-only >saved.json
	try wsync-verify names src --like saved.json
	expect_status 0
	try wsync-verify names gap --like saved.json
	expect_status 1
	out_has "model.layers.1.mlp.up_proj.weight"
	try wsync-verify names src --config base
	expect_status 0
	try wsync-verify names gap --config gap
	expect_status 11
	err_has "gap is not used as reference: it is the source itself"
	try wsync-list-weights src --as-sent --like base --format names
	expect_status 0
	out_has "model.layers.1.mlp.up_proj.weight"
	try wsync-list-weights base --headers-only --as-sent
	expect_status 2
}
