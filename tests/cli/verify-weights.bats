#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-verify weights: do the endpoints hold the bytes of this source?
load helpers

setup_file() {
	/usr/bin/python3 -S "$repo/tests/cli/small_model.py" qwen3 "$BATS_FILE_TMPDIR/ck"
}

prepare() {
	safetensors a.safetensors m.layers.0.up.weight:BF16:64,32 m.layers.1.up.weight:BF16:64,32 \
		m.norm.weight:F32:100 c:U8:7 >/dev/null
	safetensors b.safetensors --seed 2 m.layers.0.up.weight:BF16:64,32 \
		m.layers.1.up.weight:BF16:64,32 m.norm.weight:F32:100 c:U8:7 >/dev/null
}

# pushed NAME OPTION...: an endpoint that holds a.safetensors; its URL is in $url.
pushed() {
	endpoint "$@"
	try wsync-push a.safetensors -e "$url"
	expect_status 0
}

# numbers FILE: what a server with these weights answers for m.norm.weight, the only F32 tensor.
numbers() {
	/usr/bin/python3 -c 'import json, struct, sys
f = open(sys.argv[1], "rb"); size, = struct.unpack("<Q",
                                                   f.read(8)); t = json.loads(f.read(size))[
                                                       "m.norm.weight"]
begin, end = t["data_offsets"]; f.seek(8 + size + begin)
print(json.dumps(struct.unpack("<100f", f.read(end - begin))))' "$1"
}

# shows NAME TEXT: a server without checksums that answers every name with this; its URL is in $url.
shows() {
	canned "$1" '/server_info=200:{"tp_size":1,"dtype":"auto"}' \
		'/model_info=200:{"model_path":"m"}' \
		"/get_weights_by_name=200:$2"
}

@test "endpoints that hold the weights are a yes, whatever their sizes" {
	pushed one --tp 1
	urls=(-e "$url")
	pushed two --tp 2 --keep hash
	urls+=(-e "$url")
	try wsync-verify weights a.safetensors "${urls[@]}"
	expect_status 0
	[ "$(grep -c '^yes ' <<<"$out")" = 2 ] || explain "two lines of yes"
	out_has '8 checksums of 2 ranks are those of the source'
	[ -z "$err" ] || explain "silence on stderr"
	try wsync-verify weights a.safetensors "${urls[@]}" --json
	expect_json '[(l["answer"], l["means"], l["ranks"], l["equal"]) for l in lines
		if l["type"] == "weights"]' \
		"[('yes', 'checksums', 1, 4), ('yes', 'checksums', 2, 8)]"
	expect_json 'lines[-1]["ok"], lines[-1]["endpoints"], lines[-1]["equal"]' "(True, 2, 12)"
	try wsync-verify weights a.safetensors "${urls[@]}" -q
	expect_status 0
	expect_out ''
}

@test "registered endpoints and pools are asked like those on the command line" {
	pushed one
	wsync-register add "$url" --pool good >/dev/null
	endpoint two
	wsync-register add "$url" --pool empty >/dev/null
	try wsync-verify weights a.safetensors --pool good
	expect_status 0
	try wsync-verify weights a.safetensors --pool empty
	expect_status 1
	try wsync-verify weights a.safetensors --json
	expect_status 1
	expect_json '[l["answer"] for l in lines if l["type"] == "weights"]' "['yes', 'no']"
}

@test "a flipped byte is found by name, with both values" {
	endpoint one --tp 2 --fault flip:update_weights_from_distributed:1
	try wsync-push a.safetensors -e "$url"
	expect_status 0
	try wsync-verify weights a.safetensors -e "$url" --json
	expect_status 1
	expect_json '[(l["kind"], len(l["expected"]), len(l["found"])) for l in lines
		if l["type"] == "mismatch"]' "[('hash', 16, 16)]"
	expect_json '(lines[-1]["exit"], lines[-1]["error"]["code"], lines[-1]["different"],
		lines[-1]["equal"])' "(1, 'mismatch', 1, 7)"
	err_has 'it does not hold these weights: 7 tensors equal, 1 different, 0 missing, 0 unexpected'
}

