#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-push by every protocol into endpoints with the routes of each lineage.
load helpers

protocol='[l["protocol"] for l in lines if l["type"] == "plan"]'

# steps URL WORD...: what was asked of the endpoint under these words, in order.
steps() {
	journal "$1" "' '.join(p[1:] for p in paths if any(w in p[1:] for w in '${*:2}'.split()))"
}
expect_steps() {
	local want=$1 got
	shift
	got=$(steps "$@")
	[ "$got" = "$want" ] || explain "expected the requests '$want', got '$got'"
}

# A request comes between the first flush and the update.
@test "a server that has updated but not flushed is flushed again, or said to keep its old cache" {
	safetensors small.safetensors a:BF16:8,8
	endpoint real --lineage session --busy 2
	local post="curl -sS -d" real=$url
	local hold="$post {} $real/continue_generation
$post '{\"mode\":\"retract\"}' $real/pause_generation"
	local free="$post '{\"mode\":\"abort\"}' $real/pause_generation"
	local meddle="if path == '/update_weights_from_distributed': run(args[0])
if path == '/flush_cache' and nth == int(args[2]): run(args[1])"
	proxy "$real" "$meddle" pass "$hold" "$free" 3
	try wsync-push small.safetensors -e "$url" --weight-version 7 --verify hash --json
	expect_status 0
	expect_json '[(e["state"], e["unflushed"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('committed', False, False)]"
	expect_journal "$real" 'paths.count("/flush_cache"), j["totals"]["flushes"],
		s["weight_version"]' "(3, 2, '7')"
	out_lacks "not flushed"
	proxy "$real" "if path == '/update_weights_from_distributed': run(args[0])
if path == '/flush_cache' and nth > 1: answer = (500, 'broken')" pass "$hold"
	try wsync-push small.safetensors -e "$url" --weight-version 8
	expect_status 5
	err_has "$url has the new weights, but still the cache of the old ones"
	err_has "hint: new answers may continue from that cache"
	out_has "committed $url, with the cache of the old weights"
	expect_journal "$real" 's["paused"], s["weight_version"]' "(False, '7')"
	# A signal while it is waited for
	local here=$PWD
	proxy "$real" "${meddle/int(args\[2\])/3}" pass "$hold" \
		"until [ -s $here/pushed ]; do sleep 0.1; done; kill -TERM \$(cat $here/pushed)"
	start push wsync-push small.safetensors -e "$url" --json
	echo "$pid" >pushed
	finished push 143
	expect_json '[(lines[-1]["error"]["code"], e["state"], e["unflushed"], e["paused"])
		for e in lines[-1]["endpoints"]]' "[('cancelled', 'committed', True, False)]"
	# It is flushed also if the push fails at another endpoint.
	proxy "$real" "$meddle" pass "$hold" "$free" 3
	local first=$url
	endpoint other --lineage session --fault flip:update_weights_from_distributed:1
	try wsync-push small.safetensors -e "$first" -e "$url" --verify hash --json
	expect_status 9
	expect_json '[(e["state"], e["unflushed"]) for e in lines[-1]["endpoints"]]' \
		"[('committed', False), ('partial', False)]"
}

@test "auto chooses what a server takes" {
	likely_model qwen3
	for pair in sglang-0.5:update sglang-2026:update xorl-legacy:update xorl:update \
		session:session slime:update; do
		endpoint "${pair%:*}" --lineage "${pair%:*}" --model m --tp 2
		try wsync-push m -e "$url" --json
		expect_status 0
		expect_json "$protocol" "['${pair#*:}']"
		holds "$url"
	done
}

@test "two-phase: a pair of requests for each bucket, the flush and the version with the last" {
	likely_model qwen3
	for lineage in xorl-legacy xorl; do
		endpoint $lineage --lineage $lineage --model m --tp 2
		try wsync-push m -e "$url" --protocol two-phase --bucket-size 512KiB \
			--weight-version 9 --json
		expect_status 0
		n=$(json 'lines[-1]["buckets"]')
		[ "$n" -gt 1 ] || explain "several buckets"
		want=$(for ((i = 0; i < n; i++)); \
			do printf 'prepare_weights_update complete_weights_update '; done)
		expect_steps "${want% }" "$url" prepare complete
		holds "$url"
		try wsync-ctl version -e "$url"
		out_has 9
	done
}

