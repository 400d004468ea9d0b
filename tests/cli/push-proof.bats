#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Servers report checksums of their own parameters. These tests check what wsync concludes from
# them, and its errors where they prove little. wsync-endpoint --device plays the server.
# tests/peers/test_sglang_proof.py uses real servers, tests/peers/test_corruption.py spoils weights.
load helpers

setup_file() {
	/usr/bin/python3 -S "$repo/tests/cli/small_model.py" qwen3_moe "$BATS_FILE_TMPDIR/ck"
}

prepare() { ck=$BATS_FILE_TMPDIR/ck; }

# answers NAME N PYTHON OPTION...: an endpoint whose N-th checksums and all later ones are what the
# expression makes of them; it is at $server.
answers() {
	endpoint "$1" --model "$ck" --tp 2 --device cpu "${@:4}"
	start "$1-as" /usr/bin/python3 "$repo/tests/cli/renamed.py" "${url#http://}" "$2" "$3"
	eventually test -s "$1-as.out"
	server=127.0.0.1:$(head -n 1 "$1-as.out")
}

@test "a push is proven, also into a server that says nothing of its model" {
	for device in cpu cuda; do
		endpoint "$device" --model "$ck" --tp 2 --ep 2 --device "$device" --model-path else
		try wsync-push "$ck" -e "$url" --verify hash
		expect_status 0
		out_has "proof     $url: proven 20 of 20 parameters on 2 ranks, 100 % of the bytes"
		try wsync-verify weights "$ck" -e "$url" --json
		expect_status 0
		expect_json '[(l["means"], l["proven"], l["coverage"]) for l in lines
			if l["type"] == "weights"]' "[('proof', 20, 100)]"
	done
}

@test "what a source does not send is not asked for, and a part of a parameter proves nothing" {
	endpoint one --model "$ck" --device cpu
	try wsync-push "$ck" -e "$url"
	expect_status 0
	try wsync-push "$ck" -e "$url" --include '*norm*' --verify hash
	expect_status 0
	out_has "proven 9 of 9 parameters on 1 rank"
	try wsync-push "$ck" -e "$url" --include '*norm*' --include '*.0.*q_proj*' --verify hash
	expect_status 5
	err_has "its checksums can prove at most"
	err_has "the source has no model.layers.0.self_attn.k_proj.weight"
	err_has "--min-coverage sets how much must be proven"
	expect_journal "$url" 'paths.count("/pause_generation")' 2
	try wsync-push "$ck" -e "$url" --include '*norm*' --include '*.0.*q_proj*' --verify hash \
		--min-coverage 1
	expect_status 0
	out_has "proven 9 of 10 parameters on 1 rank"
}

@test "numbers that the server rounds are proven, but for a NaN" {
	/usr/bin/python3 -S "$repo/tests/cli/small_model.py" llama f32 --dtype F32
	for dtype in bfloat16 float16; do
		endpoint "$dtype" --model f32 --tp 2 --device cuda --dtype "$dtype"
		try wsync-push f32 -e "$url" --verify hash --on-partial resume
		expect_status 5
		err_has "it has a NaN, which is cast"
	done
	/usr/bin/python3 -S - <<-'PY'
		import struct
		with open("f32/model.safetensors", "r+b") as f:
		    data = bytearray(f.read())
		    at = 8 + struct.unpack("<Q", data[:8])[0]
		    data[at + 3::4] = bytes(x & 0xbf for x in data[at + 3::4])  # all finite
		    f.seek(0)
		    f.write(data)
	PY
	for dtype in bfloat16 float16; do
		endpoint "finite-$dtype" --model f32 --tp 2 --device cuda --dtype "$dtype"
		try wsync-push f32 -e "$url" --verify hash
		expect_status 0
		out_has "proven 15 of 15 parameters on 2 ranks, 100 % of the bytes"
	done
}

@test "a reset is undone by a push, and spares what is in no checkpoint" {
	endpoint one --model "$ck" --tp 2 --device cpu
	try wsync-push "$ck" -e "$url"
	expect_status 0
	try wsync-verify weights "$ck" -e "$url" --reset --yes
	expect_status 0
	out_has "restored every parameter of 2 ranks"
	local add='sums(lambda c: {"model.scale": "0" * 16, **c})'
	answers two 1 "$add"
	try wsync-verify weights "$ck" -e "$server" --reset --yes
	expect_status 5
	err_has "model.scale is in no checkpoint, and the server cannot leave it out"
	expect_journal "$url" '"/pause_generation" in paths' False
	answers three 1 "$add" --lineage session
	try wsync-push "$ck" -e "$server"
	expect_status 0
	# without draft tensors, an update is for the target model alone
	[ "$(grep -c '"selector":"target"' three-as.out)" = 2 ] || explain "$(cat three-as.out)"
	try wsync-verify weights "$ck" -e "$server" --reset --yes
	expect_status 0
	out_has "of 2 ranks but 1 that are in no checkpoint and were left out"
	answers four 1 'sums(lambda c: {"norm": "0" * 16, **c})' --lineage session
	try wsync-verify weights "$ck" -e "$server" --reset --yes
	expect_status 5
	err_has "norm is in no checkpoint, and the server cannot leave it out"
}

