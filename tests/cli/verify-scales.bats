#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-verify scales: do the scales of a quantized checkpoint, or of a server, make sense?
load helpers

up=model.layers.0.mlp.up_proj

# scaled DIR OPTION...: DIR/bf16 and DIR/fp8; what the generator says of its errors is in $made.
scaled() { made=$(/usr/bin/python3 "$repo/tests/cli/scaled_model.py" "$@"); }

# found: "severity kind" of each finding, as a python list.
found() { json '[l["severity"] + " " + l["kind"] for l in lines if l["type"] == "mismatch"]'; }
expect_found() {
	local got
	got=$(found)
	[ "$got" = "$1" ] || explain "expected $1, got $got"
	/usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" wsync-verify \
		<<<"$out"
}

# flawed FLAW FINDINGS [OPTION...]: what is found in a checkpoint with this flaw; the status
# follows.
flawed() {
	local flaw=$1 want=$2
	shift 2
	rm -rf m && scaled m --flaw "$flaw"
	try wsync-verify scales m/fp8 --json "$@"
	expect_found "$want"
	if [[ $want == *error* ]]; then expect_status 1; else expect_status 0; fi
}

@test "a checkpoint that was quantized well is a yes" {
	for how in "" "--tensor" "--block 24 40" "--block 1 64" "--block 128 128"; do
		# shellcheck disable=SC2086
		rm -rf m && scaled m $how
		try wsync-verify scales m/fp8 --against m/bf16 --json
		expect_status 0
		expect_found "[]"
		expect_json '[lines[-1][k] for k in ("tensors", "quantized", "compared",
			"errors")]' "[19, 7, 12, 0]"
	done
}

@test "the distance from the source is what the generator says" {
	scaled m --block 24 40
	try wsync-verify scales m/fp8 --against m/bf16 --json
	out="$out" made="$made" /usr/bin/python3 - <<-'END'
		import json, os
		lines = [json.loads(l) for l in os.environ["out"].splitlines()]
		ours = {l["name"]: l for l in lines if l["type"] == "compared"}
		made = json.loads(os.environ["made"])
		assert len(made) == 7
		for name, e in made.items():
		    for key, x in e.items():
		        assert abs(ours[name][key] - x) <= 1e-6 * abs(x), (name, key,
		                                                           ours[name][key], x)
		rms = [l["rms"] / l["limit"] for l in lines if l["type"] == "compared"]
		assert rms == sorted(rms, reverse=True)
		assert all(l["rms"] == 0 and l["packing"] == "none" for n,
		           l in ours.items() if n not in made)
	END
}

@test "codes and scales that do not belong together" {
	flawed no-scale "['error pair']"
	flawed no-weight "['error pair']"
	flawed two-scales "['error pair']"
	flawed transposed "['error shape']"
	flawed int-scale "['error dtype']"
	flawed bf16-scale "['warning dtype']"
	flawed renamed "['error name']"
	flawed e5m2 "['warning unseen']"
}

@test "what the config says and the tensors do not" {
	flawed not-to-convert "['error config']"
	flawed left-out "['error config']"
	flawed no-config "['error config']"
	scaled m
	rm m/fp8/config.json
	try wsync-verify scales m/fp8 --json
	expect_status 0
	expect_found "['note unseen']"
	try wsync-verify scales m/fp8 --block-size 8x8 --json
	expect_status 1
	expect_json 'sum(l["type"] == "mismatch" and l["kind"] == "shape" for l in lines)' 7
}

@test "scales that are none" {
	flawed nan "['error values']"
	flawed inf "['error values']"
	flawed zero "['error values']"
	flawed negative "['error values']"
	flawed unloaded "['error values']"
	flawed subnormal "['warning values', 'warning values']"
	flawed huge "['warning values']"
}

@test "codes that are no weights" {
	flawed nan-code "['error codes']"
	flawed clamped "['warning codes']"
	flawed slack "['warning codes']"
	flawed vanished "['warning codes']"
}

