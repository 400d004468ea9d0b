#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-verify flags: the settings of a trainer and of servers, of which canned ones say what we
# like.
load helpers

info='{"tp_size":2,"dtype":"bfloat16","kv_cache_dtype":"auto","attention_backend":"fa3","enable_fp32_lm_head":true,"rl_on_policy_target":null,"internal_states":[{}],"version":"0.5"}'
keys() { /usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" wsync-verify \
	<<<"$out"; }
answers() { json '[l["key"] + " " + l["answer"] for l in lines if l["type"] == "flag"]'; }

@test "a trainer whose settings a server has is answered with yes" {
	canned one "/server_info=200:$info"
	echo '{"lm_head_fp32": true, "rmsnorm_mode": "native", "lr": 1e-6,
		"rl_on_policy_target": null}' >t.json
	try wsync-verify flags t.json --expect tp-size=2 --expect kv_cache_dtype=bf16 -e "$url" \
		--json
	expect_status 0
	keys
	[ "$(answers)" = "['enable_fp32_lm_head equal', 'rmsnorm_mode unshown', 'lr absent', \
'rl_on_policy_target equal', 'tp_size equal', 'kv_cache_dtype chosen']" ] ||
		explain "answers"
	expect_json 'lines[-1]["settings"], lines[-1]["equal"], lines[-1]["errors"]' "(6, 3, 0)"
}

@test "another value, and a setting that is not shown, are two kinds of no" {
	canned one "/get_server_info=200:$info"
	try wsync-verify flags --expect attention_backend=triton --expect router_fp32=true -e "$url"
	expect_status 1
	out_has "different attention_backend: wanted triton, has fa3 (the kernels of attention)"
	out_has "absent    enable_fp32_router: wanted true, and the server shows no such setting"
	err_has "2 settings differ, the first: attention_backend"
	try wsync-verify flags --expect router_fp32=false -e "$url"
	expect_status 0
}

@test "endpoints are compared with the first" {
	canned one "/server_info=200:$info"
	one=$url
	canned two "/server_info=200:${info/fa3/triton}"
	try wsync-verify flags -e "$one" -e "$url" --json
	expect_status 1
	keys
	expect_json '[(l["key"], l["expected"], l["found"]) for l in lines if l["type"] == "flag"
		and l["answer"] != "equal"]' "[('attention_backend', 'fa3', 'triton')]"
}

@test "an endpoint that is not there does not hide a no of another" {
	canned one "/server_info=200:$info"
	gone=http://127.0.0.1:$(free_port)
	try wsync-verify flags --expect tp_size=2 -e "$gone" -e "$url"
	expect_status 4
	try wsync-verify flags --expect tp_size=4 -e "$gone" -e "$url"
	expect_status 1
}

@test "settings that are none" {
	canned one "/server_info=200:[1]"
	try wsync-verify flags --expect tp_size=2 -e "$url"
	expect_status 5
	try wsync-verify flags -e "$url"
	expect_status 2
	try wsync-verify flags --expect tp_size -e "$url"
	expect_status 2
	err_has "'tp_size' is no KEY=VALUE"
	for text in '[1]' '{"a": [1]}' '{"a": 1, "a": 2}' '{' '{}'; do
		echo "$text" >t.json
		try wsync-verify flags t.json -e "$url"
		expect_status 3
	done
}

@test "the embedded endpoint shows what is asked for" {
	[ -x "$bin/wsync-endpoint" ] || skip "wsync-endpoint is not built"
	endpoint one --tp 2
	try wsync-verify flags --expect tp_size=2 --expect lm_head_fp32=false -e "$url"
	expect_status 0
	try wsync-verify flags --expect tp_size=1 -e "$url"
	expect_status 1
}

@test "settings of which none can be compared are no yes" {
	canned one "/server_info=200:$info"
	echo '{"attention_backand": "fa3", "tp_sise": 4, "rmsnorm_mode": "native"}' >t.json
	try wsync-verify flags t.json -e "$url" --json
	expect_status 3
	keys
	err_has "t.json: nothing was compared: no endpoint shows any of its 3 settings, \
like 'attention_backand'"
	expect_json 'lines[-1]["exit"], lines[-1]["error"]["code"]' "(3, 'input')"
	try wsync-verify flags t.json --expect tp_size=2 -e "$url"
	expect_status 0
	echo '{"lr": 1, "enable_fp32_router": false}' >t.json # off, as where it is not shown
	try wsync-verify flags t.json -e "$url"
	expect_status 0
	canned two '/server_info=200:{"version": "0.5"}'
	one=$url
	canned three '/server_info=200:{"version": "0.5"}'
	try wsync-verify flags -e "$one" -e "$url"
	expect_status 11
	err_has "the endpoints show none of the known settings"
}
