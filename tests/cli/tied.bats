#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Heads that config.json ties to the embedding (tie_word_embeddings): servers drop the head that
# they are sent, so one that differs is an error before anything is paused, wherever its bytes come
# from.
load helpers

head=lm_head.weight body=model.embed_tokens.weight
lost="differs from $body, and the server's head is tied to the embedding (tie_word_embeddings)"

# numbers COMMAND...: see numbers.py
numbers() { /usr/bin/python3 "$repo/tests/cli/numbers.py" "$@"; }

# tie DIR: its config ties the head, whose bytes become those of the embedding.
tie() {
	sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' "$1/config.json"
	numbers tame "$1/model.safetensors"
	numbers copy "$1/model.safetensors" "${2:-$body}" "$1/model.safetensors" "${3:-$head}"
}

# untie FILE [HEAD]: the last number of the head becomes another.
untie() { numbers put "$1" "${2:-$head}" "${3:-127}" 63 0.5; }

# lost ARGUMENT...: a push that is refused for it, before anybody is paused or asked to join.
lost() {
	try wsync-push -e "$url" --timeout 30s "$@"
	expect_status 1
	err_has "$lost"
	for route in pause_generation update_weights_from; do
		if curl -s "$url/wsync/journal" |
			grep -q "$route"; then explain "$route was asked for"; fi
	done
	try wsync-verify names -e "$url" "$@"
	expect_status 1
	err_has "$lost"
	try wsync-verify names -e "$url" "$@" --scan
	expect_status 1
	err_has "$lost"
}

# kept ARGUMENT...: a push that is made.
kept() {
	try wsync-push -e "$url" "$@"
	expect_status 0
	try wsync-verify names -e "$url" "$@"
	expect_status 0
}

@test "a tied head that differs ends a push before it begins, with the loss and a remedy" {
	llama ckpt && tie ckpt
	endpoint one --tp 2
	kept ckpt
	endpoint two --tp 2
	untie ckpt/model.safetensors
	lost ckpt
	err_has "\"tie_word_embeddings\": false"
	err_lacks "--exclude"
	try wsync-push ckpt -e "$url" --verify hash --json
	expect_status 1
	err_has "$lost"
	expect_json 'lines[-1]["endpoints"][0]["state"], lines[-1]["error"]["code"]' \
		"('untouched', 'mismatch')"
	for words in "-n" "-n -e $url" "-n --quantize fp8 --block-size 16x16"; do
		# shellcheck disable=SC2086 # words
		try wsync-push ckpt $words
		expect_status 1
		err_has "$lost"
	done
}

@test "what sends it anyway: without the head, by the config of a server that has one, unchecked" {
	llama ckpt && tie ckpt && untie ckpt/model.safetensors
	llama untied
	endpoint one
	kept ckpt --exclude lm_head.weight
	kept ckpt --config untied
	try wsync-push ckpt -e "$url" --verify none
	expect_status 0
	# The server's own config counts, and so does a head that the server lists.
	endpoint has --model untied --tp 2
	kept ckpt
	endpoint tied --model ckpt --tp 2
	lost ckpt
}

