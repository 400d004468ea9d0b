#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# cuda-ipc:MANIFEST.json as a source: weights out of the memory of another process.
#
# On a double of libcuda, which lends its memory between processes. With WSYNC_TEST_CUDA (a
# libcuda.so.1, which a GPU stands behind) the same on the real one, but for the cases that only a
# double can be told.
load helpers

prepare() {
	[ -e "$build/tests/gpu/fake_cuda.so" ] || skip "built without CUDA"
	if grep -q __asan_init "$build/tests/gpu/fake_cuda.so"; then
		skip "a Python without sanitizers cannot load a double with them"
	fi
	gpu_libraries
	export PYTHONDONTWRITEBYTECODE=1
	other=${doubles:+1} # a GPU that does not send, where there is one
	llama ckpt
}

# trainer NAME SOURCE OPTION...: exports to NAME.json, and lives; its process is in $pid.
trainer() {
	start "$1" /usr/bin/python3 "$repo/tests/cli/exporter.py" "$2" "$1.json" "${@:3}"
	eventually grep -q ready "$scratch/$1.out"
}

# Its process is gone, and not only told to go.
end_trainer() { kill "$pid" && wait "$pid" || true; }

# ask URL JSON: the answer, whatever it is, is in $out.
ask() { out=$(fetch "$@") || :; }

# The names and hashes of a source, in the order of the names.
hashes() {
	try wsync-list-weights --hash --json "$@"
	expect_status 0
	json 'sorted((l["name"], l["dtype"], l["shape"], l["hash"]) for l in lines
		if l["type"] == "tensor")'
}

@test "the weights of another process are listed with the bytes they have" {
	safetensors odd.safetensors a:BF16:700,999 b:F32:1000 c:U8:9000000 empty:F16:0,4 one:F32:
	trainer m odd.safetensors
	[ "$(hashes cuda-ipc:m.json)" = "$(hashes odd.safetensors)" ] || explain "other bytes"
	try wsync-list-weights cuda-ipc:m.json --json
	json '[l["file"] for l in lines if l["type"] == "tensor"][0]' | grep -qx cuda-ipc:m.json
	[ "$(stat -c %a m.json)" = 600 ]
}

@test "they are pushed, named by the trainer's config, and hash the same at the endpoint" {
	trainer m ckpt/model.safetensors --config ckpt
	endpoint ep
	try wsync-push cuda-ipc:m.json -e "$url" --verify hash --bucket-size 40KiB
	expect_status 0
	out_has 'verified by hash'
	try wsync-verify weights ckpt -e "$url"
	expect_status 0
	try wsync-verify weights cuda-ipc:m.json -e "$url"
	expect_status 0
	try wsync-verify names cuda-ipc:m.json --config ckpt
	expect_status 0
}

@test "quantized on their way, they are what a checkpoint becomes" {
	/usr/bin/python3 "$repo/tests/cli/scaled_model.py" m >/dev/null # numbers, and not any bytes
	trainer m m/bf16/model.safetensors --config m/bf16
	endpoint ep
	try wsync-push cuda-ipc:m.json -e "$url" --quantize fp8 --block-size 16x16 --verify hash
	expect_status 0
	try wsync-verify weights m/bf16 -e "$url" --quantize fp8 --block-size 16x16
	expect_status 0
}

@test "they are written to a disk, and through the body of a request" {
	trainer m ckpt/model.safetensors --config ckpt
	endpoint ep
	try wsync-push cuda-ipc:m.json -e "$url" --backend disk --disk-dir out --verify hash
	expect_status 0
	try wsync-push cuda-ipc:m.json -e "$url" --backend disk
	expect_status 2
	err_has 'as it lies there: it is memory of a GPU'
	try wsync-push cuda-ipc:m.json -e "$url" --backend tensor --verify hash
	expect_status 0
}

@test "on the GPU that sends they are copied without the host" {
	trainer near ckpt/model.safetensors --config ckpt
	trainer far ckpt/model.safetensors --config ckpt --device "${other:-0}"
	endpoint ep --backend nccl --shared-gpu
	for at in near far; do
		try wsync-push "cuda-ipc:$at.json" -e "$url" --backend nccl --bucket-size 40KiB \
			--verify hash --json
		expect_status 0
		expect_json 'lines[-1]["bytes"]' 180864
	done
	try wsync-push cuda-ipc:near.json -e "$url" --backend nccl --load-format none --verify hash
	expect_status 0
}

