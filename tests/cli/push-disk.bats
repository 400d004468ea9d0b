#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-push --backend disk: the servers load what they can read, the source or what was written for
# them.
load helpers

# model FAMILY: a small checkpoint in m/ whose numbers are all of a likely size, and a tokenizer
# with it.
model() {
	likely_model "$1"
	echo '{"model": {}}' >m/tokenizer.json
}

# What endpoint $url was asked: the paths, in order.
asked() {
	journal "$url" '" ".join(r["path"][1:] for r in j["requests"]
		if r["method"] == "POST")'
}

@test "an SGLang that is known by a name of its own loses it, and that is said; a vLLM keeps it" {
	model qwen3
	endpoint one --model m --served-model-name policy
	try wsync-push m -e "$url" --backend disk
	expect_status 0
	err_has "it serves this model as 'policy' until now, and as the path"
	try wsync-push m -e "$url" --backend disk
	err_lacks "as the path"
	endpoint two --model m --served-model-name policy --lineage vllm-0.33
	try wsync-push m -e "$url" --backend disk
	expect_status 0
	err_lacks "as the path"
	[ "$(curl -sS "$url/v1/models" | grep -o '"id":"[^"]*"')" = '"id":"policy"' ]
}

# Names in a directory, hidden ones too.
names() { (cd "$1" && find . -mindepth 1 -printf '%P\n' | LC_ALL=C sort | tr '\n' ' '); }

@test "servers load the source itself, where it is what would be sent" {
	model qwen3
	for lineage in sglang-0.4 sglang-0.5 sglang-2026 xorl-legacy xorl session slime lenient; do
		endpoint "$lineage" --model m --tp 2 --lineage "$lineage"
		local pause=abort
		[ "$lineage" != sglang-0.4 ] || pause=none
		try wsync-push m -e "$url" --backend disk --pause "$pause" --json
		expect_status 0
		expect_json '[(l["backend"], l["protocol"], l["load_format"], l["buckets"],
		l["disk_path"], l["disk_bytes"])
			for l in lines if l["type"] == "plan"]' \
			"[('disk', 'disk', 'auto', 1, '$PWD/m', 0)]"
		try wsync-verify weights m -e "$url"
		expect_status 0
	done
	try wsync-ctl repair
	expect_out "nothing to repair"
	[ "$(names m)" = "config.json model.safetensors tokenizer.json " ]
}

@test "a snapshot of the Hugging Face cache is loaded from where it lies" {
	model qwen3
	endpoint one --model m
	mkdir -p hub/models--Q--M/{blobs,snapshots/abc,refs}
	for name in config.json model.safetensors tokenizer.json; do
		cp "m/$name" "hub/models--Q--M/blobs/$name"
		ln -s "../../blobs/$name" "hub/models--Q--M/snapshots/abc/$name"
	done
	printf abc >hub/models--Q--M/refs/main
	export HF_HUB_CACHE=hub
	try wsync-push hf:Q/M --config hf:Q/M -e "$url" --backend disk --json
	expect_status 0
	expect_json '[l["disk_path"] for l in lines if l["type"] == "plan"]' \
		"['$PWD/hub/models--Q--M/snapshots/abc']"
	try wsync-push hf:Q/M -e "$url" --verify hash
	expect_status 0
	try wsync-push hub/models--Q--M -e "$url"
	expect_status 3
	err_has "name its snapshot: hf:Q/M, or hub/models--Q--M/snapshots/abc"
}

