#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# A source that changes while it is in use: nothing says yes about a mixture of two checkpoints.
load helpers

update=/update_weights_from_distributed

prepare() {
	names=()
	for i in 0 1 2 3 4 5 6 7 8 9; do names+=("w$i.weight:BF16:128,128"); done
	safetensors two.safetensors "${names[@]}"
	/usr/bin/python3 - <<-'END'
		# one: the same names, every byte differs
		data = bytearray(open("two.safetensors", "rb").read())
		begin = 8 + int.from_bytes(data[:8], "little")
		data[begin:] = bytes(b ^ 1 for b in data[begin:])
		open("one.safetensors", "wb").write(data)
	END
	cp one.safetensors current.safetensors
}

overwrite="dd if=two.safetensors of=current.safetensors bs=1M conv=notrunc status=none"

# refused WORDS: the push failed for that, and the endpoint is marked, not labelled, and not
# resumed.
refused() {
	expect_status 3
	expect_json "lines[-1]['error']['code']" input
	expect_json "'current.safetensors: the file $1' in lines[-1]['error']['message']" True
	expect_json "lines[-1]['error']['hint']" \
		"leave a checkpoint as it is until wsync ends; save each one to a new directory"
	expect_json "lines[-1]['endpoints'][0]['state']" partial
	expect_json "lines[-1]['endpoints'][0]['paused']" True
	try wsync-ctl version -e "$direct"
	out_lacks new
}

@test "a checkpoint that is overwritten, replaced, cut or extended during a push is no success" {
	endpoint e
	direct=$url
	replace="cp two.safetensors tmp; mv tmp current.safetensors"
	while IFS=: read -r words change; do
		cp one.safetensors current.safetensors
		meddle "$direct" $update 3 "$change"
		try wsync-push current.safetensors -e "$url" --bucket-size 64KiB \
			--weight-version new --json
		refused "$words"
	done <<-END
		was overwritten:$overwrite
		was replaced:$replace
		was replaced:rm current.safetensors
		changed from:printf x >>current.safetensors
		changed from:truncate -s -1 current.safetensors
	END
	try wsync-push one.safetensors -e "$direct" # heals it
	expect_status 0
	try wsync-verify weights one.safetensors -e "$direct"
	expect_status 0
}

@test "... nor where FP8 is made of it and hashed while it is sent" {
	endpoint e
	direct=$url
	meddle "$direct" $update 3 "$overwrite"
	try wsync-push current.safetensors -e "$url" --bucket-size 64KiB --quantize fp8 \
		--verify hash \
		--weight-version new --json
	refused "was overwritten"
}

@test "... nor an adapter that is overwritten" {
	llama m
	mkdir lora
	echo '{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}' \
		>lora/adapter_config.json
	a=base_model.model.model.layers.0.self_attn.q_proj.lora
	safetensors lora/adapter_model.safetensors "${a}_A.weight:F32:4,64" "${a}_B.weight:F32:64,4"
	/usr/bin/python3 -c 'import struct
for f in ("m/model.safetensors", "lora/adapter_model.safetensors"): # no NaN
	data = bytearray(open(f, "rb").read())
	begin = 8 + struct.unpack_from("<Q", data)[0]
	for i in range(begin + 1, len(data), 2):
		data[i] = 0x3c | data[i] & 3
	open(f, "wb").write(data)'
	endpoint e --model m
	direct=$url
	meddle "$direct" $update 2 "touch lora/adapter_model.safetensors"
	try wsync-push m --lora lora -e "$url" --bucket-size 16KiB --weight-version new --json
	expect_status 3
	expect_json "'lora/adapter_model.safetensors: \
the file was overwritten' in lines[-1]['error']['message']" True
	expect_json "lines[-1]['endpoints'][0]['state']" partial
}

@test "what changes before the pause leaves the servers untouched" {
	endpoint e
	direct=$url
	meddle "$direct" /init_weights_update_group 1 "$overwrite"
	try wsync-push current.safetensors -e "$url" --weight-version new --json
	expect_status 3
	expect_json "lines[-1]['endpoints'][0]['state'], lines[-1]['endpoints'][0]['paused']" \
		"('untouched', False)"
	expect_json "lines[-1]['error']['phase']" verify
}

@test "of --stdin one line fails, and the next push is whole" {
	endpoint e
	direct=$url
	meddle "$direct" $update 5 "$overwrite"
	printf '%s\n' one.safetensors current.safetensors two.safetensors >lines
	try sh -c "wsync-push --stdin -e $url --bucket-size 128KiB --json <lines"
	expect_json "[(l['ok'], l['exit']) for l in lines if l['type'] == 'result']" \
		"[(True, 0), (False, 3), (True, 0)]"
	try wsync-verify weights two.safetensors -e "$direct"
	expect_status 0
}

@test "--backend disk: a source that changes while servers load it; a copy may change" {
	mkdir d
	cp one.safetensors d/model.safetensors
	endpoint e
	direct=$url
	meddle "$direct" /update_weights_from_disk 1 "touch d/model.safetensors"
	try wsync-push d --backend disk -e "$url" --weight-version new --json
	expect_status 3
	expect_json "lines[-1]['endpoints'][0]['state']" partial
	cp one.safetensors current.safetensors
	meddle "$direct" /update_weights_from_disk 1 "$overwrite"
	try wsync-push current.safetensors --backend disk --disk-dir written -e "$url"
	expect_status 0
	try wsync-verify weights one.safetensors -e "$direct"
	expect_status 0
}

@test "--backend disk --disk-dir: the source may change once the copy is written" {
	endpoint e --checksums
	direct=$url
	for how in names hash; do
		cp one.safetensors current.safetensors
		meddle "$direct" /pause_generation 1 "$overwrite"
		try wsync-push current.safetensors --backend disk --disk-dir written \
			--verify "$how" -e "$url"
		expect_status 0
		cmp current.safetensors two.safetensors
		try wsync-verify weights one.safetensors -e "$direct"
		expect_status 0
	done
}

@test "--backend disk --disk-dir: the pause waits until the hashes of a slow source are computed" {
	endpoint e --checksums
	meddle "$url" /pause_generation 1 "$overwrite"
	try env SLOW="pread current 200" LD_PRELOAD="$tools/hang_io.so" \
		ASAN_OPTIONS=verify_asan_link_order=0 \
		wsync-push current.safetensors --backend disk --disk-dir written --verify hash \
		-e "$url"
	expect_status 0
	cmp current.safetensors two.safetensors
}

@test "wsync-verify weights has no answer about a source that changes" {
	endpoint e
	direct=$url
	try wsync-push one.safetensors -e "$direct"
	expect_status 0
	meddle "$direct" /weights_checker 1 "touch current.safetensors"
	try wsync-verify weights current.safetensors -e "$url"
	expect_status 3
	err_has "current.safetensors: the file was overwritten"
}
