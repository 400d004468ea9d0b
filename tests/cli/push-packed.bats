#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Weights packed in 4 bits: no server takes them in an update, so nobody is sent them by accident,
# and it is said what they are and what unpacks them.
load helpers

# packed HOW: m/unsaid and m/packed, whose config.json says what they are, and m/bf16, of a server
# in 16 bits.
packed() {
	rm -rf m
	/usr/bin/python3 "$repo/tests/cli/packed_model.py" m "$1" >/dev/null
}

untouched() { ! grep -q POST "$1.out" || explain "expected no POST to $1"; }

@test "the check of names tells packed weights once each, and what unpacks them" {
	for how in nf4 nf4-double nvfp4; do
		packed "$how"
		try wsync-verify names m/unsaid
		expect_status 1
		[ "$(grep -c '^error' <<<"$out")" = 1 ] || explain "one group"
		out_has "7 weights are packed in ${how%-double} ("
		out_has "remedy: --unpack sends them in 16 bits; --quantize fp8"
		out_has "7 errors, checked against llama"
		try wsync-verify names m/unsaid --unpack
		expect_status 0
		try wsync-verify names m/unsaid --quantize fp8 --block-size 16x16
		expect_status 0
		try wsync-list-weights m/unsaid --as-sent --unpack
		expect_status 0
		out_has "model.layers.0.mlp.down_proj.weight             bfloat16  [64, 96]"
		out_lacks uint8
	done
}

@test "a config that says how they are packed is compared with nothing, and says what to do" {
	for how in nf4 nvfp4; do
		packed "$how"
		try wsync-verify names m/packed
		expect_status 3
		err_has "are stored in shapes that are not known here (--unpack sends them in 16 \
bits)"
		try wsync-verify names m/packed --config m/bf16
		expect_status 1
		out_has "7 weights are packed in $how ("
		try wsync-verify names m/packed --unpack
		expect_status 0
	done
}

@test "nobody is sent packed weights by accident" {
	packed nf4
	endpoint dense --model "$PWD/m/bf16"
	dense=$url
	for source in m/unsaid m/packed; do
		for verify in names none; do
			try wsync-push "$source" -e "$dense" --verify "$verify" \
				--allow-unknown format
			expect_status 5
			err_has "does not keep quantized weights"
			err_has "model.layers.0.self_attn.q_proj.weight would be sent"
			err_has "hint: --unpack sends 16 bits"
		done
	done
	packed nvfp4
	try wsync-push m/packed -e "$dense"
	expect_status 5
	err_has "model.layers.0.self_attn.q_proj.weight would be sent"
	untouched dense
}

@test "unpacked, they are those of a checkpoint in 16 bits" {
	for how in nf4 nf4-double nvfp4; do
		packed "$how"
		endpoint "$how" --model "$PWD/m/bf16" --tp 2
		for source in m/unsaid m/packed; do
			try wsync-push "$source" -e "$url" --unpack --verify hash --json
			expect_status 0
			expect_json 'lines[-1]["transform"]["unpacked"]' 7
			try wsync-verify weights "$source" --unpack -e "$url"
			expect_status 0
		done
	done
}

@test "FP8 is sent in 16 bits, too" {
	/usr/bin/python3 "$repo/tests/cli/scaled_model.py" m >/dev/null
	endpoint e --model "$PWD/m/bf16"
	try wsync-push m/fp8 -e "$url"
	expect_status 5
	try wsync-push m/fp8 -e "$url" --unpack --verify hash
	expect_status 0
	out_has "7 unpacked"
	try wsync-push m/bf16 -e "$url" --unpack
	expect_status 0
}
