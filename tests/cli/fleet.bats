#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Many endpoints, some of which come and go: who needs which weights, and who may get traffic.
load helpers

prepare() { safetensors small.safetensors {a,b,c,d,e,f}.weight:F32:64,16; }

@test "a version that is an integer does not go back without --allow-older" {
	endpoint e
	try wsync-push small.safetensors -e "$url" --weight-version 57
	expect_status 0
	try wsync-push small.safetensors -e "$url" --weight-version 1
	expect_status 5
	err_has "$url has weight version 57, and 1 is older"
	err_has "to go back to it: --allow-older"
	expect_journal "$url" 'paths.count("/pause_generation"), s["weight_version"]' "(1, '57')"
	try wsync-push small.safetensors -e "$url" --weight-version 57
	expect_status 0
	try wsync-push small.safetensors -e "$url" --weight-version 1 --allow-older
	expect_status 0
	try wsync-push small.safetensors -e "$url" --weight-version step-0
	expect_status 0
	try wsync-push small.safetensors -e "$url" --weight-version 0
	expect_status 0
}

# cut OPTION...: a push to $url that is ended by SIGTERM between two buckets.
cut() {
	start cut wsync-push small.safetensors -e "$url" --bucket-size 4KiB \
		--bucket-timeout 300s "$@"
	eventually requested /update_weights_from_distributed 2
	kill "$pid"
	finished cut 143
}

@test "a server with some old and some new weights is resumed by force only" {
	endpoint e --fault slow:update_weights_from_distributed:2 --fault-delay 60s
	cut
	golden_err fleet/cut.err
	try wsync-ctl resume -e "$url"
	expect_status 5
	err_has "$url: it has some old and some new weights, and would answer with them"
	err_has "--force resumes it all the same"
	expect_journal "$url" 's["paused"]' True
	try wsync-ctl resume -e "$url" --force
	expect_status 0
	expect_journal "$url" 's["paused"]' False
}

# endpoints N: their URLs in ${urls[@]}, the options in ${to[@]}.
endpoints() {
	urls=() to=()
	local i
	for ((i = 0; i < $1; i++)); do
		endpoint "e$i"
		urls+=("$url") to+=(-e "$url")
	done
}

fleet() { try wsync-push small.safetensors "${to[@]}" --weight-version "$@" --json; }

# expect_fed URL...: those that the push sent something to.
expect_fed() {
	local got
	got=$(json '" ".join(e["url"] for e in lines[-1]["endpoints"]
		if e["ok"] and not e["current"])')
	[ "$got" = "$*" ] || explain "expected that $* were fed, not $got"
	documented wsync-push <<<"$out"
}