@test "a scale that divides is told from one that multiplies" {
	flawed reciprocal "['error reciprocal']"
	flawed reciprocal "['error reciprocal']" --against m/bf16
	try wsync-verify scales m/fp8
	out_has "$up.weight: the largest weight of a block is about"
	out_has "scales multiply, and these divide"
}

# packed HOW FLAW FINDINGS [OPTION...]: the same of a checkpoint in 4 bits.
packed() {
	local how=$1 flaw=$2 want=$3
	shift 3
	rm -rf m && made=$(/usr/bin/python3 "$repo/tests/cli/packed_model.py" m "$how" \
		${flaw:+--flaw "$flaw"})
	try wsync-verify scales m/packed --json "$@"
	expect_found "$want"
	if [[ $want == *error* ]]; then expect_status 1; else expect_status 0; fi
}

@test "4 bits that were quantized well are a yes, as far from the source as the generator says" {
	for how in nf4 nf4-double nvfp4; do
		packed "$how" "" "[]"
		packed "$how" "" "[]" --against m/bf16
		expect_json '[lines[-1][k] for k in ("quantized", "compared", "errors")]' \
			"[7, 12, 0]"
		out="$out" made="$made" /usr/bin/python3 - "${how%-double}" <<-'END'
			import json, os, sys
			lines = [json.loads(l) for l in os.environ["out"].splitlines()]
			ours = {l["name"]: l for l in lines if l["type"] == "compared"}
			made = json.loads(os.environ["made"])
			assert len(made) == 7
			for name, e in made.items():
			    assert ours[name]["packing"] == sys.argv[1]
			    for key, x in e.items():
			        assert abs(ours[name][key] - x) <= 1e-6 * abs(x), (name, key,
			                                                           ours[name][key],
			                                                           x)
			rms = [l["rms"] / l["limit"] for l in lines if l["type"] == "compared"]
			assert rms == sorted(rms, reverse=True)
		END
	done
	try wsync-verify scales m/packed --against m/bf16 --max-error 1%
	expect_status 1
	out_has "the worst of 12 tensors"
	[ "$(grep -c '^nvfp4 ' <<<"$out")" = 7 ] || explain "seven rows"
}

@test "what belongs to codes of 4 bits and is not there, or does not fit" {
	for how in nf4 nf4-double nvfp4; do
		packed "$how" no-scale "['error pair']"
		packed "$how" no-weight "['error pair']"
	done
	packed nvfp4 no-scale-2 "['error pair']"
	packed nf4 no-state "['error pair']"
	packed nf4 shape "['error shape']"
	packed nvfp4 shape "['error shape']"
	packed nf4-double blocksize "['error shape']"
	packed nf4 state "['error shape']"
	packed nf4 levels "['error shape']"
	out_has "level 7 is 0.015625"
}

@test "scales of 4 bits that are none" {
	for how in nf4 nvfp4; do
		for flaw in nan inf zero negative; do
			packed "$how" "$flaw" "['error values']"
			out_has "$up.weight"
		done
		packed "$how" slack "['warning codes']"
	done
	packed nf4-double nan "['error values']"
	out_has "96 of 96 scales are NaN"
	packed nf4 nan "['error values', 'error source']" --against m/bf16
}

@test "a scale of 4 bits that divides, and one that is another block's" {
	packed nvfp4 reciprocal "['error reciprocal']"
	packed nvfp4 reciprocal "['error reciprocal']" --against m/bf16
	# 1 / absmax is a number like others, until it is compared with the source.
	packed nf4 reciprocal "[]"
	packed nf4 reciprocal "['error reciprocal']" --against m/bf16
	for how in nf4 nvfp4; do
		packed "$how" shuffled "['error error']" --against m/bf16
	done
	packed nvfp4 powers "['warning ue8m0']"
}

@test "scales that are powers of two are noted" {
	scaled m --ue8m0
	try wsync-verify scales m/fp8 --against m/bf16 --json
	expect_status 0
	expect_found "['note ue8m0']"
}

