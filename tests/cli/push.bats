# SPDX-License-Identifier: Apache-2.0
# wsync-push against wsync-endpoint, which judges by its journal.
load helpers

prepare() {
	safetensors small.safetensors a.weight:BF16:64,32 b.weight:F32:1000 c:U8:7 \
		d.weight:BF16:33,5 \
		e.weight:F8_E4M3:256,128 e.weight_scale_inv:F32:2,1 >/dev/null
	try_endpoints=0
}

@test "a dry run without endpoints prints the plan" {
	try wsync-push -n small.safetensors --bucket-size 4KiB --json
	expect_status 0
	expect_json 'lines[0]["type"], lines[0]["schema"], lines[-1]["type"], lines[-1]["ok"]' \
		"('start', 1, 'end', True)"
	expect_json '[l["type"] for l in lines].count("tensor")' 6
	expect_json '[l for l in lines if l["type"] == "plan"][0]["bytes"]' \
		"$((64*32*2 + 4000 + 7 + 33*5*2 + 256*128 + 8))"
}

@test "a dry run says of a real run what it does" {
	endpoint one
	try wsync-push -n small.safetensors -e "$url" --bucket-size 4KiB --json
	expect_status 0
	planned=$(json '([(l["digest"], l["buckets"], l["bytes"], l["world_size"]) for l in lines
		if l["type"] == "plan"], [(l["index"], l["tensors"], l["bytes"], l["flush"]) for l
		in lines
                            if l["type"] == "bucket"])')
	expect_journal "$url" '[p for p in paths if p not in ("/model_info", "/server_info",
		"/list_weights", "/openapi.json", "/wsync/journal")]' '[]'
	try wsync-push small.safetensors -e "$url" --bucket-size 4KiB --json
	expect_status 0
	expect_json '([(l["digest"], l["buckets"], l["bytes"], l["world_size"]) for l in lines
		if l["type"] == "plan"], [(l["index"], l["tensors"], l["bytes"], l["flush"]) for l
		in lines
                            if l["type"] == "bucket"])' "$planned"
}

@test "the first bucket size fits the data plane; a given one stays" {
	endpoint one
	local row size auto
	safetensors plain.safetensors a.weight:BF16:64,32 >/dev/null
	for row in "$((31 << 20)) True" "$((31 << 20)) True --bucket-size auto" \
		"$((31 << 20)) True --protocol two-phase" \
		"$((31 << 20)) False --protocol two-phase --two-phase whole" \
		"4096 False --bucket-size 4KiB" \
		"$((16 << 20)) False --backend tensor" \
		"$((512 << 20)) False --backend disk --disk-dir out" \
		"$((512 << 20)) True -e $url" \
		"$((512 << 20)) False -e $url --bucket-size 512MiB"; do
		read -r size auto row <<<"$row"
		# shellcheck disable=SC2086  # options
		try wsync-push -n plain.safetensors $row --json
		expect_status 0
		expect_json '[(l["bucket_size"], l["bucket_size_auto"]) for l in lines
			if l["type"] == "plan"]' "[($size, $auto)]"
		expect_json '{l["bucket_size"] for l in lines if l["type"] in ("bucket", "end")}' \
			"{$size}"
	done
	try wsync-push -n small.safetensors --json # its tensors need another order
	expect_json '[l["bucket_size_auto"] for l in lines if l["type"] == "plan"]' '[False]'
	mkdir files
	mv plain.safetensors files/
	try wsync-push -n files --backend disk --json
	expect_json '{l["bucket_size"] for l in lines if l["type"] in ("plan", "bucket", "end")}' \
		'{0}'
	try wsync-push -n files --bucket-size soon
	expect_status 2
	err_has "--bucket-size: invalid size 'soon', must be auto, or like 512MiB"
}

@test "a push pauses, flushes with the last bucket only, resumes and destroys its group" {
	endpoint one --tp 2
	try wsync-push small.safetensors -e "$url" --bucket-size 4KiB --verify hash \
		--weight-version v7 --json
	expect_status 0
	expect_json '(lines[-1]["ok"], lines[-1]["exit"],
		[e["state"] for e in lines[-1]["endpoints"]])' "(True, 0, ['committed'])"
	expect_json 'lines[-1]["tensors"], lines[-1]["weight_version"], lines[-1]["verify"]' \
		"(6, 'v7', 'hash')"
	expect_json 'sum(v for k,
		v in lines[-1]["ns"].items()
		if k != "total") >= 0.99 * lines[-1]["ns"]["total"]' True
	expect_journal "$url" '[p for p in paths if p in ("/init_weights_update_group",
		"/pause_generation", "/flush_cache", "/weights_checker", "/update_weight_version",
		"/continue_generation", "/destroy_weights_update_group")]' \
		"['/init_weights_update_group', '/pause_generation', '/flush_cache', \
'/weights_checker', '/update_weight_version', '/continue_generation', \
'/destroy_weights_update_group']"
	expect_journal "$url" '([u["flush_cache"] for u in updates] == [False] * (len(updates) - 1)
		+ [True], len(updates) > 2)' "(True, True)"
	expect_journal "$url" '(j["state"]["paused"], j["state"]["groups"],
		j["state"]["weight_version"])' "(False, [], 'v7')"
}