@test "checksums of one rank that are reported for two are no yes" {
	local edit
	endpoint two --tp 2
	server=$url
	for edit in "ranks[1] = ranks[0]|rank 0 is reported twice" \
		"del ranks[1]|reports 1 of its 2 ranks: missing: rank 1" \
		"ranks[1]['parallelism_info']['rank'] = 7|missing: rank 1; too many: rank 7" \
		"del ranks[0]['parallelism_info']|only 1 of the 2 ranks have a number"; do
		url=$server
		replies pass "${edit%|*}"
		try wsync-push a.safetensors -e "$url" --verify hash --json
		expect_status 5
		err_has "${edit#*|}"
		expect_json 'lines[-1]["endpoints"][0]["state"]' partial
		try wsync-verify weights a.safetensors -e "$url"
		expect_status 5
		err_has "${edit#*|}"
	done
	url=$server
	replies pass "[r.pop('parallelism_info') for r in ranks]" # an order says as much
	try wsync-push a.safetensors -e "$url" --verify hash
	expect_status 0
	try wsync-verify weights a.safetensors -e "$url"
	expect_status 0
}

@test "missing and unexpected tensors are told apart; a part of the source expects no more" {
	pushed one
	safetensors other.safetensors m.layers.0.up.weight:BF16:64,32 d:U8:3 >/dev/null
	try wsync-verify weights other.safetensors -e "$url" --json
	expect_status 1
	expect_json 'sorted((l["kind"], l["name"]) for l in lines if l["type"] == "mismatch")' \
		"[('missing', 'd'), ('unexpected', 'c'), ('unexpected', 'm.layers.1.up.weight'), \
('unexpected', 'm.norm.weight')]"
	try wsync-verify weights other.safetensors -e "$url" --exclude d
	expect_status 0
	try wsync-verify weights a.safetensors -e "$url" --include 'm.*' --json
	expect_status 0
	expect_json 'lines[-1]["equal"], lines[-1]["unexpected"]' '(3, 0)'
}

@test "people see the first differences of each kind, programs all of them" {
	pushed one --tp 2
	try wsync-verify weights b.safetensors -e "$url" --limit 2
	expect_status 1
	[ "$(grep -c '^mismatch' <<<"$out")" = 2 ] || explain "two mismatches"
	out_has '... and 6 more of kind hash; --limit 0 shows all'
	try wsync-verify weights b.safetensors -e "$url" --limit 0
	[ "$(grep -c '^mismatch' <<<"$out")" = 8 ] || explain "eight mismatches"
	try wsync-verify weights b.safetensors -e "$url" --limit 1 --json
	expect_json 'len([l for l in lines if l["type"] == "mismatch"])' 8
}

@test "without checksums the numbers that a server shows are compared" {
	shows server "$(numbers a.safetensors)"
	try wsync-verify weights a.safetensors -e "$url" --include m.norm.weight --json
	expect_status 0
	expect_json '[(l["answer"], l["means"], l["equal"], l["algorithm"]) for l in lines
		if l["type"] == "weights"]' \
		"[('yes', 'samples', 1, None)]"
	try wsync-verify weights b.safetensors -e "$url" --include m.norm.weight
	expect_status 1
	out_has 'm.norm.weight: value, expected '
	out_has ' at [0], found '
	err_has '1 of 1 sampled parameters differ'
	# The other tensors are not vectors of 100.
	try wsync-verify weights a.safetensors -e "$url" --json
	expect_status 1
	expect_json 'sorted({l["kind"] for l in lines if l["type"] == "mismatch"})' "['shape']"
}

