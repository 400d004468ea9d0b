#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
load helpers

# A small checkpoint: two shards, an index, several dtypes, a scalar.
checkpoint() {
	mkdir -p ckpt
	safetensors ckpt/model-00001-of-00002.safetensors \
		model.embed_tokens.weight:BF16:32,16 model.layers.0.mlp.up_proj.weight:F8_E4M3:64,16
	safetensors ckpt/model-00002-of-00002.safetensors --seed 1 \
		model.layers.0.mlp.up_proj.weight_scale_inv:F32:1,1 model.norm.weight:BF16:16 \
		step:I64:
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

@test "every program warns of a directory that SGLang and transformers read differently" {
	checkpoint
	safetensors ckpt/model.safetensors --seed 2 model.norm.weight:BF16:16
	try wsync-list-weights ckpt
	expect_status 0
	expect_err "wsync-list-weights: warning: \
ckpt has model.safetensors.index.json and a model.safetensors that is \
not in it: using the index, as SGLang does; \
transformers reads model.safetensors (remove the outdated one)"
	out_has '5 tensors'
	for command in "wsync-list-weights --as-sent" "wsync-push -n" "wsync-verify scales"; do
		try $command ckpt --json
		json 'sum("using the index" in l.get("message", "") for l in lines
			if l["type"] == "warning")' | grep -qx 1 ||
			explain "not one warning"
	done
	rm ckpt/model.safetensors.index.json
	try wsync-list-weights ckpt
	expect_status 0
	expect_err "wsync-list-weights: warning: \
ckpt has model.safetensors and 2 shards without an index, the first is \
model-00001-of-00002.safetensors: using model.safetensors only, as transformers does; \
SGLang reads all of them \
(remove the outdated ones)"
	out_has '1 tensor,'
	rm ckpt/model-*
	echo '{"weight_map": {"model.norm.weight": "model.safetensors"}}' \
		>ckpt/model.safetensors.index.json
	try wsync-list-weights ckpt
	expect_status 0
	expect_err ""
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
	expect_json 'lines[0]["schema"], lines[0]["type"], lines[-1]["type"], lines[-1]["exit"]' \
		"(1, 'start', 'end', 0)"
	expect_json 'sum(l["bytes"] for l in lines
		if l["type"] == "tensor") == lines[-1]["bytes"]' True
}

@test "include and exclude choose names by glob" {
	checkpoint
	try wsync-list-weights ckpt --format names --include '*.mlp.*' --include '*norm*' \
		--exclude '*_inv'
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
	expect_json '(lines[-1]["type"], lines[-1]["ok"], lines[-1]["exit"],
		lines[-1]["error"]["code"])' "('end', False, 3, 'input')"
}

@test "a truncated file is status 3 and names the file" {
	checkpoint
	truncate -s -10 ckpt/model-00002-of-00002.safetensors
	try wsync-list-weights ckpt
	expect_status 3
	err_has "model-00002-of-00002.safetensors"
}

@test "what people have in the place of a checkpoint is called by its name, with what to do" {
	printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n' \
		>model.safetensors
	try wsync-list-weights .
	expect_status 3
	expect_err "wsync-list-weights: ./model.safetensors: is a Git LFS pointer, \
not the file itself
hint: fetch the file with git lfs pull"
	mkdir pickles && touch pickles/pytorch_model.bin
	try wsync-list-weights pickles
	expect_status 3
	err_has "pickles: no safetensors files there, but a PyTorch pickle (pytorch_model.bin)"
	err_has "hint: save it as safetensors, with transformers: from_pretrained, then save_pretr"
	mkdir -p run/global_step_{5,10}/actor
	touch run/global_step_{5,10}/actor/model_world_size_1_rank_0.pt
	try wsync-push --dry-run run
	expect_status 3
	err_has "hint: merge them: python -m verl.model_merger merge --backend fsdp \
--local_dir run/global_step_10/actor --target_dir OUT"
	try wsync-list-weights Qwen/Qwen3-0.6B
	expect_status 3
	err_has "hf download Qwen/Qwen3-0.6B"
	try wsync-list-weights localhost:30000
	expect_status 3
	err_has "hint: a server is named by --endpoint localhost:30000"
	try wsync-list-weights ""
	expect_status 2
	err_has "is a variable of the shell not set?"
}