@test "several endpoints with several ranks hold the same bytes afterwards" {
	endpoint one --tp 1
	urls=(-e "$url")
	endpoint two --tp 2
	urls+=(-e "$url")
	endpoint three --tp 4 --keep hash
	urls+=(-e "$url")
	try wsync-push small.safetensors "${urls[@]}" --verify hash --json
	expect_status 0
	expect_json '[l["world_size"] for l in lines if l["type"] == "plan"]' "[8]"
	expect_json '[e["state"] for e in lines[-1]["endpoints"]]' \
		"['committed', 'committed', 'committed']"
}

@test "without a load format each tensor is a broadcast; dtypes unknown to gloo are refused" {
	endpoint one --tp 2
	try wsync-push small.safetensors -e "$url" --load-format none
	expect_status 5
	err_has 'e.weight is float8_e4m3fn'
	err_has 'flattened_bucket'
	expect_journal "$url" '"/pause_generation" in paths' False
	try wsync-push small.safetensors -e "$url" --load-format none --exclude 'e.*' \
		--verify hash --json
	expect_status 0
	expect_journal "$url" '[u["load_format"] for u in updates]' '[None]'
}

@test "servers of torch 1.13 get their own wire, and no bfloat16 tensor by itself" {
	endpoint old --tp 2 --torch 1.13
	try wsync-push small.safetensors -e "$url"
	expect_status 5
	err_has 'e.weight is float8_e4m3fn'
	expect_journal "$url" 'len(updates)' 0
	try wsync-push small.safetensors -e "$url" --exclude 'e.*' --verify hash --json
	expect_status 0
	try wsync-push small.safetensors -e "$url" --load-format none --exclude 'e.*'
	expect_status 5
	err_has 'bfloat16'
	expect_journal "$url" 'j["state"]["paused"], j["state"]["groups"]' '(False, [])'
}

@test "a refused bucket ends the push with the server's words; a partial one stays paused" {
	endpoint one --tp 1
	good=$url
	endpoint two --tp 2 --fault refuse:update_weights_from_distributed:2
	before=$SECONDS
	try wsync-push small.safetensors -e "$good" -e "$url" --bucket-size 4KiB --json
	[ $((SECONDS - before)) -le 60 ]
	expect_status 5
	expect_json '(lines[-1]["ok"], lines[-1]["exit"], lines[-1]["error"]["code"],
		lines[-1]["error"]["phase"])' "(False, 5, 'refused', 'transfer')"
	expect_json "lines[-1]['error']['endpoint'] == '$url'" True
	expect_json '([e["state"] for e in lines[-1]["endpoints"]],
		[e["paused"] for e
		in lines[-1]["endpoints"]])' "(['partial', 'partial'], [True, True])"
	err_has 'refused on request'
	expect_journal "$good" 'j["state"]["paused"]' True
	expect_journal "$url" 'j["state"]["paused"]' True
	err_has 'left paused: it has some old and some new weights'
}

@test "a refusal before the first byte leaves the endpoints untouched" {
	endpoint one --fault refuse:pause_generation:1
	try wsync-push small.safetensors -e "$url" --json
	expect_status 5
	expect_json '[e["state"] for e in lines[-1]["endpoints"]], lines[-1]["error"]["phase"]' \
		"(['untouched'], 'pause')"
	expect_journal "$url" 'len(updates), j["state"]["groups"]' "(0, [])"
}

@test "a partially updated endpoint is resumed where that is asked for" {
	endpoint one --fault refuse:update_weights_from_distributed:2
	try wsync-push small.safetensors -e "$url" --bucket-size 4KiB --on-partial resume --json
	expect_status 5
	expect_json 'lines[-1]["endpoints"][0]["state"], lines[-1]["endpoints"][0]["paused"]' \
		"('partial', False)"
	expect_journal "$url" 'j["state"]["paused"]' False
	err_has 'resumed with some old and some new weights'
}