@test "samples are as many as asked for and the same for the same seed" {
	shows server '[]'
	# Which names were asked for since the last look.
	looked=0
	sampled() {
		tail -n +$((looked + 1)) server.out | grep -o '"name":"[^"]*"' | sort >names
		looked=$(wc -l <server.out)
	}
	safetensors many.safetensors $(for i in {0..39}; do echo "m.layers.$i.w:F32:4"; done) \
		>/dev/null
	try wsync-verify weights many.safetensors -e "$url" --samples 5
	expect_status 11
	err_has 'it showed none of 5 sampled parameters'
	sampled
	mv names first
	[ "$(uniq first | wc -l)" = 5 ]
	try wsync-verify weights many.safetensors -e "$url" --samples 5
	sampled
	diff first names >&2
	try wsync-verify weights many.safetensors -e "$url" --samples 5 --seed 7
	sampled
	run ! diff -q first names
	try wsync-verify weights many.safetensors -e "$url"
	err_has 'none of 32 sampled parameters'
	try wsync-verify weights many.safetensors -e "$url" --samples 0
	expect_status 11
	err_has 'no parameter was sampled'
}

@test "an endpoint that offers nothing to compare with is never a yes" {
	shows server '["one", "two"]'
	try wsync-verify weights a.safetensors -e "$url" --json
	expect_status 11
	expect_json '[(l["answer"], l["means"], l["unanswered"]) for l in lines
		if l["type"] == "weights"]' "[('unknown', 'none', 4)]"
	err_has 'cannot compare: it reports no checksums'
	err_has 'hint: --twice'
	endpoint two --keep none
	try wsync-verify weights a.safetensors -e "$url"
	expect_status 11
	out_has 'unknown '
}

@test "a no is the answer, whoever else keeps silent" {
	pushed one
	try wsync-verify weights a.safetensors -e "$url" -e "127.0.0.1:$(free_port)" --json
	expect_status 4
	expect_json '[l["answer"] for l in lines if l["type"] == "weights"]' "['yes', 'unknown']"
	try wsync-verify weights b.safetensors -e "127.0.0.1:$(free_port)" -e "$url"
	expect_status 1
}

@test "an endpoint that does not answer ends with the deadline" {
	endpoint one --fault hang:weights_checker:1
	hanging=$url
	endpoint two
	before=$SECONDS
	try wsync-verify weights a.safetensors -e "$hanging" -e "$url" --timeout 1 --json
	expect_status 10
	[ $((SECONDS - before)) -le 60 ]
	expect_json 'lines[-1]["error"]["endpoint"]' "$hanging"
}

@test "pushed twice: no checksum changes, and nobody stays paused" {
	pushed one --tp 2
	first=$url
	pushed two
	try wsync-verify weights a.safetensors -e "$first" -e "$url" --twice --json
	expect_status 0
	expect_json '[(l["answer"], l["means"], l["equal"]) for l in lines
		if l["type"] == "weights"]' "[('yes', 'twice', 8), ('yes', 'twice', 4)]"
	expect_json 'sorted({l["type"] for l in lines})' "['end', 'start', 'weights']"
	expect_journal "$first" '[p for p in paths if p in ("/weights_checker",
		"/update_weights_from_distributed")]' \
		"['/update_weights_from_distributed', '/weights_checker', \
'/update_weights_from_distributed', '/weights_checker']"
	expect_journal "$first" 'j["state"]["paused"], j["state"]["groups"]' '(False, [])'
	try wsync-verify weights a.safetensors -e "$url" --twice --load-format none \
		--bucket-size 1KiB --pause retract --flush never
	expect_status 0
	out_has 'a second push changed none of 4 checksums'
}

@test "what the second push changes is named" {
	pushed one --fault flip:update_weights_from_distributed:2
	try wsync-verify weights a.safetensors -e "$url" --twice --json
	expect_status 1
	expect_json '[(l["kind"], len(l["expected"]), len(l["found"])) for l in lines
		if l["type"] == "mismatch"]' "[('changed', 16, 16)]"
	err_has 'a push of the same weights changed 1 of 4 parameters'
	err_lacks 'most of it changed'
	try wsync-verify weights b.safetensors -e "$url" --twice
	expect_status 1
	err_has 'hint: most of it changed'
}

@test "a second push that fails is its own failure, and nobody stays paused" {
	pushed one --fault refuse:update_weights_from_distributed:2
	try wsync-verify weights a.safetensors -e "$url" --twice --json
	expect_status 5
	expect_json '([l["answer"] for l in lines if l["type"] == "weights"],
		lines[-1]["error"]["phase"])' "(['unknown'], 'transfer')"
	expect_journal "$url" 'j["state"]["paused"], j["state"]["groups"]' '(False, [])'
}

