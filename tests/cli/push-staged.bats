#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-push --stage sends now, and wsync-ctl complete lets the servers load it; discard drops it.
load helpers

prepare() {
	safetensors new.safetensors a:F32:64,32 b:F32:64,32 c:F32:64,32
	safetensors old.safetensors --seed 2 a:F32:64,32 b:F32:64,32 c:F32:64,32
}

# Two endpoints, $first and $url, which have old weights.
pair() {
	endpoint first --lineage "$@"
	first=$url
	endpoint second --lineage "$@"
	try wsync-push old.safetensors -e "$first" -e "$url" --protocol update --weight-version 1
	expect_status 0
}
records() { ls state/wsync/pushes; }
is() { # FILE URL...: they have its bytes
	local url
	for url in "${@:2}"; do
		try wsync-verify weights "$1" -e "$url" --samples 100
		expect_status 0
	done
}

@test "xorl and xorl-legacy: staged, loaded at the word, with version, flush and hashes" {
	for lineage in xorl xorl-legacy; do
		pair $lineage
		try wsync-push new.safetensors -e "$first" -e "$url" --stage --weight-version 2 \
			--bucket-size 8KiB
		expect_status 0
		out_has "staged    $url"
		out_has "to load it: wsync-ctl complete -e $first -e $url"
		is old.safetensors "$first" "$url"
		expect_journal "$url" \
			"[p for p in paths if 'paus' in p or 'continue' in p][2:]" "[]"
		try wsync-ctl info -e "$first" -e "$url"
		out_has "$url: an update (weight version 2) was staged"
		try wsync-ctl repair
		expect_status 0
		out_has staged
		try wsync-push new.safetensors -e "$url" --stage
		expect_status 5
		err_has "staged an update (weight version 2) there"
		err_has "wsync-ctl complete -e $url"
		local hash=(new.safetensors --verify hash)
		[ $lineage = xorl ] || hash=() # it reports no checksums
		try wsync-ctl complete "${hash[@]}" --json
		expect_status 0
		expect_json '[(e["state"], e["staged"], e["paused"], e["paused_ns"] > 0)
			for e in lines[-1]["endpoints"]]' \
			"[('committed', False, False, True), ('committed', False, False, True)]"
		expect_json '[lines[-1][k] for k in ("completed", "weight_version", "verify")]' \
			"[True, '2', '$([ $lineage = xorl ] && echo hash || echo none)']"
		is new.safetensors "$first" "$url"
		expect_journal "$url" '" ".join(p for p in paths
			if "weights_update" in p or "cache" in p).split()[-3:]' \
			"['/flush_cache', '/complete_weights_update', \
'/destroy_weights_update_group']"
		expect_journal "$url" 's["weight_version"]' 2
		[ -z "$(records)" ]
		try wsync-ctl complete
		expect_status 5
		err_has "nothing is staged"
	done
}

@test "discard drops an update where the server can, and says where it cannot" {
	pair xorl
	try wsync-push new.safetensors -e "$first" -e "$url" --stage
	expect_status 0
	try wsync-ctl discard -e "$url" --json
	expect_status 0
	expect_json '[l["ok"] for l in lines if l["type"] == "endpoint"]' "[True]"
	try wsync-ctl complete -e "$url"
	expect_status 5
	err_has "$url: nothing is staged there"
	try wsync-ctl discard
	expect_status 0
	out_has "discarded"
	[ -z "$(records)" ]
	is old.safetensors "$first" "$url"
	# a server of xorl's own
	local real=$url
	proxy "$real" 'if path == "/discard_weights_update": answer = (404, "{}")'
	try wsync-push new.safetensors -e "$url" --stage
	expect_status 0
	try wsync-ctl discard
	expect_status 5
	err_has "$url: its server cannot drop a prepared update"
	err_has "hint: complete it, or restart the server"
	try wsync-ctl complete
	expect_status 0
	is new.safetensors "$real"
	try wsync-ctl discard
	expect_out "nothing is staged"
}