@test "two-phase: a whole update is prepared once, and its need of memory said" {
	likely_model qwen3
	endpoint a --lineage xorl-legacy --model m --tp 1
	urls=("$url")
	endpoint b --lineage xorl --model m --tp 2
	urls+=("$url")
	try wsync-push m -e "${urls[0]}" -e "${urls[1]}" --protocol two-phase --two-phase whole \
		--bucket-size 512KiB
	expect_status 0
	err_has "stay in the servers' memory"
	for u in "${urls[@]}"; do
		expect_steps "prepare_weights_update complete_weights_update" "$u" prepare complete
	done
	holds "${urls[@]}"
}

@test "receive: one request for all of it, and the version afterwards" {
	likely_model qwen3
	endpoint a --lineage xorl-legacy --model m --tp 2
	try wsync-push m -e "$url" --protocol receive --bucket-size 512KiB --weight-version 4 --json
	expect_status 0
	expect_json '[l["load_format"] for l in lines if l["type"] == "plan"]' "['none']"
	expect_steps "receive_weights update_weight_version" "$url" receive_weights version
	holds "$url"
}

@test "sessions are begun and ended, and the version set when they are" {
	likely_model qwen3
	endpoint a --lineage session --model m --tp 2
	try wsync-push m -e "$url" --weight-version 4
	expect_status 0
	expect_steps "begin_weight_update update_weights_from_distributed end_weight_update \
update_weight_version" \
		"$url" begin_ update_weight end_w
	holds "$url"
	try wsync-push m -e "$url" --protocol update
	expect_status 5
	err_has "takes no protocol update: \
it has no /update_weights_from_distributed outside of a session"
}

@test "a session that fails in its middle is ended" {
	likely_model qwen3
	endpoint a --lineage session --model m --tp 1 \
		--fault refuse:update_weights_from_distributed:2
	try wsync-push m -e "$url" --bucket-size 512KiB
	expect_status 5
	[ "$(steps "$url" begin end_ | tr -d '\n')" = "begin_weight_update end_weight_update" ] ||
		explain "its end was not said"
	try wsync-push m -e "$url"
	expect_status 0
	holds "$url"
}

@test "a session that was refused its end is known to be over, also beside another kind" {
	safetensors one.safetensors a:BF16:8,8
	endpoint a --lineage session --fault refuse:end_weight_update:1
	local a=$url
	endpoint b --lineage slime --quantization compressed-tensors \
		--fault refuse:update_weights_from_distributed:1
	try wsync-push one.safetensors -e "$a" -e "$url"
	expect_status 5
	err_has "refused on request: fault refuse:update_weights_from_distributed"
	err_lacks "may still wait"
}

@test "ep-scatter: each rank is sent its own parameters, of several servers at once" {
	likely_model qwen3_moe
	for sizes in "1" "2" "4 --ep 2"; do
		endpoint "tp${sizes// /}" --lineage xorl-legacy --model m --tp $sizes
		urls+=("$url")
	done
	try wsync-push m -e "${urls[0]}" -e "${urls[1]}" -e "${urls[2]}" --protocol ep-scatter \
		--json --weight-version 3
	expect_status 0
	expect_json "$protocol" "['ep-scatter']"
	expect_json 'sorted({e["state"] for e in lines[-1]["endpoints"]})' "['committed']"
	holds "${urls[@]}"
	for u in "${urls[@]}"; do
		expect_steps "receive_weights_ep_scatter" "$u" scatter
	done
	# The group of one push is not that of the next.
	try wsync-push m -e "${urls[1]}" --protocol ep-scatter
	expect_status 0
}

@test "ep-scatter sends no half of a parameter, and nothing to who computes others from it" {
	likely_model qwen3_moe
	endpoint a --lineage xorl-legacy --model m --tp 2
	try wsync-push m -e "$url" --protocol ep-scatter --exclude '*k_proj*'
	expect_status 5
	err_has "must be sent whole"
	expect_steps "" "$url" pause scatter
	likely_model deepseek_v3
	endpoint b --lineage xorl-legacy --model m --tp 2
	try wsync-push m -e "$url" --protocol ep-scatter
	expect_status 5
	err_has "it computes some of them when others are loaded"
}