@test "servers load no file that is not pushed" {
	model qwen3
	endpoint a --model m
	push() { try wsync-push m -e "$url" --backend disk "$@"; }
	refused() {
		push
		expect_status 2
		err_has "servers cannot load m as it lies there: $1"
		err_has "hint: --disk-dir DIR"
	}
	safetensors m/.hidden.safetensors x:F32:8
	safetensors m/adapter.bin x:F32:8
	push
	expect_status 0
	# Without an index they load every *.safetensors.
	safetensors m/stray.safetensors x:F32:8
	refused "they would also load stray.safetensors, which is not pushed"
	push --dry-run
	expect_status 2
	push --disk-dir out
	expect_status 0
	# With one they skip what it does not name, except for GLM's mtp.safetensors.
	index() {
		/usr/bin/python3 -c 'import json, struct, sys
with open("m/" + sys.argv[1], "rb") as f:
	names = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
with open("m/model.safetensors.index.json", "w") as f:
	json.dump({"weight_map": {n: sys.argv[1] for n in names if n != "__metadata__"}}, f)' "$1"
	}
	index model.safetensors
	mv m/stray.safetensors m/mtp.safetensors
	push
	expect_status 0
	sed -i 's/"[^"]*ForCausalLM"/"Glm4MoeForCausalLM"/' m/config.json
	push --verify none
	expect_status 2
	err_has "they would also load mtp.safetensors"
	rm m/mtp.safetensors
	push --verify none
	expect_status 0
	mv m/model.safetensors m/model.weights
	index model.weights
	push --verify none
	expect_status 2
	err_has "they do not load model.weights: it has another name than *.safetensors"
	[ "$(asked | grep -o update_weights_from_disk | wc -l)" = 4 ]
}

@test "several at once, their weight version, and what they hold by hash" {
	model qwen3
	endpoint a --model m --tp 2
	local first=$url
	endpoint b --model m --tp 1
	for how in "" "--disk-dir out --bucket-size 64KiB"; do
		# shellcheck disable=SC2086  # words
		try wsync-push m -e "$first" -e "$url" --backend disk --weight-version 7 \
			--verify hash $how
		expect_status 0
		out_has "verified by hash, weight version 7"
	done
	[[ "$(asked)" != *init_weights_update_group* ]]
	endpoint c --model m --fault flip:update_weights_from_disk:1
	try wsync-push m -e "$url" --backend disk --weight-version 8 --verify hash
	expect_status 1
	out_has "1 tensor differs from what was sent"
	try curl -sS -m 180 "$url/model_info"
	out_has '"weight_version":"default"'
}