documented() { /usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" "$1"; }

@test "only those that lack the version get the weights" {
	endpoints 3
	fleet 5 --only-stale
	expect_fed "${urls[@]}"
	fleet 5 --only-stale
	expect_status 0
	expect_fed
	# A source that nobody lacks is not even read.
	try wsync-push nowhere.safetensors "${to[@]}" --weight-version 5 --only-stale
	expect_status 0
	expect_out "all 3 endpoints have weight version 5"
	curl -sS -d '{"new_version":"default"}' "${urls[1]}/update_weight_version" >/dev/null
	fleet 5 --only-stale
	expect_fed "${urls[1]}"
	expect_journal "${urls[0]}" 'paths.count("/pause_generation")' 1
	expect_json '[l["stale"] for l in lines if l["type"] == "stale"]' '[False, True, False]'
}

@test "the version that every fresh server reports is none to push or to ask for" {
	endpoints 1
	try wsync-push m "${to[@]}" --weight-version default --only-stale
	expect_status 2
	err_has "the weight version 'default' would say nothing: every fresh SGLang reports it"
	try wsync-ctl ready "${to[@]}" --weight-version default
	expect_status 2
	try wsync-ctl version default "${to[@]}"
	expect_status 2
	expect_journal "${urls[0]}" 's["weight_version"]' default
	expect_out ""
}

@test "with checksums also those that have the version and other bytes" {
	endpoints 2
	fleet 5
	safetensors other.safetensors {a,b,c,d,e,f}.weight:F32:64,16 --seed 2
	try wsync-push other.safetensors -e "${urls[1]}" --weight-version 5
	expect_status 0
	fleet 5 --only-stale
	expect_fed
	fleet 5 --only-stale --verify hash
	expect_status 0
	expect_fed "${urls[1]}"
	err_has "it has weight version 5, but other bytes"
	fleet 5 --only-stale --verify hash
	expect_fed
	# A push to all tells it, too.
	fleet 5 --verify hash
	err_lacks "other bytes"
	try wsync-push other.safetensors "${to[@]}" --weight-version 5 --verify hash
	err_has "it had weight version 5 before this push, but other bytes"
	fleet 5
	# the bytes alone
	try wsync-push small.safetensors "${to[@]}" --only-stale --verify hash
	expect_out "all 2 endpoints have these weights, verified by hash"
}

# expect_stale URL REASON: it is not ready with version 5, and --only-stale pushes to it.
expect_stale() {
	try wsync-ctl ready -e "$1" --weight-version 5 --json
	expect_status 1
	expect_json '[(l["reason"], l["current_by"]) for l in lines if l["type"] == "endpoint"]' \
		"[('stale', None)]"
	err_has "it has weight version 5, but push "
	err_has "$2"
	fleet 5 --only-stale
	expect_fed "$1"
	try wsync-ctl ready -e "$1" --weight-version 5 --json
	expect_status 0
	expect_json '[l["current_by"] for l in lines if l["type"] == "endpoint"]' "['record']"
}

@test "a version is that of the last push, and of all weights" {
	endpoints 1
	safetensors other.safetensors {a,b,c,d,e,f}.weight:F32:64,16 --seed 2
	fleet 5 --include '[ab].weight'
	expect_stale "$url" "has sent only a part of the weights"
	# The same part again lacks nothing of the part.
	fleet 6 --include '[ab].weight'
	fleet 6 --include '[ab].weight' --only-stale
	expect_fed
	fleet 5 --allow-older
	try wsync-push other.safetensors "${to[@]}"
	expect_stale "$url" "has replaced its weights since, without a version"
	# A check that pushes the same once more leaves the version as it is.
	try wsync-verify weights small.safetensors "${to[@]}" --twice
	expect_status 0
	fleet 5 --only-stale
	expect_fed
	safetensors more.safetensors {a,b,c,d,e,f,g}.weight:F32:64,16
	try wsync-push more.safetensors "${to[@]}" --weight-version 5
	fleet 5 --only-stale
	expect_fed "$url"
	expect_json '["another plan" in l["message"] for l in lines if l["type"] == "stale"]' "[True]"
}

@test "a push that was killed leaves a doubt, also after its repair" {
	endpoint e --fault slow:continue_generation:2 --fault-delay 60s
	urls=("$url") to=(-e "$url")
	fleet 5
	start cut wsync-push small.safetensors -e "$url"
	eventually requested /continue_generation 2
	kill -KILL "$pid"
	finished cut 137
	try wsync-ctl repair -e "$url"
	expect_status 0
	expect_stale "$url" "has begun to change its weights, and no end is recorded"
}

@test "a push is in the history before its pause, and leaves no doubt if it changed nothing" {
	endpoint e --fault refuse:pause_generation:2 --fault hang:pause_generation:3
	urls=("$url") to=(-e "$url")
	fleet 5
	try wsync-push small.safetensors -e "$url"
	[ "$status" != 0 ]
	try wsync-ctl ready -e "$url" --weight-version 5
	expect_status 0
	start cut wsync-push small.safetensors -e "$url"
	eventually requested /pause_generation 3
	kill -KILL "$pid"
	finished cut 137
	try wsync-ctl repair -e "$url"
	expect_stale "$url" "has begun to change its weights, and no end is recorded"
}

@test "a check that pushes other weights ends what the version says, and so does sleep" {
	endpoint e --lineage session
	urls=("$url") to=(-e "$url")
	safetensors other.safetensors {a,b,c,d,e,f}.weight:F32:64,16 --seed 2
	fleet 5
	try wsync-verify weights other.safetensors "${to[@]}" --twice
	expect_status 1
	try wsync-ctl ready "${to[@]}" --weight-version 5
	expect_status 1
	err_has "wsync-verify weights has pushed others since"
	fleet 5
	try wsync-ctl sleep "${to[@]}"
	try wsync-ctl wake "${to[@]}"
	try wsync-ctl resume "${to[@]}" --force
	try wsync-ctl ready "${to[@]}" --weight-version 5
	expect_status 1
	err_has "wsync-ctl has released its weights since"
}

@test "a version that somebody else has set is told as such, and establishes nothing" {
	endpoints 1
	curl -sS -d '{"new_version":"5"}' "$url/update_weight_version" >/dev/null
	try wsync-push small.safetensors "${to[@]}" --weight-version 5 --only-stale
	expect_status 0
	expect_out "all 1 endpoint has weight version 5 (by its label alone)"
	fleet 5 --only-stale
	expect_fed
	expect_json '[l["current_by"] for l in lines if l["type"] == "stale"]' "['label']"
	expect_json 'lines[-1]["endpoints"][0]["current_by"]' label
	try wsync-ctl ready "${to[@]}" --weight-version 5
	expect_status 0
	out_has "by its label alone"
	try wsync-ctl ready "${to[@]}"
	expect_status 0
	out_has "by its label alone"
	COLUMNS=200 try wsync-ctl status "${to[@]}"
	out_has "5 (by its label alone)"
	fleet 5 --only-stale --require format
	expect_status 0
	expect_fed "$url"
	fleet 5 --only-stale --require format
	expect_status 0
	expect_fed
	expect_json 'lines[-1]["endpoints"][0]["current_by"]' record
}

@test "what is required of a server that may have been restarted is not known" {
	endpoint weak --lineage xorl
	to=(-e "$url") urls=("$url")
	endpoint sure --lineage session
	fleet 5 --require format
	expect_status 0
	fleet 5 --only-stale
	expect_status 0
	to+=(-e "$url")
	fleet 5 --only-stale --require format
	expect_status 11
	expect_fed "$url"
	err_has "${urls[0]} does not report which start of it answers"
	expect_journal "$url" 's["weight_version"]' 5
}

@test "a push to the canary during its check fails it, with and without a version" {
	safetensors other.safetensors {a,b,c,d,e,f}.weight:F32:64,16 --seed 2
	for version in "" "--weight-version 5"; do
		endpoints 2
		# shellcheck disable=SC2086
		try wsync-push small.safetensors "${to[@]}" $version --canary 1 --canary-check \
			"wsync-push -q other.safetensors -e \$WSYNC_ENDPOINTS $version"
		expect_status 1
		err_has "${urls[0]} has lost the weights during the check: another push has changed"
		expect_journal "${urls[1]}" 'paths.count("/pause_generation")' 0
	done
}

@test "an endpoint that a killed push has paused is stale, although its version is right" {
	endpoint e --fault slow:continue_generation:1 --fault-delay 60s
	to=(-e "$url") urls=("$url")
	start cut wsync-push small.safetensors -e "$url" --weight-version 5
	eventually requested /continue_generation 1
	kill -KILL "$pid"
	finished cut 137
	try wsync-ctl ready -e "$url" --weight-version 5 --json
	expect_status 1
	expect_json '[l["reason"] for l in lines if l["type"] == "endpoint"]' "['held']"
	fleet 5 --only-stale
	expect_fed "$url"
	expect_journal "$url" 's["paused"]' False
	try wsync-ctl ready -e "$url" --weight-version 5
	expect_status 0
}

@test "what cannot be reached is left out if enough are left" {
	endpoints 3
	kill -KILL "$pid"
	gone=${urls[2]}
	fleet 5
	expect_status 4
	for options in "" --only-stale; do
		fleet $((++v + 5)) --min-endpoints 2 $options
		expect_status 0
		expect_fed "${urls[0]}" "${urls[1]}"
		expect_json '[(e["left_out"], e["state"]) for e in lines[-1]["endpoints"]][2]' \
			"(True, 'untouched')"
		fleet $((++v + 5)) --min-endpoints 3 $options
		expect_status 4
		err_has "2 of 3 endpoints are left, fewer than --min-endpoints 3"
	done
	expect_journal "${urls[0]}" 's["paused"], s["weight_version"]' "(False, '8')"
	fleet 9 --min-endpoints 4
	expect_status 4
	err_has "3 of 3 endpoints are left, fewer than --min-endpoints 4"
	# The canaries are those that can be reached.
	to=(-e "$gone" -e "${urls[0]}" -e "${urls[1]}")
	fleet 10 --min-endpoints 2 --canary 1 --canary-check true
	expect_status 0
	expect_json '[l["endpoints"] for l in lines if l["type"] == "canary"]' "[['${urls[0]}']]"
}

@test "one that hangs is left out, and costs the others nothing" {
	endpoints 3
	kill -STOP "$pid"
	fleet 5 --only-stale --min-endpoints 2 --connect-timeout 5s
	expect_status 0
	expect_fed "${urls[0]}" "${urls[1]}"
	try wsync-ctl ready "${to[@]}" --min-endpoints 2 --weight-version 5 -t 10s
	expect_status 0
}

@test "one that was left with mixed weights and cannot be reached is told" {
	endpoint e --fault slow:update_weights_from_distributed:2 --fault-delay 60s
	cut
	mixed=$url
	kill -KILL "${background[0]}"
	endpoints 1
	to+=(-e "$mixed")
	fleet 5 --only-stale --min-endpoints 1
	expect_status 9
	expect_json '[(e["state"], e["paused"], e["left_out"]) for e in lines[-1]["endpoints"]][1]' \
		"('partial', True, True)"
	err_has "a record lists it as left by an earlier push"
	expect_journal "${urls[0]}" 's["weight_version"]' 5
	try wsync-ctl repair --forget -e "$mixed"
	fleet 5 --only-stale --min-endpoints 1
	expect_status 0
}

@test "a list of released memory is about all endpoints" {
	endpoints 1
	STDIN=<(printf 'small.safetensors\t6\tweights,kv_cache\nsmall.safetensors\t7\n') \
		try wsync-push --stdin "${to[@]}" --only-stale --json
	expect_status 2
	out_has "--asleep recorded"
	expect_json '[l["ok"] for l in lines if l["type"] == "result"]' "[False, True]"
	try wsync-push small.safetensors "${to[@]}" --min-endpoints 1 --asleep weights
	expect_status 2
}

@test "one that is paused by somebody and lacks the weights is stale" {
	endpoint e --lineage session
	to=(-e "$url") urls=("$url")
	fleet 5
	try wsync-ctl pause "${to[@]}"
	fleet 5 --only-stale
	expect_fed
	err_has "it is paused"
	fleet 6 --only-stale
	expect_fed "$url"
	safetensors other.safetensors {a,b,c,d,e,f}.weight:F32:64,16 --seed 2
	try wsync-push other.safetensors "${to[@]}" --weight-version 6
	try wsync-ctl pause "${to[@]}"
	fleet 6 --only-stale --verify hash
	expect_fed "$url"
}

@test "after a loss in the transfer the rest starts over once" {
	endpoints 2
	endpoint dies --fault die:update_weights_from_distributed:3
	to+=(-e "$url")
	fleet 5 --min-endpoints 2 --bucket-size 4KiB
	expect_status 9
	err_has "$url was lost during the push"
	expect_json '[(e["ok"], e["state"], e["left_out"]) for e in lines[-1]["endpoints"]]' \
		"[(True, 'committed', False), (True, 'committed', False), (False, 'partial', True)]"
	for url in "${urls[@]}"; do
		expect_journal "$url" 's["paused"], s["weight_version"]' "(False, '5')"
	done
	# Too few are left: the failure of the push stays, with what to type.
	endpoint dies --fault die:update_weights_from_distributed:3
	to=(-e "${urls[0]}" -e "$url")
	fleet 6 --min-endpoints 2 --bucket-size 4KiB
	[ "$status" != 0 ] || explain "it cannot succeed"
	err_has "1 of 2 endpoints is left, fewer than --min-endpoints 2"
	err_has "wsync-ctl repair --again"
	expect_json 'lines[-1]["endpoints"][0]["state"], lines[-1]["endpoints"][0]["paused"]' \
		"('partial', True)"
}

@test "the check of the canaries decides about the rest" {
	endpoints 3
	# shellcheck disable=SC2016 # for the shell of the check
	fleet 5 --canary 1 --canary-check 'echo "$WSYNC_ENDPOINTS at $WSYNC_VERSION"; exit 7'
	expect_status 1
	err_has "${urls[0]} at 5"
	err_has "the canary check failed: exit status 7"
	expect_fed "${urls[0]}"
	expect_json '[(l["endpoints"], l["ok"]) for l in lines if l["type"] == "canary"]' \
		"[(['${urls[0]}'], False)]"
	expect_journal "${urls[1]}" 's["weight_version"], paths.count("/pause_generation")' \
		"('default', 0)"
	# A loop asks the same endpoint again, and not the next one.
	fleet 5 --canary 1 --canary-check false --only-stale
	expect_status 1
	expect_fed
	fleet 5 --canary 1 --canary-check 'sleep 300 & wait' --canary-timeout 200ms --only-stale
	expect_status 1
	err_has "the canary check did not end within 200 ms"
	fleet 5 --canary 1 --canary-check 'trap "exit 0" TERM; sleep 300 & wait' \
		--canary-timeout 200ms --only-stale
	expect_status 1
	fleet 5 --canary 1 --canary-check 'sleep 300 & wait' --timeout 5s --only-stale
	expect_status 10
	fleet 5 --canary 1 --canary-check 'touch checked' --only-stale
	expect_status 0
	expect_fed "${urls[1]}" "${urls[2]}"
	test -e checked && rm checked
	fleet 5 --canary 1 --canary-check 'touch checked' --only-stale
	expect_status 0
	! test -e checked || explain "nobody lacked the weights"
	try wsync-push small.safetensors "${to[@]}" --canary 1
	expect_status 2
}

@test "a signal reaches the check, and what it has started" {
	endpoints 2
	start cut wsync-push small.safetensors "${to[@]}" --weight-version 5 --canary 1 \
		--canary-check 'trap "touch told; exit 3" TERM; touch begun; sleep 300 & echo $! >child; wait'
	eventually test -e begun
	eventually test -s child
	kill "$pid"
	finished cut 143
	test -e told
	gone() { ! kill -0 "$(<child)" 2>/dev/null; }
	eventually gone
	expect_journal "${urls[1]}" 's["weight_version"], s["paused"]' "('default', False)"
}

@test "a push that is killed during the check leaves nothing to repair at the canaries" {
	endpoints 2
	start cut wsync-push small.safetensors "${to[@]}" --weight-version 5 --canary 1 \
		--canary-check 'echo $$ >child; exec sleep 300'
	eventually test -s child
	kill -KILL "$pid"
	finished cut 137
	kill "$(<child)" # it outlives the push
	try wsync-ctl ready -e "${urls[0]}" --weight-version 5
	expect_status 0
	expect_journal "${urls[0]}" 's["paused"], s["groups"]' "(False, [])"
	fleet 5 --only-stale --canary 1 --canary-check true
	expect_fed "${urls[1]}"
}

# canaries URL...: a push of m to all, of which the first is the canary.
canaries() {
	try wsync-push m $(printf -- '-e %s ' "$@") --weight-version 5 --canary 1 \
		--canary-check "${check:-true}" --json
}

@test "what cannot work at the others ends the push before a canary changes" {
	llama m
	llama deep 's/layers\.1/layers.2/'
	sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' deep/config.json
	endpoint first --model m
	local first=$url
	endpoint other --model deep
	canaries "$first" "$url"
	expect_status 1
	err_has "$url: "
	err_has "errors in the names"
	expect_json '{l["url"] for l in lines if l["type"] == "mismatch"}' "{'$url'}"
	expect_json 'lines[-1]["tensors"]' 21
	endpoint newer --model m
	curl -sS -d '{"new_version":"6"}' "$url/update_weight_version" >/dev/null
	canaries "$first" "$url"
	expect_status 5
	err_has "$url has weight version 6, and 5 is older"
	endpoint asleep --model m --lineage sglang-2026
	try wsync-ctl sleep --tags kv_cache -e "$url"
	canaries "$first" "$url"
	expect_status 2
	err_has "left kv_cache released, and --asleep is missing"
	endpoint gone --model m
	kill -KILL "$pid"
	canaries "$first" "$url"
	expect_status 4
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('untouched', False), ('untouched', False)]"
	expect_journal "$first" 'paths.count("/pause_generation"), s["weight_version"]' \
		"(0, 'default')"
}