@test "who does not take a protocol is named before anybody is paused" {
	likely_model qwen3
	endpoint a --lineage xorl --model m
	first=$url
	endpoint b --lineage sglang-2026 --model m
	for p in two-phase receive ep-scatter session; do
		try wsync-push m -e "$first" -e "$url" --protocol $p
		expect_status 5
	done
	try wsync-push m -e "$first" -e "$url" --protocol two-phase
	err_has "$url takes no protocol two-phase: it has no /prepare_weights_update"
	err_has "it takes update; --protocol auto chooses what all endpoints take"
	expect_steps "" "$first" pause init prepare
	expect_steps "" "$url" pause init
}

@test "servers of several kinds are served together where one protocol suits all" {
	likely_model qwen3
	endpoint a --lineage session --model m
	urls=("$url")
	endpoint b --lineage xorl --model m --tp 2
	urls+=("$url")
	try wsync-push m -e "${urls[0]}" -e "${urls[1]}" --json
	expect_status 0
	expect_json "$protocol" "['session']"
	holds "${urls[@]}"
	expect_steps "" "${urls[1]}" begin_ end_
}

@test "checksums that nobody reports are not waited for" {
	likely_model qwen3
	endpoint a --lineage xorl-legacy --model m
	try wsync-push m -e "$url" --verify hash
	expect_status 5
	err_has "reports no checksums"
	expect_steps "" "$url" pause init
}

# part I PATTERN...: the I-th of ${senders:-3} senders pushes that part in the round $step (5).
part() {
	local i=$1 args=() g
	shift
	for g in "$@"; do args+=(--include "$g"); done
	"$bin/wsync-push" m -e "$url" --sender "$i/${senders:-3}" --lock turns "${args[@]}" \
		--allow-older --weight-version "${step:-5}" --json >"out$i" 2>"err$i"
}

# part_of STEP I: one of two halves.
part_of() {
	local senders=2 step=$1 what=('*layers.0.*')
	[ "$2" = 1 ] || what=('*layers.1.*' model.norm.weight '*embed*')
	part "$2" "${what[@]}"
}

# expect_round WANT...: ID, number of senders and those who had a turn, as turns.round has them.
expect_round() {
	local got
	got=$(/usr/bin/python3 -c 'import json; r = json.load(open("turns.round")); print(r["id"], r["senders"], *r["had"])')
	[ "$got" = "$*" ] || explain "the round: $(cat turns.round), expected $*"
}

# expect_flushes FLAG...: flush_cache of every update so far, and the label.
expect_flushes() {
	local label=$1
	shift
	expect_journal "$url" '" ".join([s["weight_version"]]
		+ [str(r["flush_cache"]) for r in j["requests"] if "flush_cache" in r])' "$label $*"
}

@test "several senders take turns, and the last flushes and says the version" {
	likely_model qwen3
	endpoint a --lineage sglang-2026 --model m --tp 2
	part 1 '*layers.0.*' & p1=$!
	part 3 'model.norm.weight' '*embed*' & p3=$!
	wait $p1 || explain "sender 1: $(cat err1)"
	wait $p3 || explain "sender 3: $(cat err3)"
	expect_round 5 3 1 3
	expect_steps "" "$url" flush version
	try wsync-ctl version -e "$url"
	out_has default
	part 2 '*layers.1.*' || explain "sender 2: $(cat err2)"
	expect_round 5 3 1 2 3
	try wsync-ctl version -e "$url"
	out_has 5
	holds "$url"
	out=$(<out2)
	expect_json '[(l["sender"], l["senders"]) for l in lines if l["type"] == "plan"]' "[(2, 3)]"
	expect_json '[lines[-1]["round"][k] for k in ("id", "senders", "had", "ended")]' \
		"['5', 3, 3, True]"
	out=$(<out1)
	expect_json 'lines[-1]["round"]["ended"]' False
}

@test "a sender that failed had no turn, and one that comes again stays in its round" {
	likely_model qwen3
	endpoint a --model m --fault refuse:update_weights_from_distributed:1
	! part_of 5 1 || explain "it should fail"
	[ ! -e turns.round ] || explain "it counts"
	part_of 5 1
	part_of 5 1
	grep -q "sender 1 comes again in round 5 of 2 senders (begun .* ago by process [0-9]* on \
.*): its part is sent again" err1 ||
		explain "$(cat err1)"
	part_of 5 2
	expect_flushes 5 False False True
	# The round has ended, so no other sender follows who would flush.
	part_of 5 1
	grep -q "comes again in round 5 .*), which had ended: its part is sent again, \
and flushed by itself" err1 ||
		explain "$(cat err1)"
	expect_flushes 5 False False True True
}

