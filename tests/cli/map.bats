#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Maps from files, as wsync-map(5) tells its readers to write them.
load helpers

# The N-th example of the page.
example() {
	awk -v n="$1" '/^```/ { on = !on; seen += on; next } on && seen == n' \
		"$repo/man/wsync-map.5.scd"
}

# The model that the page's first example is about, as its trainer saves it.
prepare() {
	mkdir ckpt
	cat >ckpt/config.json <<-'END'
		{"architectures": ["GatedForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
		 "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 96}
	END
	layer=${wrapper-}actor.model.layers.0
	safetensors ckpt/model.safetensors "${wrapper-}actor.model.embed_tokens.weight:BF16:96,64" \
		"$layer.input_layernorm.weight:BF16:64" \
		"$layer.post_attention_layernorm.weight:BF16:64" \
		"$layer.self_attn.q_norm.weight:BF16:16" "$layer.self_attn.k_norm.weight:BF16:16" \
		"$layer.self_attn.q_proj.weight:BF16:64,64" \
		"$layer.self_attn.k_proj.weight:BF16:32,64" \
		"$layer.self_attn.v_proj.weight:BF16:32,64" \
		"$layer.self_attn.o_proj.weight:BF16:64,64" \
		"$layer.self_attn.gate_proj.weight:BF16:4,64" \
		"$layer.mlp.gate_and_up.weight:BF16:256,64" \
		"$layer.mlp.down_proj.weight:BF16:64,128" \
		"${wrapper-}actor.model.norm.weight:BF16:64" \
		"${wrapper-}actor.lm_head.weight:BF16:96,64"
	example 1 >gated.map
	example 2 >generic.map
}

@test "the page's first example does what it says" {
	try wsync-verify names ckpt --config ckpt --tp 2 --map gated.map
	expect_status 0
	try wsync-list-weights ckpt --as-sent --map gated.map --format names
	expect_status 0
	[ "$(grep -c . <<<"$out")" = 15 ]
	grep -qx model.layers.0.mlp.gate_proj.weight <<<"$out"
	grep -qx model.layers.0.mlp.up_proj.weight <<<"$out"
	grep -qx lm_head.weight <<<"$out"
	try wsync-list-weights --runtime --config ckpt --tp 4 --map gated.map --format names
	expect_status 0
	grep -qx model.layers.0.self_attn.gate_proj.weight <<<"$out"
}

@test "without its map the model is one that nobody knows" {
	try wsync-verify names ckpt --config ckpt --tp 2
	[ "$status" != 0 ]
}

@test "the page's second example reaches the built-in families" {
	safetensors one.safetensors policy_model.model.norm.weight:BF16:64
	echo '{"architectures": ["Qwen3ForCausalLM"]}' >config.json
	try wsync-list-weights one.safetensors --as-sent --map generic.map --format names
	expect_status 0
	[ "$out" = model.norm.weight ]
}

@test "a malformed map is answered with its line and a remedy" {
	printf 'family x\nkolumn y in 1 out 2\n' >bad.map
	try wsync-list-weights ckpt --as-sent --map bad.map
	expect_status 3
	err_has "bad.map:2: unknown rule 'kolumn': did you mean 'column'?"
	printf 'family x\ncolumn y in hidden_size haeds 2\n' >bad.map
	try wsync-list-weights ckpt --as-sent --map bad.map
	expect_status 3
	err_has "did you mean 'heads'?"
}

@test "a map that gives two tensors one name is refused before anything is sent" {
	cat gated.map - <<-'END' >wide.map
		rename **.self_attn.{x}.weight -> **.self_attn.any.weight
	END
	try wsync-verify names ckpt --map wide.map
	expect_status 3
	err_has model.layers.0.self_attn.any.weight
}