@test "what is changed on its way is written first, whole, with the config that says so" {
	model qwen3
	endpoint a --model m
	try wsync-push m -e "$url" --backend disk --quantize fp8 --block-size 16x16
	expect_status 2
	err_has "servers cannot load m as it lies there: its weights are changed on their way"
	err_has "--disk-dir DIR writes a checkpoint there first"
	chmod 640 m/tokenizer.json
	echo '#!/bin/sh' >m/convert.sh
	chmod 777 m/convert.sh
	umask 022
	/usr/bin/python3 "$repo/tests/cli/small_model.py" qwen3 eight --fp8
	endpoint b --model eight --tp 2
	mkdir out
	try wsync-push m -e "$url" --backend disk --quantize fp8 --block-size 16x16 --disk-dir out \
		--verify hash \
		--weight-version step/12 --bucket-size 64KiB --json
	expect_status 0
	local dir=out/wsync-step_12
	expect_json '[l["disk_path"] for l in lines if l["type"] == "plan"]' "['$PWD/$dir']"
	[ "$(names out | tr ' ' '\n' | grep -v /)" = "wsync-step_12" ]
	cmp m/tokenizer.json $dir/tokenizer.json
	[ "$(stat -c %a $dir/tokenizer.json $dir/convert.sh | xargs)" = "640 755" ]
	[ "$(/usr/bin/python3 -c 'import json, sys
c = json.load(open(sys.argv[1])); q = c.pop("quantization_config")
print(q["quant_method"], q["weight_block_size"], q["modules_to_not_convert"],
      c == json.load(open("m/config.json")))' \
		$dir/config.json)" = "fp8 [16, 16] ['model.embed_tokens'] True" ]
	try wsync-verify scales $dir --against m
	expect_status 0
	# It is a checkpoint to start from, and to push as it lies there.
	endpoint c --model $dir --tp 2
	try wsync-push $dir -e "$url" --backend disk --verify hash
	expect_status 0
	try wsync-verify weights m --quantize fp8 --block-size 16x16 -e "$url"
	expect_status 0
}

@test "parts, several sources, files and what is made up are written first, too" {
	model qwen3
	endpoint a --model m
	for words in "m --exclude *norm*" "m/model.safetensors" "synthetic:qwen3-0.6b"; do
		# shellcheck disable=SC2086  # words
		try wsync-push $words -e "$url" --backend disk --verify none
		expect_status 2
		err_has "servers cannot load"
	done
	try wsync-push m --exclude '*norm*' -e "$url" --backend disk --disk-dir out --verify none
	expect_status 0
	out_has "pushed"
	ls out/wsync-*/model.safetensors
	safetensors one.safetensors a:F32:8 b:BF16:4,4
	safetensors two.safetensors c:F32:8 odd:U8:3
	endpoint b
	try wsync-push one.safetensors two.safetensors -e "$url" --backend disk --disk-dir out \
		--verify hash
	expect_status 0
	try wsync-verify weights one.safetensors two.safetensors -e "$url"
	expect_status 0
}

@test "a dry run says where, and how much, and writes nothing" {
	model qwen3
	endpoint a --model m
	try wsync-push m -e "$url" --backend disk --disk-dir out --weight-version 5 --dry-run
	expect_status 0
	out_has "out/wsync-5, about 6"
	[ ! -e out ]
	try wsync-push m -e "$url" --backend disk --disk-dir ./new// --weight-version 5 --dry-run
	expect_status 0
	out_has "$PWD/new/wsync-5, about 6"
	try wsync-push m --backend disk --dry-run
	expect_status 0
	out_has "disk      $PWD/m"
	[[ "$(asked)" != *pause* ]]
}

@test "old checkpoints go when all that they were for have a newer one, others never" {
	model qwen3
	endpoint a --model m
	local first=$url
	endpoint b --model m
	local both="-e $first -e $url"
	# shellcheck disable=SC2086  # words
	push() { try wsync-push m --backend disk --disk-dir out "$@"; expect_status 0; }
	mkdir -p out/wsync-mine && echo kept >out/wsync-mine/file
	touch m/$'note\xff.txt' m/$'a\nb' # wsync.json could not list the first
	push $both --weight-version 1
	push -e "$url" --weight-version 2
	[ "$(ls out)" = "$(printf '%s\n' wsync-1 wsync-2 wsync-mine)" ]
	push $both --weight-version 3
	[ "$(ls out)" = "$(printf '%s\n' wsync-3 wsync-mine)" ]
	push $both --weight-version 3 --disk-keep 2
	[ "$(ls out)" = "$(printf '%s\n' wsync-3 wsync-3-2 wsync-mine)" ]
	echo precious >out/wsync-3/notes.txt
	push $both --weight-version 4
	err_has "an old checkpoint stays: "
	err_has "'notes.txt', which was not written with it"
	err_has "warning: not copied: file 'note?.txt': it is not UTF-8"
	[ "$(ls out)" = "$(printf '%s\n' wsync-3 wsync-4 wsync-mine)" ]
	push $both --disk-keep 0
	[ "$(ls out)" = "$(printf '%s\n' wsync-3 wsync-mine)" ]
	[ "$(cat out/wsync-mine/file out/wsync-3/notes.txt)" = "$(printf 'kept\nprecious')" ]
	[ "$(find out -name '.*' | wc -l)" = 0 ]
}

@test "a directory that the server calls otherwise, and one that it does not find" {
	model qwen3
	mkdir mount
	ln -s "$PWD/m" mount/model
	endpoint a --model m
	try wsync-push m -e "$url" --backend disk --disk-path "$PWD/mount/model"
	expect_status 0
	try curl -sS -m 180 "$url/model_info"
	out_has "mount/model"
	try wsync-push m -e "$url" --backend disk --disk-path /nowhere/at/all
	expect_status 5
	err_has "the server finds no checkpoint at /nowhere/at/all"
	err_has "say so with --disk-path"
	out_has "untouched"
	err_lacks "mixture"
	try wsync-push m -e "$url" --backend disk --disk-dir out --disk-path /nowhere
	expect_status 5
	[ "$(find out | wc -l)" = 1 ] || explain "what nobody has stays"
	ln -s "$PWD/out" mount/out
	try wsync-push m -e "$url" --backend disk --disk-dir out --disk-path "$PWD/mount/out" \
		--weight-version 9
	expect_status 0
	try curl -sS -m 180 "$url/model_info"
	out_has "mount/out/wsync-9"
	printf 'm\n' >lines
	try bash -c 'wsync-push --stdin -e "$1" --backend disk --disk-path /x <lines' - "$url"
	expect_status 2
	for words in "--disk-dir out" "--disk-path /x" \
		"--backend tensor --load-format safetensors" \
		"--backend disk --disk-path x" "--backend disk --load-format none" \
		"--backend disk --protocol update"; do
		# shellcheck disable=SC2086  # words
		try wsync-push m -e "$url" $words
		expect_status 2
	done
}

@test "a server of stages and replicas loads, too, and tells how many requests it paused" {
	model qwen3
	canned a '/server_info=200:{"tp_size":1,"pp_size":2,"dp_size":2,"version":"0.5.15","quantization":"fp8"}' \
		'/model_info=200:{"model_path":"x"}' '/pause_generation=200:{"status":"ok"}' \
		'/flush_cache=200:Cache flushed.' '/continue_generation=200:{"status":"ok"}' \
		'/update_weights_from_disk=200:{"success":true,"message":"Done.","num_paused_requests":3}' \
		'/update_weight_version=200:{"success":true,"message":"ok","new_version":"3"}'
	try wsync-push m -e "$url" --lineage sglang-2026 --verify none
	expect_status 5
	err_has "2 pipeline stages"
	try wsync-push m -e "$url" --lineage sglang-2026 --verify none --backend disk \
		--load-format safetensors --weight-version 3 --allow-unknown format
	expect_status 0
	out_has "Done. (3 requests were paused)"
	grep -F '"load_format":"safetensors","flush_cache":true,"abort_all_requests":false,"recapture_cuda_graph":true}' a.out
	grep -F '"new_version":"3"' a.out
	canned b '/server_info=200:{"tp_size":1,"version":"0.5.15"}' \
		'/model_info=200:{"model_path":"x"}' \
		'/pause_generation=200:{"status":"ok"}' '/flush_cache=200:Cache flushed.' \
		'/continue_generation=200:{"status":"ok"}' \
		'/update_weights_from_disk=400:{"success":false,"message":"Failed to update weights: x.\nRolling back to original weights.","num_paused_requests":0}'
	try wsync-push m -e "$url" --lineage sglang-2026 --verify none --backend disk
	expect_status 5
	out_has "partial"
	canned c '/server_info=200:{"tp_size":1,"version":"0.5.23","speculative_algorithm":"EAGLE"}' \
		'/model_info=200:{"model_path":"x"}' \
		'/pause_generation=200:{"status":"ok"}' '/flush_cache=200:Cache flushed.' \
		'/continue_generation=200:{"status":"ok"}' \
		'/update_weights_from_disk=400:{"success":false,"message":"Weights were updated, but the cache was not flushed because requests are still running or queued.","num_paused_requests":0}'
	try wsync-push m -e "$url" --lineage session --verify none --backend disk
	expect_status 5
	out_has "partial"
	err_has "$url does not report whether its draft model was loaded"
	canned joined '/server_info=200:{"tp_size":1,"dp_size":2,"version":"0.5.23"}' \
		'/model_info=200:{"model_path":"x"}' \
		'/pause_generation=200:{"status":"ok"}' '/flush_cache=200:Cache flushed.' \
		'/continue_generation=200:{"status":"ok"}' \
		'/update_weights_from_disk=400:{"success":false,"message":"Succeeded to update model weights. | Weights were updated, but the cache was not flushed because requests are still running or queued.","num_paused_requests":[0,0]}'
	try wsync-push m -e "$url" --lineage session --verify none --backend disk
	expect_status 0
	out_has "acknowledged $url"
	out_lacks "not flushed"
	canned d '/server_info=200:{"tp_size":1,"version":"0.5.23","weight_cache_mode":"daemon"}' \
		'/model_info=200:{"model_path":"x"}'
	try wsync-push m -e "$url" --lineage session --verify none --backend disk
	expect_status 5
	err_has "$url shares its weights with other engines, and an update crashes it"
}

@test "one that has it and one that has not is partial, and a later push makes it good" {
	model qwen3
	endpoint a --model m
	local first=$url
	for kind in refuse drop die hang wrong-length; do
		endpoint "$kind" --model m --fault "$kind:update_weights_from_disk:1"
		local within=30s
		[ "$kind" != hang ] || within=5s
		try wsync-push m -e "$first" -e "$url" --backend disk --disk-dir out \
			--bucket-timeout $within --verify hash
		expect_status 9
		err_has "1 of 2 endpoints updated"
		out_has "committed $first"
		out_has "partial   $url"
		[ "$(find out -name '.*' | wc -l)" = 0 ]
		ls -d out/wsync-* || explain "what a server may have is gone"
		[ "$kind" != hang ] || err_has "the server may still be loading $PWD/out/wsync-"
		if [ "$kind" = refuse ] || [ "$kind" = drop ] || [ "$kind" = wrong-length ]; then
			try wsync-push m -e "$first" -e "$url" --backend disk --disk-dir out \
				--verify hash
			expect_status 0
			[ "$(ls out | wc -l)" = 1 ]
		fi
		rm -rf out state
	done
}

@test "lines of stdin are loaded one after the other" {
	model qwen3
	endpoint a --model m
	cp -r m n
	try bash -c 'printf "m\t1\nn\t2\nm\t3\n" | wsync-push --stdin -e "$1" --backend disk --disk-dir out --verify hash' - "$url"
	expect_status 0
	[ "$(ls out)" = wsync-3 ]
	try bash -c 'printf "m\nn\n" | wsync-push --stdin -e "$1" --backend disk' - "$url"
	expect_status 0
	try curl -sS -m 180 "$url/model_info"
	out_has "\"$PWD/n\""
}

@test "ended while it writes, it leaves nothing under a name; killed, what the next one removes" {
	endpoint a
	local pushes=(wsync-push synthetic:qwen3-0.6b -e "$url" --backend disk --disk-dir out \
		--bucket-size 64MiB)
	for signal in TERM KILL; do
		start "$signal" "${pushes[@]}"
		eventually bash -c 'ls out/.wsync-*/model-00001-* >/dev/null 2>&1'
		kill -"$signal" "$pid"
		wait "$pid" || true
		[ -z "$(ls out)" ] || explain "half a checkpoint has a name"
		[ "$signal" != TERM ] || [ "$(find out | wc -l)" = 1 ] ||
			explain "something is left"
	done
	[ "$(find out -name '.wsync-*' | wc -l)" -gt 0 ]
	[[ "$(asked)" != *pause* ]]
	safetensors one.safetensors a:F32:8
	try wsync-push one.safetensors -e "$url" --backend disk --disk-dir out --weight-version 1
	expect_status 0
	[ "$(ls -A out)" = wsync-1 ] || explain "what the dead left is there"
}

@test "no room, and no directory to write into, are said before anybody is paused" {
	model qwen3
	endpoint a --model m
	try wsync-push m -e "$url" --backend disk --disk-dir nowhere/at/all
	expect_status 8
	err_has "--disk-dir nowhere/at/all"
	echo file >file
	try wsync-push m -e "$url" --backend disk --disk-dir file
	expect_status 8
	try wsync-push synthetic:deepseek-v3 -e "$url" --backend disk --disk-dir /dev/shm \
		--verify none
	expect_status 8
	err_has "has room for"
	[[ "$(asked)" != *pause* ]]
}
