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
requests_of() { journal "$1" 'sorted("%s %s %d" % (r["method"], r["path"].split("?")[0],
	r["status"]) for r in j["requests"])'; }

@test "phases, buckets, ranks and requests of a push have rows, and the sums are right" {
	llama m
	endpoint a --tp 2
	local first=$url
	endpoint b --tp 1
	try wsync-push m -e "$first" -e "$url" --bucket-size 64KiB --verify hash --trace t.json \
		--json
	expect_status 0
	is 'total("wire rank")' "$(wire_bytes)"
	is 'len(of("buckets"))' "$(json 'lines[-1]["buckets"]')"
	is 'sorted({e["args"]["bucket"] for e in of("wire")}) == list(range(len(of("buckets"))))' \
		True
	is '[r for r in rows if r.startswith("push")], of("push")[0]["args"]["source"]' \
		"(['push'], 'm')"
	# The row spans all of it.
	is '[e["name"] for e in of("push")]' "['push', 'destroy']"
	is 'max(e["ts"] + e["dur"]
		for e in spans) == of("push")[-1]["ts"] + of("push")[-1]["dur"]' True
	# Phases without gaps, and no longer than they say.
	is 'all(a["ts"] + a["dur"] == b["ts"] for a,
		b in zip(of("phases"), of("phases")[1:]) if b["name"] != "destroy")' True
	is '{e["name"] for e in of("phases")} >= {"plan", "connect", "init", "pause", "transfer",
		"verify", "resume", "destroy"}' True
	is 'len(of("verify")) > 0 and not any("unfinished" in e["args"] for e in spans)' True
	is 'other["spans_dropped"], other["program"]' "(0, 'wsync-push')"
	for u in "$first" "$url"; do
		is "sorted('%s %d' % (e['name'], e['args']['status']) for e in of('HTTP $u'))" \
			"$(requests_of "$u")"
	done
}

# weights FILE NAME:DTYPE:DIMS...: numbers, none of which is infinite.
weights() { safetensors "$@" >/dev/null &&
	/usr/bin/python3 "$repo/tests/cli/numbers.py" tame "$1"; }

@test "what is made and what is read for it has rows, of each thread" {
	mkdir m
	weights m/model.safetensors a.q_proj.weight:BF16:1024,1024 b.q_proj.weight:BF16:1024,1024 \
		c.norm.weight:BF16:64
	endpoint a
	try wsync-push m -e "$url" --verify none --quantize fp8 --trace t.json --json
	expect_status 0
	is 'total("wire")' "$(wire_bytes)"
	is 'sum(e["args"].get("bytes", 0) for e in of("transform") if e["name"] == "make")' \
		$((2 * (1024 * 1024 + 8 * 8 * 4)))
	is 'all(name.split()[:2] == ["transform", "thread"] and len(name.split()) == 3
		for name in rows if name.startswith("transform"))' True
	is 'sorted({e["args"]["tensor"] for e in of("transform")})' \
		"['a.q_proj.weight', 'b.q_proj.weight']"
	is '{e["name"] for e in of("transform")} == {"make", "check values"}' True
	is 'sorted({e["name"] for e in of("read")})' "['a.q_proj.weight', 'b.q_proj.weight']"
	is 'total("read") >= 2 * 2 * 1024 * 1024 and of("read")[0]["args"]["file"].endswith("model.safetensors")' True
}

@test "every protocol has its buckets, and what each rank was sent" {
	/usr/bin/python3 "$repo/tests/cli/small_model.py" qwen3_moe m
	/usr/bin/python3 "$repo/tests/cli/numbers.py" tame m/model.safetensors
	local pair
	for pair in sglang-2026:update session:session xorl-legacy:two-phase xorl-legacy:receive \
		xorl-legacy:ep-scatter; do
		endpoint "${pair%:*}-${pair#*:}" --lineage "${pair%:*}" --model m --tp 2
		try wsync-push m -e "$url" --protocol "${pair#*:}" --bucket-size 512KiB \
			--trace t.json --json
		expect_status 0
		is 'total("wire rank")' "$(wire_bytes)"
		is 'sorted(r for r in rows if r.startswith("wire")) in (["wire rank 1",
			"wire rank 2"], ["wire rank 1"])' True
		is 'len(of("buckets"))' "$(json 'sum(l["type"] == "bucket" for l in lines)')"
		is 'any("unfinished" in e["args"] for e in spans)' False
		is 'len(of("apply")) > 0' True
	done
}

