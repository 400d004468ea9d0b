#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-bench: that each command measures what it says, and that its figures are those of its
# samples. How fast anything is, no test asks.
load helpers

keys() { /usr/bin/python3 "$repo/tests/cli/json_keys.py" "$repo/man/wsync-json.5.scd" wsync-bench \
	<<<"$out"; }
rows() { json "[($1) for l in lines if l['type'] == 'measure']"; }
# Every figure of every row, computed once more from its samples.
figures() {
	/usr/bin/python3 -c '
import json, statistics, sys
for line in sys.stdin:
    l = json.loads(line)
    if l["type"] != "measure":
        continue
    ns = sorted(l["ns"])
    assert l["min_ns"] == ns[0] and l["max_ns"] == ns[-1], l
    assert abs(l["median_ns"] - statistics.median(ns)) <= 1, l
    assert l["p99_ns"] == ns[-(-99 * len(ns) // 100) - 1], l
    low, high = (ns[-(-25 * len(ns) // 100) - 1],
                 ns[-(-75 * len(ns) // 100) - 1]) if len(ns) > 3 else (ns[0], ns[-1])
    assert abs(l["spread"] - (high - low) / l["median_ns"]) <= 1e-6 * (1 + l["spread"]), l
    if l["against"]:
        scale = l["bytes"] / l["against_bytes"] if l["bytes"] and l["against_bytes"] else 1
        pairs = sorted(t / o * scale for o, t in zip(l["ns"], l["against_ns"]))
        assert len(l["against_ns"]) == len(ns), l
        for key, value in (("ratio", statistics.median(pairs)), ("ratio_min", pairs[0]),
                           ("ratio_max", pairs[-1])):
            assert abs(l[key] - value) <= 1e-6 * value, (key, value, l)' <<<"$out"
}
endpoints_of() { pgrep -P "$1" -x wsync-endpoint || true; }

@test "kernels: every one agrees with plain C, to the byte" {
	try wsync-bench kernels --size 1MiB --samples 2 --check --json
	expect_status 0
	keys
	figures
	[ "$(rows 'l["name"]')" = "['hash xxh3-64', 'checksum sglang-cuda', \
'checksum sglang-cpu', 'fp8 128x128 xorl', 'fp8 128x128 slime', \
'fp8 128x128 ue8m0', 'lora rank 16 fold', 'lora rank 16 two-step', 'unpack 4 bits']" ] ||
explain "the kernels"
	[ "$(rows 'l.get("errors", "-")')" = "['-', '-', '-', 0, 0, 0, 0, 0, 0]" ] ||
		explain "errors"
	[ "$(rows 'len(l["ns"])')" = "[2, 2, 2, 2, 2, 2, 2, 2, 2]" ]
	expect_json '[l["against"] for l in lines if l["type"] == "roofline"]' "['memcpy']"
	try wsync-bench kernels --size 2TiB
	expect_status 2
}

@test "load: the bytes of the source, against those of its files" {
	llama m
	try wsync-bench load m --samples 3 --json
	expect_status 0
	keys
	figures
	bytes=$(wsync-list-weights m --json | tail -1 |
		/usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["bytes"])')
	[ "$(rows 'l["bytes"], l["against"]')" = "[($bytes, 'read(2)')]" ] || explain "$bytes bytes"
	try wsync-bench load m --samples 1 --cold --json
	expect_status 0
	[ "$(rows 'l["detail"]')" = "['page cache empty']" ]
	try wsync-bench load --model qwen3-0.6b --quantize fp8 --most 1MiB --samples 1 --warmup 0 \
		--json
	expect_status 0
	[ "$(rows 'l["name"], l["against"]')" = "[('read and made', None)]" ]
}

@test "control: one endpoint, then all of them at once" {
	try wsync-bench control --local 3 --samples 5 --json
	expect_status 0
	keys
	figures
	[ "$(rows 'l["name"], l["detail"]')" = \
		"[('request', 'a new connection'), ('request', 'a kept connection'), ('fan-out', \
'3 endpoints at once')]" ] || explain "rows"
	try wsync-bench control -e 127.0.0.1:1 --samples 1
	expect_status 4
	err_has "127.0.0.1:1"
}

@test "transport: every receiver has every byte" {
	try wsync-bench transport --receivers 3 --min-size 1 --max-size 1MiB --factor 1024 \
		--samples 3 --check --json
	expect_status 0
	keys
	figures
	[ "$(rows 'l["bytes"], l["errors"]')" = "[(1, 0), (1024, 0), (1048576, 0)]" ] ||
		explain "sizes"
	try wsync-bench transport --receivers 2 --min-size 256KiB --max-size 4MiB --total 3MiB \
		--samples 2 --check --json
	expect_status 0
	figures
	[ "$(rows 'l["bytes"], l["count"], l["errors"]')" = \
		"[(262144, 12, 0), (1048576, 3, 0), (4194304, 1, 0)]" ] || explain "total"
	try wsync-bench transport --max-size 1MiB --samples 1 --check
	out_has "checked: 1 of 1 rows, no byte is wrong"
	try wsync-bench transport --total 1GiB --min-size 1
	expect_status 2
	err_has "more than 4096 broadcasts of 1 bytes"
	try wsync-bench transport --total 1GiB --count 2
	expect_status 2
	try wsync-bench transport --max-size 64KiB --samples 1 --json # less than the usual least
	expect_status 0
	[ "$(rows 'l["bytes"]')" = "[65536]" ] || explain "sizes"
}

@test "transport: receivers of other processes" {
	port=$(free_port)
	start one wsync-bench transport --join "127.0.0.1:$port" --host 127.0.0.1
	one=$pid
	start two wsync-bench transport --join "127.0.0.1:$port"
	two=$pid
	try wsync-bench transport --remote 2 --receivers 1 --listen "127.0.0.1:$port" --samples 2 \
		--max-size 1MiB --check --json
	expect_status 0
	[ "$(rows 'l["detail"], l["errors"], l["against"]')" = \
		"[('gloo, 3 receivers', 0, None)]" ] || explain "rows"
	wait "$one" && wait "$two"
	grep -q "received all of it" two.out
}

@test "transport: one receiver too few, or too many, has an end and a sentence" {
	port=$(free_port)
	SECONDS=0
	try wsync-bench transport --remote 1 --listen "127.0.0.1:$port" --timeout 1s
	expect_status 10
	[ "$SECONDS" -lt 30 ] || explain "took $SECONDS s" # not the default of 60 s
	try wsync-bench transport --join 127.0.0.1:1 --timeout 1s
	expect_status 4
	start one wsync-bench transport --remote 1 --listen "127.0.0.1:$port" --samples 1000 \
		--min-size 64 --max-size 64MiB \
		--factor 1024 --timeout 10s
	root=$pid
	start two wsync-bench transport --join "127.0.0.1:$port" --timeout 10s
	# of 64 bytes: both are there, and large ones follow
	eventually grep -q "gloo, 1 receiver" one.out
	try wsync-bench transport --join "127.0.0.1:$port" --timeout 2s
	expect_status 5
	err_has "are there already"
	kill "$root"
	wait "$root" || true
	eventually grep -q wsync-bench two.err
}

# Whoever sets other keys than receivers do is no receiver, and must not take the place of one.
@test "transport: strangers at the port do not keep the receivers out" {
	port=$(free_port)
	start root wsync-bench transport --remote 1 --listen "127.0.0.1:$port" --samples 1 \
		--max-size 64KiB --timeout 60s
	root=$pid
	eventually bash -c ": </dev/tcp/127.0.0.1/$port"
	start strangers /usr/bin/python3 -c "
import socket, time
held = []
for i in range(80):
    held.append(socket.create_connection(('127.0.0.1', $port)))
    held[i].sendall(bytes(3000 if i % 2 else 17))
print('there', flush=True)
time.sleep(300)"
	eventually grep -q there strangers.out
	try wsync-bench transport --join "127.0.0.1:$port" --timeout 60s
	expect_status 0
	finished root 0 "$root"
}

@test "transport: SIGTERM ends a receiver that waits for the others at once" {
	port=$(free_port)
	start root wsync-bench transport --remote 2 --listen "127.0.0.1:$port" -vv
	start one wsync-bench transport --join "127.0.0.1:$port"
	one=$pid
	eventually grep -q "WAIT /wsync-bench/wsync-bench/gloo/2" root.err
	kill "$one"
	finished one 143 "$one"
	err_has "wait for the key /wsync-bench/wsync-bench/gloo/2: cancelled"
}

@test "push: phases that add up, and what bounds them" {
	llama m
	try wsync-bench push m --local 2 --samples 3 --json
	expect_status 0
	keys
	figures
	/usr/bin/python3 -c '
import json, statistics, sys
lines = list(map(json.loads, sys.stdin))
rows = {l["name"]: l for l in lines if l["type"] == "measure" and l["detail"] is None}
alone = {l["name"]: l["ns"] for l in lines if l["type"] == "measure" and l["detail"] == "alone"}
bound = [l for l in lines if l["type"] == "bound"][0]
total = rows.pop("total")
phases = [rows[k]["ns"] for k in ("transfer", "apply") if k in rows] # what a source hides behind
together = [sum(ns) for ns in zip(*phases)]
assert bound["together_ns"] == int(statistics.median(together)), (bound, together)
assert bound["supply_ns"] == int(statistics.median(alone["source"])), bound
assert abs(bound["overlap"] - bound["supply_ns"] / bound["together_ns"]) < 1e-6, bound
for i, whole in enumerate(total["ns"]):
    parts = sum(r["ns"][i] for r in rows.values())
    assert 0.9 * whole <= parts <= whole + 1, (i, parts, whole)' <<<"$out"
	expect_json '[l["bound"] in ("source", "wire", "apply", "verify", "control") for l in lines
		if l["type"] == "bound"]' "[True]"
	try wsync-bench push m --keep-group --no-alone --keep memory --verify hash --samples 2 \
		--json
	expect_status 0
	figures
	expect_json '[l["against"] for l in lines if l.get("name") == "transfer"]' "[None]"
	expect_json '[(l["supply_ns"], l["overlap"]) for l in lines if l["type"] == "bound"]' \
		"[(0, 0)]"
}

@test "what cannot be measured has no heading" {
	for what in "push --model none" "load --model none" "load /nowhere" \
		"control -e 127.0.0.1:1" "sweep --model none" \
		"push --model qwen3-0.6b -e 127.0.0.1:1" \
		"transport --remote 1 --listen 127.0.0.1:$(free_port) --timeout 100ms"; do
		# shellcheck disable=SC2086
		try wsync-bench $what
		[ "$status" != 0 ] || explain "it failed"
		expect_out ""
	done
}

@test "push: to endpoints that are there" {
	llama m
	start e wsync-endpoint --listen 127.0.0.1:0
	eventually grep -q http e.out
	url=$(grep -o 'http://[0-9.:]*' e.out)
	try wsync-bench push m -e "$url" --samples 1 --warmup 0
	expect_status 0
	out_has "bound by "
	try wsync-verify weights m -e "$url"
	expect_status 0
}

@test "sweep: all settings, and the fastest of them" {
	llama m
	try wsync-bench sweep m --samples 2 --buckets 64KiB --buckets 1MiB --formats none \
		--formats flattened_bucket --json
	expect_status 0
	keys
	figures
	[ "$(rows 'l["name"].strip(), l["detail"]')" = \
		"[('64KiB', 'none'), ('1MiB', 'none'), ('64KiB', 'flattened_bucket'), ('1MiB', \
'flattened_bucket')]" ] || explain "rows"
	expect_json 'min(l["median_ns"] for l in lines if l["type"] == "measure") == [l["total_ns"]
		for l in lines if l["type"]
		== "recommendation"][0]' True
	expect_json 'sorted(str(l["against"]) for l in lines if l["type"] == "measure")' \
		"['None', 'the fastest', 'the fastest', 'the fastest']"
	# zeros
	llama m '' --holes
	try wsync-bench sweep m --samples 4 --buckets 64KiB --buckets 64KiB --buckets 1MiB \
		--quantizations none --quantizations fp8 --block-size 32x32 \
		--verify none
	expect_status 0
	out_has "fastest here, "
	[ "$(grep -c 'of the fastest' <<<"$out")" = 5 ] || explain "the others"
	# one after the other
	try wsync-bench sweep m --samples 2 --buckets 64KiB --buckets 1MiB --keep-group --json
	expect_status 0
	keys
	[ "$(rows 'l["against"]')" = "[None, None]" ] || explain "not in turns"
	try wsync-bench sweep m --buckets 3Q
	expect_status 2
	err_has "--buckets: invalid"
	try wsync-bench sweep m --formats zip
	expect_status 2
	err_has "'zip'"
}

@test "plan: bytes of the model, seconds of the rates" {
	try wsync-bench plan --model qwen3-0.6b --link 8Gb --endpoints 2 --json
	expect_status 0
	keys
	expect_json '[(l["wire_bytes"], l["floor_ns"], l["expected_ns"], l["bound"]) for l in lines
		if l["type"] == "estimate"]' \
		"[(1192099840, 1192099840, 1192099840, \"the senders' links\")]"
	# 470.2 GB, 50 GB/s: senders in turns, each endpoint with one link or with one for each
	# rank.
	try wsync-bench plan --model qwen3-235b-a22b --senders 4 --receivers 8 --link 400Gb
	expect_status 0
	out_has "floor 9.40 s, expected 9.40 s, bound by the senders' links"
	out_has "one sender after the other"
	try wsync-bench plan --model qwen3-235b-a22b --senders 4 --endpoints 2 --tp 8 --nics 8 \
		--link 400Gb
	out_has "floor 2.35 s, expected 9.40 s, bound by the senders' links"
	try wsync-bench plan --model qwen3-235b-a22b --senders 4 --endpoints 2 --tp 8 --nics 8 \
		--link 400Gb --at-once
	out_has "floor 2.35 s, expected 2.35 s, bound by the senders' links"
	# FP8 is 236.4 GB of it; what is scattered goes to each of two endpoints.
	try wsync-bench plan --model qwen3-235b-a22b --senders 4 --endpoints 2 --tp 8 --nics 8 \
		--link 400Gb --quantize fp8 \
		--protocol ep-scatter
	out_has "236.4 GB (220.2 GiB) sent"
	out_has "floor 1.18 s, expected 2.36 s, bound by the senders' links"
	try wsync-bench plan --model qwen3-0.6b --link 1GB --receivers 2 --endpoints 2
	expect_status 2
	err_has "--receivers or --endpoints"
	try wsync-bench plan --model qwen3-0.6b --link 1GB --pause none # nothing to do with it
	expect_status 2
	try wsync-bench plan --model qwen3-0.6b
	expect_status 2
	err_has "--link"
	for bad in 400 0Gb -1Gb 4XB Gb nanGb; do
		try wsync-bench plan --model qwen3-0.6b --link "$bad"
		expect_status 2
		err_has "invalid rate '$bad'"
	done
}

@test "a measurement is over when its time is, or when it is interrupted, and prints what it has" {
	llama m
	try wsync-bench push m --samples 100000 --time 1s --json
	expect_status 0
	figures
	expect_json '0 < len([l for l in lines if l["type"] == "measure"][0]["ns"]) < 100000' True
	try wsync-bench sweep m --samples 3 --time 1ms --buckets 64KiB --buckets 1MiB
	expect_status 0
	out_has "with fewer than 4 samples"
	try wsync-bench transport --time 1s
	expect_status 2
	for what in "control --local 2" "push m" "sweep m --buckets 64KiB --buckets 1MiB" \
		"sweep m --keep-group --buckets 64KiB --buckets 1MiB" \
		"transport --max-size 1MiB"; do
		# shellcheck disable=SC2086
		start bench wsync-bench $what --samples 100000 --json
		eventually grep -q machine bench.out
		sleep 0.7
		kill -TERM "$pid"
		wait "$pid" || true
		out=$(<bench.out)
		keys
		figures
		expect_json '(len([l for l in lines if l["type"] == "measure"]) > 0,
			lines[-1]["error"]["code"])' "(True, 'cancelled')"
	done
}

@test "what is noisy says so" {
	try wsync-bench control --samples 200
	expect_status 0
	out_has "p99"
	printf '%s\n' "$out" | /usr/bin/python3 -c '
import sys
rows = [l for l in sys.stdin if l.startswith(("request", "fan-out"))]
text = "".join(rows)
assert len(rows) == 2 and all(" 200 " in l for l in rows), rows'
	try wsync-bench control --samples 3
	expect_status 0
	out_has "max"
	! grep -q p99 <<<"$out" || explain "p99 of 3"
}

@test "comma-separated values" {
	try wsync-bench transport --samples 2 --max-size 4MiB --csv
	expect_status 0
	[ "$(wc -l <<<"$out")" = 3 ] || explain "a header and two rows"
	/usr/bin/python3 -c 'import csv, sys
rows = list(csv.DictReader(sys.stdin))
assert [r["bytes"] for r in rows] == ["1048576", "4194304"], rows
assert all(float(r["ratio"]) > 0 and None not in r for r in rows), rows
assert all(abs(float(r["rate"]) - 1e9 * int(r["bytes"]) / int(r["median_ns"])) < 1
           for r in rows), rows' <<<"$out"
	try wsync-bench transport --samples 1 --csv --json
	expect_status 2
	try wsync-bench transport --plot rows.svg
	expect_status 2
	err_has "--plot: was removed: plot what --csv prints"
}

@test "usage: what does not go together, and what is missing" {
	try wsync-bench push
	expect_status 2
	err_has "a SOURCE or --model is needed"
	try wsync-bench push m --model qwen3-0.6b
	expect_status 2
	try wsync-bench transport --join 127.0.0.1:1 --remote 2
	expect_status 2
	try wsync-bench transport --remote 2
	expect_status 2
	err_has "--listen"
	try wsync-bench transport --listen nowhere
	expect_status 2
	try wsync-bench transport --min-size 2MiB --max-size 1MiB
	expect_status 2
	err_has "--min-size 2.00 MiB is more than --max-size 1.00 MiB"
	try wsync-bench transport --max-size 0
	expect_status 2
	try wsync-bench transport --receivers 0
	expect_status 2
	try wsync-bench kernels --tp 2
	expect_status 2
	try wsync-bench push "$scratch/none"
	expect_status 3
}

@test "its own endpoints end with it" {
	llama m
	start bench wsync-bench push m --local 2 --samples 100000
	bench=$pid
	eventually test -s bench.out
	mapfile -t own < <(endpoints_of "$bench")
	[ "${#own[@]}" = 2 ] || explain "${#own[@]} endpoints"
	kill "$bench"
	wait "$bench" || true
	for p in "${own[@]}"; do eventually bash -c "! kill -0 $p 2>/dev/null"; done
	start bench wsync-bench push m --local 1 --samples 100000
	bench=$pid
	eventually test -s bench.out
	mapfile -t own < <(endpoints_of "$bench")
	kill -9 "$bench"
	wait "$bench" || true
	for p in "${own[@]}"; do eventually bash -c "! kill -0 $p 2>/dev/null"; done
}
