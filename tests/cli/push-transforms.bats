# SPDX-License-Identifier: Apache-2.0
# wsync-push of weights that are changed on their way, and that cannot be: each bad input has its
# sentence, and the endpoint hears of none of them.
load helpers

data=$BATS_TEST_DIRNAME/../data
# spoil FILE TENSOR ROW COLUMN VALUE
spoil() { /usr/bin/python3 "$repo/tests/cli/numbers.py" put "$@"; }
# tame FILE NAME:DTYPE:DIMS...: with numbers that are some.
tame() { safetensors "$@" >/dev/null && /usr/bin/python3 "$repo/tests/cli/numbers.py" tame "$1"; }
# copy FROM TO: of a directory of tests/data/lora.
copy() { cp -r "$data/lora/$1" "$2" && chmod -R u+w "$2"; }

prepare() {
	lora=$data/lora
	base=$lora/bases/dense
	endpoint one
	try wsync-push "$base" -e "$url" --weight-version v7 -q
	expect_status 0
	held=$(state)
}

# What the endpoint holds and calls it, who is paused, which groups there are, and how often each of
# the requests was made that change anything.
state() {
	/usr/bin/python3 -c 'import json, sys, urllib.request
def ask(path, body=None):
    r = urllib.request.Request(sys.argv[1] + path, body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(r, timeout=180))
j = ask("/wsync/journal")
sums = [r["checksums"] for r in ask("/weights_checker", b"{\"action\": \"checksum\"}")["ranks"]]
told = ("/pause_generation", "/flush_cache", "/update_weights_from_distributed",
        "/continue_generation")
print(j["state"]["paused"], j["state"]["weight_version"], j["state"]["groups"], j["totals"],
      [[r["path"] for r in j["requests"]].count(p) for p in told], sums)' "$url"
}

# refused STATUS TEXT ARGUMENT...: a push that ends so, says that, and changes nothing.
refused() {
	local wanted=$1 text=$2
	shift 2
	try wsync-push -e "$url" --timeout 20s --weight-version v8 "$@"
	expect_status "$wanted"
	err_has "$text"
	[ "$(state)" = "$held" ] || explain "the endpoint is not as it was"
}

@test "adapters that do not fit, or are not whole, are refused by name" {
	module=model.layers.1.self_attn.k_proj
	for row in "other_model|the adapter was made for another model: \
the base has none of its 2 modules" \
		"no_a|adapter module '$module' has 'base_model.model.$module.lora_B.weight' and no \
lora_A" \
		"no_b|adapter module 'model.layers.1.mlp.up_proj' has \
'base_model.model.model.layers.1.mlp.up_proj.lora_A.weight' and no lora_B" \
		"rank_of_config|adapter module 'model.layers.0.mlp.down_proj' has rank 4, \
but adapter_config.json says 8" \
		"rank_of_halves|adapter module 'model.layers.0.mlp.down_proj': \
lora_A has rank 4 and lora_B has 5" \
		"no_alpha|no_alpha/adapter_config.json: lora_alpha is missing" \
		"other_size|make a change of 16 x 32, \
but 'model.layers.0.self_attn.q_proj.weight' is 16 x 16" \
		"truncated|tensor 'base_model.model.model.layers.1.mlp.down_proj.lora_B.weight': \
data_offsets end at" \
		"integers|adapter tensor \
'base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight' is I8" \
		"dora|use_dora: DoRA rescales every row of the weight"; do
		refused 3 "${row#*|}" "$base" --lora "$lora/bad/${row%%|*}"
		refused 3 "${row#*|}" "$base" --quantize fp8 --block-size 16x16 \
			--lora "$lora/bad/${row%%|*}"
	done
	refused 3 "no_such" "$base" --lora no_such
}