@test "several sources by stdin keep one group, and a failed line does not end the others" {
	safetensors other.safetensors a.weight:BF16:64,32 >/dev/null
	endpoint one --tp 2
	printf 'small.safetensors\tv1\nmissing.safetensors\nother.safetensors\tv3\n' >list
	STDIN=list try wsync-push --stdin -e "$url" --json
	expect_status 3
	expect_json '[(l["source"], l["ok"]) for l in lines if l["type"] == "result"]' \
		"[('small.safetensors', True), ('missing.safetensors', False), \
('other.safetensors', True)]"
	expect_json 'lines[-1]["type"], lines[-1]["ok"], lines[-1]["exit"]' "('end', False, 3)"
	expect_journal "$url" '(paths.count("/init_weights_update_group"),
		j["state"]["weight_version"], j["state"]["groups"])' "(1, 'v3', [])"
}

@test "a line of stdin that is too long or has a NUL byte fails by itself" {
	endpoint one
	/usr/bin/python3 -c 'import sys
sys.stdout.buffer.write(b"small.safetensors\0/x\n" + b"a" * (3 << 20) + b"\n" + b"b" * (1 << 20)
                        + b"\n\nsmall.safetensors\n")' >list
	STDIN=list try wsync-push --stdin -e "$url" --json
	expect_status 3
	expect_json '[(l["source"][:15], l["error"]["message"][:29] if "error" in l else "")
		for l in lines if l["type"] == "result"]' \
		"[('line 1 of stdin', 'the line has a NUL byte'), ('line 2 of stdin', \
'the line is longer than 1 MiB'), $(:
		)('bbbbbbbbbbbbbbb', 'open bbbbbbbbbbbbbbbbbbbbbbbb'), ('small.safetenso', '')]"
	expect_json 'lines[-1]["results"], lines[-1]["exit"]' "(4, 3)"
}

@test "a standard input that cannot be read is a system error" {
	endpoint one
	STDIN=. try wsync-push --stdin -e "$url" --json
	expect_status 8
	expect_json '(lines[-1]["type"], lines[-1]["ok"], lines[-1]["exit"],
		lines[-1]["error"]["message"])' \
		"('end', False, 8, 'read standard input: Is a directory')"
}

@test "a standard input that does not block is waited for" {
	endpoint one
	cat >slow.py <<-'END'
		import array, fcntl, os, subprocess, sys, termios
		r, w = os.pipe()
		os.set_blocking(r, False)
		p = subprocess.Popen(["wsync-push", "--stdin", "-e", sys.argv[1]], stdin=r,
		                     stdout=subprocess.DEVNULL)
		unread = array.array("i", [1])
		def is_waiting():
		    fcntl.ioctl(r, termios.FIONREAD, unread)
		    return unread[0] == 0 and open("/proc/%d/stat"
		                                   % p.pid).read().split(")")[1].split()[0] == "S"
		os.write(w, b"small.safe")
		while p.poll() is None and not is_waiting():
		    pass
		os.write(w, b"tensors\n")
		os.close(w)
		sys.exit(p.wait())
	END
	try /usr/bin/python3 slow.py "$url"
	expect_status 0
}

@test "a last line of stdin without a newline is not pushed" {
	endpoint one
	mkdir ckpt
	cp small.safetensors ckpt/1.safetensors
	cp small.safetensors ckpt/11.safetensors
	# The writer of the second line died after "ckpt/1" of "ckpt/11.safetensors", or before its
	# newline.
	for line in 'ckpt\tv2' 'ckpt/11.safetensors\tv2' 'ckpt/11.safetensors\r' ' '; do
		printf "ckpt/1.safetensors\tv1\n$line" >list
		STDIN=list try wsync-push --stdin -e "$url" --json
		expect_status 3
		expect_json '[(l["source"], l["ok"], l.get("error", {}).get("message", "")[:29])
			for l in lines if l["type"] == "result"]' \
			"[('ckpt/1.safetensors', True, ''), ('line 2 of stdin', False, \
'the last line has no newline:')]"
		expect_json 'lines[-1]["results"], lines[-1]["exit"]' "(2, 3)"
		expect_journal "$url" 'j["state"]["weight_version"]' v1
	done
	printf 'ckpt/11.safetensors' | wsync-push --stdin -e "$url" >.out 2>.err || status=$?
	err=$(<.err) out=$(<.out)
	expect_status 3
	err_has "the last line has no newline: it may be cut short, and was not pushed"
	err_has "hint: end every line with a newline, the last one too"
}