# round_of OPTION... -- OPTION...: sender 1 with the first options, then sender 2 with the others,
# in round $step.
round_of() {
	local one=()
	while [ "$1" != -- ]; do one+=("$1"); shift; done
	shift
	try wsync-push m -e "$url" --sender 1/2 --lock turns --weight-version "$step" "${one[@]}"
	expect_status 0
	try wsync-push m -e "$url" --sender 2/2 --lock turns --weight-version "$step" --json "$@"
}

@test "a turn that would end its round without some tensors is refused before the pause" {
	likely_model qwen3
	endpoint a --model m --tp 2
	step=1
	round_of --include '*layers.0.*' -- --include '*layers.1.*'
	expect_status 9
	err_has "round 1 of 2 senders leaves out 2 tensors, the first is model.embed_tokens.weight"
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('untouched', False)]"
	expect_round 1 2 1
	try wsync-ctl version -e "$url"
	out_has default
	# The one that did not send them comes again, then the one that found it.
	round_of --include '*layers.0.*' --include '*embed*' --include model.norm.weight -- \
		--include '*layers.1.*'
	expect_status 0
	expect_json 'lines[-1]["round"]["ended"]' True
	holds "$url"
	try wsync-ctl version -e "$url"
	out_has 1
	# An --exclude of one that the other does not send is a gap, too.
	step=2
	round_of --include '*layers.0.*' -- --exclude '*layers.*'
	expect_status 9
	err_has "leaves out 11 tensors, the first is model.layers.1."
	# What all of them exclude is left out deliberately; '*' leaves nothing out.
	step=3
	round_of --include '*layers.0.*' --exclude model.norm.weight -- --include '*' \
		--exclude model.norm.weight
	expect_status 0
	try wsync-ctl version -e "$url"
	out_has 3
}

# turn I OPTION...: sender I of 2 sends its half, in round $step.
turn() {
	local half=(--include '*layers.0.*')
	[ "$1" = 1 ] || half=(--include '*layers.1.*' --include model.norm.weight \
		--include '*embed*')
	try wsync-push m -e "$url" --sender "$1/2" --lock turns --weight-version "$step" \
		--bucket-size 64KiB --json \
		"${half[@]}" "${@:2}"
}

@test "a turn completes what its own part left partial, and nothing else" {
	likely_model qwen3
	endpoint a --model m --fault refuse:update_weights_from_distributed:2
	step=1
	turn 2
	expect_status 5
	# The next job begins with the other sender.
	step=2
	turn 1
	expect_status 9
	err_has "and this push of 11 tensors is another part"
	err_has "hint: this turn counts. If the last turn leaves the endpoint partial: \
if every sender has sent its part since"
	expect_round 2 2 1
	turn 2
	expect_status 0
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('committed', False)]"
	holds "$url"
	try wsync-ctl version -e "$url"
	out_has 2
	try wsync-ctl repair
	expect_out "nothing to repair"
}

@test "turns do not complete a whole push that failed, however they fail themselves" {
	likely_model qwen3
	endpoint a --model m --fault refuse:update_weights_from_distributed:2
	proxy "$url" "if __import__('os').path.exists('$scratch/armed') and path == \
'/update_weights_from_distributed': answer = (400, 'no')"
	try wsync-push m -e "$url" --bucket-size 64KiB
	expect_status 5
	step=2
	turn 1
	expect_status 9
	touch armed
	turn 2
	expect_status 5
	rm armed
	turn 2 --exclude model.norm.weight
	expect_status 9
	turn 2
	expect_status 9
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('partial', True)]"
	expect_round 2 2 1
	# Each half is the plan of a turn above, so only the record of the whole push is left to
	# object.
	try wsync-push m -e "$url" --include '*layers.0.*' --bucket-size 64KiB
	expect_status 9
	try wsync-ctl repair --forget --endpoint "$url"
	expect_status 0
	turn 2 # that push came between the turns of the round
	expect_status 9
	err_has "another push has changed its weights since the turns before"
	turn 1
	expect_status 0
	turn 2
	expect_status 0
	try wsync-ctl version -e "$url"
	out_has 2
	holds "${url}"
}