@test "a source and an endpoint exclude each other" {
	try wsync-list-weights x.safetensors --endpoint http://127.0.0.1:1
	expect_status 2
	err_has "either SOURCE or endpoints, not both"
	try wsync-list-weights --hash --endpoint http://127.0.0.1:1
	expect_status 2
	err_has "--hash: of a SOURCE only"
	try wsync-list-weights x.safetensors --prefix model.
	expect_status 2
	err_has "--prefix: of endpoints only"
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
	expect_json 'lines[-1]["error"]["code"], lines[-1]["error"]["endpoint"]' \
		"('unreachable', 'http://127.0.0.1:$port')"
}

@test "what a server should show is derived from a config, for any rank of any size" {
	llama ckpt
	try wsync-list-weights --runtime ckpt --tp 2
	expect_status 0
	golden list-weights-runtime
	try wsync-list-weights --runtime --config ckpt --tp 4 --rank 3 --include '*qkv*' \
		--format tsv
	expect_status 0
	expect_out $'model.layers.0.self_attn.qkv_proj.weight\t-\t48,64\t-\nmodel.layers.1.self_attn.qkv_proj.weight\t-\t48,64\t-'
	try wsync-list-weights --runtime ckpt --tp 2 --json
	expect_status 0
	expect_json 'lines[-1]["tensors"]' 15
	/usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" \
		wsync-list-weights <<<"$out"
}

@test "sizes that no server could run at, and a family that nobody knows" {
	llama ckpt
	try wsync-list-weights --runtime ckpt --tp 3
	expect_status 1
	err_has "no server runs so: "
	try wsync-list-weights --runtime ckpt --tp 2 --rank 2
	expect_status 2
	err_has "ranks 0 to 1"
	sed -i 's/LlamaForCausalLM/FooForCausalLM/; s/"llama"/"foo"/' ckpt/config.json
	try wsync-list-weights --runtime ckpt
	expect_status 3
	err_has "no family is known for architecture 'FooForCausalLM'"
	echo '{"architectures": ["LlamaForCausalLM"]}' >ckpt/config.json
	try wsync-list-weights --runtime ckpt
	expect_status 3
	rm ckpt/config.json
	try wsync-list-weights --runtime ckpt
	expect_status 3
	err_has "there is no config.json"
}

@test "as sent, names are unwrapped and fused tensors split" {
	llama ckpt '/self_attn.[kv]_proj/d;
		s/^(.*self_attn.)q_proj.weight:BF16:64,64/\1qkv_proj.weight:BF16:128,64/;
		s/^model.norm/model._orig_mod.norm/'
	try wsync-list-weights --as-sent ckpt
	expect_status 0
	golden list-weights-as-sent
	try wsync-list-weights --as-sent ckpt --hash --json
	expect_status 0
	/usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" \
		wsync-list-weights <<<"$out"
}

@test "options that need another one are refused" {
	llama ckpt
	for words in "ckpt --tp 2" "ckpt --rank 1" "ckpt --config ckpt" "ckpt --map x" \
		"ckpt --sharded tp=2" "--as-sent" \
		"--as-sent --runtime ckpt" "--runtime" "--runtime ckpt --hash" \
		"--runtime --config ckpt -e localhost:1"; do
		# shellcheck disable=SC2086 # words
		try wsync-list-weights $words
		expect_status 2
		expect_out ""
	done
}

@test "colour is on when asked for, and off with NO_COLOR" {
	checkpoint
	try wsync-list-weights --color always ckpt
	out_has $'\e[1m5 tensors'
	NO_COLOR=1 try wsync-list-weights ckpt
	out_lacks $'\e'
}