@test "a server that does not tell its tp_size gets no weights by ranks" {
	local n=0 yes='200:{"success":true,"message":"Success."}'
	for told in '' ',"tp_size":null' ',"tp_size":"2"' ',"tp_size":0'; do
		canned "server$((n += 1))" "/server_info=200:{\"version\":\"0.5.9\"$told}" \
			'/model_info=200:{"model_path":"x"}' \
			"/update_weights_from_disk=$yes" "/pause_generation=$yes" \
			"/continue_generation=$yes" \
			"/flush_cache=200:Cache flushed."
		for backend in gloo tensor; do
			try wsync-push small.safetensors -e "$url" --backend "$backend" \
				--init-timeout 2s
			expect_status 5
			err_has "$url does not report how many ranks it has: \
/server_info has no tp_size"
			err_has "hint: \
is it a router or a proxy? use the address of the server itself"
		done
		try wsync-ctl info -e "$url" --json
		expect_json 'lines[1]["tp_size"], lines[1]["dp_size"]' "(None, 1)"
	done
	run ! grep POST "server$n.out"
	# A load from disk is one request for the whole server.
	mkdir whole
	cp small.safetensors whole/model.safetensors
	try wsync-push whole -e "$url" --backend disk --verify none --json --allow-unknown format
	expect_status 0
	expect_json '[l["ranks"] for l in lines if l["type"] == "endpoint"
		and l["phase"] == "connect"]' "[0]"
	try wsync-register add "$url" --world-size 2
	expect_status 0
	try wsync-register list --json
	expect_json 'lines[1]["tp_size"], lines[1]["world_size"]' "(0, 2)"
}

@test "verification finds a flipped byte and names the tensor" {
	endpoint one --tp 2 --fault flip:update_weights_from_distributed:1
	try wsync-push small.safetensors -e "$url" --verify hash --weight-version 9 --json
	expect_status 1
	expect_json '(len([l for l in lines if l["type"] == "mismatch"]) >= 1,
		lines[-1]["error"]["code"])' "(True, 'mismatch')"
	expect_journal "$url" 'j["state"]["weight_version"], j["state"]["paused"]' \
		"('default', True)"
}

@test "requests in flight are aborted before a flush, and kept ones forbid it" {
	endpoint one --busy 3
	try wsync-push small.safetensors -e "$url" --json
	expect_status 0
	endpoint two --busy 3
	try wsync-push small.safetensors -e "$url" --pause in_place
	expect_status 2
	try wsync-push small.safetensors -e "$url" --pause retract --json
	expect_status 5
	expect_json 'lines[-1]["error"]["phase"], lines[-1]["endpoints"][0]["state"]' \
		"('flush', 'untouched')"
	expect_journal "$url" 'j["state"]["paused"], len(updates)' '(False, 0)'
	try wsync-push small.safetensors -e "$url" --pause retract --flush never
	expect_status 0
}

@test "a pause that a server does not know is refused before anything is asked of it" {
	endpoint old --lineage sglang-0.4
	try wsync-push small.safetensors -e "$url"
	expect_status 5
	err_has "$url: it cannot pause"
	err_has "hint: use --pause none"
	try wsync-push small.safetensors -e "$url" --pause none --exclude e.weight
	expect_status 0
	endpoint late --lineage sglang-0.5
	try wsync-push small.safetensors -e "$url" --pause retract --flush never
	expect_status 5
	err_has "$url: it knows one way to pause, which aborts its requests"
	expect_journal "$url" '("/pause_generation" in paths,
		"/init_weights_update_group" in paths)' "(False, False)"
	endpoint session --lineage session
	try wsync-push small.safetensors -e "$url" --pause none
	expect_status 5
	err_has "in no order to compute with"
	endpoint busy --lineage xorl-legacy --busy 1
	try wsync-push small.safetensors -e "$url" --pause retract
	expect_status 5
	err_has "is refused after the weights have changed"
}

@test "a wildcard is never advertised, nor loopback to a remote endpoint" {
	endpoint one
	try wsync-push small.safetensors -e "$url" --master-address 0.0.0.0
	expect_status 2
	err_has wildcard
	expect_journal "$url" '"/init_weights_update_group" in paths' False
}

@test "an empty weight version, as an unset variable leaves it, is refused" {
	endpoint one
	try wsync-push small.safetensors -e "$url" --weight-version ''
	expect_status 2
	err_has "the weight version is empty"
	err_has "is a variable of the shell not set?"
	printf 'small.safetensors\t\nsmall.safetensors\tv2\n' >list
	STDIN=list try wsync-push --stdin -e "$url" --json --weight-version v1
	expect_status 2
	expect_json '[l["ok"] for l in lines if l["type"] == "result"]' "[False, True]"
	expect_journal "$url" 'paths.count("/pause_generation"), j["state"]["weight_version"]' \
		"(1, 'v2')"
}

@test "a missing source, endpoint or argument is said in one line" {
	endpoint one
	try wsync-push nothing.safetensors -e "$url"
	expect_status 3
	err_has 'nothing.safetensors'
	try wsync-push small.safetensors -e 127.0.0.1:1
	expect_status 4
	err_has '127.0.0.1:1'
	try wsync-push
	expect_status 2
	try wsync-push small.safetensors --stdin
	expect_status 2
	try wsync-push small.safetensors -e "$url" -e "$url"
	expect_status 2
	err_has twice
}