@test "a stack of more matrices than any model has is refused before they are counted out" {
	experts=model.layers.0.mlp.experts.down_proj
	mkdir many
	echo '{"peft_type": "LORA", "r": 1, "lora_alpha": 1}' >many/adapter_config.json
	safetensors many/adapter_model.safetensors $experts.lora_A.weight:BF16:1,1,2 \
		$experts.lora_B.weight:BF16:1,1,1 >/dev/null
	safetensors stack.safetensors $experts:BF16:70000,1,2 >/dev/null
	refused 3 "'$experts' is a stack of 70000 matrices; up to 65536 are taken" \
		stack.safetensors \
		--lora many --verify none
}

@test "an alpha that makes an infinite scale is refused where it is read" {
	copy good/plain huge
	sed -i 's/"lora_alpha": [0-9.]*/"lora_alpha": 1e300/' huge/adapter_config.json
	refused 3 "alpha 1e+300 is beyond the range of float32" "$base" --lora huge
}

@test "NaN and infinity in weights, factors and corrections are found before anybody is paused" {
	q=model.layers.0.self_attn.q_proj
	copy bases/dense w && spoil w/model.safetensors $q.weight 2 3 nan
	copy bases/dense v && spoil v/model.safetensors model.layers.1.mlp.down_proj.weight 15 \
		23 -inf
	copy good/plain a && spoil a/adapter_model.safetensors base_model.model.$q.lora_A.weight \
		1 5 nan
	copy good/plain b && spoil b/adapter_model.safetensors base_model.model.$q.lora_B.weight \
		15 0 inf
	copy good/saved s && spoil s/adapter_model.safetensors base_model.model.lm_head.weight 39 \
		15 nan
	tame c.safetensors $q.correction_U:F32:16,2 $q.correction_V:F32:2,16
	spoil c.safetensors $q.correction_V 1 9 -inf
	# Names are checked first, and would say that the server's heads do not divide into such
	# blocks.
	blocks="--quantize fp8 --block-size 16x16 --verify none"
	plain=$lora/good/plain
	for row in "w --lora $plain|tensor '$q.weight' has NaN at row 2, \
column 3 (w/model.safetensors)" \
		"w $blocks|tensor '$q.weight' has NaN at row 2, column 3 (w/model.safetensors)" \
		"w $blocks --lora $plain|tensor '$q.weight' has NaN at row 2, \
column 3 (w/model.safetensors)" \
		"w --quantize fp8 --block-size 8x8 --verify hash|tensor '$q.weight' has NaN at row \
2, column 3 (w/model.safetensors)" \
		"w $blocks --bucket-size 1KiB|tensor '$q.weight' has NaN at row 2, \
column 3 (w/model.safetensors)" \
		"v $blocks|tensor 'model.layers.1.mlp.down_proj.weight' has an infinity at row 15, \
column 23 (v/model.safetensors)" \
		"$base --lora a|tensor 'base_model.model.$q.lora_A.weight' has NaN at row 1, \
column 5 (a/adapter_model.safetensors)" \
		"$base --lora $plain --lora a $blocks|tensor 'base_model.model.$q.lora_A.weight' \
has NaN at row 1, column 5 (a/adapter_model.safetensors)" \
		"$base --lora b|tensor 'base_model.model.$q.lora_B.weight' has an infinity at row \
15, column 0 (b/adapter_model.safetensors)" \
		"$base --lora s|tensor 'base_model.model.lm_head.weight' has NaN at row 39, \
column 15 (s/adapter_model.safetensors)" \
		"$base --correction c.safetensors|tensor '$q.correction_V' has an infinity at row \
1, column 9 (c.safetensors)"; do
		# shellcheck disable=SC2086 # words
		refused 3 "${row#*|}" ${row%%|*}
	done
	# What is not sent may be what it likes.
	try wsync-push -e "$url" w --lora "$plain" --verify none \
		--exclude "*.layers.0.self_attn.*" -q
	expect_status 0
}

