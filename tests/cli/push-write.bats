#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-push --write: the checkpoint that would be sent, without an endpoint.
load helpers

# sums SOURCE OPTION...: the names of its tensors and their hashes.
sums() {
	wsync-list-weights "$@" --hash --json |
		/usr/bin/python3 -c 'import json, sys
for l in sorted((t["name"], t["dtype"], t["hash"]) for t in map(json.loads, sys.stdin)
		if t["type"] == "tensor"):
	print(*l)'
}

@test "what a file says of the source's format is not copied beside other formats" {
	/usr/bin/python3 "$repo/tests/cli/scaled_model.py" q >/dev/null
	echo '{"quantization": {"quant_algo": "FP8"}}' >q/fp8/hf_quant_config.json
	try wsync-push q/fp8 --write as-it-is
	expect_status 0
	cmp q/fp8/hf_quant_config.json as-it-is/hf_quant_config.json
	try wsync-push q/fp8 --unpack --write unpacked
	expect_status 0
	[ ! -e unpacked/hf_quant_config.json ]
}

@test "what is written is what would be sent, and what an endpoint gets" {
	likely_model qwen3
	echo '{"model": {}}' >m/tokenizer.json
	endpoint one
	wsync-register add "$url"
	local registered=$url before
	before=$(journal "$url" 'len(j["requests"])')
	local words n=0
	for words in "" "--quantize fp8 --block-size 16x16" "--exclude *norm*"; do
		n=$((n + 1))
		# shellcheck disable=SC2086  # words
		try wsync-push m $words --write out$n --bucket-size 64KiB --json
		expect_status 0
		expect_json 'lines[-1]["written"], lines[-1]["endpoints"], lines[-1]["bytes"] > 0' \
			"('out$n', [], True)"
		expect_json '[(l["backend"], l["protocol"], l["load_format"], l["disk_path"])
			for l in lines if l["type"] == "plan"]' \
			"[('disk', 'write', 'safetensors', '$PWD/out$n')]"
		# shellcheck disable=SC2086
		sums m --as-sent $words >sent
		[ -s sent ]
		sums out$n | cmp - sent || explain "other tensors"
		cmp m/tokenizer.json out$n/tokenizer.json
		endpoint "got$n"
		# shellcheck disable=SC2086
		wsync-push m $words -e "$url" --verify none -q
		try wsync-verify weights out$n -e "$url"
		expect_status 0
	done
	try wsync-push m --write plain
	out_has "to plain in"
	out_has "names fit its config.json"
	# The registered endpoint was not asked for anything.
	[ "$(journal "$registered" 'len(j["requests"])')" = "$before" ]
	cmp m/config.json out1/config.json
	[ "$(/usr/bin/python3 -c 'import json
print(json.load(open("out2/config.json"))["quantization_config"]["weight_block_size"])')" = \
		"[16, 16]" ]
	# Servers load it, and it is a source.
	endpoint loads --model out2
	try wsync-push out2 -e "$url" --backend disk --verify hash
	expect_status 0
}

@test "a merged adapter and an unpacked nf4 base: equal by hash to what an endpoint got" {
	local words n=0
	cp "$repo/tests/data/unpack/bitsandbytes.safetensors" nf4.safetensors
	for words in "$repo/tests/data/lora/bases/dense --lora $repo/tests/data/lora/good/plain" \
		"nf4.safetensors --unpack"; do
		n=$((n + 1))
		endpoint "got$n"
		# shellcheck disable=SC2086  # words
		try wsync-push $words --write out$n
		expect_status 0
		# shellcheck disable=SC2086
		try wsync-push $words -e "$url" --verify hash
		expect_status 0
		out_has "$([ $n = 1 ] && echo merged || echo unpacked)"
		try wsync-verify weights out$n -e "$url"
		expect_status 0
		out_has "are those of the source"
		# shellcheck disable=SC2086
		sums $words --as-sent >sent
		sums out$n | cmp - sent || explain "other tensors"
	done
}

# A limit of the size of files stands in for a disk that gets full: both end a write in the middle.
@test "a part of an unpacked model has the config of the whole one" {
	/usr/bin/python3 "$repo/tests/cli/scaled_model.py" s >/dev/null
	local glob
	for glob in '*' '*embed*'; do
		rm -rf out
		try wsync-push s/fp8 --unpack --include "$glob" --write out
		expect_status 0
		! grep quantization_config out/config.json || explain "it is not quantized"
	done
}

@test "no room in the middle of a file: exit 8, and nothing is left" {
	safetensors two.safetensors a:F32:64,64 b:F32:512,512
	mkdir there
	try bash -c "ulimit -f 512
		exec wsync-push two.safetensors --write there/new --bucket-size 64KiB"
	expect_status 8
	err_has "File too large"
	[ -z "$(ls -A there)" ] || explain "something is left"
}