@test "people read aligned lines and a summary" {
	endpoint one --tp 2
	try wsync-push small.safetensors -e "$url" --verify hash
	expect_status 0
	out_has 'pushed'
	out_has 'verified by hash'
	try wsync-push small.safetensors -e "$url" -q
	expect_status 0
	expect_out ''
}

@test "an interrupted call is not an answer" {
	local routes=(server_info:connect pause_generation:pause weights_checker:verify) r
	for r in "${routes[@]}"; do
		endpoint "cut-${r#*:}" --fault "hang:${r%:*}:1"
		run /usr/bin/python3 - "$url" "${r%:*}" "${r#*:}" <<-'PY'
			import json, signal, subprocess, sys, time, urllib.request
			url, route, phase = sys.argv[1:]
			p = subprocess.Popen(["wsync-push", "small.safetensors", "-e", url,
			                      "--json", "--verify", "hash"],
			                     stdout=subprocess.PIPE, text=True)
			def asked():
			    j = json.load(urllib.request.urlopen(url + "/wsync/journal",
			                                         timeout=180))
			    return any(r["path"] == "/" + route for r in j["requests"])
			end = time.time() + 180
			while not asked():
			    assert time.time() < end
			    time.sleep(0.05)
			p.send_signal(signal.SIGTERM)
			lines = [json.loads(l) for l in p.communicate(timeout=180)[0].splitlines()]
			said = [l["ok"] for l in lines if l["type"] == "endpoint"
			        and l["phase"] == phase]
			print(lines[-1]["error"]["code"], lines[-1]["error"]["phase"], True in said)
		PY
		[ "${lines[-1]}" = "cancelled ${r#*:} False" ] || { echo "$r: $output" >&2; false; }
	done
}

@test "an endpoint is resumed although its name cannot be looked up any more" {
	endpoint one --fault hang:update_weights_from_distributed:2
	LOST_NAMES=$scratch/lost LD_PRELOAD=$tools/lose_names.so \
		ASAN_OPTIONS=verify_asan_link_order=0 \
		start push wsync-push small.safetensors -e "http://server.test:${url##*:}" \
		--bucket-size 4KiB \
		--bucket-timeout 5s --on-partial resume --json
	eventually requested /update_weights_from_distributed 2
	touch lost # connections that are idle are not used for longer than 3 s
	finished push 10
	expect_json 'lines[-1]["endpoints"][0]["paused"]' False
	expect_journal "$url" 'j["state"]["paused"], j["state"]["groups"]' '(False, [])'
}

@test "a name server that never answers is waited for as long as the options allow" {
	endpoint one
	LD_PRELOAD=$tools/lose_names.so ASAN_OPTIONS=verify_asan_link_order=0 \
		try wsync-push small.safetensors -e "$url" --master-address silent.test \
		--init-timeout 100ms --json
	expect_status 10
	expect_json 'lines[-1]["error"]["message"], lines[-1]["ns"]["init"] < 9e9' \
		"(\"resolve host 'silent.test': the deadline passed\", True)"
}

@test "a signal ends the look-up of a name" {
	endpoint one
	LD_PRELOAD=$tools/lose_names.so ASAN_OPTIONS=verify_asan_link_order=0 \
		start push wsync-push small.safetensors -e "$url" --master-address silent.test
	eventually requested /server_info 1
	kill -TERM "$pid"
	finished push 143
	err_has "resolve host 'silent.test': cancelled"
}

@test "a request to continue that is not answered is made again" {
	endpoint one --fault hang:continue_generation:1
	try wsync-push small.safetensors -e "$url" --json
	expect_status 0
	expect_journal "$url" 'paths.count("/continue_generation"), j["state"]["paused"]' \
		'(2, False)'
}

@test "an endpoint that cannot be resumed is no success" {
	endpoint one
	good=$url
	endpoint two --fault refuse:continue_generation:1 --fault refuse:continue_generation:2 \
		--fault refuse:continue_generation:3
	try wsync-push small.safetensors -e "$good" -e "$url" --json
	expect_status 5
	expect_json 'lines[-1]["error"]["phase"], lines[-1]["error"]["endpoint"]' \
		"('resume', '$url')"
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('committed', False), ('committed', True)]"
	err_has 'stays paused'
	expect_journal "$good" 'j["state"]["paused"]' False
}