@test "canaries that have the weights, and others that do not, are exit status 9" {
	llama m
	endpoint first --model m
	local first=$url
	endpoint refuses --model m --fault refuse:pause_generation:1
	canaries "$first" "$url"
	expect_status 9
	err_has "1 of 2 endpoints updated: $url: POST /pause_generation: refused"
	endpoint dies --model m
	check="kill -KILL $pid; while kill -0 $pid; do sleep 0.05; done" canaries "$first" "$url"
	expect_status 9
	err_has "1 of 2 endpoints updated: "
	# The step that failed had no plan; that of the canary counts.
	expect_json '[(l["tensors"], l["bytes"] > 0, l["digest"] > "1") for l in lines
		if l["type"] == "end"]' "[(21, True, True)]"
	expect_json '[(e["state"], e["ok"]) for e in lines[-1]["endpoints"]]' \
		"[('committed', True), ('untouched', False)]"
}

@test "a canary that loses the weights during the check fails it" {
	endpoints 2
	fleet 5 --canary 1 --canary-check "curl -sS -d '{\"new_version\":\"old\"}' \
\$WSYNC_ENDPOINTS/update_weight_version >&2"
	expect_status 1
	err_has "${urls[0]} has lost the weights during the check: it has weight version old"
	expect_journal "${urls[1]}" 's["weight_version"]' default
}

