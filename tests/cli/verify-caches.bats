#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-verify caches: does a command clear the prefix cache of wsync-endpoints of both families?
load helpers

caches() { try wsync-verify caches "$@"; }

# served NAME OPTION...: an endpoint with the weights of model one.
served() {
	llama one
	endpoint "$1" --model one "${@:2}"
	try wsync-push one -e "$url" --state-dir state
	expect_status 0
}

pushes() { echo "wsync-push one -q --state-dir state -e \$WSYNC_ENDPOINTS $*"; }

@test "a push clears the prefix cache, and --flush never does not" {
	local lineage
	for lineage in session sglang-2026 vllm-0.33 vllm-0.24; do
		served "$lineage" --lineage "$lineage"
		caches -e "$url" --between "$(pushes)" --json
		expect_status 0
		/usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" \
			wsync-verify <<<"$out"
		expect_json '[(l["verdict"], l["prompt_tokens"], l["cached_before"] > 100,
			l["cached_after"]) for l in lines if l["type"] == "caches"]' \
			"[('cleared', 200, True, 0)]"
		caches -e "$url" --between "$(pushes --flush never)"
		expect_status 1
		out_has "cached    $url: of 200 tokens, 19"
		err_has "the prefix cache is not clear: 19"
	done
}

@test "a flush that says yes and clears nothing is found" {
	served a --lineage session --fault stale:flush_cache:2
	caches -e "$url" --between "wsync-ctl flush -q -e \$WSYNC_ENDPOINTS"
	expect_status 1
	caches -e "$url" --between "wsync-ctl flush -q -e \$WSYNC_ENDPOINTS"
	expect_status 0
}

# clear_cache is deprecated: a later vLLM may ignore it, and confirm the pause all the same.
@test "a vLLM whose pause clears nothing is flushed all the same" {
	served a --lineage vllm-0.33 --fault stale:pause:2
	caches -e "$url" --between "$(pushes)"
	expect_status 0
	served b --lineage vllm-0.33 --fault stale:pause:2 --fault stale:reset_prefix_cache:2
	caches -e "$url" --between "$(pushes)"
	expect_status 1
}

@test "a reply to the flush that is not that of a vLLM is no confirmation" {
	served a --lineage vllm-0.33 --fault garbage:reset_prefix_cache:2
	try wsync-push one -e "$url" --state-dir state
	expect_status 5
	err_has "does not say that it was done"
}

@test "11: nothing is known where no token was cached, and where none is reported" {
	served a --lineage vllm-0.33
	caches -e "$url" --between "touch ran" --tokens 16
	expect_status 11
	err_has "used no cached tokens before the command either"
	err_has "try a longer prompt with --tokens"
	[ ! -e ran ]
	local choice='{"index":0,"text":"x","finish_reason":"length"}'
	local usage='{"prompt_tokens":200,"completion_tokens":1,"prompt_tokens_details":null}'
	canned b "POST /v1/completions=200:{\"choices\":[$choice],\"usage\":$usage}"
	caches -e "$url" --between true --json
	expect_status 11
	expect_json '(lines[-1]["error"]["code"], lines[-1]["exit"],
		[l["cached_before"] for l in lines if l["type"] == "caches"])' \
		"('unknown', 11, [None])"
	err_has "start vLLM with --enable-prompt-tokens-details"
}

@test "one endpoint that is not clear decides" {
	served a --lineage session
	local a=$url
	served b --lineage vllm-0.33
	caches -e "$a" -e "$url" --between "wsync-ctl flush -q -e $url"
	expect_status 1
	out_has "cleared   $url: of 200"
	out_has "cached    $a: of 200"
	err_has "$a"
}

@test "a command that fails, is killed or never ends is no answer about caches" {
	served a --lineage session
	caches -e "$url" --between "exit 7"
	expect_status 2
	err_has "the command failed: exit status 7"
	caches -e "$url" --between 'kill -9 $$'
	expect_status 2
	err_has "ended by signal 9"
	caches -e "$url" --between "sleep 600" --timeout 1
	expect_status 10
	caches -e "$url"
	expect_status 2
	err_has "--between COMMAND is needed"
}