@test "a mixture is remembered until a later source has replaced it" {
	# A first source that changes the endpoint and fails, a second that cannot even be read.
	endpoint one --fault refuse:update_weights_from_distributed:2
	printf 'small.safetensors\nmissing.safetensors\n' >list
	STDIN=list try wsync-push --stdin -e "$url" --bucket-size 4KiB --on-partial pause --json
	expect_status 3
	expect_json '[(e["state"], e["paused"]) for l in lines if l["type"] == "result"
		for e in l["endpoints"]]' \
		"[('partial', True), ('partial', True)]"
	expect_journal "$url" 'j["state"]["paused"]' True
	endpoint two --fault refuse:update_weights_from_distributed:2
	printf 'small.safetensors\nsmall.safetensors\n' >list
	STDIN=list try wsync-push --stdin -e "$url" --bucket-size 4KiB --on-partial pause --json
	expect_json '[(e["state"], e["paused"]) for l in lines if l["type"] == "result"
		for e in l["endpoints"]]' \
		"[('partial', True), ('committed', False)]"
	expect_journal "$url" 'j["state"]["paused"]' False
}

@test "a label that cannot be set is said as it is, not as half a push" {
	endpoint one
	good=$url
	endpoint two --fault refuse:update_weight_version:1
	try wsync-push small.safetensors -e "$good" -e "$url" --verify hash --weight-version 3 \
		--json
	expect_status 5
	expect_json '(lines[-1]["error"]["phase"], lines[-1]["error"]["endpoint"],
		[e["state"] for e in lines[-1]["endpoints"]])' \
		"('verify', '$url', ['committed', 'committed'])"
}

@test "a line of --stdin whose pause is refused resumes what the line before left paused" {
	local faults=(--fault refuse:pause_generation:2)
	for i in 1 2 3; do faults+=(--fault "refuse:continue_generation:$i"); done
	endpoint one "${faults[@]}"
	printf 'small.safetensors\n%.0s' 1 2 >list
	STDIN=list try wsync-push --stdin -e "$url" --json
	expect_status 5
	err_has "POST /pause_generation"
	expect_json '[(e["state"], e["paused"]) for l in lines if l["type"] == "result"
		for e in l["endpoints"]]' \
		"[('committed', True), ('untouched', False)]"
	expect_journal "$url" 'j["state"]["paused"]' False
}