@test "ready says yes for the right version only, and wait waits for it" {
	endpoints 2
	try wsync-ctl ready "${to[@]}"
	expect_status 0
	try wsync-ctl ready "${to[@]}" --weight-version 5
	expect_status 1
	err_has "0 of 2 endpoints are ready, 2 are needed: ${urls[0]}: it has weight version default"
	start waits wsync-ctl wait "${to[@]}" --weight-version 5 --json
	try wsync-ctl wait "${to[@]}" --weight-version 5 -t 100ms
	expect_status 10
	try wsync-push small.safetensors -e "${urls[0]}" --weight-version 5
	try wsync-ctl ready "${to[@]}" --weight-version 5 --min-endpoints 1
	expect_status 0
	try wsync-push small.safetensors -e "${urls[1]}" --weight-version 5
	finished waits 0
	documented wsync-ctl <<<"$out"
	try wsync-ctl ready "${to[@]}" small.safetensors --verify hash
	expect_status 0
	out_lacks "not covered"
	try wsync-ctl ready "${to[@]}" small.safetensors --verify hash --include 'a.*'
	expect_status 0
	out_has "5 of its tensors were left out and are not covered"
	try wsync-ctl ready "${to[@]}" small.safetensors --verify hash --include 'a.*' --json
	expect_json '[(l["not_covered"], l["current_by"] == "proof") for l in lines
		if l["type"] == "endpoint"]' "[(5, False), (5, False)]"
	safetensors other.safetensors {a,b,c,d,e,f}.weight:F32:64,16 --seed 2
	try wsync-ctl ready "${to[@]}" other.safetensors --verify hash --weight-version 5 --json
	expect_status 1
	expect_json '[l["reason"] for l in lines if l["type"] == "endpoint"]' "['bytes', 'bytes']"
	try wsync-ctl ready "${to[@]}" --verify hash
	expect_status 2
	try wsync-ctl ready "${to[@]}" --min-endpoints 5
	expect_status 1
	err_has "2 endpoints are registered or given, and 5 are needed"
}