@test "types that differ are compared as numbers" {
	llama ckpt && tie ckpt
	llama wide 's/^(lm_head.weight):BF16/\1:F32/'
	cp ckpt/config.json wide/
	/usr/bin/python3 - <<-'END'
		import json, struct
		def read(path):
		    with open(path, "rb") as f:
		        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
		        return head, f.tell()
		head, start = read("ckpt/model.safetensors")
		begin, end = head["lm_head.weight"]["data_offsets"]
		with open("ckpt/model.safetensors", "rb") as f:
		    f.seek(start + begin)
		    raw = f.read(end - begin)
		# rounds to the same
		wide = b"".join(b"\1\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
		head, at = read("wide/model.safetensors")
		with open("wide/model.safetensors", "r+b") as f:
		    f.seek(at + head["lm_head.weight"]["data_offsets"][0])
		    f.write(wide)
	END
	numbers tame wide/model.safetensors
	numbers copy ckpt/model.safetensors "$body" wide/model.safetensors "$body"
	endpoint one
	try wsync-push wide -e "$url"
	expect_status 0
	endpoint two
	untie wide/model.safetensors
	lost wide
}

@test "head and embedding in different files, and what ranks saved of them" {
	llama ckpt && tie ckpt
	mkdir two && cp ckpt/config.json two/
	llama first '/lm_head/d' && mv first/model.safetensors two/a.safetensors
	safetensors two/b.safetensors "$head:BF16:128,64" >/dev/null
	numbers tame two/a.safetensors
	numbers copy two/a.safetensors "$body" two/b.safetensors "$head"
	endpoint one
	kept two
	endpoint two
	untie two/b.safetensors
	lost two
	# The vocabulary is divided, and padded behind the last rank's part.
	sizes='s/(q_proj.*|[kv]_proj.*|gate_proj.*|up_proj.*):([0-9]+),64$/\1:HALF\2,64/;
		s/(o_proj.*|down_proj.*):64,([0-9]+)/\1:64,HALF\2/;
		s/HALF128/64/; s/HALF64/32/; s/HALF32/16/
		s/(embed_tokens.*|lm_head.*):128,64/\1:72,64/'
	for rank in 0 1; do
		llama shards/tp_rank_$rank "$sizes"
		file=shards/tp_rank_$rank/model.safetensors
		numbers tame $file
		numbers copy $file "$body" $file "$head"
	done
	cp ckpt/config.json shards/
	endpoint three
	kept shards --sharded tp=2
	endpoint four
	untie shards/tp_rank_1/model.safetensors "$head" 71 # padding
	kept shards --sharded tp=2
	endpoint five
	untie shards/tp_rank_1/model.safetensors "$head" 55 # the last of 128 rows
	lost shards --sharded tp=2
}

@test "an adapter that changes one of the two, and not the other" {
	llama ckpt && tie ckpt
	for module in lm_head model.embed_tokens; do
		mkdir $module
		echo '{"peft_type": "LORA", "r": 2, "lora_alpha": 2}' >$module/adapter_config.json
	done
	safetensors lm_head/adapter_model.safetensors \
		base_model.model.lm_head.lora_A.weight:F32:2,64 \
		base_model.model.lm_head.lora_B.weight:F32:128,2 >/dev/null
	safetensors model.embed_tokens/adapter_model.safetensors \
		base_model.model.model.embed_tokens.lora_embedding_A:F32:2,128 \
		base_model.model.model.embed_tokens.lora_embedding_B:F32:64,2 >/dev/null
	for module in lm_head model.embed_tokens; do
		numbers tame $module/adapter_model.safetensors
		endpoint $module
		lost ckpt --lora $module
	done
	# Of --trust-values no value is looked for that is no number; this is another question.
	lost ckpt --lora lm_head --trust-values
}

@test "names that a trainer wrapped, a map renamed, and those of a text model within another" {
	llama wrapped 's/^/_orig_mod./' && tie wrapped _orig_mod.$body _orig_mod.$head
	endpoint one
	kept wrapped
	endpoint two
	untie wrapped/model.safetensors _orig_mod.$head
	lost wrapped
	llama renamed 's/^lm_head/final.head/' && tie renamed $body final.head.weight
	printf 'family mine\nlike llama\narch LlamaForCausalLM\nrename final.head.weight -> lm_head.weight\n' >m.map
	endpoint three
	kept renamed --map m.map
	endpoint four
	untie renamed/model.safetensors final.head.weight
	lost renamed --map m.map
	# No family: config.json alone says so.
	llama inner 's/^/language_model./' && tie inner language_model.$body language_model.$head
	sed -i 's/LlamaForCausalLM/StrangeForConditionalGeneration/; s/"llama"/"strange"/' \
		inner/config.json
	endpoint five
	try wsync-push inner -e "$url"
	expect_status 0
	untie inner/model.safetensors language_model.$head
	try wsync-push inner -e "$url"
	expect_status 1
	err_has "language_model.lm_head.weight differs from \
language_model.model.embed_tokens.weight"
}

@test "a source that ties nothing is not compared" {
	llama ckpt
	endpoint one
	kept ckpt
	llama alone '/lm_head/d'
	sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' alone/config.json
	kept alone
}

# adapter DIR CONFIG TENSOR...: the numbers of a module are the same in all adapters.
adapter()
{
	local dir=$1 config=$2
	shift 2
	mkdir "$dir"
	echo "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 2$config}" \
		>"$dir/adapter_config.json"
	safetensors "$dir/adapter_model.safetensors" "${@/#/base_model.model.}" >/dev/null
	numbers tame "$dir/adapter_model.safetensors"
}

@test "an adapter of a tied model whose file has no head is told the same as with one" {
	llama ckpt '/lm_head/d'
	sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' ckpt/config.json
	numbers tame ckpt/model.safetensors
	adapter body "" model.embed_tokens.lora_embedding_A:F32:2,128 \
		model.embed_tokens.lora_embedding_B:F32:64,2
	adapter head "" lm_head.lora_A.weight:F32:2,64 lm_head.lora_B.weight:F32:128,2
	adapter saved "" lm_head.weight:BF16:128,64
	untie saved/adapter_model.safetensors base_model.model.lm_head.weight
	adapter q "" model.layers.0.self_attn.q_proj.lora_A.weight:F32:2,64 \
		model.layers.0.self_attn.q_proj.lora_B.weight:F32:64,2
	adapter both "" lm_head.weight:BF16:128,64 model.embed_tokens.weight:BF16:128,64
	numbers copy both/adapter_model.safetensors base_model.model.model.embed_tokens.weight \
		both/adapter_model.safetensors base_model.model.lm_head.weight
	adapter tying ', "ensure_weight_tying": true' \
		model.embed_tokens.lora_embedding_A:F32:2,128 \
		model.embed_tokens.lora_embedding_B:F32:64,2
	for a in body head saved; do
		endpoint $a
		lost ckpt --lora $a
		lost ckpt --lora $a --lora-partial
		sed -i 's/true/null/; s/"model_type": "llama"/"model_type": "gemma"/' ckpt/config.json
		sed -i 's/LlamaForCausalLM/StrangeForCausalLM/' ckpt/config.json
		try wsync-push ckpt -n --lora $a
		expect_status 1
		err_has "$lost"
		sed -i 's/null/true/; s/"model_type": "gemma"/"model_type": "llama"/' ckpt/config.json
		sed -i 's/StrangeForCausalLM/LlamaForCausalLM/' ckpt/config.json
	done
	endpoint fine
	kept ckpt --lora both
	kept ckpt --lora tying
	kept ckpt --lora q
	# A head that no adapter changes is not sent.
	try wsync-list-weights --as-sent ckpt --lora q
	out_lacks lm_head
	try wsync-list-weights --as-sent ckpt --lora tying
	out_lacks lm_head
	try wsync-list-weights --as-sent ckpt --lora both
	out_has lm_head.weight
}

@test "a choice that leaves out the head or the embedding hides nothing that an adapter changed" {
	local q="model.layers.0.self_attn.q_proj.lora_A.weight:F32:2,64 \
		model.layers.0.self_attn.q_proj.lora_B.weight:F32:64,2"
	llama without '/lm_head/d' && llama with
	sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' without/config.json
	numbers tame without/model.safetensors
	tie with && numbers copy without/model.safetensors "$body" with/model.safetensors "$body"
	numbers copy without/model.safetensors "$body" with/model.safetensors "$head"
	# shellcheck disable=SC2086 # words
	{
		adapter body "" $q model.embed_tokens.lora_embedding_A:F32:2,128 \
			model.embed_tokens.lora_embedding_B:F32:64,2
		adapter head "" $q lm_head.lora_A.weight:F32:2,64 lm_head.lora_B.weight:F32:128,2
		for a in differ equal; do
			adapter $a "" $q lm_head.weight:BF16:128,64 \
				model.embed_tokens.weight:BF16:128,64
		done
		adapter q "" $q
	}
	numbers copy equal/adapter_model.safetensors base_model.model.model.embed_tokens.weight \
		equal/adapter_model.safetensors base_model.model.lm_head.weight
	untie differ/adapter_model.safetensors base_model.model.lm_head.weight
	for base in without with; do
		for a in body head differ; do
			endpoint $base-$a
			for glob in lm_head.weight "*head*" "[!m]*"; do
				lost $base --lora $a --exclude "$glob"
			done
			lost $base --lora $a --include "model.*"
			try wsync-push $base -e "$url" --lora $a --exclude "*embed*"
			expect_status 1
			kept $base --lora $a --include "model.layers.*"
		done
		endpoint $base
		kept $base --lora equal --exclude lm_head.weight
		kept $base --lora q --exclude lm_head.weight
	done
	# Without rules for the names.
	sed -i 's/LlamaForCausalLM/StrangeForCausalLM/; s/"llama"/"strange"/' without/config.json
	for choice in "--exclude lm_head.weight" "--exclude *embed*" "--include model.*"; do
		# shellcheck disable=SC2086 # words
		try wsync-push without -e "$url" --lora head $choice
		expect_status 1
		err_has "$lost"
	done
	try wsync-push without -e "$url" --lora equal --exclude lm_head.weight
	expect_status 0
}