@test "a half round of one step is not completed by the next" {
	likely_model qwen3
	endpoint a --model m
	part_of 1 1
	# Sender 2 of step 1 never came.
	part_of 2 2
	grep -q "round 2 begins, and round 1 of 2 senders (begun .* by process .*) is abandoned: \
sender 1 had a turn, sender 2 had none" err2 ||
		explain "$(cat err2)"
	expect_round 2 2 2
	# What step 1 left is flushed by the first that notices.
	expect_flushes default False True
	part_of 2 1
	expect_flushes 2 False True True
	# Other orders, and versions that go back.
	part_of 3 2
	part_of 3 1
	part_of 2 1
	expect_flushes 3 False True True False True False
	part_of 2 2
	expect_flushes 2 False True True False True False True
	for i in 1 2; do ! grep -q abandoned err$i || explain "$(cat err$i)"; done
}

@test "a round file without an ID, or of something else, completes nothing" {
	likely_model qwen3
	endpoint a --model m
	echo '{"senders":2,"had":[1]}' >turns.round
	part_of 7 2
	grep -q "round 7 begins, and a round of 2 senders without an ID is abandoned: \
sender 1 had a turn" err2 ||
		explain "$(cat err2)"
	expect_round 7 2 2
	for text in '2: 1' '' garbage '{"senders":2,"had":[1],"id":7}' '[1]' \
		'{"id":"7","senders":1025,"had":[1]}' \
		'{"id":"7","senders":3,"had":[1,3]}' '{"id":"7","senders":2,"had":[9,-1,"1"]}'; do
		printf %s "$text" >turns.round
		rm -rf "$XDG_STATE_HOME/wsync/rounds" # else it is known that the round was replaced
		part_of 7 2
		expect_round 7 2 2
	done
	expect_flushes default True False False False True False False True False
	# A turn that cannot be written down is no success.
	rm -r turns.round "$XDG_STATE_HOME/wsync/rounds"
	mkdir turns.round
	try wsync-push m -e "$url" --sender 1/2 --lock turns --round 7 --json
	expect_status 9
	err_has "turn of sender 1 of 2: its part was sent, \
but the other senders will not know of it"
	expect_json '(lines[-1]["error"]["code"], lines[-1]["error"]["phase"])' \
		"('partial', 'resume')"
}

# lost STEP I: that half ends with 9, because the round is not there any more.
lost() {
	local rc=0
	part_of "$1" "$2" || rc=$?
	out=$(<out$2) err=$(<err$2) status=$rc
	expect_status 9
	err_has "turn of sender $2 of 2: round $1 of 2 senders (begun"
	err_has "was lost; as far as is known here, sender 1 had a turn, sender 2 had none"
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('untouched', False)]"
}

@test "a round that was removed in the middle is found, and begins anew" {
	likely_model qwen3
	endpoint a --model m
	part_of 1 1
	rm turns.round
	lost 1 2
	expect_flushes default False
	expect_round 1 2
	part_of 1 2
	part_of 1 1
	expect_flushes 1 False False True
	part_of 2 1
	rm turns turns.round
	lost 2 2
	# Of an earlier step it is a half round as any other.
	part_of 2 2
	rm turns.round
	part_of 3 1
	grep -q "round 3 begins, and round 2 of 2 senders (begun .*) is abandoned: \
sender 2 had a turn, sender 1 had none" err1 ||
		explain "$(cat err1)"
	expect_flushes 1 False False True False False True
	part_of 3 2
	expect_flushes 3 False False True False False True True
	# After the end of a round its file may go.
	rm turns.round
	part_of 3 1
	! grep -q "lost\|abandoned" err1 || explain "$(cat err1)"
	[ "$(ls "$XDG_STATE_HOME/wsync/rounds" | wc -l)" = 1 ] ||
		explain "$(ls "$XDG_STATE_HOME/wsync/rounds")"
}

@test "a process that had its turn finds that the round is gone before its next" {
	likely_model qwen3
	endpoint a --model m
	lines_to --sender 1/2 --lock turns --include "'*layers.0.*'"
	printf 'm\tv1\n' >&7
	eventually results 1
	rm turns.round
	printf 'm\tv2\nm\tv3\n' >&7
	exec 7>&-
	finished push 9
	expect_json '[l["exit"] for l in lines if l["type"] == "result"]' "[0, 9, 0]"
	err_has "round v1 of 2 senders"
}