@test "a loop over stdin counts no time of waiting, and keeps neither descriptors nor memory" {
	endpoint one --tp 2
	run /usr/bin/python3 - "$url" <<-'PY'
		import json, os, signal, subprocess, sys, time
		p = subprocess.Popen(["wsync-push", "--stdin", "-e", sys.argv[1], "--bucket-size",
		                      "16KiB", "--verify", "hash",
		                      "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
		                      text=True,
		                     env=dict(os.environ, ASAN_OPTIONS="quarantine_size_mb=1"))
		def push(source):
		    p.stdin.write(source + "\n")
		    p.stdin.flush()
		    while (line := json.loads(p.stdout.readline()))["type"] != "result":
		        pass
		    return line["ok"]
		def size():
		    rss = next(int(l.split()[1]) for l in open(f"/proc/{p.pid}/status")
		               if l.startswith("VmRSS"))
		    return len(os.listdir(f"/proc/{p.pid}/fd")), rss
		good = sum(push("small.safetensors") for _ in range(20))
		first = size()
		for i in range(180):
		    good += push("small.safetensors")
		    if i % 10 == 0:
		        push("missing.safetensors")
		last = size()
		time.sleep(1)
		p.send_signal(signal.SIGTERM)
		end = json.loads(p.communicate(timeout=180)[0].splitlines()[-1])
		ns = end["ns"]
		whole = sum(v for k, v in ns.items() if k != "total") >= 0.99 * ns["total"]
		print(good, last[0] <= first[0], last[1] < first[1] + 32768, whole, end["ok"],
		      p.returncode)
	PY
	[ "${lines[-1]}" = "200 True True True False -15" ] || { echo "$output" >&2; false; }
}

@test "an interrupted wait for the next source is not a success" {
	endpoint one
	run /usr/bin/python3 - "$url" <<-'PY'
		import json, signal, subprocess, sys
		p = subprocess.Popen(["wsync-push", "--stdin", "-e", sys.argv[1], "--json"],
		                     stdin=subprocess.PIPE,
		                     stdout=subprocess.PIPE, text=True)
		p.stdin.write("small.safetensors\n")
		p.stdin.flush()
		while json.loads(p.stdout.readline())["type"] != "result":
		    pass
		p.send_signal(signal.SIGTERM)
		end = json.loads(p.communicate(timeout=180)[0].splitlines()[-1])
		print(end["ok"], end["error"]["code"], end["results"], p.returncode)
	PY
	[ "${lines[-1]}" = "False cancelled 1 -15" ] || { echo "$output" >&2; false; }
	expect_journal "$url" 'j["state"]["groups"]' '[]'
}

@test "an endpoint that is gone is told at once, and one that came back is asked anew who it is" {
	endpoint one --tp 2
	run /usr/bin/python3 - "$url" "$pid" <<-'PY'
		import json, os, signal, subprocess, sys, time
		url, pid = sys.argv[1], int(sys.argv[2])
		p = subprocess.Popen(["wsync-push", "--stdin", "-e", url, "--verify", "hash",
		                      "--json", "--connect-timeout", "120s"],
		                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
		def push():
		    start = time.time()
		    p.stdin.write("small.safetensors\n")
		    p.stdin.flush()
		    while (line := json.loads(p.stdout.readline()))["type"] != "result":
		        pass
		    return line["error"]["code"] if not line["ok"] else line["wire_bytes"] // line[
		        "bytes"], time.time() - start < 60
		said = [push()]
		os.kill(pid, signal.SIGKILL)
		said.append(push())
		while True: # its port is free once the process is gone for good
		    e = subprocess.Popen(["wsync-endpoint", "--listen", url[len("http://"):],
		                          "--tp", "3", "--json"],
		                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
		                         text=True)
		    if any('"ready"' in line for line in e.stdout):
		        break
		said.append(push())
		p.stdin.close()
		p.wait(timeout=180)
		e.terminate()
		print(said)
	PY
	[ "${lines[-1]}" = "[(2, True), ('unreachable', True), (2, True)]" ] ||
		{ echo "$output" >&2; false; }
}

@test "an endpoint that vanishes from the joining ends it at once" {
	endpoint one
	good=$url
	endpoint two --fault drop:init_weights_update_group:1
	before=$SECONDS
	try wsync-push small.safetensors -e "$good" -e "$url" --json
	[ $((SECONDS - before)) -le 60 ]
	expect_status 4
	expect_json "lines[-1]['error']['phase'], lines[-1]['error']['endpoint'] == '$url'" \
		"('init', True)"
	expect_journal "$good" 'j["state"]["groups"]' '[]'
}

@test "https at a server without it is not reached" {
	endpoint one
	try wsync-push small.safetensors -e "${url/http:/https:}"
	expect_status 4
	err_has 'http://'
}

@test "a group of a given name can be made again after every kind of failure" {
	local f
	for f in drop refuse hang; do
		endpoint "again-$f" --tp 2 --fault "$f:update_weights_from_distributed:2"
		printf 'small.safetensors\nsmall.safetensors\n' >list
		STDIN=list try wsync-push --stdin -e "$url" --group-name mine --bucket-size 4KiB \
			--bucket-timeout 1s --json
		expect_json '[l["ok"] for l in lines if l["type"] == "result"]' '[False, True]'
		expect_journal "$url" 'j["state"]["groups"]' '[]'
	done
}

@test "a file that shrinks while it is sent is exit 3, and nobody waits for its bytes" {
	safetensors big.safetensors a:U8:40000000 b:U8:40000000 c:U8:40000000 >/dev/null
	endpoint one
	good=$url
	endpoint two --tp 2
	run /usr/bin/python3 - "$pid" "$good" "$url" <<-'PY'
		import json, os, signal, subprocess, sys, time
		pid, urls = int(sys.argv[1]), sys.argv[2:]
		p = subprocess.Popen(["wsync-push", "big.safetensors", "--bucket-size", "32MiB",
		                      "--json", "--on-partial", "resume", "-e", urls[0], "-e",
		                      urls[1]],
		                     stdout=subprocess.PIPE, text=True)
		while json.loads(p.stdout.readline())["type"] != "bucket":
		    pass
		os.kill(pid, signal.SIGSTOP)
		time.sleep(0.3)
		os.truncate("big.safetensors", 1000)
		os.kill(pid, signal.SIGCONT)
		end = json.loads(p.communicate(timeout=180)[0].splitlines()[-1])
		print(p.returncode, [e["state"] for e in end["endpoints"]],
		      end["ns"]["total"] < 60e9)
	PY
	[ "${lines[-1]}" = "3 ['partial', 'partial'] True" ] || { echo "$output" >&2; false; }
	expect_journal "$good" 'j["state"]["paused"], j["state"]["groups"]' '(False, [])'
	expect_journal "$url" 'j["state"]["paused"], j["state"]["groups"]' '(False, [])'
}

@test "a sleeping endpoint gets its weights back, then the new ones, then its caches" {
	endpoint one --lineage sglang-2026 --memory-saver drop
	try wsync-ctl sleep --tags weights,kv_cache -e "$url"
	expect_status 0
	try wsync-push small.safetensors -e "$url" --asleep weights,kv_cache --verify none
	expect_status 0
	expect_journal "$url" '[p for p in paths if p in ("/resume_memory_occupation",
		"/update_weights_from_distributed", "/continue_generation")]' \
		"['/resume_memory_occupation', '/update_weights_from_distributed', \
'/resume_memory_occupation', '/continue_generation']"
	try wsync-push small.safetensors -e "$url" --verify none
	expect_status 0
	try wsync-push small.safetensors -e "$url" --asleep everything
	expect_status 2
	err_has "'everything' is none of weights, kv_cache and cuda_graph"
}