@test "a sum beyond the range of its type is found before anybody is paused" {
	q=model.layers.0.self_attn.q_proj
	copy good/plain a && spoil a/adapter_model.safetensors base_model.model.$q.lora_A.weight 1 \
		5 3e38
	spoil a/adapter_model.safetensors base_model.model.$q.lora_B.weight 7 1 3e38
	refused 3 "tensor '$q.weight': \
with its change it is beyond the range of bfloat16 at row 7, column 5" \
		"$base" --lora a
	refused 3 "at row 7, column 5" "$base" --lora a --quantize fp8 --block-size 8x8
}

@test "a NaN that is trusted not to be there ends the transfer" {
	copy bases/dense w && spoil w/model.safetensors model.layers.1.mlp.up_proj.weight 2 3 nan
	try wsync-push -e "$url" w --lora "$lora/good/plain" --bucket-size 1KiB --trust-values \
		--on-partial resume --json
	expect_status 3
	err_has "tensor 'model.layers.1.mlp.up_proj.weight' has NaN at row 2, \
column 3 (w/model.safetensors)"
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('partial', False)]"
	[[ $(state) == "False v7 []"* ]] || explain "left paused, or in a group"
}

@test "packings that are not known, or do not hold together, are refused by name" {
	cp "$data/unpack/bitsandbytes.safetensors" nf4.safetensors && chmod u+w nf4.safetensors
	sed -i 's/"quant_type": "nf4"/"quant_type": "xf4"/' nf4.safetensors
	refused 3 ".quant_state.bitsandbytes__nf4: quant_type is 'xf4'" nf4.safetensors \
		--quantize fp8 --verify none
	safetensors gptq.safetensors a.q_proj.qweight:I32:8,64 a.q_proj.qzeros:I32:1,8 \
		a.q_proj.scales:F16:1,64 \
		a.q_proj.g_idx:I32:64 >/dev/null
	refused 3 "is packed as GPTQ, which is not unpacked" gptq.safetensors --quantize fp8 \
		--verify none
	err_has "a.q_proj."
	safetensors bare.safetensors a.q_proj.weight:F8_E4M3:64,64 >/dev/null
	refused 3 "a.q_proj.weight (float8_e4m3fn [64, \
64]) is packed as FP8 without weight_scale_inv or weight_scale" \
		bare.safetensors --quantize fp8 --verify none
	safetensors misfit.safetensors a.q_proj.weight:F8_E4M3:256,256 \
		a.q_proj.weight_scale_inv:F32:2,5 >/dev/null
	refused 3 "a.q_proj.weight_scale_inv is float32 [2, 5] and does not fit a.q_proj.weight" \
		misfit.safetensors \
		--quantize fp8 --verify none
	refused 2 "invalid choice 'int4', must be one of none, fp8" "$base" --quantize int4
	refused 2 "--quantize: 'fp8-tensor' was removed: use fp8" "$base" --quantize fp8-tensor
}

@test "blocks without a size are refused, on the command line and in a config" {
	for size in 0x128 128x0 0x0 128 x 128x 12ax128 128x128x128 \
		-1x128 1e2x128 99999999999999999999x1; do
		refused 2 "invalid value '$size', must be like 128x128, and each 1 to 1048576" \
			"$base" --quantize fp8 \
			--block-size="$size"
	done
	for size in '[0, 128]' '[128]' '["a", 128]' '[-1, 128]' '128'; do
		copy bases/dense c
		sed -i "s/\"model_type\"/\"quantization_config\": {\"quant_method\": \"fp8\", \
\"weight_block_size\": $size}, &/" \
			c/config.json
		refused 3 "weight_block_size" c --quantize fp8
		rm -r c
	done
}