@test "a head that is tied must be the embedding" {
	/usr/bin/python3 -S "$repo/tests/cli/small_model.py" qwen3 tied
	safetensors head.safetensors --seed 5 lm_head.weight:BF16:200,128 >/dev/null
	endpoint one --model tied --tp 2 --device cpu
	try wsync-push tied -e "$url" --verify hash
	expect_status 0
	try wsync-verify weights tied/model.safetensors head.safetensors --config tied -e "$url"
	expect_status 1
	out_has "lm_head.weight: hash"
	err_has "1 of 19 parameters differ"
}

@test "block FP8 is proven as sent, and as a Blackwell server rewrites it" {
	ck=$PWD/fp8
	/usr/bin/python3 -S "$repo/tests/cli/small_model.py" llama "$ck" --fp8 --block 128 \
		--head 128
	/usr/bin/python3 -S "$repo/tests/cli/numbers.py" tame "$ck/model.safetensors"
	for rank in 0 1; do
		wsync-list-weights "$ck" --runtime --tp 2 --rank "$rank" --json \
			--checksum sglang-cuda-ue8m0 | sed -n '/"type":"tensor"/p' >"rank$rank"
	done
	local load='lambda r: {x["name"]: x["checksum"] for x in map(__import__("json").loads,
		open("%s/rank%d" % ("'$PWD'", r["parallelism_info"]["rank"])))}'
	for change in "f(r)" "{k: v[::-1] if 'down' in k else v for k, v in f(r).items()}"; do
		answers a 2 "(lambda f: each(lambda r: {**r, 'checksums': $change}))($load)" \
			--device cuda
		try wsync-push "$ck" -e "$url" --verify hash
		expect_status 0
		try wsync-push "$ck" -e "$server" --verify hash --on-partial resume
		case $change in
		"f(r)") expect_status 0; out_has "proven 15 of 15 parameters on 2 ranks, 100 %" ;;
		*) expect_status 1; err_has "2 of 15 parameters differ" ;;
		esac
	done
}

@test "a kind that was never equal is not accused, until it was" {
	local swap='sums(lambda c: {k: v[::-1] if "w13" in k else v for k, v in c.items()})'
	answers one 1 "$swap" --model-path else
	try wsync-verify weights "$ck" -e "$url"
	expect_status 1
	try wsync-push "$ck" -e "$server" --verify hash
	expect_status 5
	err_has "mlp.experts.w13_weight at rank 0: it is not as expected, which means nothing"
	try wsync-push "$ck" -e "$server" --verify hash --min-coverage 50
	expect_status 0
	# The server itself is known to have them as expected, until it is started again.
	answers two 3 "$swap" --model-path else
	proxy "http://$server" 'if path == "/again": kept["seed"] = 1' \
		'if path == "/server_info": reply["random_seed"] = kept.get("seed", 0)'
	for status in 0 1; do
		try wsync-push "$ck" -e "$url" --verify hash --on-partial resume
		expect_status "$status"
	done
	err_has "1 of 20 parameters differ"
	curl -sS "$url/again"
	try wsync-push "$ck" -e "$url" --verify hash --on-partial resume
	expect_status 5
	err_has "which means nothing"
	# What EPLB may have moved is not accused, whatever was equal.
	answers three 3 "$swap" --model-path else
	proxy "http://$server" pass 'if path == "/server_info": reply["enable_eplb"] = True'
	for status in 0 5; do
		try wsync-push "$ck" -e "$url" --verify hash --on-partial resume
		expect_status "$status"
	done
	err_has "w13_weight at rank 0: this server moves experts (EPLB)"
}

@test "what cannot be proven is compared between servers, and a difference warned of" {
	local turn='sums(lambda c: {k: v[%s:] + v[:%s] if "w13" in k else v for k, v in c.items()})'
	for n in 1 2; do
		answers "a$n" 1 "${turn//%s/1}" --model-path else
		local "s$n=$server"
		try wsync-push "$ck" -e "$server"
		expect_status 0
	done
	try wsync-verify weights "$ck" -e "$s1" -e "$s2" --min-coverage 50
	expect_status 0
	err_lacks "cannot be proven"
	answers b 1 "${turn//%s/2}" --model-path else
	try wsync-push "$ck" -e "$server"
	expect_status 0
	try wsync-verify weights "$ck" -e "$s1" -e "$s2" -e "$server" --min-coverage 50
	expect_status 0
	err_has "warning: http://$server: 2 checksums cannot be proven and differ between servers"
	err_has "that of model.layers.1.mlp.experts.w13_weight from that of http://$s1"
}

