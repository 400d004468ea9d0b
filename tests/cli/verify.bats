#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-verify names: yes and no, what is said about each, and what it can be asked with.
load helpers

@test "help" {
	try wsync-verify --help
	expect_status 0
	golden verify-help
}

@test "a checkpoint that fits is a yes, at every size that divides it" {
	llama ckpt
	for tp in 1 2 4; do
		try wsync-verify names ckpt --tp $tp
		expect_status 0
		out_has "21 tensors, no errors"
		out_has "llama at tp $tp by ckpt/config.json"
	done
	try wsync-verify names ckpt --tp 2
	golden verify-yes
}

@test "a wrong prefix is one line with a count, a remedy and the names that were meant" {
	llama ckpt 's/^model\./transformer./'
	try wsync-verify names ckpt --tp 2
	expect_status 1
	golden verify-prefix
	golden_err verify-prefix-err
	try wsync-verify names ckpt --tp 2 --limit 0
	out_has transformer.layers.1.mlp.down_proj.weight
	out_lacks " more"
}

@test "the remedy for a wrong prefix is a map as it stands" {
	llama ckpt 's/^model\./transformer./'
	try wsync-verify names ckpt --tp 2
	sed -n 's/.*--map FILE with: //p' <<<"$out" | head -1 >mine.map
	out_has "$(cat mine.map)"
	[ -s mine.map ]
	try wsync-verify names ckpt --tp 2 --map mine.map
	expect_status 0
}

@test "JSON has a line for each finding, and their number at the end" {
	llama ckpt 's/^model\./transformer./'
	try wsync-verify names ckpt --tp 2 --json
	expect_status 1
	expect_json 'lines[0]["command"], lines[-1]["exit"], lines[-1]["error"]["code"]' \
		"('verify', 1, 'mismatch')"
	[ "$(json 'sum(l["type"] == "mismatch"
		for l in lines) == sum(lines[-1]["names"]["verdicts"].values())')" \
		= True ] || explain "a line each"
	expect_json '(lines[-1]["names"]["checked"], lines[-1]["names"]["family"],
		lines[-1]["names"]["sent"])' "(True, 'llama', 21)"
	expect_json '[l["near"] for l in lines if l.get("name") == "transformer.norm.weight"]' \
		"['model.norm.weight']"
	/usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" wsync-verify \
		<<<"$out"
}

@test "heads that tp does not divide" {
	llama ckpt
	try wsync-verify names ckpt --tp 3
	expect_status 1
	golden verify-division
}

@test "a tensor that is missing from a fused parameter is named" {
	llama ckpt '/layers.1.self_attn.k_proj/d'
	try wsync-verify names ckpt
	expect_status 1
	out_has model.layers.1.self_attn.k_proj.weight
}

@test "a shape that differs is told with both shapes" {
	llama ckpt 's/(down_proj.*):64,128/\1:128,64/'
	try wsync-verify names ckpt
	expect_status 1
	out_has "[128, 64]"
	out_has "[64, 128]"
}

@test "what was left out on purpose is no error" {
	llama ckpt
	try wsync-verify names ckpt --exclude lm_head.weight
	expect_status 0
	llama bad 's/^model\.norm/model.form/'
	try wsync-verify names bad
	expect_status 1
	# model.norm.weight is needed, and the glob does not leave it out
	try wsync-verify names bad --exclude 'model.form*'
	expect_status 1
	err_has "model.norm.weight"
	try wsync-verify names bad --exclude 'model.form*' --exclude 'model.norm*' --json
	expect_status 0
	expect_json 'lines[-1]["left_out"]' "[{'option': 'exclude', 'glob': 'model.form*', 'tensors': \
1, 'needed': 0}, {'option': 'exclude', 'glob': 'model.norm*', 'tensors': 0, 'needed': 1}]"
	try wsync-verify names ckpt --exclude '*.layers.1.*'
	expect_status 0
	out_has "no errors, 9 notes (9 of 21 tensors left out by --exclude)"
}

@test "a saved listing stands for the server" {
	llama ckpt
	wsync-list-weights --runtime ckpt --tp 2 --json >two.json
	wsync-list-weights --runtime ckpt --tp 2 --format tsv >two.tsv
	wsync-list-weights --runtime ckpt --tp 2 >two.table
	for list in two.json two.tsv two.table; do
		try wsync-verify names ckpt --tp 2 --list $list
		expect_status 0
		out_has "$list"
	done
	try wsync-verify names ckpt --tp 4 --list two.tsv
	expect_status 0
	golden verify-other-tp
	sed -i 's/gate_up_proj/gate_gate_up_proj/' two.tsv
	try wsync-verify names ckpt --tp 2 --list two.tsv
	expect_status 1
	out_has gate_gate_up_proj
	try wsync-verify names ckpt --list - --tp 2
	expect_status 3
}