@test "weights are destroyed only for who says so" {
	pushed one
	try wsync-verify weights a.safetensors -e "$url" --reset
	expect_status 2
	err_has 'random numbers'
	err_has '--yes'
	try wsync-verify weights a.safetensors -e "$url" --reset --twice --yes
	expect_status 2
	expect_journal "$url" '"/weights_checker" in paths' False
}

# model NAME OPTION...: an endpoint with the parameters of the model in ck, which it holds.
model() {
	[ -d ck ] || cp -r "$BATS_FILE_TMPDIR/ck" .
	endpoint "$1" --model ck --tp 2 "${@:2}"
	try wsync-push ck -e "$url"
	expect_status 0
}

@test "a push onto random weights restores every parameter, and nobody answers meanwhile" {
	model one
	first=$url
	model two
	try wsync-verify weights ck -e "$first" -e "$url" --reset --yes --json
	expect_status 0
	expect_json '[(l["answer"], l["means"]) for l in lines if l["type"] == "weights"]' \
		"[('yes', 'reset'), ('yes', 'reset')]"
	expect_journal "$url" '[p for p in paths if p in ("/weights_checker", "/pause_generation",
		"/update_weights_from_distributed", "/continue_generation")][3:]' \
		"['/weights_checker', '/pause_generation', '/weights_checker', '/weights_checker', \
'/update_weights_from_distributed', '/weights_checker', '/continue_generation']"
	try wsync-verify weights ck -e "$url"
	expect_status 0
	out_has 'are those of the source'
	try wsync-verify weights ck -e "$url" --twice
	expect_status 0
}

@test "a parameter that a push leaves out is named" {
	model one
	try wsync-verify weights ck -e "$url" --reset --yes --exclude '*.1.input_layernorm.*' --json
	expect_status 1
	expect_json 'sorted((l["rank"], l["name"], l["kind"]) for l in lines
		if l["type"] == "mismatch")' \
		"[(0, 'model.layers.1.input_layernorm.weight', 'changed'), (1, \
'model.layers.1.input_layernorm.weight', 'changed')]"
	err_has 'after a push onto random weights it is not what it was'
	expect_journal "$url" 'j["state"]["paused"]' True
}

@test "after a reset without a good push no endpoint answers, unless asked for" {
	model one --fault refuse:update_weights_from_distributed:2
	try wsync-verify weights ck -e "$url" --reset --yes --on-partial resume --json
	expect_status 5
	expect_json '[l["answer"] for l in lines if l["type"] == "weights"]' "['unknown']"
	err_has 'may hold random weights'
	expect_journal "$url" 'j["state"]["paused"], j["state"]["groups"]' '(False, [])'
	model two --fault refuse:update_weights_from_distributed:2
	try wsync-verify weights ck -e "$url" --reset --yes
	expect_status 5
	err_has 'left paused: it may hold random weights'
	expect_journal "$url" 'j["state"]["paused"]' True
	model three --fault refuse:weights_checker:2
	try wsync-verify weights ck -e "$url" --reset --yes --on-partial resume
	expect_status 5
	expect_journal "$url" 'j["state"]["paused"]' False
	model five
	try wsync-verify weights a.safetensors -e "$url" --reset --yes --pause in_place
	expect_status 2
	try wsync-verify weights missing -e "$url" --reset --yes
	expect_status 3
	expect_journal "$url" '"/weights_checker" in paths' False
	endpoint four --keep hash
	try wsync-verify weights ck -e "$url" --reset --yes
	expect_status 5
	err_lacks 'random'
	err_has 'checksum and reset_tensors'
	expect_journal "$url" 'j["state"]["paused"]' False
}

