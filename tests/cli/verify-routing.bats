#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-verify routing: saved answers, made here by python.
load helpers

prepare() {
	echo '{"num_hidden_layers": 3, "num_experts_per_tok": 2, "n_routed_experts": 8,
	       "first_k_dense_replace": 1}' >config.json
}

# answer FILE TOKENS [PYTHON]: ids of random rows; PYTHON may change x[token][layer].
answer() {
	/usr/bin/python3 - "$@" <<-'END'
		import base64, json, random, struct, sys
		t = int(sys.argv[2])
		random.seed(7)
		x = [[[0, 0]] + [random.sample(range(8), 2) for _ in range(2)] for _ in range(t)]
		exec(sys.argv[3] if len(sys.argv) > 3 else "")
		flat = [i for token in x for row in token for i in row]
		data = base64.b64encode(struct.pack(f"<{len(flat)}i", *flat)).decode()
		meta = {"prompt_tokens": t - 3, "completion_tokens": 4, "cached_tokens": 2,
		        "routed_experts": data}
		json.dump({"text": "a", "meta_info": meta}, open(sys.argv[1], "w"))
	END
}
keys() { /usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" wsync-verify \
	<<<"$out"; }
routing() { try wsync-verify routing --config . "$@"; }

@test "an answer that can be is a yes, and numpy reads what is written" {
	answer a.json 9
	routing a.json --npy a.npy
	expect_status 0
	expect_out "routing   a.json: 9 tokens x 3 layers x 2 of 8 experts, \
1 of the layers without, 2 tokens as an earlier pass chose"
	/usr/bin/python3 - <<-'END'
		import ast, base64, json, struct
		raw = open("a.npy", "rb").read()
		assert raw[:8] == b"\x93NUMPY\x01\x00"
		n = 10 + struct.unpack("<H", raw[8:10])[0]
		assert n % 64 == 0 and raw[n - 1:n] == b"\n"
		head = ast.literal_eval(raw[10:n].decode())
		assert head == {"descr": "<i4", "fortran_order": False, "shape": (9, 3, 2)}
		meta = json.load(open("a.json"))["meta_info"]
		assert raw[n:] == base64.b64decode(meta["routed_experts"])
	END
	routing a.json --json
	expect_status 0
	keys
}

@test "rows that cannot be are a no" {
	answer a.json 9 'x[4][2] = [8, 1]; x[5][1] = [3, 3]; x[6][0] = [0, 1]'
	routing a.json --json
	expect_status 1
	keys
	expect_json '[lines[1][k] for k in ("outside", "repeated", "dense", "token", "layer")]' \
		"[1, 1, 1, 4, 2]"
	err_has "a.json: 3 rows cannot be, the first at token 4, layer 2: [8, 1]: \
there is no such expert"
	answer b.json 9 'x[6][0] = [0, 1]'
	routing b.json
	expect_status 1
	err_has "the first at token 6, layer 0: [0, 1]: \
this layer has no experts, and its row is not zero"
	answer c.json 9 'x[5][1] = [3, 3]'
	routing c.json
	expect_status 1
	err_has "the first at token 5, layer 1: [3, 3]: an expert is listed twice"
}

@test "two answers agree as far as is wanted" {
	answer a.json 10
	answer b.json 10 'x[3][1].reverse(); x[7][2] = [0, 1] if x[7][2] != [0, 1] else [2, 3]'
	routing a.json a.json
	expect_status 0
	out_has "equal     20 of 20 rows (100%)"
	routing a.json b.json --json
	expect_status 1
	keys
	expect_json '[lines[-2][k] for k in ("rows", "equal", "reordered", "token", "layer",
		"different_by_layer")]' "[20, 18, 1, 3, 1, [0, 1, 1]]"
	routing a.json b.json --min-equal 90%
	expect_status 0
	routing a.json b.json --min-equal 0.91
	expect_status 1
	answer c.json 9
	routing a.json c.json --min-equal 0
	expect_status 1
	err_has "a.json has 10 tokens, c.json 9"
}

@test "what is no answer, and what cannot be asked" {
	answer a.json 9 'x = x[1:]'
	routing a.json
	expect_status 1
	err_has "48 numbers are not [9, 3, 2]"
	echo '{"meta_info": {}}' >a.json
	routing a.json
	expect_status 3
	err_has "--enable-return-routed-experts"
	try wsync-verify routing a.json
	expect_status 2
	routing a.json a.json --npy x
	expect_status 2
	routing a.json --min-equal 101%
	expect_status 2
	routing gone.json
	expect_status 3
}