@test "what cannot be proven must change when the weights do, and only then" {
	local hidden='sums(lambda c: {
		k: v[%s:] + v[:%s] if "w13" in k else v for k, v in c.items()})'
	local low=(--verify hash --min-coverage 50)
	answers a 1 "${hidden//%s/1}" --model-path else
	try wsync-push "$ck" -e "$server" "${low[@]}"
	expect_status 0
	err_lacks "as before the push"
	try wsync-push "$ck" -e "$server" "${low[@]}"
	expect_status 0
	err_lacks cannot
	answers b 1 'sums(lambda c: {k: "0" * 64 if "w13" in k else v for k, v in c.items()})' \
		--model-path else
	try wsync-push "$ck" -e "$server" "${low[@]}"
	expect_status 0
	err_has "warning: http://$server: 2 checksums cannot be proven and are as before the push"
	answers c 2 "${hidden//%s/1}" --model-path else
	try wsync-push "$ck" -e "$server"
	try wsync-push "$ck" -e "$server" "${low[@]}"
	expect_status 0
	err_has "changed, the first that of model.layers.1.mlp.experts.w13_weight, and nothing"
}

@test "a replica that differs is found, and a device that is not known proves nothing" {
	answers one 1 '{**a, "ranks": [{**r, "parallelism_info": {"rank": r["parallelism_info"]["rank"],
		"dp_rank": dp}, "checksums": {k: v[::-1] if dp and k == "model.norm.weight" else v
		for k, v in r["checksums"].items()}} for r in a["ranks"] for dp in (0, 1)]}'
	try wsync-push "$ck" -e "$server"
	expect_status 0
	proxy "http://$server" pass 'if path == "/server_info": reply["dp_size"] = 2
for r in reply.get("ranks", []): r.pop("parallelism_info")'
	try wsync-verify weights "$ck" -e "$url" # ranks without numbers prove nothing
	expect_status 0
	out_has "32 sampled parameters are those of the source"
	proxy "http://$server" pass 'if path == "/server_info": reply["dp_size"] = 2'
	try wsync-verify weights "$ck" -e "$url"
	expect_status 1
	err_has "1 of 20 parameters differ, the first model.norm.weight at rank 0"
	proxy "http://$server" pass 'if path == "/server_info": reply["device"] = "tpu"'
	try wsync-push "$ck" -e "$url" --verify hash
	expect_status 5
	err_has "the checksums of its device are not known"
	expect_journal "$url" 'paths.count("/pause_generation")' 1
	proxy "http://$server" pass \
		'if path == "/server_info": reply.update(device="cuda", cpu_offload_gb=4)'
	try wsync-push "$ck" -e "$url" --verify hash
	expect_status 5
	err_has "it keeps some weights in CPU memory, whose checksums are others"
	proxy "http://$server" pass 'if path == "/server_info": reply[args[0]] = 2' \
		attn_cp_size
	try wsync-push "$ck" -e "$url" --dry-run
	expect_status 0
	out_has "checked against qwen3_moe at tp 2, attention tp 1"
	proxy "http://$server" pass 'if path == "/server_info": reply[args[0]] = 2' attn_dp_size
	try wsync-push "$ck" -e "$url" --dry-run
	expect_status 0
	out_has "checked against qwen3_moe at tp 2, attention tp 1"
}

@test "answers that no server should give are refused in a sentence, before anything is sent" {
	while IFS='|' read -r name words python; do
		answers "$name" 1 "$python"
		try wsync-push "$ck" -e "$server" --verify hash
		expect_status 5
		err_has "$words"
		expect_journal "$url" '"/pause_generation" in paths' False
	done <<-'END'
	cut|/weights_checker|'{"success": true, "ranks": [{"checks'
	empty|no checksums|{"success": True, "ranks": []}
	rank|out of range|each(lambda r: {**r, "parallelism_info": {"rank": 1 << 40}})
	names|no checksum|sums(lambda c: {"\n" + k: v for k, v in c.items()})
	nan|does not say that it was done|sums(lambda c: {k: float("nan") for k in c})
	END
}

@test "an answer of another model, or of a million names, proves nothing" {
	while IFS='|' read -r name words python; do
		answers "$name" 2 "$python"
		try wsync-push "$ck" -e "$server" --verify hash --on-partial resume
		expect_status 5
		err_has "$words"
		expect_journal "$url" 'paths[-1], "/pause_generation" in paths' \
			"('/continue_generation', True)"
	done <<-'END'
	other|does not list it|sums(lambda c: {"x" + k: v for k, v in c.items()})
	million|does not list it|sums(lambda c: {"%d" % i: "0" * 16 for i in range(10 ** 6)})
	strange|too many: rank 6|{**a, "ranks": [{**r, "parallelism_info": {"rank": 6 * i}} for i, r in enumerate(a["ranks"])]}
	lost|reports 1 of its 2 ranks|{**a, "ranks": a["ranks"][:1]}
	END
}