@test "the scratch is a size within limits, and a rank that does not fit it says so" {
	for size in 1MiB 0 x 2TiB -1; do
		refused 2 "invalid value '$size', must be a size like 512MiB, from 16MiB to 1TiB" \
			"$base" --scratch="$size"
	done
	tame wide.safetensors model.layers.0.a_proj.weight:BF16:8,2000
	tame c.safetensors model.layers.0.a_proj.correction_U:BF16:8,2000 \
		model.layers.0.a_proj.correction_V:BF16:2000,2000
	refused 3 "tensor 'model.layers.0.a_proj.weight': \
factors of rank 2000 do not fit into the scratch" \
		wide.safetensors --correction c.safetensors --verify none --scratch 16MiB
	err_has "hint: allow more of it: --scratch"
	try wsync-push -e "$url" wide.safetensors --correction c.safetensors --verify none \
		--scratch 1GiB --json
	expect_status 0
	expect_json '0 < lines[-1]["transform"]["scratch_bytes"] <= 1 << 30' True
}

@test "what is sent does not depend on the scratch" {
	tame big.safetensors model.layers.0.a_proj.weight:BF16:700,3000
	for size in 16MiB 64MiB; do
		try wsync-list-weights --as-sent big.safetensors --quantize fp8 \
			--block-size 100x130 --hash --scratch $size
		expect_status 0
		printf '%s\n' "$out" >>all
	done
	[ "$(sort all | uniq -u | wc -l)" = 0 ] || explain "differs: $(cat all)"
}

@test "the hash of what is made is that of what was sent, and a flipped byte shows" {
	try wsync-push -e "$url" "$base" --lora "$lora/good/plain" --verify hash --json
	expect_status 0
	expect_json 'lines[-1]["verify"], lines[-1]["transform"]["bound"]' "('hash', 14)"
	endpoint bad --fault flip:update_weights_from_distributed:1
	try wsync-push -e "$url" "$base" --lora "$lora/good/plain" --include "*.q_proj.weight" \
		--verify hash
	expect_status 1
	err_has "1 tensor differs from what was sent"
}

# changed EXPECTED ARGUMENT...: what a dry run counts as quantized, already, unpacked, bound and
# replaced.
changed() {
	local expected=$1 keys='["quantized", "already", "unpacked", "bound", "replaced"]'
	shift
	try wsync-push --dry-run --json "$@"
	expect_status 0
	expect_json "[lines[-1]['transform'][k] for k in $keys]" "[$expected]"
}

@test "the report counts the tensors that are sent" {
	changed "0, 0, 0, 14, 0" "$base" --lora "$lora/good/plain"
	changed "0, 0, 0, 7, 0" "$base" --lora "$lora/good/plain" --exclude "*layers.1*"
	changed "0, 0, 0, 2, 0" "$base" --lora "$lora/good/plain" --include "*k_proj.weight" \
		--include "*norm*"
	changed "0, 0, 0, 2, 2" "$lora/bases/dense" --lora "$lora/good/saved" \
		--exclude lm_head.weight
	changed "2, 0, 0, 2, 0" "$base" --lora "$lora/good/plain" --quantize fp8 --block-size 8x8 \
		--include "*k_proj.*"
	# Scales alone are sent of weights that are made for them.
	changed "1, 0, 0, 0, 0" "$base" --quantize fp8 --block-size 8x8 --verify none \
		--include "*.0.*k_proj.weight_scale_inv"
	safetensors f.safetensors a.q_proj.weight:F8_E4M3:256,256 \
		a.q_proj.weight_scale_inv:F32:2,2 \
		b.q_proj.weight:F8_E4M3:256,256 b.q_proj.weight_scale_inv:F32:2,2 >/dev/null
	changed "0, 2, 0, 0, 0" f.safetensors --quantize fp8 --verify none
	changed "0, 1, 0, 0, 0" f.safetensors --quantize fp8 --verify none --exclude "b.*"
	changed "0, 0, 1, 0, 0" f.safetensors --unpack --verify none --exclude "b.*"
}