@test "a directory with files, and options for endpoints, are refused" {
	safetensors one.safetensors a:F32:8
	mkdir full empty
	echo here >full/file
	ln -s nowhere dangling
	local words there
	for there in full empty dangling one.safetensors . /; do
		try wsync-push one.safetensors --write "$there"
		expect_status 2
		err_has "--write $there: it exists already"
	done
	[ "$(cat full/file)" = here ]
	for words in "-e 127.0.0.1:1" "--pool p" "--backend gloo" "--protocol update" \
		"--verify hash" "--sender 1/2" "--load-format none" "--disk-dir d" \
		"--asleep weights" "--metrics m.prom" "--quantize fp8"; do
		# shellcheck disable=SC2086  # words
		try wsync-push one.safetensors --write new $words
		expect_status 2
		[ ! -e new ]
	done
	STDIN=/dev/null try wsync-push --stdin --write new
	expect_status 2
	err_has "--write names the checkpoint of one SOURCE"
	try wsync-push one.safetensors --write nowhere/at/all
	expect_status 8
	err_has "--write nowhere/at/all"
	try wsync-push one.safetensors -n --write new --json
	expect_status 0
	expect_json '"written" in lines[-1]' False
	[ ! -e new ]
	try wsync-push one.safetensors --write new/
	expect_status 0
	err_has "there is no config.json to write"
	out_has "to new/ in"
	ls new/model.safetensors
}

@test "it is whole or missing: ended, killed, and without room" {
	for signal in TERM KILL; do
		mkdir "$signal"
		start "$signal" wsync-push synthetic:qwen3-0.6b --write "$signal/new" \
			--bucket-size 64MiB
		eventually bash -c "ls $signal/.wsync-*/model-00001-* >/dev/null 2>&1"
		kill -"$signal" "$pid"
		local rc=0
		wait "$pid" || rc=$?
		[ "$rc" -gt 128 ] || explain "status $rc"
		[ ! -e "$signal/new" ] || explain "half a checkpoint has a name"
	done
	[ -z "$(ls -A TERM)" ] || explain "something is left"
	[ -n "$(ls -A KILL)" ]
	safetensors one.safetensors a:F32:8
	try wsync-push one.safetensors --write KILL/new
	expect_status 0
	[ "$(ls -A KILL)" = new ] || explain "what the dead left is there"
	try wsync-push synthetic:deepseek-v3 --write /dev/shm/wsync-no-room
	expect_status 8
	err_has "has room for"
	[ ! -e /dev/shm/wsync-no-room ]
}

# Whoever made the source may have put links there. A cache of the Hub has links of its own.
@test "a link out of the source brings nothing into the checkpoint" {
	likely_model qwen3
	local repo=cache/models--a--b to
	mkdir -p $repo/blobs $repo/snapshots/1 other
	echo secret >key
	echo '{"token": "secret"}' >other/x.json
	echo '{"model": {}}' >$repo/blobs/0123
	mv m/model.safetensors $repo/blobs/4567
	mv m/config.json $repo/blobs/89ab
	ln -s ../../blobs/0123 $repo/snapshots/1/tokenizer.json
	ln -s ../../blobs/4567 $repo/snapshots/1/model.safetensors
	ln -s ../../blobs/89ab $repo/snapshots/1/config.json
	echo '{}' >$repo/snapshots/1/own.json
	ln -s own.json $repo/snapshots/1/alias.json
	ln -s "$PWD/key" $repo/snapshots/1/absolute.txt
	ln -s ../../../../key $repo/snapshots/1/relative.txt
	ln -s /proc/self/environ $repo/snapshots/1/environ.txt
	ln -s ../../../../other $repo/snapshots/1/directory
	ln -s missing $repo/snapshots/1/dangling.txt
	mkfifo $repo/snapshots/1/fifo.txt
	ln -s snapshots $repo/latest
	for source in $repo/snapshots/1 $repo/latest/1; do
		to=out-${source//\//-}
		try wsync-push $source --write "$to"
		expect_status 0
		[ "$(ls "$to")" = "$(printf '%s\n' alias.json config.json model.safetensors own.json \
			tokenizer.json wsync.json)" ] || explain "$(ls "$to")"
		[ -z "$(find "$to" -type l)" ]
		cmp $repo/blobs/0123 "$to/tokenizer.json"
		for name in absolute.txt relative.txt environ.txt; do
			err_has "$name is not copied: it is a link to a file outside of the source"
		done
		err_lacks secret
	done
	# Beside a cache, blobs is a directory like any other.
	mkdir -p plain/blobs plain/step-1
	cp $repo/blobs/4567 plain/step-1/model.safetensors
	cp $repo/blobs/89ab plain/step-1/config.json
	cp key plain/blobs/key
	ln -s ../blobs/key plain/step-1/key.txt
	try wsync-push plain/step-1 --write plain-out
	expect_status 0
	err_has "key.txt is not copied"
	[ ! -e plain-out/key.txt ]
	# Without config.json there is no checkpoint, so that is said before anything is written.
	mv plain/step-1/config.json other/config.json
	ln -s ../../other/config.json plain/step-1/config.json
	try wsync-push plain/step-1 --write never
	expect_status 3
	err_has "plain/step-1/config.json is a link to a file outside of the source"
	err_has "hint: put the file itself there, or name it: --config FILE"
	[ ! -e never ]
	try wsync-push plain/step-1 --write named --config plain/step-1/config.json
	expect_status 0
	cmp other/config.json named/config.json
	# The same for what a server loads.
	endpoint one
	try wsync-push $repo/snapshots/1 -e "$url" --backend disk --disk-dir dir --weight-version 1
	expect_status 0
	[ -e dir/wsync-1/tokenizer.json ]
	[ ! -e dir/wsync-1/absolute.txt ]
	[ ! -e dir/wsync-1/environ.txt ]
}