@test "the weights of an endpoint that sleeps are not asked for checksums before they are back" {
	endpoint one --lineage sglang-2026 --memory-saver drop --checksums
	start renamed /usr/bin/python3 "$repo/tests/cli/renamed.py" "${url#http://}"
	eventually test -s renamed.out
	local server=127.0.0.1:$(head -n 1 renamed.out)
	local asked='[p for p in paths if p in ("/weights_checker", "/resume_memory_occupation")]'
	try wsync-ctl sleep --tags weights -e "$url"
	expect_status 0
	try wsync-push small.safetensors -e "$server" --asleep weights --verify hash
	expect_status 0
	expect_journal "$url" "$asked" "['/resume_memory_occupation', '/weights_checker']"
	# awake, it is asked before and after
	try wsync-push small.safetensors -e "$server" --verify hash
	expect_status 0
	expect_journal "$url" "$asked" \
		"['/resume_memory_occupation', '/weights_checker', '/weights_checker', \
'/weights_checker']"
}

@test "an update that is refused because of released weights has a hint" {
	endpoint one --lineage lenient --memory-saver drop
	try wsync-ctl sleep --tags weights -e "$url" --state-dir others
	expect_status 0
	try wsync-push small.safetensors -e "$url" --verify none
	expect_status 5
	err_has "hint: if the endpoint has released memory, list it: --asleep weights,kv_cache"
}

@test "no protocol moves the weight version before what arrived was verified" {
	local lineage protocol route
	while read -r lineage protocol route; do
		endpoint "$lineage" --lineage "$lineage" --fault "flip:$route:1"
		try wsync-push small.safetensors --exclude e.weight -e "$url" \
			--protocol "$protocol" --verify hash --weight-version 9 --json
		expect_status 1
		expect_journal "$url" 'j["state"]["weight_version"], j["state"]["paused"]' \
			"('default', True)"
	done <<-END
		xorl two-phase complete_weights_update
		session session update_weights_from_distributed
		lenient update update_weights_from_distributed
	END
}

@test "too few open files for all endpoints are found out before one of them is asked" {
	local urls=()
	for port in {20001..20064}; do urls+=(-e "127.0.0.1:$port"); done
	try prlimit --nofile=64 wsync-push small.safetensors "${urls[@]}" --json
	expect_status 8
	[[ $err =~ "64 endpoints need about "[0-9]+" open files, and this process may have 64" ]] ||
		explain "expected the numbers"
	err_has "hint: start it where it may have more: ulimit -n 512"
	expect_json '(lines[-1]["error"]["phase"],
		[e["state"] for e in lines[-1]["endpoints"]].count("untouched"))' "('connect', 64)"
	try prlimit --nofile=64 wsync-push -n small.safetensors "${urls[@]}"
	expect_status 8
}

@test "too few open files for all ranks are found out before one of them joins" {
	endpoint one --tp 40
	try prlimit --nofile=80 wsync-push small.safetensors -e "$url"
	expect_status 8
	err_has "1 endpoint needs about "
	expect_journal "$url" '[p for p in paths if p not in ("/model_info", "/server_info",
		"/list_weights", "/openapi.json", "/wsync/journal")]' '[]'
	try prlimit --nofile=80 wsync-push -n small.safetensors -e "$url"
	expect_status 0
}

@test "a soft limit of open files is raised as far as it may be" {
	endpoint one --tp 20
	try prlimit --nofile=32: wsync-push small.safetensors -e "$url"
	expect_status 0
}

@test "a push without a weight version warns that the old label stays" {
	safetensors a.safetensors a:U8:7 >/dev/null
	endpoint one
	try wsync-push a.safetensors -e "$url"
	expect_status 0
	err_lacks "weight version"
	try wsync-push a.safetensors -e "$url" --weight-version 7
	expect_status 0
	err_lacks "weight version"
	printf 'a.safetensors\na.safetensors\n' >lines
	STDIN=lines try wsync-push -e "$url" --stdin
	expect_status 0
	[ "$(grep -c "$url: its weight version stays '7'" .err)" = 1 ] || explain "one warning"
	try wsync-verify weights a.safetensors -e "$url" --twice
	err_lacks "weight version stays"
}