@test "complete: the others get the new weights when an endpoint is gone or was restarted" {
	pair xorl
	local second=$url port=${url##*:}
	try wsync-push new.safetensors -e "$first" -e "$second" --stage --weight-version 2
	expect_status 0
	kill "$pid"
	wait "$pid" || :
	try wsync-ctl complete --json
	expect_status 9
	expect_json '[(e["state"], e["staged"]) for e in lines[-1]["endpoints"]]' \
		"[('committed', False), ('untouched', True)]"
	expect_json 'lines[-1]["error"]["endpoint"]' "$second"
	is new.safetensors "$first"
	start second wsync-endpoint --listen "127.0.0.1:$port" --lineage xorl --json
	eventually grep -q '"ready"' second.out
	try wsync-ctl info -e "$second" --json
	expect_json '[l["staged"] for l in lines if l["type"] == "endpoint"]' "[None]"
	try wsync-ctl repair
	expect_status 0
	[ -z "$(records)" ]
	# of both, one restarted
	try wsync-push old.safetensors -e "$first" -e "$second" --stage
	expect_status 0
	kill "$pid"
	wait "$pid" || :
	start second wsync-endpoint --listen "127.0.0.1:$port" --lineage xorl --json
	eventually grep -q '"ready"' second.out
	try wsync-ctl complete
	expect_status 9
	out_has "acknowledged $first, was paused for "
	out_has "untouched $second: it was restarted, and has lost the staged update"
	err_has "hint: push to it: wsync-push SOURCE -e $second"
	expect_journal "$second" '[p for p in paths if "pause" in p or "complete" in p]' "[]"
	try wsync-ctl complete
	err_has "nothing is staged"
	# ended by somebody else
	try wsync-push old.safetensors -e "$first" --stage
	expect_status 0
	curl -sS -d '{}' "$first/discard_weights_update"
	try wsync-ctl complete
	expect_status 5
	out_has "untouched $first, was paused for "
	err_has "hint: it was restarted, or its update was ended before: push to it"
	expect_journal "$first" 's["paused"]' False
	[ -z "$(records)" ]
}

@test "the next push ends what is staged; a stage that fails leaves servers as they were" {
	pair xorl-legacy
	try wsync-push new.safetensors -e "$first" -e "$url" --stage --weight-version 2
	expect_status 0
	try wsync-push old.safetensors -e "$url" --protocol update --weight-version 3
	expect_status 0
	err_has "the update that process"
	is old.safetensors "$first" "$url"
	expect_journal "$url" 's["paused"], s["weight_version"]' "(False, '3')"
	try wsync-ctl complete
	expect_status 0
	is new.safetensors "$first"
	[ -z "$(records)" ]
	endpoint bad --lineage xorl --fault refuse:prepare_weights_update:1
	try wsync-push old.safetensors -e "$first" -e "$url" --stage
	expect_status 5
	out_has "untouched $first"
	[ -z "$(records)" ]
	is new.safetensors "$first"
	expect_journal "$first" 's["paused"], s["prepared"], s["groups"]' "(False, False, [])"
}

@test "servers and options that cannot stage are refused before anything is sent" {
	endpoint one --lineage sglang-2026
	try wsync-push new.safetensors -e "$url" --stage
	expect_status 5
	err_has "$url takes no protocol two-phase: it has no /prepare_weights_update"
	err_has "hint: use --backend disk, or push without --stage"
	try wsync-push new.safetensors -e "$url" --stage --protocol update
	expect_status 2
	err_has "--stage takes --protocol two-phase or --backend disk"
	local row
	for row in "--verify hash|so give it to wsync-ctl complete" "--flush never|they belong to" \
		"--pause retract|they belong to" "--sender 1/2|takes no --sender" \
		"--asleep weights|takes no --asleep"; do
		# shellcheck disable=SC2086  # words
		try wsync-push new.safetensors -e "$url" --stage ${row%|*}
		expect_status 2
		err_has "${row#*|}"
	done
	try wsync-push -e "$url" --stage --stdin
	expect_status 2
	err_has "--stage takes no --stdin"
	expect_journal "$url" '[p for p in paths if "update" in p]' "[]"
	try wsync-ctl complete -e "$url"
	expect_status 5
	err_has "$url: nothing is staged there"
	try wsync-ctl complete new.safetensors -e "$url"
	expect_status 2
	err_has "SOURCE is for --verify hash only"
}

@test "disk: written now, loaded at the word; discard removes it" {
	endpoint one --lineage sglang-2026
	mkdir ckpt
	try wsync-push old.safetensors -e "$url" --weight-version 1
	expect_status 0
	try wsync-push new.safetensors -e "$url" --stage --backend disk --disk-dir ckpt \
		--weight-version 2
	expect_status 0
	is old.safetensors "$url"
	expect_journal "$url" '[p for p in paths if "disk" in p]' "[]"
	[ "$(ls ckpt)" = wsync-2 ]
	try wsync-push new.safetensors -e "$url" --stage --backend disk --disk-dir ckpt
	expect_status 5
	try wsync-ctl complete --json
	expect_status 0
	expect_json 'lines[-1]["weight_version"], lines[-1]["endpoints"][0]["state"]' \
		"('2', 'committed')"
	is new.safetensors "$url"
	[ "$(ls ckpt)" = wsync-2 ]
	try wsync-push old.safetensors -e "$url" --stage --backend disk --disk-dir ckpt \
		--weight-version 3
	expect_status 0
	[ "$(ls ckpt | tr '\n' ' ')" = "wsync-2 wsync-3 " ]
	try wsync-ctl discard
	expect_status 0
	[ "$(ls ckpt)" = wsync-2 ]
	[ -z "$(records)" ]
	# as it lies there
	mkdir whole
	cp old.safetensors whole/model.safetensors
	try wsync-push whole -e "$url" --stage --backend disk
	expect_status 0
	cp new.safetensors whole/model.safetensors
	try wsync-ctl complete
	expect_status 3
	err_has "model.safetensors"
	expect_journal "$url" 's["paused"]' False
	try wsync-ctl discard
	expect_status 0
}

@test "disk: a written checkpoint that others changed is not loaded" {
	endpoint one
	for change in 'touch -r "$f" kept; printf x | dd of="$f" bs=1 seek=900 conv=notrunc
		touch -r kept "$f"' 'cp "$f" copy; mv copy "$f"' 'touch "${f%/*}/more"' 'rm "$f"'; do
		try wsync-push new.safetensors -e "$url" --stage --backend disk --disk-dir ckpt
		expect_status 0
		f=$(echo ckpt/*/*.safetensors)
		eval "$change" 2>/dev/null
		try wsync-ctl complete -e "$url"
		expect_status 3
		err_has "hint: "
		out_has "untouched $url, still staged"
		expect_journal "$url" '[p for p in paths if "pause" in p or "disk" in p]' "[]"
		rm -f ckpt/*/more # discard leaves a directory alone that has what it did not write
		try wsync-ctl discard -e "$url"
		expect_status 0
		rm -rf ckpt
	done
}

@test "disk: what was staged for one start of a server is not loaded by another" {
	endpoint first --checksums
	first=$url
	endpoint second --checksums
	local port=${url##*:}
	try wsync-push new.safetensors -e "$first" -e "$url" --stage --backend disk --disk-dir ckpt
	expect_status 0
	kill "$pid"
	wait "$pid" || :
	endpoint second --listen "127.0.0.1:$port" --checksums
	try wsync-ctl complete
	expect_status 9
	out_has "untouched $url, still staged: it is another start of the server, or another \
server, than the update was staged for"
	expect_journal "$url" '[p for p in paths if "pause" in p or "disk" in p]' "[]"
	is new.safetensors "$first"
	try wsync-ctl complete -e "$url"
	expect_status 5
	err_has "hint: stage it again: wsync-ctl discard -e $url"
	try wsync-ctl discard -e "$url"
	expect_status 0
	[ -z "$(records)" ]
}

@test "disk: the start of a server with several API processes is all of them" {
	endpoint e --lineage vllm-0.33 --model-path elsewhere
	proxy "$url" 'if path == "/again": kept["start"], answer = 1, (200, "{}")' '
if isinstance(reply.get("vllm_config"), dict):
    rank = kept["rank"] = 1 - kept.get("rank", 0)
    config = reply["vllm_config"]
    config["parallel_config"].update(_api_process_rank=rank, _api_process_count=2)
    config["instance_id"] = str(int(config["instance_id"]) + rank + 2 * kept.get("start", 0))'
	local stage=(wsync-push new.safetensors -e "$url" --stage --backend disk --disk-dir ckpt)
	try "${stage[@]}"
	expect_status 0
	try wsync-ctl complete --json
	expect_status 0
	expect_json '[(e["evidence"]["word"], e["evidence"]["instance"]["end"])
		for e in lines[-1]["endpoints"]]' "[('committed', 'same')]"
	try "${stage[@]}"
	expect_status 0
	fetch "$url/again"
	try wsync-ctl complete -e "$url"
	expect_status 5
	err_has "it is another start of the server, or another server, than the update was staged \
for"
}

@test "disk: where no server tells its start, what was staged is loaded and not proven" {
	endpoint e
	proxy "$url" pass 'if path == "/server_info": reply["tokenizer_worker_num"] = 2'
	try wsync-push new.safetensors -e "$url" --stage --backend disk --disk-dir ckpt
	expect_status 0
	try wsync-ctl complete --json --weight-version 7
	expect_status 0
	err_has "nothing tells whether this is still the server that the update was staged for"
	expect_json 'lines[-1]["endpoints"][0]["evidence"]["word"]' acknowledged
}

@test "disk: the next push removes what was staged; -n and --write stage nothing" {
	endpoint one --lineage sglang-2026
	mkdir ckpt
	try wsync-push new.safetensors -e "$url" --stage --backend disk --disk-dir ckpt
	expect_status 0
	try wsync-push old.safetensors -e "$url"
	expect_status 0
	err_has "this push ends the update that process"
	[ -z "$(ls ckpt)" ]
	[ -z "$(records)" ]
	endpoint two --lineage xorl
	try wsync-push new.safetensors -e "$url" --stage -n
	expect_status 0
	out_has "would stage"
	out_lacks "to load it"
	[ -z "$(records)" ]
	try wsync-push new.safetensors --stage --write out
	expect_status 2
	err_has "--stage sends, and --write only writes"
}

@test "a server that fails to load is partial and paused, and repair --again pushes all of it" {
	endpoint one --lineage xorl --fault refuse:complete_weights_update:1
	try wsync-push old.safetensors -e "$url" --protocol update
	expect_status 0
	try wsync-push new.safetensors -e "$url" --stage --weight-version 2
	expect_status 0
	try wsync-ctl complete
	expect_status 5
	out_has "partial   $url, left paused"
	expect_journal "$url" 's["paused"], s["weight_version"]' "(True, 'default')"
	try wsync-push new.safetensors -e "$url" --stage
	expect_status 5
	try wsync-ctl repair --again
	expect_status 0
	is new.safetensors "$url"
	expect_journal "$url" 's["paused"], s["prepared"], s["weight_version"]' \
		"(False, False, '2')"
	[ -z "$(records)" ]
}

@test "of two that are staged one can be completed and the other dropped" {
	pair xorl
	try wsync-push new.safetensors -e "$first" -e "$url" --stage --weight-version 2
	expect_status 0
	try wsync-ctl complete -e "localhost:${first##*:}" --weight-version 3 --flush never
	expect_status 0
	is new.safetensors "$first"
	is old.safetensors "$url"
	expect_journal "$first" 's["weight_version"], paths.count("/flush_cache")' "('3', 1)"
	try wsync-push new.safetensors -e "$first" --stage
	expect_status 0
	try wsync-ctl complete
	expect_status 5
	err_has "have updates of different pushes"
	try wsync-push new.safetensors -e "$url" --pause none --protocol update
	expect_status 5
	err_has "an update is staged at these endpoints, and a push can end it"
	try wsync-ctl discard -e "$url"
	expect_status 0
	try wsync-ctl complete
	expect_status 0
	[ -z "$(records)" ]
}

@test "the same list again: endpoints that have loaded it are left out" {
	pair xorl
	local second=$url port=${url##*:}
	try wsync-push new.safetensors -e "$first" -e "$second" --stage --weight-version 2
	expect_status 0
	kill -STOP "$pid"
	try wsync-ctl complete -e "$first" -e "$second" --connect-timeout 300ms --json
	expect_status 9
	expect_json '[(e["state"], e["staged"]) for e in lines[-1]["endpoints"]]' \
		"[('committed', False), ('untouched', True)]"
	kill -CONT "$pid"
	try wsync-ctl complete -e "$first" -e "$second"
	expect_status 0
	err_has "$first: nothing is staged there: left out"
	is new.safetensors "$first" "$second"
	expect_journal "$first" 's["weight_version"]' 2
	expect_journal "$second" 's["weight_version"]' 2
	[ -z "$(records)" ]
	try wsync-push old.safetensors -e "$first" --stage
	expect_status 0
	try wsync-ctl discard -e "$first" -e "$second"
	expect_status 0
	err_has "$second: nothing is staged there: left out"
}

@test "one that fails to load: the other has the new weights and their version" {
	endpoint first --lineage xorl
	first=$url
	endpoint second --lineage xorl --fault refuse:complete_weights_update:1
	try wsync-push new.safetensors -e "$first" -e "$url" --stage --weight-version 2
	expect_status 0
	try wsync-ctl complete
	expect_status 9
	out_has "acknowledged $first"
	out_has "partial   $url, left paused"
	expect_journal "$first" 's["weight_version"], s["paused"]' "('2', False)"
	try wsync-ctl repair
	expect_status 0
	expect_journal "$url" 's["weight_version"], s["paused"], s["prepared"]' \
		"('2', False, False)"
	is new.safetensors "$first" "$url"
	[ -z "$(records)" ]
}

@test "a source that changes while servers load it: no endpoint counts as committed" {
	endpoint first
	local real=$url
	mkdir whole
	cp new.safetensors whole/model.safetensors
	meddle "$real" /update_weights_from_disk 1 \
		"cp $PWD/old.safetensors $PWD/whole/model.safetensors"
	first=$url
	endpoint second --fault refuse:update_weights_from_disk:1
	try wsync-push whole -e "$first" -e "$url" --stage --backend disk --weight-version 2
	expect_status 0
	try wsync-ctl complete
	expect_status 5
	out_has "partial   $first, left paused"
	expect_journal "$real" 's["paused"], s["weight_version"]' "(True, 'default')"
}

@test "one is gone and one cannot be resumed: exit 9, and both are told" {
	local n fault=()
	for n in 1 2 3 4 5; do fault+=(--fault "refuse:continue_generation:$n"); done
	endpoint second --lineage xorl
	local second=$url its=$pid
	endpoint first --lineage xorl "${fault[@]}"
	try wsync-push new.safetensors -e "$url" -e "$second" --stage
	expect_status 0
	kill "$its"
	wait "$its" || :
	try wsync-ctl complete
	expect_status 9
	out_has "acknowledged $url, left paused"
	out_has "untouched $second, still staged"
	err_has "1 of 2 endpoints updated"
}

@test "disk: a checkpoint that a server has loaded stays, and as many as the stage wanted" {
	endpoint first
	first=$url
	endpoint second
	mkdir ckpt
	local disk=(--backend disk --disk-dir ckpt --disk-keep 2)
	for v in 1 2; do
		try wsync-push old.safetensors -e "$first" -e "$url" "${disk[@]}" \
			--weight-version $v
		expect_status 0
	done
	try wsync-push new.safetensors -e "$first" -e "$url" "${disk[@]}" --weight-version 3 --stage
	expect_status 0
	try wsync-ctl complete -e "$first"
	expect_status 0
	try wsync-ctl discard
	expect_status 0
	[ -e ckpt/wsync-3 ] || explain "a loaded checkpoint is gone"
	try wsync-push old.safetensors -e "$first" -e "$url" "${disk[@]}" --weight-version 4 --stage
	expect_status 0
	try wsync-ctl complete
	expect_status 0
	[ "$(cd ckpt && echo *)" = "wsync-3 wsync-4" ] || explain "$(ls ckpt)"
	# gone, and found to be gone before the pause
	try wsync-push new.safetensors -e "$url" "${disk[@]}" --weight-version 5 --stage
	expect_status 0
	rm -r ckpt/wsync-5
	try wsync-ctl complete
	expect_status 3
	err_has "the staged checkpoint is gone"
	expect_journal "$url" 'paths.count("/pause_generation")' 3
	try wsync-ctl discard
	expect_status 0
	[ -z "$(records)" ]
}