@test "a server that was restarted between two turns has lost the first" {
	likely_model qwen3
	endpoint a --model m
	a=$url
	endpoint b --model m
	b=$url
	url=$a
	replies "
if __import__('os').path.exists('$scratch/moved'): url = '$b'"
	proxy=$url
	part_of 1 1
	touch "$scratch/moved"
	try wsync-push m -e "$proxy" --sender 2/2 --lock turns --weight-version 1 --json \
		--exclude '*layers.0.*'
	expect_status 9
	err_has "$proxy: \
another server answers than at the turns before in round 1 of 2 senders (begun"
	err_has "sender 1 had a turn, sender 2 had none"
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('untouched', False)]"
	expect_round 1 2
	! curl -sS "$b/wsync/journal" | grep -q pause_generation || explain "it was paused"
	part_of 1 2
	# Its own part alone can be sent again.
	rm "$scratch/moved"
	part_of 1 2
	part_of 1 1
	url=$a
	expect_flushes 1 False False True
	holds "$a"
}

@test "a server that joins in the middle of a round lacks the turns before" {
	likely_model qwen3
	endpoint a --model m
	a=$url
	endpoint b --model m
	b=$url
	url=$a
	part_of 1 1
	try wsync-push m -e "$a" -e "$b" --sender 2/2 --lock turns --weight-version 1 --json \
		--exclude '*layers.0.*'
	expect_status 9
	err_has "$b: it got nothing at the turns before in round 1 of 2 senders (begun"
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('untouched', False), ('untouched', False)]"
	expect_round 1 2
	# With both endpoints from the start; other names of this machine are the same server.
	for sender in 1:layers.0 2:layers.1; do
		try wsync-push m -e "$a" -e "$b" --sender "${sender%:*}/2" --lock turns \
			--weight-version 1 \
			--include "*${sender#*:}*" --exclude '*embed*' --exclude model.norm.weight
		expect_status 0
		a=${a/127.0.0.1/localhost}
	done
	try wsync-ctl version -e "$b"
	out_has 1
}

@test "turns need the ID of their round" {
	likely_model qwen3
	endpoint a --model m
	try wsync-push m -e "$url" --sender 1/2 --lock turns
	expect_status 2
	err_has "turn of sender 1 of 2: the ID of its round is missing"
	err_has "the same --weight-version or --round"
	try wsync-push m -e "$url" --sender 1/2 --lock turns --round ''
	expect_status 2
	try wsync-push m -e "$url" --round 7
	expect_status 2
	err_has "--round is for several senders"
	try wsync-push m -e "$url" --lock turns
	expect_status 2
	err_has "--lock is for several senders"
	for o in --round --weight-version; do
		try wsync-push --stdin -e "$url" --sender 1/2 --lock turns $o 7
		expect_status 2
		err_has "each line has its version, after a tab"
	done
	[ ! -e turns ] || explain "the lock was taken"
	# An ID of the job keeps its rounds apart from those of a job that died at the same version.
	try wsync-push m -e "$url" --sender 1/2 --lock turns --weight-version 7 --round job1-7
	expect_status 0
	try wsync-push m -e "$url" --sender 2/2 --lock turns --weight-version 7 --round job2-7
	expect_status 0
	err_has "round job2-7 begins, and round job1-7 of 2 senders"
	try wsync-push m -e "$url" --sender 1/2 --lock turns --weight-version 7 --round job2-7
	expect_status 0
	out_has "weight version 7, ends round job2-7 of 2 senders (begun"
}

@test "senders without a lock, or of no number, are a usage error" {
	likely_model qwen3
	try wsync-push m -e localhost:1 --sender 1/2
	expect_status 2
	err_has "--lock FILE"
	for s in 0/2 3/2 2 a/b 1/ /2; do
		try wsync-push m -e localhost:1 --sender $s --lock l --round 1
		expect_status 2
	done
}

@test "a turn that does not come is told with who has it" {
	likely_model qwen3
	exec 7>turns
	flock 7
	try wsync-push m -e localhost:1 --sender 1/2 --lock turns --round 1 --lock-wait 200ms
	expect_status 10
	err_has "turn of sender 1 of 2: another process is still at work on it after 200 ms"
	exec 7>&-
}