@test "wait waits for the first server of a registry" {
	start waits wsync-ctl wait --weight-version 5
	waits=$pid
	endpoint e
	try wsync-push small.safetensors -e "$url" --weight-version 5
	wsync-register add "$url" >/dev/null
	finished waits 0 "$waits"
}

@test "a server that reports a pause is not ready" {
	for lineage in session vllm-0.33; do
		endpoint "$lineage" --lineage "$lineage"
		try wsync-ctl ready -e "$url"
		expect_status 0
		try wsync-ctl pause -e "$url"
		try wsync-ctl ready -e "$url"
		expect_status 1
		err_has "it is paused"
	done
	endpoint asleep --lineage vllm-0.33 # vLLM reports that, too
	try wsync-ctl sleep -e "$url"
	expect_status 0
	try wsync-ctl ready -e "$url"
	expect_status 1
	err_has "its memory is released by wsync-ctl"
	rm state/wsync/pushes/*.json
	try wsync-ctl ready -e "$url"
	err_has "it sleeps"
}

@test "status shows the fleet" {
	endpoints 2
	wsync-register add "${urls[0]}" --pool actors >/dev/null
	wsync-register add "${urls[1]}" >/dev/null
	try wsync-push small.safetensors --pool actors --weight-version 5 --verify hash
	kill -KILL "$pid"
	try wsync-ctl status --json
	expect_status 0
	documented wsync-ctl <<<"$out"
	expect_json '[(l["pool"], l["ready"], l["reason"], l["weight_version"],
		(l["last_push"] or {}).get("coverage")) for l in lines
		if l["type"] == "endpoint"]' \
		"[('actors', True, None, '5', 100), ('default', False, 'unreached', None, None)]"
	expect_json 'lines[-2]["ready"], lines[-2]["endpoints"]' '(1, 2)'
	COLUMNS=200 try wsync-ctl status
	out_has "1 of 2 endpoints ready; weight version 5: 1"
	start watch wsync-ctl status --watch --json
	shows() { [ "$(grep -c '"status"' watch.out)" -ge 2 ]; }
	eventually shows
	kill "$pid"
	finished watch 143
	# It ends when nobody reads any more.
	try bash -c 'wsync-ctl status --watch --json | head -c 1 >/dev/null'
	expect_status 0
	# The limit is that of each table.
	start watch wsync-ctl status --watch --json -e "${urls[0]}" -t 1s
	late() { [ "$(grep -c '"ready":1}' watch.out)" -ge 3 ]; }
	eventually late
	kill "$pid"
	finished watch 143
}

@test "lines follow the registry, and --no-follow keeps the endpoints" {
	endpoints 2
	wsync-register add "${urls[0]}" >/dev/null
	for follow in "" --no-follow; do
		rm -f sources && mkfifo sources
		start lines bash -c "exec wsync-push --stdin --json $follow <sources"
		exec 7>sources
		echo small.safetensors >&7
		results() { [ "$(grep -c '"result"' lines.out)" -ge "$1" ]; }
		eventually results 1
		wsync-register add "${urls[1]}" >/dev/null
		echo small.safetensors >&7
		eventually results 2
		exec 7>&-
		finished lines 0
		wsync-register remove "${urls[1]}" >/dev/null
		expect_json '[len(l["endpoints"]) for l in lines if l["type"] == "result"]' \
			"[1, $([ "$follow" ] && echo 1 || echo 2)]"
	done
	wsync-register remove "${urls[0]}" >/dev/null
	try wsync-push --stdin
	expect_status 2
}