@test "flush clears the caches that a server says it has, and names those it cannot clear" {
	canned a '/flush_cache=200:Cache flushed.' '/model_info=200:{"has_image_understanding":true}' \
		'/server_info=200:{"tp_size":1,"hicache_storage_backend":"file"}' \
		'/hicache/storage-backend/clear=200:Hierarchical cache storage backend cleared.'
	try wsync-ctl flush -e "$url" --json
	expect_status 0
	grep -qx "POST /hicache/storage-backend/clear " a.out
	expect_json '[l["message"] for l in lines if l["type"] == "endpoint"]' \
		"['not cleared: encoder']"
	canned b '/flush_cache=200:Cache flushed.' \
		'/server_info=200:{"tp_size":1,"hicache_storage_backend":"eic"}' \
		'/clear_hicache_storage_backend=400:Hierarchical cache storage backend cleared.'
	try wsync-ctl flush -e "$url" --json
	expect_status 0
	grep -qx "POST /clear_hicache_storage_backend " b.out
	expect_json '[l["message"] for l in lines if l["type"] == "endpoint"]' \
		"['not cleared: external']"
	local config='{"vllm_config":{"parallel_config":{"tensor_parallel_size":1},"cache_config":{},
		"model_config":{"multimodal_config":{}},
		"kv_transfer_config":{"kv_connector":"LMCacheConnectorV1"}}}'
	canned c '/reset_prefix_cache=200:{"success":true}' '/version=200:{"version":"0.32.0"}' \
		'/get_world_size=200:{"world_size":1}' "/server_info=200:$config" \
		'/reset_mm_cache=200:' '/reset_encoder_cache=404:{"detail":"Not Found"}'
	try wsync-ctl flush -e "$url" --json
	expect_status 0
	grep -qx "POST /reset_prefix_cache?reset_external=true " c.out
	grep -qx "POST /reset_mm_cache " c.out
	expect_json '[l["message"] for l in lines if l["type"] == "endpoint"]' \
		"['not cleared: external, encoder']"
}

# with_storage NAME: the server at $url says that it has this storage; sets $url.
with_storage() {
	local key='"hicache_storage_backend":'
	curl -s "$url/server_info" | sed "s/${key}null/$key\"$1\"/" >info
	grep -q "$key\"$1\"" info
	rm -f "$scratch/proxy.out"
	proxy "$url" "
if path == '/server_info': answer = (200, open('info').read())
if path.endswith('/storage-backend/clear') and args: answer = (200, args[0])" pass "${@:2}"
}

@test "a push clears a server's external cache, and warns if it may be old" {
	local cleared="Hierarchical cache storage backend cleared." direct
	served a --lineage session
	direct=$url
	with_storage mooncake "$cleared"
	try wsync-push one -e "$url" --state-dir state
	expect_status 0
	err_lacks "external cache"
	url=$direct
	with_storage mooncake
	try wsync-push one -e "$url" --state-dir state
	expect_status 0
	err_has "its external cache (mooncake) has results of the old weights"
	url=$direct
	with_storage eic "$cleared"
	try wsync-push one -e "$url" --state-dir state
	expect_status 0
	err_has "its external cache (eic) may have results of the old weights"
	try wsync-push one -e "$url" --state-dir state --flush never
	expect_status 0
	err_lacks "external cache"
}

@test "11: an empty cache of another server says nothing" {
	served a --lineage session
	caches -e "$url" --between "$(pushes)"
	expect_status 0
	curl -s "$url/server_info" | sed 's/"random_seed":[0-9]*/"random_seed":7/
		s/"startup_time":{[^}]*}/"startup_time":{"load":77.25}/' >info
	proxy "$url" "
import os
if path == '/server_info' and os.path.exists('now'): answer = (200, open('info').read())"
	caches -e "$url" --between "touch now; $(pushes)"
	expect_status 11
	err_has "another server answers there since the command, or the server was restarted"
}

@test "with data-parallel attention a flush is confirmed by one scheduler only" {
	served a --lineage session
	curl -s "$url/server_info" | sed 's/^{/{"dp_size":2,"enable_dp_attention":true,/' |
		sed 's/"dp_size":1,//' >info
	proxy "$url" "
if path == '/server_info': answer = (200, open('info').read())"
	try wsync-push one -e "$url" --state-dir state --json
	expect_status 0
	expect_json 'lines[-1]["endpoints"][0]["evidence"]["caches"]["prefix"]' untold
	try wsync-push one -e "$url" --state-dir state --require caches
	expect_status 11
	err_has "does not tell whether all of its caches are clear"
}