# shard DIR: r0.safetensors and r1.safetensors, as two tensor-parallel ranks would have it.
shard() {
	/usr/bin/python3 - "$repo/tests/cli" "$1" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		from split_model import read, write
		ranks = [], []
		for name, dtype, shape, data in read(sys.argv[2] + "/model.safetensors"):
		    for i, rank in enumerate(ranks):
		        if len(shape) == 1:
		            rank.append((name, dtype, shape, data))
		        elif "o_proj" in name or "down_proj" in name:
		            row = len(data) // shape[0]
		            half = b"".join(data[r * row + i * row // 2:][:row // 2]
		                            for r in range(shape[0]))
		            rank.append((name, dtype, [shape[0], shape[1] // 2], half))
		        else:
		            half = len(data) // 2
		            rank.append((name, dtype, [shape[0] // 2, shape[1]],
		                         data[i * half:][:half]))
		for i, rank in enumerate(ranks):
		    write(f"r{i}.safetensors", rank)
	END
}

@test "shards are joined, and made FP8, on the GPU that sends, and elsewhere by the CPU" {
	likely_model llama
	shard m
	trainer x r0.safetensors
	trainer y r1.safetensors
	trainer z r1.safetensors --device "${other:-0}"
	endpoint ep --backend nccl --shared-gpu
	local joined=(wsync-push --config m --sharded tp=2 -e "$url" --backend nccl --verify hash)
	for second in y z; do
		try "${joined[@]}" cuda-ipc:x.json "cuda-ipc:$second.json" --bucket-size 90KiB
		expect_status 0
		try "${joined[@]}" cuda-ipc:x.json "cuda-ipc:$second.json" --quantize fp8 \
			--block-size 16x16
		expect_status 0
	done
	of_the_double
	FAKE_CUDA_REFUSE='cuLaunchKernel 0 700' try "${joined[@]}" cuda-ipc:x.json cuda-ipc:y.json
	expect_status 7
	err_has 'starting kernel gather'
}

@test "what is computed with is looked at on its GPU, and a NaN is told before anybody is paused" {
	likely_model llama
	endpoint ep
	trainer m m/model.safetensors
	try wsync-push cuda-ipc:m.json --config m -e "$url" --quantize fp8 --block-size 16x16 \
		--verify hash -v
	expect_status 0
	err_has 'values: the GPU checked 14 tensors'
	/usr/bin/python3 - "$repo/tests/cli" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		from split_model import read, write
		def spoil(name, data):
		    if "1.self_attn.q_proj" not in name: return data
		    at = 2 * (128 * 3 + 5)
		    return data[:at] + b"\xc0\x7f" + data[at + 2:]
		write("bad.safetensors",
		      [(n, t, s, spoil(n, d)) for n, t, s, d in read("m/model.safetensors")])
	END
	trainer b bad.safetensors
	for trust in "" --trust-values; do
		try wsync-push cuda-ipc:b.json --config m -e "$url" --quantize fp8 \
			--block-size 16x16 --json $trust
		expect_status 3
		err_has "tensor 'model.layers.1.self_attn.q_proj.weight' has NaN at row 3, \
column 5 (cuda-ipc:b.json)"
		[ "$(json 'any(l.get("phase") == "pause" for l in lines)')" = $([ "$trust" ] &&
			echo True || echo False) ] ||
			explain "paused, or not"
	done
	of_the_double
	FAKE_CUDA_REFUSE='cuLaunchKernel 0 700' try wsync-push cuda-ipc:m.json --config m \
		-e "$url" --quantize fp8 \
		--block-size 16x16 --verify hash -v
	expect_status 0
	err_has 'values: the CPU checks them: GPU 0'
}

@test "weights that are tied are one memory under two names" {
	trainer m ckpt/model.safetensors --tied model.norm.weight=tied.weight
	try wsync-list-weights --hash --json cuda-ipc:m.json
	expect_status 0
	expect_json 'len({l["hash"] for l in lines if l.get("name") in ("model.norm.weight",
		"tied.weight")})' 1
}

@test "a tied head that differs in the trainer's memory is found before anything is paused" {
	sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' ckpt/config.json
	trainer m ckpt/model.safetensors
	llama alone '/lm_head/d'
	trainer one alone/model.safetensors --tied model.embed_tokens.weight=lm_head.weight
	endpoint ep
	try wsync-push cuda-ipc:m.json --config ckpt -e "$url"
	expect_status 1
	err_has "lm_head.weight differs from model.embed_tokens.weight"
	expect_journal "$url" '"/pause_generation" in paths' False
	try wsync-push cuda-ipc:one.json --config ckpt -e "$url"
	expect_status 0
}

@test "what ranks export one by one is joined like their files" {
	safetensors r0.safetensors model.norm.weight:BF16:64 lm_head.weight:BF16:64,64
	safetensors r1.safetensors model.norm.weight:BF16:64 lm_head.weight:BF16:64,64
	trainer x r0.safetensors
	trainer y r1.safetensors --device "${other:-0}"
	[ "$(hashes --as-sent --config ckpt --sharded tp=2 cuda-ipc:x.json cuda-ipc:y.json)" = \
		"$(hashes --as-sent --config ckpt --sharded tp=2 r0.safetensors \
		r1.safetensors)" ] || explain "joined otherwise"
}

@test "memory and files may be one checkpoint together" {
	safetensors extra.safetensors extra:F32:5
	trainer a ckpt/model.safetensors
	trainer b ckpt/model.safetensors --device "${other:-0}"
	try wsync-list-weights cuda-ipc:a.json extra.safetensors
	expect_status 0
	out_has '22 tensors'
	try wsync-list-weights cuda-ipc:a.json cuda-ipc:b.json
	expect_status 3
	err_has 'is in both cuda-ipc:a.json and cuda-ipc:b.json'
}

@test "a trainer that has ended is told before anything is opened" {
	trainer m ckpt/model.safetensors
	local trainer=$pid
	end_trainer
	try env LD_LIBRARY_PATH= wsync-push -n cuda-ipc:m.json
	expect_status 3
	err_has "the process that wrote m.json (pid $trainer) has ended: its memory is gone"
	# Its number in another process's hands.
	sed -i "s/\"pid\": $trainer/\"pid\": $$/" m.json
	try wsync-push -n cuda-ipc:m.json
	expect_status 3
	err_has "(pid $$) has ended"
}

@test "a trainer that ends while it is read from leaves endpoints partial" {
	local trainer delay buckets
	for delay in 2s 10s 60s; do # the next one where the trainer did not end in time
		trainer m ckpt/model.safetensors --config ckpt
		trainer=$pid
		endpoint ep --fault slow:update_weights_from_distributed:2 --fault-delay $delay
		start push wsync-push cuda-ipc:m.json -e "$url" --bucket-size 100KiB --verify none \
			--json
		eventually grep -q '"type":"bucket"' push.out
		kill "$trainer" && wait "$trainer" || true
		buckets=$(grep -c '"type":"bucket"' push.out)
		status=0
		wait "$pid" || status=$?
		[ "$buckets" != 1 ] || break
	done
	out=$(<push.out) err=$(<push.err)
	expect_status 3
	err_has "(pid $trainer) has ended: its memory is gone"
	expect_json 'lines[-1]["endpoints"][0]["state"]' partial
}

@test "another machine's memory is not to be had" {
	trainer m ckpt/model.safetensors
	sed -E -i 's/"boot_id": "[^"]*"/"boot_id": "x"/; s/"host": "[^"]*"/"host": "gpu7"/' m.json
	try wsync-push -n cuda-ipc:m.json
	expect_status 3
	err_has 'm.json was written on gpu7, and this is'
}

@test "a driver that is not there is told" {
	of_the_double # the real one may be found anywhere
	trainer m ckpt/model.safetensors
	try env LD_LIBRARY_PATH= wsync-push -n cuda-ipc:m.json
	expect_status 7
	err_has 'm.json: the CUDA driver cannot be loaded'
}

@test "a GPU or memory that is not there is named" {
	trainer m ckpt/model.safetensors
	sed -E 's/GPU-[0-9a-f]{8}/GPU-11111111/' m.json >other.json
	try wsync-push -n cuda-ipc:other.json
	expect_status 7
	err_has 'other.json: its memory is on GPU GPU-11111111-'
	err_has ', which is not among the '
	trainer gone ckpt/model.safetensors --free
	try wsync-list-weights --hash cuda-ipc:gone.json
	expect_status 7
	err_has "opening another process's memory"
	try wsync-push -n cuda-ipc:nowhere.json
	expect_status 3
	try wsync-push -n cuda-ipc:ckpt/model.safetensors
	expect_status 3
	err_has 'a manifest'
}

@test "memory that cannot be shared is refused by the trainer's side" {
	of_the_double
	start m /usr/bin/python3 "$repo/tests/cli/exporter.py" ckpt/model.safetensors m.json \
		--refuse
	wait "$pid" && false
	grep -q 'model.embed_tokens.weight: .*: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False' m.err
	[ ! -e m.json ]
}

@test "a manifest that cannot be put in its place leaves nothing beside it" {
	mkdir m.json
	start m /usr/bin/python3 "$repo/tests/cli/exporter.py" ckpt/model.safetensors m.json
	wait "$pid" && false
	[ "$(echo m.json*)" = m.json ] || explain "$(ls)"
}

@test "wsync.push of a trainer's tensors reads them where they are" {
	endpoint one
	mkdir tmp
	try env TMPDIR="$scratch/tmp" /usr/bin/python3 "$repo/tests/cli/exporter.py" \
		ckpt/model.safetensors - --push "$url" --config ckpt
	expect_status 0
	expect_out "hash 21"
	[ -z "$(ls tmp)" ]
	try wsync-verify weights ckpt -e "$url"
	expect_status 0
}

@test "a part of a GPU is known by its own kind of number" {
	of_the_double
	FAKE_CUDA_MIG=1 trainer m ckpt/model.safetensors
	grep -q '"uuid": "MIG-40404040-4040-4040-4040-404040404040"' m.json ||
		explain "$(cat m.json)"
	try wsync-list-weights cuda-ipc:m.json --hash
	expect_status 0
}

@test "a gateway takes manifests from where it takes checkpoints" {
	mkdir inside
	trainer m ckpt/model.safetensors --config ckpt
	trainer inside/m ckpt/model.safetensors --config ckpt
	endpoint ep
	local ep=$url port=${url##*:}
	start gateway wsync-gateway --listen 127.0.0.1:0 --source-root inside --json
	eventually grep -q '"ready"' gateway.out
	url=$(sed -n 's/.*"type":"ready".*"url":"\([^"]*\)".*/\1/p' gateway.out)
	ask "$url/add_inference_endpoint" "{\"host\":\"127.0.0.1\",\"port\":$port}"
	out_has '"success":true'
	ask "$url/sync_inference_weights" "{\"source\":\"cuda-ipc:$scratch/m.json\"}"
	out_has 'not below a directory'
	ask "$url/sync_inference_weights" "{\"source\":\"cuda-ipc:$scratch/inside/m.json\"}"
	out_has '"state":"committed"'
	try wsync-verify weights ckpt -e "$ep"
	expect_status 0
}

@test "it is measured as other sources are, and each push of several opens it anew" {
	trainer m ckpt/model.safetensors --config ckpt
	endpoint ep
	try wsync-bench load cuda-ipc:m.json --samples 1 --json
	expect_status 0
	printf '%s\n' cuda-ipc:m.json ckpt cuda-ipc:m.json >list
	timeout 600 wsync-push --stdin -e "$url" --verify hash --json <list >stdin.out 2>stdin.err ||
		explain "not pushed"
	[ "$(grep -c '"ok":true,"exit":0,"bytes":180864,"wire_bytes":180864' stdin.out)" = 3 ] ||
		explain "$(<stdin.out)"
}

@test "memory is a source where a user names it, and nowhere else" {
	trainer m ckpt/model.safetensors
	endpoint ep
	ask "$url/update_weights_from_disk" "{\"model_path\": \"cuda-ipc:$scratch/m.json\"}"
	out_has '"success":false'
	try wsync-push ckpt -n --lora cuda-ipc:m.json
	[ "$status" != 0 ]
}

@test "a manifest is not written through a link that another user left there" {
	echo precious >victim
	ln -s victim m.json.tmp
	for at in m.json ./m.json "$PWD/m.json"; do
		/usr/bin/python3 -c 'import sys
sys.path.insert(0, sys.argv[1])
import wsync_manifest
wsync_manifest._replace(sys.argv[2], {"x": 1})' "$repo/cmd/python" "$at"
	done
	[ "$(cat victim)" = precious ]
	[ "$(cat m.json)" = '{"x": 1}' ]
	[ "$(stat -c %a m.json)" = 600 ]
	[ "$(echo m.json*)" = "m.json m.json.tmp" ]
}