@test "a reset that was not done is no yes" {
	local lineage
	for lineage in sglang-2026 session; do
		model one --lineage "$lineage"
		server=$url
		replies 'if action == "reset_tensors": answer = 200, "{\"success\":true,\"message\":\"Success\"}"'
		try wsync-verify weights ck -e "$url" --reset --yes --on-partial resume
		expect_status 5
		err_has 'reset_tensors changed nothing'
		url=$server
		replies 'if action == "reset_tensors": answer = 200, "<html>Welcome to nginx</html>"'
		try wsync-verify weights ck -e "$url" --reset --yes
		expect_status 5
		err_has 'does not say that it was done'
		# checksums say that nothing was reset; or it was not asked
		expect_journal "$server" 'j["state"]["paused"]' False
	done
}

@test "a reset of one rank alone is no yes" {
	model one
	server=$url
	replies pass 'ranks[1] = kept.setdefault(1, ranks[1])'
	try wsync-verify weights ck -e "$url" --reset --yes
	expect_status 5
	err_has 'reset_tensors changed nothing on rank 1'
	expect_journal "$server" 'j["state"]["paused"]' True
}

# expect_repair STATE PAUSED RESUMED: the endpoint's line of wsync-ctl repair.
expect_repair() {
	try wsync-ctl repair --json
	expect_json '[(l["state"], l["paused"], l["resumed"]) for l in lines
		if l["type"] == "endpoint"]' "[('$1', $2, $3)]"
}
# killed_at PATH N FAULT: a reset that is killed while it waits for the answer to the N-th request
# to PATH.
killed_at() {
	model one --fault "$3:$1:$2"
	start reset wsync-verify weights ck -e "$url" --reset --yes
	eventually requested "/$1" "$2"
	kill -KILL "$pid"
	wait "$pid" || true
}

@test "a reset and a push keep each other away" {
	model one --fault hang:weights_checker:2
	start reset wsync-verify weights ck -e "$url" --reset --yes --on-partial resume
	eventually requested /weights_checker 2
	try wsync-push ck -e "$url"
	expect_status 5
	err_has "process $pid on "
	expect_journal "$url" '(paths.count("/update_weights_from_distributed"),
		j["state"]["paused"])' '(1, True)'
	kill -TERM "$pid"
	status=0
	wait "$pid" || status=$?
	expect_status 143
	model two --fault hang:update_weights_from_distributed:2
	start push wsync-push ck -e "$url"
	eventually requested /update_weights_from_distributed 2
	try wsync-verify weights ck -e "$url" --reset --yes
	expect_status 5
	err_has "process $pid on "
	expect_journal "$url" '"/weights_checker" in paths' False
}

@test "a reset that was killed is put in order by repair and by a push" {
	killed_at weights_checker 3 hang
	expect_journal "$url" 'j["state"]["paused"]' True
	expect_repair partial True False
	expect_status 9
	err_lacks '--again'
	try wsync-verify weights ck -e "$url" --reset --yes
	expect_status 5
	err_has 'an earlier push left its weights incomplete'
	try wsync-push ck -e "$url"
	expect_status 0
	expect_journal "$url" 'j["state"]["paused"]' False
	try wsync-ctl repair
	expect_out 'nothing to repair'
	try wsync-verify weights ck -e "$url" --reset --yes
	expect_status 0
}

@test "a reset that was killed while it judged is no success for repair" {
	killed_at weights_checker 4 hang
	expect_repair partial True False
	expect_status 9
}

@test "an endpoint whose reset was killed before it began is resumed by repair" {
	killed_at flush_cache 2 hang
	expect_journal "$url" 'j["state"]["paused"]' True
	expect_repair untouched False True
	expect_status 0
	expect_journal "$url" 'j["state"]["paused"]' False
}

@test "every request of a reset ends with the bucket timeout" {
	local k
	for k in 1 2 3 4; do
		model one --fault "hang:weights_checker:$k"
		try wsync-verify weights ck -e "$url" --reset --yes \
			--bucket-timeout 3s --on-partial resume
		expect_status 10
		[ "$k" = 1 ] || err_has 'may hold random weights'
		expect_journal "$url" 'j["state"]["paused"], j["state"]["groups"]' '(False, [])'
	done
	model two --fault hang:weights_checker:2
	try wsync-verify weights ck -e "$url" --reset --yes --bucket-timeout 3s
	expect_status 10
	err_has 'left paused: it may hold random weights'
	expect_journal "$url" 'j["state"]["paused"]' True
}