weights='{"weights": [{"name": "model.norm.weight", "shape": [16], "dtype": "torch.bfloat16"},
	{"name": "model.layers.0.mlp.gate_up_proj.weight", "shape": [128, 16],
	"dtype": "bfloat16"}]}'

@test "what an endpoint holds is listed like a checkpoint" {
	canned a "/list_weights=200:$weights"
	try wsync-list-weights --endpoint "$url" --rank 1 --prefix model.
	expect_status 0
	golden list-weights-endpoint
	grep -q '^GET /list_weights?rank=1&prefix=model.' a.out
	try wsync-list-weights --endpoint "$url" --json
	expect_status 0
	golden list-weights-endpoint-json
}

@test "an endpoint that tells no dtypes has no sizes either" {
	canned a '/list_weights=200:{"weights": [{"name": "x", "shape": [2, 3]}]}'
	try wsync-list-weights --endpoint "$url"
	expect_status 0
	expect_out "x  -  [2, 3]           -
1 tensor"
	try wsync-list-weights --endpoint "$url" --json
	expect_json 'lines[1]["dtype"], lines[1]["bytes"]' "(None, None)"
}

@test "an older endpoint that takes only POST is asked by POST" {
	canned a "GET /list_weights=405:no" "POST /list_weights=200:$weights"
	try wsync-list-weights --endpoint "$url" --format names
	expect_status 0
	out_has model.norm.weight
}

@test "several endpoints have a section each, and one that fails does not stop the others" {
	canned a "/list_weights=200:$weights"
	first=$url
	canned b '/list_weights=500:{"message": "out of order"}'
	second=$url
	canned c '/list_weights=200:{"weights": []}'
	try wsync-list-weights --endpoint "$first" --endpoint "$second" --endpoint "$url"
	expect_status 5
	err_has "$second"
	err_has "out of order"
	out_has "==> $first <=="
	out_lacks "==> $second <=="
	out_has "==> $url <=="
}

@test "escape sequences in an endpoint's names do not reach the terminal" {
	canned a $'/list_weights=200:{"weights": [{"name": "a\xc2\x9b31mred", "shape": []}]}'
	try wsync-list-weights --endpoint "$url"
	out_has "a?31mred"
	canned b '/list_weights=200:{"weights": [{"name": "a\u001b[31mred", "shape": []}]}'
	try wsync-list-weights --endpoint "$url"
	expect_status 5
	err_lacks $'\e'
}

@test "without source and endpoint there is a word about what to give" {
	try wsync-list-weights
	expect_status 2
	err_has "--endpoint URL"
}

# A server that accepts and never answers.
silent() {
	start silent /usr/bin/python3 -c 'import socket, time
s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1], flush=True); time.sleep(100)'
	eventually test -s silent.out
	url=http://127.0.0.1:$(<silent.out)
}

@test "a signal ends the wait, is said at once, and is what the program dies by" {
	silent
	for signal in INT TERM HUP; do
		try timeout --preserve-status -s $signal 0.5 wsync-list-weights --json \
			--endpoint "$url"
		expect_status $((128 + $(kill -l $signal)))
		err_has "wsync-list-weights: interrupted, cleaning up (again to quit at once)"
		expect_json 'lines[-1]["error"]["code"]' cancelled
	done
}

@test "a signal that was ignored at the start stays ignored" {
	silent
	(trap '' HUP; exec wsync-list-weights --endpoint "$url" --timeout 1s) 2>err 3>&- &
	pid=$!
	sleep 0.4
	kill -HUP $pid
	status=0
	wait $pid || status=$?
	out= err=$(<err) last="nohup wsync-list-weights"
	expect_status 10
}

@test "an endpoint that does not answer is status 10 after the timeout" {
	silent
	try wsync-list-weights --endpoint "$url" --timeout 300ms
	expect_status 10
	err_has "$url"
}