@test "so has every backend" {
	llama m
	/usr/bin/python3 "$repo/tests/cli/numbers.py" tame m/model.safetensors
	endpoint a --tp 2
	try wsync-push m -e "$url" --backend tensor --bucket-size 64KiB --trace t.json --json
	expect_status 0
	is 'total("wire")' "$(wire_bytes)"
	is 'sorted({r.split()[1] for r in rows if r.startswith("wire")})' "['requests']"
	is 'sum(e["args"]["bytes"] for e in of("HTTP")) > total("wire")' True
	endpoint b
	try wsync-push m -e "$url" --backend disk --disk-dir out --trace t.json --json
	expect_status 0
	is 'total("wire disk")' "$(wire_bytes)"
	is '[e["name"] for e in of("HTTP") if "disk" in e["name"]]' \
		"['POST /update_weights_from_disk']"
	is 'len(of("apply"))' 1
}

# on_doubles OPTION...: a push of m.safetensors from a GPU that is none, to an endpoint with canned
# answers.
on_doubles() {
	[ -e "$build/tests/gpu/fake_cuda.so" ] || skip "built without CUDA"
	mkdir -p lib
	ln -sf "$build/tests/gpu/fake_cuda.so" lib/libcuda.so.1
	ln -sf "$build/tests/gpu/fake_cuda.so" lib/fake_cuda.so
	ln -sf "$build/tests/gpu/fake_nccl.so" lib/libnccl.so.2
	local yes='200:{"success":true,"message":"yes"}'
	canned server '/server_info=200:{"tp_size":2,"ep_size":1,"dtype":"bfloat16","version":"0.5.9"}' \
		'/model_info=200:{"weight_version":"7"}' '/flush_cache=200:Cache flushed.' \
		'/pause_generation=200:{"status":"ok","message":"ok"}' \
		'/continue_generation=200:{"status":"ok","message":"ok"}' \
		"/init_weights_update_group=$yes" \
		"/update_weights_from_distributed=$yes" "/destroy_weights_update_group=$yes"
	LD_LIBRARY_PATH=$scratch/lib try wsync-push m.safetensors -e "$url" --verify none \
		--bucket-size 1MiB \
		--trace t.json --json "$@"
	expect_status 0
}

@test "copies to a GPU have a row, and broadcasts, on doubles of its libraries" {
	weights m.safetensors a.weight:BF16:4096,1024 b.weight:F32:1000
	on_doubles --backend nccl
	is 'total("wire to all ranks")' "$(wire_bytes)"
	is 'total("copy")' "$(json 'lines[-1]["bytes"]')"
	is 'total("read")' "$(json 'lines[-1]["bytes"]')"
}

@test "so has what is made there" {
	weights m.safetensors a.q_proj.weight:BF16:1024,1024 b.q_proj.weight:BF16:1024,1024
	on_doubles --backend nccl --quantize fp8 --allow-unknown format
	is 'total("wire to all ranks")' "$(wire_bytes)"
	is '[e["args"]["tensor"] for e in of("transform GPU")]' \
		"['a.q_proj.weight', 'b.q_proj.weight']"
	is 'total("transform GPU"), total("copy")' \
		"($((2 * (1024 * 1024 + 256))), $((2 * 2 * 1024 * 1024)))"
	on_doubles --backend nccl --quantize fp8 --allow-unknown format --transform-on cpu
	is '(total("transform GPU"),
		sum(e["args"].get("bytes", 0) for e
		in of("transform thread")))' "(0, $((2 * (1024 * 1024 + 256))))"
}

@test "a push that is refused leaves a trace of where" {
	llama m
	endpoint a --tp 2 --fault refuse:update_weights_from_distributed:2
	try wsync-push m -e "$url" --bucket-size 64KiB --trace t.json --json
	[ "$status" != 0 ]
	is 'total("wire")' "$(wire_bytes)"
	is '(len([e for e in of("phases") if "error" in e["args"]]),
		[e["name"] for e in of("phases") if "error" in e["args"]])' "(1, ['transfer'])"
	is 'of("buckets")[-1]["args"]["unfinished"], "error" in of("push")[0]["args"]' \
		"(True, True)"
	is '[e["args"]["status"] for e in of("HTTP") if e["name"].endswith("from_distributed")]' \
		"[200, 400]"
	# Nobody there.
	try wsync-push m -e "http://127.0.0.1:$(free_port)" --trace t.json
	expect_status 4
	is '"cannot connect" in of("HTTP")[0]["args"]["error"], "status" in of("HTTP")[0]["args"]' \
		"(True, False)"
}

@test "one that is interrupted shows what was under way" {
	llama m
	endpoint a --tp 2 --fault hang:update_weights_from_distributed:2
	start push wsync-push m -e "$url" --bucket-size 64KiB --trace t.json --json
	eventually requested /update_weights_from_distributed 2
	kill -TERM "$pid"
	local got=0
	wait "$pid" || got=$?
	[ "$got" = 143 ]
	is 'of("push")[0]["args"]["unfinished"]' True
	is '[(e["name"], "status" in e["args"]) for e in of("HTTP")
		if e["args"].get("unfinished")]' \
		"[('POST /update_weights_from_distributed', False)]"
	is '{e["args"].get("unfinished") for e in of("wire") if e["args"]["bucket"] == 1}' "{True}"
	is 'of("phases")[-1]["name"]' destroy || is 'of("phases")[-1]["name"]' plan
}

