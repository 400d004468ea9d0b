#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-endpoint opens tensors that another process shows on a GPU: what it takes, what it refuses
# and how, and how many handles it opens; and wsync-push --backend ipc into it, whole programs. On a
# double of libcuda, or with WSYNC_TEST_CUDA on a real one.
load helpers

prepare() {
	[ -e "$build/tests/gpu/fake_cuda.so" ] || skip "built without CUDA"
	mkdir lib
	case ${WSYNC_TEST_CUDA:-} in
	'' | *fake_cuda.so) doubles=y && ln -s "$build/tests/gpu/fake_cuda.so" lib/libcuda.so.1 ;;
	*/*) ln -s "$WSYNC_TEST_CUDA" lib/libcuda.so.1 ;;
	esac
	export LD_LIBRARY_PATH=$scratch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# A double that was built with a sanitizer wants that loaded first, which Python does not do.
sender() {
	local runtime
	runtime=$(ldd "$build/tests/gpu/fake_cuda.so" | sed -n 's|.*=> \(/.*libasan[^ ]*\).*|\1|p')
	try env ${runtime:+LD_PRELOAD="$runtime"} ASAN_OPTIONS=detect_leaks=0 /usr/bin/python3 \
		"$BATS_TEST_DIRNAME/ipc_sender.py" "$url" "$@"
}

# A request is in work.
asked() { [ "$(journal "$url" 'j["state"]["busy"]')" = True ]; }

# said CASE STATUS TEXT
said() {
	grep -qE "^$1 $2 " <<<"$out" || explain "$1: expected status $2"
	grep -E "^$1 $2 " <<<"$out" | grep -qF -- "$3" || explain "$1: expected: $3"
}

@test "the bytes that are shown are the bytes that are kept" {
	endpoint one --backend ipc
	sender uuid
	expect_status 0
	expect_out "uuid 200 Success"
	/usr/bin/python3 - "$url" <<'EOP'
import json, struct, sys, urllib.request as u
sent = open("sent", "rb").read()[512 + 4096:512 + 8096]
body = json.dumps({"name": "b.weight", "truncate_size": 1000}).encode()
got = json.load(u.urlopen(u.Request(sys.argv[1] + "/get_weights_by_name", body,
                                    {"Content-Type": "application/json"})))
want = struct.unpack("<1000f", sent)
assert all(a is None or a != a or struct.pack("<f", a) == struct.pack("<f", b) for a,
           b in zip(got, want) if b == b), got[:3]
EOP
}

@test "what is shown before it is written is read when its event says so" {
	endpoint one --backend ipc --receive-timeout 2s
	[ -n "${doubles:-}" ] || skip "the double's events"
	sender late
	expect_out "late 200 Success"
	/usr/bin/python3 - "$url" <<'EOP'
import json, struct, sys, urllib.request as u
sent = open("sent", "rb").read()[512 + 4096:512 + 8096]
body = json.dumps({"name": "b.weight", "truncate_size": 1000}).encode()
got = json.load(u.urlopen(u.Request(sys.argv[1] + "/get_weights_by_name", body,
                                    {"Content-Type": "application/json"})))
assert any(got) and all(struct.pack("<f", a) == struct.pack("<f", b) for a,
                        b in zip(got, struct.unpack("<1000f", sent))
                        if a is not None and b == b), got[:3]
EOP
	sender never
	said never 400 'is not done in time'
	sender uuid
	expect_out "uuid 200 Success"
	endpoint stops --backend ipc
	sender never &
	local sent=$!
	eventually asked
	kill "$pid"
	local began=$SECONDS
	wait "$pid" || true
	((SECONDS - began < 60)) || explain "it waited for the event"
	wait "$sent" || true
}

@test "forms that torch's senders have are taken, and one handle is opened for all" {
	endpoint one --backend ipc
	sender uuid long-uuid ordinal raw torch-2.11 torch-2.13 part elements parameter empty uuid
	expect_status 0
	[ "$(grep -c ' 200 Success$' <<<"$out")" = 11 ] || explain "expected eleven successes"
	[ "$(journal "$url" 'j["totals"]["handles"], j["totals"]["updates"]')" = "(1, 11)" ] ||
		explain "$(journal "$url" 'j["totals"]')"
}

# left N: so much of others' memory is open.
left() {
	[ -n "${doubles:-}" ] || return 0
	[ "$(grep -c 'rw.*memory of the double' "/proc/$pid/maps")" = "$1" ] ||
		explain "$(grep 'memory of the double' "/proc/$pid/maps")"
}

@test "two buffers in turn are two handles, and no more stay open" {
	endpoint one --backend ipc
	sender two
	expect_status 0
	left 2
	[ "$(journal "$url" 'j["totals"]["handles"], j["totals"]["bytes"]')" = "(2, 48576)" ] ||
		explain "$(journal "$url" 'j["totals"]')"
	sender many uuid
	expect_status 0
	[ "$(grep -c ' 200 Success$' <<<"$out")" = 41 ] || explain "expected 41 successes"
	left 2
	sender uuid last # the last bucket closes them
	left 0
	sender uuid
	left 1
	sender beyond # so does one that fails
	left 0
}

@test "who shows memory is told when it is not read any longer, and nobody else" {
	endpoint one --backend ipc -v
	sender counters
	expect_status 0
	[ "$(grep -c '^counted 200 Success$' <<<"$out")" = 3 ] || explain "expected three successes"
	said refused 400 'beyond the allocation'
	[ "$(grep -c '^hostile 200 Success$' <<<"$out")" = 16 ] || explain "expected sixteen more"
	[ "$(grep ^changed <<<"$out")" = "changed [(64, 1, 0), (80056, 1, 0)]
changed [(120, 1, 0)]
changed []" ] || explain "$(grep ^changed <<<"$out")"
	left 0
	grep -q "counter 10000 of '/torch_.*' is not counted down: no such counter" one.err
	grep -q "counter 0 of '?\[31m' is not counted down" one.err
}

@test "what torch would refuse is refused, and what nobody has" {
	endpoint one --backend ipc
	sender all
	expect_status 0
	said elsewhere 400 'Invalid device_uuid=00000000-0000-0000-0000-000000000000'
	said other-gpu 400 "no rank of this endpoint uses GPU 200"
	said control 400 'Invalid device_uuid=GPU-?[31m'
	said negative 400 'neither a number nor a UUID'
	said future 400 'received sharable handle from a future version of torch'
	said expandable 400 'expandable segment'
	said type 400 'illegal type or length'
	said short 400 'illegal type or length'
	said nothing 400 'too short'
	said wrong 400 "opening another process's memory"
	said none-handle 400 'the tensor has bytes but no handle'
	said none-counter 400 'invalid combination of arguments - expected bytes _ref_counter'
	said none-event 400 'expected bytes event_handle'
	said none-waits 400 'expected bool event_sync_required'
	said none-device 400 'neither a number nor a UUID'
	said beyond 400 'beyond the allocation'
	said huge 400 'the tensor has an impossible size or offset'
	said bigger 400 'int storage_offset_bytes'
	said below 400 'the tensor has an impossible size or offset'
	said shorter 400 'the tensor ends behind its storage'
	said longer 400 'the tensor ends behind its storage'
	said below-none 400 'not one dimension'
	said other-event 400 "opening another process's event"
	said short-event 400 'the event handle does not have 64 bytes'
	said stride 400 'not one dimension'
	said dtype 400 'not of torch.uint8'
	said function 400 'Blocked unsafe class loading (torch.multiprocessing.reductions.rebuild_storage_cuda)'
	said fewer 400 'takes 15 arguments, and gets 14'
	[ -z "${doubles:-}" ] || said just-beyond 400 'beyond the allocation'
	[ "$(grep -c ' 200 Success$' <<<"$out")" = 10 ] || explain "expected ten that are taken"
	sender uuid
	expect_out "uuid 200 Success"
}

@test "ranks that are shown the same memory keep it once" {
	[ -n "${doubles:-}" ] || skip "there may be one GPU"
	endpoint two --backend ipc --tp 2
	sender ranks
	expect_out "ranks 200 Success"
	sender uuid
	said uuid 400 'serialized_named_tensors has 1 elements for 2'
}

@test "an endpoint without a GPU says so" {
	endpoint none
	sender uuid
	expect_status 0
	said uuid 400 'the tensors are in memory of a GPU, and this endpoint has none'
	try env LD_LIBRARY_PATH=/nowhere wsync-endpoint --backend ipc --listen 127.0.0.1:0
	[ "$status" = 7 ] || [ -z "${doubles:-}" ] || explain "expected status 7"
	try wsync-endpoint --gpu 1
	expect_status 2
	err_has '--gpu is for --backend nccl or ipc'
}

# ---- wsync-push ----

# push OPTION...: in small buckets.
push() {
	try wsync-push "${source:-small.safetensors}" -e "$url" --backend ipc --bucket-size 4KiB \
		--on-partial resume "$@"
}

small() {
	safetensors small.safetensors a.weight:BF16:64,32 b.weight:F32:1000 c.weight:BF16:1000,33 \
		d.weight:U8:13 \
		e.weight:F16:7,7 f.weight:F8_E4M3:256,200 f.weight_scale_inv:F32:2,2 >/dev/null
}

@test "a push arrives whole, with no more than two handles" {
	small
	endpoint one --backend ipc
	push --verify hash --weight-version 7
	expect_status 0
	out_has 'verified by hash'
	[ "$(journal "$url" '(j["totals"]["handles"] in (1, 2), j["state"]["weight_version"],
		j["state"]["paused"])')" = \
		"(True, '7', False)" ] || explain "$(journal "$url" 'j["totals"]')"
	push --verify hash --ipc-device 0
	expect_status 0
}

@test "several sources by stdin are read through two handles each" {
	small
	endpoint one --backend ipc
	printf '%s\n' "$scratch/small.safetensors" "$scratch/small.safetensors" \
		"$scratch/small.safetensors" >list
	STDIN=list try wsync-push --stdin -e "$url" --backend ipc --bucket-size 4KiB --verify \
		hash --json
	expect_status 0
	expect_json '[l["ok"] for l in lines if l["type"] == "result"]' "[True, True, True]"
	# two each
	[ "$(journal "$url" 'j["totals"]["handles"] <= 3 * 2')" = True ] ||
		explain "$(journal "$url" 'j["totals"]')"
	left 0
}

@test "every rank reads the memory of one GPU, and a model is made FP8 on the way" {
	/usr/bin/python3 "$BATS_TEST_DIRNAME/scaled_model.py" m >/dev/null
	endpoint one --backend ipc --model m/fp8
	source=m/bf16 push --quantize fp8 --block-size 16x16 --verify hash
	expect_status 0
	out_has 'verified by hash'
	[ -n "${doubles:-}" ] || return 0 # there may be one GPU
	small
	endpoint two --backend ipc --tp 2
	push --verify hash
	expect_status 0
}

@test "an endpoint that cannot, refuses or dies is told apart, and nobody stays paused" {
	small
	endpoint none
	push
	expect_status 5
	err_has 'this endpoint has none'
	[ "$(journal "$url" 'j["state"]["paused"]')" = False ] || explain "left paused"
	endpoint refuses --backend ipc --fault refuse:update_weights_from_tensor:3
	push
	[[ $status = [59] ]] || explain "expected status 5 or 9"
	[ "$(journal "$url" 'j["state"]["paused"]')" = False ] || explain "left paused"
	endpoint dies --backend ipc --fault die:update_weights_from_tensor:2
	push
	[[ $status = [469] ]] || explain "expected status 4, 6 or 9"
	endpoint hangs --backend ipc --fault hang:update_weights_from_tensor:2
	push --bucket-timeout 3s
	[[ $status = 10 || $status = 9 ]] || explain "expected status 9 or 10"
}
