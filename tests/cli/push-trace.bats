#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-push --trace: a file that says what ran when, whatever becomes of the push.
load helpers

# rows EXPRESSION: over t.json, which is read strictly.
rows() { /usr/bin/python3 "$repo/tests/cli/trace_rows.py" t.json "$1"; }
# is EXPRESSION VALUE
is() { [ "$(rows "$1")" = "$2" ] || explain "$1 is $(rows "$1"), not $2"; }
wire_bytes() { json 'lines[-1]["wire_bytes"]'; }
# Requests of a journal as "METHOD PATH STATUS", sorted.
journal() {
	/usr/bin/python3 -c 'import json, sys, urllib.request
j = json.load(urllib.request.urlopen(sys.argv[1] + "/wsync/journal", timeout=10))
print(sorted("%s %s %d" % (r["method"], r["path"].split("?")[0], r["status"]) for r in j["requests"]))' "$1"
}

@test "phases, buckets, ranks and requests of a push have rows, and the sums are right" {
	llama m
	endpoint a --tp 2
	local first=$url
	endpoint b --tp 1
	try wsync-push m -e "$first" -e "$url" --bucket-size 64KiB --verify hash --trace t.json --json
	expect_status 0
	is 'total("wire rank")' "$(wire_bytes)"
	is 'len(of("buckets"))' "$(json 'lines[-1]["buckets"]')"
	is 'sorted({e["args"]["bucket"] for e in of("wire")}) == list(range(len(of("buckets"))))' True
	is '[r for r in rows if r.startswith("push")], of("push")[0]["args"]["source"]' "(['push'], 'm')"
	# Phases without gaps, and no longer than they say.
	is 'all(a["ts"] + a["dur"] == b["ts"] for a, b in zip(of("phases"), of("phases")[1:]) if b["name"] != "destroy")' True
	is '{e["name"] for e in of("phases")} >= {"plan", "connect", "init", "pause", "transfer", "verify", "resume", "destroy"}' True
	is 'len(of("verify")) > 0 and not any("unfinished" in e["args"] for e in spans)' True
	is 'other["spans_dropped"], other["program"]' "(0, 'wsync-push')"
	for u in "$first" "$url"; do
		is "sorted('%s %d' % (e['name'], e['args']['status']) for e in of('HTTP $u'))" "$(journal "$u")"
	done
}