@test "with --stdin all lines are in one file" {
	llama m
	endpoint a
	try bash -c 'printf "m\nnowhere\nm\t7\n" | wsync-push --stdin --json -e "$1" --trace t.json' - "$url"
	expect_status 3
	is '[(e["args"]["source"], "error" in e["args"]) for e in of("push")
		if e["name"] == "push"]' "[('m', False), ('nowhere', True), ('m', False)]"
	is 'total("wire")' "$(wire_bytes)"
	is 'sum(e["name"].endswith("init_weights_update_group") for e in of("HTTP")) in (1, 2)' True
}

@test "a dry run has one too, and several senders have one each" {
	llama m
	try wsync-push m -n --trace t.json
	expect_status 0
	is '({e["name"] for e in of("phases")} <= {"plan", "connect", "verify", "resume"},
		len(of("HTTP")))' "(True, 0)"
	endpoint a --lineage xorl-legacy --model m --tp 2
	local port
	port=$(free_port)
	start two timeout -k 5 600 wsync-push m --sender 2/2 --protocol ep-scatter \
		--master-address 127.0.0.1 \
		--master-port "$port" --trace two.json --json
	local second=$pid
	try wsync-push m -e "$url" --sender 1/2 --protocol ep-scatter --master-address 127.0.0.1 \
		--master-port "$port" \
		--trace t.json --json
	expect_status 0
	wait "$second"
	is 'total("wire")' "$(wire_bytes)"
	mv two.json t.json
	out=$(<two.out)
	is 'total("wire"), len(of("HTTP"))' "($(wire_bytes), 0)"
}

@test "a file that cannot be written is said before anybody is asked" {
	llama m
	mkdir there
	ln -s elsewhere.json link.json
	for file in nowhere/t.json there /dev/null; do
		try wsync-push m -e http://127.0.0.1:1 --trace "$file"
		expect_status 8
		err_has "--trace: "
	done
	[ -c /dev/null ]
	for file in - ''; do
		try wsync-push m -e http://127.0.0.1:1 --trace "$file"
		expect_status 2
	done
	: >elsewhere.json
	try wsync-push m -n --trace link.json # a link is followed
	expect_status 0
	[ -L link.json ] && mv elsewhere.json t.json
	is 'len(of("push"))' 1
	try wsync-push m -n --trace link.json # one to a file that is not there yet, too
	expect_status 0
	[ -L link.json ] && [ -s elsewhere.json ]
	# not that of another user, who would choose what is overwritten
	if [ "$(id -u)" = 0 ]; then
		rm elsewhere.json
		chown -h 4711 link.json
		for option in trace metrics; do
			try wsync-push m -n --$option link.json
			expect_status 2
			err_has "link.json: it is a link of another user"
			[ ! -e elsewhere.json ]
		done
		chown -h 0 link.json
	fi
}

@test "a file that holds anything else is not replaced, and nobody is asked" {
	llama m
	cp -r m before
	ln -s m/config.json link.json
	echo '# HELP of another' >other.prom
	for file in m/model.safetensors m/config.json link.json; do
		for option in --trace --metrics; do
			try wsync-push m -e http://127.0.0.1:1 $option "$file"
			expect_status 2
			err_has "$option: $file is there and is not "
			err_has "hint: name another file, or remove this one first"
		done
	done
	try wsync-push m -e http://127.0.0.1:1 --metrics other.prom --json
	expect_status 2
	out_has '"type":"end","ok":false,"exit":2'
	diff -r m before
	for i in 1 2; do # its own it replaces
		try wsync-push m -e http://127.0.0.1:1 --trace t.json --metrics m.prom
		expect_status 4
		[ -s t.json ] && [ -s m.prom ]
	done
	try wsync-push m -e http://127.0.0.1:1 --trace m.prom
	expect_status 2
}

@test "a repetition after a crash leaves the trace of the crash alone" {
	llama m
	endpoint a --tp 2 --fault hang:update_weights_from_distributed:2
	start push wsync-push m -e "$url" --bucket-size 64KiB --trace t.json --metrics m.prom --json
	eventually requested /update_weights_from_distributed 2
	kill -KILL "$pid"
	wait "$pid" || true
	echo evidence >t.json
	/usr/bin/python3 -c 'import glob, json, sys
args = json.load(open(glob.glob(sys.argv[1] + "/wsync/pushes/*")[0]))
text = json.dumps(args)
print("--trace" in text, "--metrics" in text)' "$XDG_STATE_HOME" >said
	[ "$(cat said)" = "False True" ]
}