@test "a wait for another push is told after 10 s, for a turn and for an endpoint" {
	likely_model qwen3
	mkdir -p "$XDG_STATE_HOME/wsync/locks"
	exec 7>turns 8>"$XDG_STATE_HOME/wsync/locks/localhost:1.lock"
	flock 7
	flock 8
	timeout 600 wsync-push m -e localhost:1 --sender 1/2 --lock turns --round 1 \
		--lock-wait 11s 2>turn.err >turn.out &
	try wsync-push m -e localhost:1 --lock-wait 11s --json
	expect_status 10
	err_has "waiting 10 s: endpoint http://localhost:1: another process is still at work on it"
	err_has "is still at work on it after 11.00 s"
	out_has '"type":"waiting"'
	wait $! && explain "the turn was taken"
	grep -q "waiting 10 s: turn of sender 1 of 2: another process is still at work on it" \
		turn.err ||
		explain "$(cat turn.err)"
	exec 7>&- 8>&-
}

states='[e["state"] for e in lines[-1]["endpoints"]]'

# two LINEAGE FAULT: two endpoints, the first of which has the fault; in $a and $b.
two() {
	endpoint faulty --lineage "$1" --model m --fault "$2"
	a=$url
	endpoint sound --lineage "$1" --model m
	b=$url
}

@test "two-phase: who refuses to prepare leaves the others as they were, and ready for the next" {
	likely_model qwen3
	two xorl-legacy refuse:prepare_weights_update:1
	try wsync-push m -e "$a" -e "$b" --protocol two-phase --json
	expect_status 5
	expect_json "$states" "['untouched', 'untouched']"
	expect_steps "prepare_weights_update complete_weights_update" "$b" prepare complete
	try wsync-push m -e "$a" -e "$b" --protocol two-phase
	expect_status 0
	holds "$a" "$b"
}

@test "two-phase: a prepare without an answer ends the push, and it does not crash at the end" {
	likely_model qwen3
	two xorl-legacy hang:prepare_weights_update:1
	try wsync-push m -e "$a" -e "$b" --protocol two-phase --bucket-timeout 2s --json
	expect_status 10
	expect_json "$states" "['untouched', 'untouched']"
	err_has "no complete answer after 2.0"
}

@test "two-phase: a completion that is refused once is asked for again, and says what came of it" {
	likely_model qwen3
	two xorl-legacy refuse:complete_weights_update:1
	try wsync-push m -e "$a" -e "$b" --protocol two-phase --json
	expect_status 5
	expect_json "$states" "['committed', 'committed']"
	holds "$a" "$b"
}

@test "receive: when one of two goes, the other keeps all of its old weights" {
	likely_model qwen3
	two xorl-legacy drop:receive_weights:1
	try wsync-push m -e "$a" -e "$b" --protocol receive --bucket-size 512KiB --json
	[ "$status" = 6 ] || [ "$status" = 5 ] || explain "expected status 5 or 6"
	expect_json "${states}[1]" "untouched"
	try wsync-push m -e "$b" --protocol receive
	expect_status 0
	holds "$b"
}

@test "ep-scatter: a server that dies of the request leaves nobody paused" {
	likely_model qwen3_moe
	two xorl-legacy die:receive_weights_ep_scatter:1
	try wsync-push m -e "$a" -e "$b" --protocol ep-scatter --on-partial resume --json
	[ "$status" != 0 ] || explain "it cannot succeed"
	expect_json '[e["paused"] for e in lines[-1]["endpoints"]][1]' "False"
	try wsync-push m -e "$b" --protocol ep-scatter
	expect_status 0
	holds "$b"
}

@test "a session that cannot be ended in time is no success where it was not" {
	likely_model qwen3
	two session hang:end_weight_update:1
	try wsync-push m -e "$a" -e "$b" --bucket-timeout 1s --json
	[ "$status" = 10 ] || [ "$status" = 9 ] || explain "expected status 9 or 10"
	expect_json "${states}[1]" "committed"
}

@test "servers of before flattened buckets get tensors, and what cannot go so is refused" {
	safetensors mixed.safetensors a:F32:30,5 b:BF16:7,3
	safetensors codes.safetensors a.weight:F8_E4M3:128,128 a.weight_scale_inv:F32:1,1
	endpoint a --lineage sglang-0.5
	try wsync-push mixed.safetensors -e "$url" --weight-version 2 --json
	expect_status 0
	expect_json '[l["load_format"] for l in lines if l["type"] == "plan"]' "['none']"
	try wsync-push mixed.safetensors -e "$url" --load-format flattened_bucket
	expect_status 5
	err_has "does not support flattened buckets"
	try wsync-push codes.safetensors -e "$url"
	expect_status 5
	err_has "an endpoint does not support them"
	endpoint b --lineage sglang-0.4
	try wsync-push mixed.safetensors -e "$url" --pause none --flush never
	expect_status 0
}