@test "after a reset an endpoint that refuses to be resumed is asked again" {
	model one --fault refuse:continue_generation:2
	try wsync-verify weights ck -e "$url" --reset --yes
	expect_status 0
	expect_journal "$url" 'paths.count("/continue_generation"), j["state"]["paused"]' \
		'(3, False)'
}

@test "an endpoint that confirmed all weights after a reset stays paused if not compared" {
	model one
	first=$url
	model two --fault hang:update_weights_from_tensor:1
	try wsync-verify weights ck -e "$first" -e "$url" --reset --yes --backend tensor \
		--bucket-timeout 10s
	expect_status 10
	expect_journal "$first" '[r["status"] for r in j["requests"]
		if r["path"] == "/update_weights_from_tensor"]' '[200]'
	err_has "$first: left paused: it may hold random weights"
	err_has "$url: left paused: it may hold random weights"
	expect_journal "$first" 'j["state"]["paused"]' True
	expect_journal "$url" 'j["state"]["paused"]' True
}

@test "a server that reports no checksums of all ranks is not reset" {
	model one --lineage xorl-legacy
	try wsync-verify weights ck -e "$url" --reset --yes
	expect_status 5
	err_has "needs a server whose /weights_checker can checksum and reset_tensors"
	expect_journal "$url" 'paths.count("/pause_generation")' 1
	model two
	try wsync-verify weights ck -e "$url" --reset --yes
	expect_status 0
	out_has 'a push onto random weights restored every parameter of 2 ranks'
}

@test "pushed twice: a rank that does not report is no yes" {
	local status edit words
	pushed one --tp 2
	server=$url
	while IFS='|' read -r status edit words; do
		url=$server
		replies pass "$edit"
		try wsync-verify weights a.safetensors -e "$url" --twice
		expect_status "$status"
		err_has "$words"
	done <<-'END'
		5|del ranks[1]|reports 1 of its 2 ranks: missing: rank 1
		11|ranks[1]["checksums"].clear()|rank 1 reported no checksum
	END
	# none for the first
	expect_journal "$server" 'len([p for p in paths
		if p == "/update_weights_from_distributed"])' 2
}

@test "options of other commands are refused" {
	try wsync-verify weights a.safetensors --tp 2 -e 127.0.0.1:9
	expect_status 2
	try wsync-verify names a.safetensors --samples 3
	expect_status 2
	try wsync-verify weights
	expect_status 2
	try wsync-verify weights missing.safetensors -e 127.0.0.1:9
	expect_status 3
}

@test "every JSON key of wsync-verify weights is documented" {
	documented() { /usr/bin/python3 "$repo/tests/cli/json_keys.py" \
		"$repo/man/wsync-json.5.scd" wsync-verify; }
	pushed one
	for options in "a.safetensors" "b.safetensors" "a.safetensors --twice" \
		"a.safetensors --reset --yes" "a.safetensors -e 127.0.0.1:9"; do
		# shellcheck disable=SC2086 # words
		try wsync-verify weights $options -e "$url" --json
		documented <<<"$out"
	done
}

@test "parameters of a draft model that are not in the source are counted and not compared" {
	safetensors both.safetensors c:U8:7 draft.a:U8:5 draft_step_0.b:U8:3 >/dev/null
	safetensors c.safetensors c:U8:7 >/dev/null
	endpoint one --tp 2
	try wsync-push both.safetensors -e "$url"
	try wsync-push c.safetensors -e "$url" --verify hash
	expect_status 0
	err_has "$url: 4 checksums of a draft model were not compared: it is not in the source"
	try wsync-verify weights c.safetensors -e "$url"
	expect_status 0
	out_has "note      $url: 4 checksums of a draft model were not compared"
	try wsync-verify weights c.safetensors -e "$url" --json
	expect_json 'lines[-1]["drafts"], lines[-1]["unexpected"]' '(4, 0)'
	try wsync-push both.safetensors -e "$url"
	try wsync-verify weights both.safetensors -e "$url"
	expect_status 0
	out_lacks draft
}
