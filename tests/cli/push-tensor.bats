#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-push --backend tensor: weights in the requests, and no group.
load helpers

@test "a server that loads no updates at all stays untouched, and is resumed" {
	safetensors one.safetensors a:BF16:8,8
	local done='200:{"success":true,"message":"Success"}'
	canned a '/server_info=200:{"tp_size":1,"version":"0.5.23"}' \
		'/model_info=200:{"model_path":"x"}' "/begin_weight_update=$done" \
		"/end_weight_update=$done" '/pause_generation=200:{"status":"ok"}' \
		'/flush_cache=200:Cache flushed.' '/continue_generation=200:{"status":"ok"}' \
		'/update_weights_from_tensor=400:{"success":false,"message":"Online weight updates are not supported while compensated mHC weight splits are active."}'
	try wsync-push one.safetensors -e "$url" --lineage session --verify none --backend tensor
	expect_status 5
	out_has "untouched $url: POST /update_weights_from_tensor: refused (HTTP 400)"
	grep -q /continue_generation a.out
}

@test "weights arrive in requests, at several endpoints of several ranks" {
	likely_model qwen3
	endpoint a --model m --tp 2
	local first=$url
	endpoint b --model m --tp 2 --lineage sglang-2026
	try wsync-push m -e "$first" -e "$url" --backend tensor --bucket-size 64KiB \
		--weight-version 4 --verify hash --json
	expect_status 0
	expect_json '[(l["backend"], l["protocol"], l["load_format"]) for l in lines
		if l["type"] == "plan"]' "[('tensor', 'tensor', 'flattened_bucket')]"
	for u in "$first" "$url"; do
		expect_journal "$u" '"/update_weights_from_tensor" in paths,
			"/init_weights_update_group" in paths' "(True, False)"
		try wsync-verify weights m -e "$u"
		expect_status 0
	done
	try wsync-ctl repair
	expect_out "nothing to repair"
}

# What endpoint $url was asked about its weights: the paths, in order.
asked() {
	journal "$url" '" ".join(r["path"][1:] for r in j["requests"] if "weight" in r["path"]
		and "get_weights" not in r["path"] and r["method"] == "POST")'
}

@test "servers with sessions get them in one, and load from disk without" {
	likely_model qwen3
	endpoint a --lineage session --model m --tp 2
	try wsync-push m -e "$url" --backend tensor --weight-version 3
	expect_status 0
	local steps="begin_weight_update update_weights_from_tensor end_weight_update \
update_weight_version"
	[ "$(asked)" = "$steps" ] || explain "$(asked)"
	try wsync-push m -e "$url" --backend disk
	expect_status 0
	[ "$(asked)" = "$steps update_weights_from_disk" ] || explain "$(asked)"
	try wsync-verify weights m -e "$url"
	expect_status 0
}

@test "and again over stdin, with what is computed on its way" {
	likely_model qwen3
	endpoint a
	try bash -c 'printf "m\nm\t7\n" | wsync-push --stdin -e "$1" --backend tensor --verify hash' - "$url"
	expect_status 0
	try wsync-push m -e "$url" --backend tensor --verify hash --quantize fp8 --block-size 16x16
	expect_status 0
}

@test "unable servers and contradicting options are refused before the first byte" {
	likely_model qwen3
	for lineage in sglang-0.4 sglang-0.5; do
		endpoint "$lineage" --lineage "$lineage"
		try wsync-push m -e "$url" --backend tensor
		expect_status 5
		err_has "takes no protocol tensor"
	done
	endpoint a --tp 1
	local first=$url
	endpoint b --tp 2
	try wsync-push m -e "$first" -e "$url" --backend tensor --verify none
	expect_status 5
	err_has "push to servers of one size at a time"
	try wsync-push m -e "$url" --backend tensor --protocol update
	expect_status 2
	try wsync-push m -e "$url" --backend tensor --load-format none
	expect_status 2
	err_has "has a protocol of its own"
}