@test "an adapter of which nothing is sent is an error, each by itself" {
	plain=$lora/good/plain saved=$lora/good/saved
	refused 3 "adapter $plain: none of the tensors that it changes is sent" "$base" \
		--lora "$plain" --include "*norm*"
	refused 3 "adapter $plain: none of the tensors" "$base" --lora "$plain" \
		--exclude "*_proj.weight"
	refused 3 "adapter $plain: none of the tensors" "$base" --lora "$saved" --lora "$plain" \
		--include model.norm.weight
	try wsync-verify names "$base" --lora "$plain" --include "*norm*" --tp 1
	expect_status 3
	err_has "adapter $plain: none of the tensors"
	refused 2 "include 'typo' matches none" "$base" --lora "$plain" --include typo
	# One that changes a tensor that is sent is none of these.
	changed "0, 0, 0, 2, 0" "$base" --lora "$saved" --lora "$plain" --include "*q_proj.weight"
	# Of several senders the others may send it.
	try wsync-push "$base" -e "$url" --lora "$plain" --include "*norm*" --sender 1/2 \
		--lock lock --round 1
	expect_status 0
}

@test "a tensor that is excluded is no reason to refuse the others" {
	tame one.safetensors x.weight:I32:64,8 y.q_proj.weight:BF16:64,64
	refused 3 "x.weight (int32 [64, 8]) is packed" one.safetensors --quantize fp8 --verify none
	changed "1, 0, 0, 0, 0" one.safetensors --quantize fp8 --verify none --exclude x.weight
	safetensors gptq.safetensors a.q_proj.qweight:I32:8,64 a.q_proj.qzeros:I32:1,8 \
		a.q_proj.scales:F16:1,64 \
		a.q_proj.g_idx:I32:64 y.q_proj.weight:BF16:64,64 >/dev/null
	changed "1, 0, 0, 0, 0" gptq.safetensors --quantize fp8 --verify none --exclude "a.*"
	refused 3 "is packed as GPTQ" gptq.safetensors --quantize fp8 --verify none \
		--exclude "a.*.qweight"
	safetensors misfit.safetensors a.q_proj.weight:F8_E4M3:256,256 \
		a.q_proj.weight_scale_inv:F32:2,5 \
		y.q_proj.weight:BF16:64,64 >/dev/null
	changed "1, 0, 0, 0, 0" misfit.safetensors --quantize fp8 --verify none --exclude "a.*"
	try wsync-list-weights --as-sent misfit.safetensors --quantize fp8 --exclude "a.*"
	expect_status 0
	try wsync-verify weights one.safetensors --quantize fp8 --exclude x.weight -e "$url"
	expect_status 1
	try wsync-push one.safetensors --quantize fp8 --verify none --exclude x.weight -e "$url"
	expect_status 0
}

@test "a pattern that excludes nothing is warned of by name" {
	try wsync-push "$base" --dry-run --exclude typo --exclude "*norm*" --exclude "layers.*"
	expect_status 0
	err_has "--exclude typo matches no tensor"
	err_has "--exclude layers.* matches no tensor"
	err_lacks "norm"
	try wsync-verify names "$base" --tp 1 --exclude typo
	expect_status 0
	err_has "--exclude typo matches no tensor"
	try wsync-verify weights "$base" -e "$url" --exclude typo
	expect_status 0
	err_has "--exclude typo matches no tensor"
	try wsync-push "$base" --dry-run --exclude "*norm*"
	expect_err ''
}

@test "a look at the values of a huge tensor ends when the push is told to" {
	# one block of 2 TiB, which takes longer to read than eventually waits
	/usr/bin/python3 -c 'import json, struct
n = 1048576 * 1048576 * 2
h = json.dumps({"a_proj.weight": {"dtype": "BF16", "shape": [1048576, 1048576],
                                  "data_offsets": [0, n]}}).encode()
f = open("huge.safetensors", "wb")
f.write(struct.pack("<Q", len(h)) + h)
f.truncate(8 + len(h) + n)'
	start push wsync-push -e "$url" huge.safetensors --quantize fp8 \
		--block-size 1048576x1048576 --verify none --json
	eventually grep -q '"phase":"init"' push.out
	sleep 0.3
	kill -TERM "$pid"
	eventually eval '! kill -0 $pid 2>/dev/null'
	[ "$(state)" = "$held" ] || explain "the endpoint is not as it was"
}
