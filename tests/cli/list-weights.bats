#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
load helpers

# A small checkpoint: two shards, an index, several dtypes, a scalar.
checkpoint() {
	mkdir -p ckpt
	safetensors ckpt/model-00001-of-00002.safetensors \
		model.embed_tokens.weight:BF16:32,16 model.layers.0.mlp.up_proj.weight:F8_E4M3:64,16
	safetensors ckpt/model-00002-of-00002.safetensors --seed 1 \
		model.layers.0.mlp.up_proj.weight_scale_inv:F32:1,1 model.norm.weight:BF16:16 step:I64:
	cat >ckpt/model.safetensors.index.json <<-'JSON'
	{"metadata": {"total_size": 2096},
	 "weight_map": {
	  "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
	  "model.layers.0.mlp.up_proj.weight": "model-00001-of-00002.safetensors",
	  "model.layers.0.mlp.up_proj.weight_scale_inv": "model-00002-of-00002.safetensors",
	  "model.norm.weight": "model-00002-of-00002.safetensors",
	  "step": "model-00002-of-00002.safetensors"}}
	JSON
}

@test "the help is what it was" {
	try wsync-list-weights --help
	expect_status 0
	golden list-weights-help
}

@test "a checkpoint directory is listed as an aligned table with a total" {
	checkpoint
	try wsync-list-weights ckpt
	expect_status 0
	expect_err ""
	golden list-weights-table
}

@test "the hashes of the bytes stand in a column of their own" {
	checkpoint
	try wsync-list-weights ckpt --hash
	expect_status 0
	golden list-weights-hash
}

@test "tab-separated lines carry exact bytes, and a dash for the shape of a scalar" {
	checkpoint
	try wsync-list-weights --format tsv ckpt
	expect_status 0
	golden list-weights-tsv
	grep -q $'^step\tint64\t-\t8$' <<<"$out"
}

@test "names alone are nothing but names" {
	checkpoint
	try wsync-list-weights ckpt --format names
	expect_status 0
	expect_out "model.embed_tokens.weight
model.layers.0.mlp.up_proj.weight
model.layers.0.mlp.up_proj.weight_scale_inv
model.norm.weight
step"
}

@test "json lines begin with the schema, carry every tensor and end with the totals" {
	checkpoint
	try wsync-list-weights ckpt --json --hash
	expect_status 0
	golden list-weights-json
	[ "$(json 'lines[0]["schema"], lines[0]["type"], lines[-1]["type"], lines[-1]["exit"]')" = \
		"(1, 'start', 'end', 0)" ]
	[ "$(json 'sum(l["bytes"] for l in lines if l["type"] == "tensor") == lines[-1]["bytes"]')" = True ]
}

@test "include and exclude choose names by glob" {
	checkpoint
	try wsync-list-weights ckpt --format names --include '*.mlp.*' --include '*norm*' --exclude '*_inv'
	expect_status 0
	expect_out "model.layers.0.mlp.up_proj.weight
model.norm.weight"
}

@test "nothing left to list is a short answer, not an error" {
	checkpoint
	try wsync-list-weights ckpt --include 'nothing*'
	expect_status 0
	expect_out "0 tensors, 0 B"
}

@test "a synthetic model needs no file" {
	try wsync-list-weights synthetic:qwen3-0.6b --include '*.layers.27.*'
	expect_status 0
	golden list-weights-synthetic
	try wsync-list-weights synthetic:qwen3-0.6b
	[ "${out##*$'\n'}" = "310 tensors, 1.11 GiB" ] || explain "total"
}

@test "quiet prints nothing and still answers with its status" {
	checkpoint
	try wsync-list-weights -q ckpt
	expect_status 0
	expect_out ""
	expect_err ""
}

@test "a missing file is status 3 and ends the json stream too" {
	try wsync-list-weights --json nowhere.safetensors
	expect_status 3
	err_has "wsync-list-weights: "
	err_has "nowhere.safetensors"
	[ "$(json 'lines[-1]["type"], lines[-1]["ok"], lines[-1]["exit"], lines[-1]["error"]["code"]')" = \
		"('end', False, 3, 'input')" ]
}

@test "a truncated file is status 3 and names the file" {
	checkpoint
	truncate -s -10 ckpt/model-00002-of-00002.safetensors
	try wsync-list-weights ckpt
	expect_status 3
	err_has "model-00002-of-00002.safetensors"
}

@test "a source and an endpoint exclude each other" {
	try wsync-list-weights x.safetensors --endpoint http://127.0.0.1:1
	expect_status 2
	err_has "either SOURCE or endpoints, not both"
	try wsync-list-weights --hash --endpoint http://127.0.0.1:1
	expect_status 2
	err_has "--hash: of a SOURCE only"
}

@test "a full disk under the table is status 8" {
	checkpoint
	status=0
	wsync-list-weights ckpt >/dev/full 2>err || status=$?
	out= err=$(<err) last="wsync-list-weights ckpt >/dev/full"
	expect_status 8
	expect_err "wsync-list-weights: writing standard output: No space left on device"
}

@test "an endpoint that is not there is status 4 and is named" {
	port=$(free_port)
	try wsync-list-weights --json --endpoint "127.0.0.1:$port" --connect-timeout 2s
	expect_status 4
	err_has "127.0.0.1:$port"
	[ "$(json 'lines[-1]["error"]["code"], lines[-1]["error"]["endpoint"]')" = \
		"('unreachable', 'http://127.0.0.1:$port')" ]
}

@test "colour is on when asked for, and off with NO_COLOR" {
	checkpoint
	try wsync-list-weights --color always ckpt
	out_has $'\e[1m5 tensors'
	NO_COLOR=1 try wsync-list-weights ckpt
	out_lacks $'\e'
}