@test "scales are powers of two where the config says so" {
	scaled m --ue8m0
	scaled other
	for dir in m other; do
		sed -i 's/"quant_method"/"scale_fmt": "ue8m0", &/' "$dir/fp8/config.json"
	done
	try wsync-verify scales m/fp8 --json
	expect_status 0
	expect_found "[]"
	try wsync-verify scales other/fp8 --json
	expect_status 0
	expect_found "$(json '["warning ue8m0"] * 7')"
}

@test "a source that is another one" {
	flawed shuffled "[]"
	flawed shuffled "['error error']" --against m/bf16
	flawed shuffled "[]" --against m/bf16 --max-error 20%
	flawed not-in-source "['error source']" --against m/bf16
	flawed changed-norm "['error error']" --against m/bf16
	flawed changed-norm "[]" --against m/bf16 --exclude '*.norm.*'
}

@test "few findings of a kind are shown, and the worst tensors" {
	scaled m
	try wsync-verify scales m/fp8 --against m/bf16 --max-error 0.001
	expect_status 1
	[ "$(grep -c '^error ' <<<"$out")" = 3 ] || explain "three errors"
	out_has "... and 4 more errors of kind error; --limit 0 shows all"
	out_has "the worst of 12 tensors"
	err_has "7 errors, the first: model.layers.0."
	timeless
	try wsync-verify scales m/fp8 --against m/bf16
	timeless
	golden verify-scales
}

@test "an endpoint's scales are looked at as far as it shows them" {
	scaled m
	endpoint good --model "$PWD/m/fp8" --tp 2
	try wsync-push m/fp8 -e "$url"
	expect_status 0
	try wsync-verify scales -e "$url" --json
	expect_status 0
	expect_found "['note unseen']"
	expect_json '[lines[-1][k] for k in ("quantized", "errors")]' "[4, 0]"
	expect_json 'lines[-1]["scales"]' 120
	scaled bad --flaw reciprocal
	try wsync-push bad/fp8 -e "$url"
	expect_status 0
	try wsync-verify scales -e "$url" --json
	expect_status 1
	expect_found "['error reciprocal', 'note unseen']"
}

@test "scales that no push has written are found at an endpoint" {
	scaled m
	endpoint new --model "$PWD/m/fp8"
	try wsync-verify scales -e "$url" --json
	expect_found "$(json '["warning values"] * 7 + ["note unseen"]')"
}

@test "what makes no sense is refused" {
	scaled m
	try wsync-verify scales
	expect_status 2
	for size in 0x1 16 16x 16x-1 ax16 99999999x1; do
		try wsync-verify scales m/fp8 --block-size "$size"
		expect_status 2
	done
	for share in 0 -1 x 5%% nan; do
		try wsync-verify scales m/fp8 --max-error "$share"
		expect_status 2
	done
	try wsync-verify scales -e http://127.0.0.1:1 --against m/bf16
	expect_status 2
	try wsync-verify names m/fp8 --against m/bf16
	expect_status 2
}

@test "a checkpoint or server without scales is no yes" {
	scaled m
	try wsync-verify scales m/bf16 --json
	expect_status 11
	expect_found "[]"
	err_has "nothing was checked: none of"
	err_has "--against SOURCE"
	try wsync-verify scales m/bf16 --against m/bf16
	expect_status 0
	endpoint one --model m/bf16
	try wsync-verify scales -e "$url"
	expect_status 11
	err_has "$url: nothing was checked: the endpoint shows no scales and no quantized parameter"
}

@test "a server whose replicas answer null shows no scales" {
	scaled m
	start replicas /usr/bin/python3 "$repo/tests/cli/showing.py" "$PWD/m/fp8" \
		'[null, null]' '' 2
	eventually test -s replicas.out
	try wsync-verify scales -e "http://127.0.0.1:$(head -n 1 replicas.out)"
	expect_status 5
	err_has "it shows neither its parameters nor numbers of scales"
}