@test "an endpoint is asked for its sizes and its list" {
	llama ckpt
	wsync-list-weights --runtime ckpt --tp 2 --json >two.json
	weights=$(/usr/bin/python3 -c 'import json
rows = [json.loads(l) for l in open("two.json")]
print(json.dumps({"weights": [{"name": r["name"], "shape": r["shape"]} for r in rows
                              if r["type"] == "tensor"]}))')
	canned a '/server_info=200:{"tp_size": 2}' '/model_info=200:{"weight_version": "1"}' \
		"/list_weights=200:$weights"
	try wsync-verify names ckpt -e "$url"
	expect_status 0
	golden verify-endpoint
	first=$url
	canned b '/server_info=200:{"tp_size": 2}' '/model_info=200:{}' \
		"/list_weights=200:${weights//gate_up/gate_gate_up}"
	try wsync-verify names ckpt -e "$first" -e "$url"
	expect_status 1
	out_has "$url"
	err_has "$url"
}

@test "endpoints that would get the same answer are told of once" {
	llama ckpt
	canned a '/server_info=200:{"tp_size": 2}' '/model_info=200:{}' '/list_weights=404:no' \
		'/weights_checker=404:no'
	first=$url
	canned b '/server_info=200:{"tp_size": 2}' '/model_info=200:{}' '/list_weights=404:no' \
		'/weights_checker=404:no'
	try wsync-verify names ckpt -e "$first" -e "$url"
	expect_status 11
	[ "$(wc -l <<<"$out")" = 1 ] || explain "one line"
	out_has "the same for 1 more endpoint"
}

@test "an endpoint that shows checksums shows names" {
	llama ckpt
	rm ckpt/config.json
	sums='"model.norm.weight": "0123456789abcdef", "lm_head.weight": "0123456789abcdef"'
	canned a '/server_info=200:{}' '/model_info=200:{}' '/list_weights=404:no' \
		"/weights_checker=200:{\"success\": true, \"ranks\": [{\"checksums\": {$sums}}]}"
	try wsync-verify names ckpt -e "$url"
	expect_status 1
	out_has "2 names of $url/weights_checker"
}

@test "what an endpoint without a model received confirms names that fit the rules" {
	llama ckpt
	endpoint one --tp 2
	try wsync-push ckpt -e "$url" --verify none
	expect_status 0
	try wsync-verify names ckpt -e "$url"
	expect_status 0
	out_has "llama at tp 2"
	out_has "and 21 names of $url/list_weights"
	rm ckpt/config.json
	try wsync-verify names ckpt -e "$url"
	expect_status 11
	err_has "there is no config.json, and the endpoint lists only what it received"
	err_has "hint: --config DIR"
}

@test "the registered endpoints are asked unless a server is described" {
	llama ckpt
	endpoint one --tp 2 --model ckpt
	wsync-register add "$url" >/dev/null
	try wsync-verify names ckpt
	expect_status 0
	out_has "$url"
	try wsync-verify names ckpt --tp 4
	expect_status 0
	out_lacks "$url"
}

@test "a config of a family that nobody knows, and a map that knows it" {
	llama ckpt
	sed -i 's/LlamaForCausalLM/FooForCausalLM/; s/"llama"/"foo"/' ckpt/config.json
	try wsync-verify names ckpt
	expect_status 11
	err_has "no family is known for architecture 'FooForCausalLM' of ckpt/config.json"
	printf 'family foo\narch FooForCausalLM\nlike llama\n' >foo.map
	try wsync-verify names ckpt --map foo.map
	expect_status 0
	out_has "foo at tp 1"
	printf 'family foo\narch FooForCausalLM\nlick llama\n' >foo.map
	try wsync-verify names ckpt --map foo.map
	expect_status 3
	err_has "foo.map:3: "
	try wsync-verify names ckpt --map missing.map
	expect_status 3
	err_has missing.map
}

@test "a config that cannot be read, is malformed, or lacks a number" {
	llama ckpt
	try wsync-verify names ckpt --config nowhere
	expect_status 3
	err_has nowhere
	echo '{"architectures": ' >ckpt/config.json
	try wsync-verify names ckpt
	expect_status 3
	err_has ckpt/config.json
	echo '{"architectures": ["LlamaForCausalLM"]}' >ckpt/config.json
	try wsync-verify names ckpt
	expect_status 3
	err_has 'config.json has no "'
	mkdir other && echo '{"architectures": ["LlamaForCausalLM"]}' >other/config.json
	try wsync-verify names ckpt --config other
	expect_status 3
	err_has 'other/config.json'
}

@test "sizes that no server has are refused" {
	llama ckpt
	try wsync-verify names ckpt --tp 2 --ep 4
	expect_status 2
	err_has "ep 4"
}

@test "values are read with --scan" {
	llama ckpt
	/usr/bin/python3 - ckpt/model.safetensors <<-'END'
		import json, struct, sys
		f = open(sys.argv[1], "r+b")
		n, = struct.unpack("<Q", f.read(8))
		header = json.loads(f.read(n))
		a, b = header["model.norm.weight"]["data_offsets"]
		f.seek(8 + n + a)
		f.write(b"\xc0\x7f" * ((b - a) // 2))
	END
	try wsync-verify names ckpt
	expect_status 0
	try wsync-verify names ckpt --scan --limit 0
	expect_status 1
	out_has model.norm.weight
	out_has NaN
}

@test "usage" {
	llama ckpt
	for words in "" "name ckpt" "names" "names ckpt --tp 0" "names ckpt --tp x" \
		"names ckpt -e localhost:1 --tp 2" "names ckpt --sharded tp=x" \
		"names ckpt --sharded tp=4,ep=3"; do
		# shellcheck disable=SC2086 # words
		try wsync-verify $words
		expect_status 2
		expect_out ""
	done
	try wsync-verify name ckpt
	err_has "did you mean 'names'?"
	try wsync-verify names ckpt --sharded tp=4
	expect_status 3
	err_has "no name there has the number of one of 4 ranks"
	try wsync-verify names ckpt ckpt --sharded tp=4
	expect_status 2
	err_has "not 2 paths"
}

@test "an endpoint that does not answer is status 4" {
	llama ckpt
	try wsync-verify names ckpt -e "127.0.0.1:$(free_port)"
	expect_status 4
}
