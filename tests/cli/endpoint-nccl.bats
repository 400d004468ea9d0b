#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-push --backend nccl into wsync-endpoint --backend nccl, whole programs: bytes that arrive,
# and each way in which a peer can fail, with its exit code, its sentence, its deadline, and nobody
# left paused.
#
# On doubles of libcuda and libnccl, which move bytes between processes and prove nothing about
# NCCL. With WSYNC_TEST_CUDA (a libcuda.so.1, which a GPU stands behind; WSYNC_NCCL_LIB names a
# libnccl.so.2) the same on the real ones, all ranks on one GPU, but for the cases that only a
# double can be told.
load helpers

prepare() {
	[ -e "$build/tests/gpu/fake_cuda.so" ] || skip "built without CUDA"
	gpu_libraries
	safetensors small.safetensors a.weight:BF16:64,32 b.weight:F32:1000 c.weight:BF16:1000,33 \
		d.weight:U8:13 e.weight:F16:7,7 >/dev/null
	urls=()
	limit=${doubles:+3}
	limit=${limit:-15} # seconds, which real ones may want to join
}

# gpu_endpoint NAME OPTION...: one more to push to, on the GPU that everybody is on.
gpu_endpoint() {
	endpoint "$1" --backend nccl --shared-gpu "${@:2}"
	urls+=(-e "$url")
}

# push OPTION...: to all of them, in small buckets; $took is how long it took, in ms. $limit s and
# ten more for a busy machine, at most.
push() {
	local from=${EPOCHREALTIME/./}
	try wsync-push "${source:-small.safetensors}" "${urls[@]}" --backend nccl \
		--bucket-size 4KiB \
		--init-timeout "${limit}s" --bucket-timeout "${limit}s" --on-partial resume "$@"
	took=$(((${EPOCHREALTIME/./} - from) / 1000))
}

in_time() { [ "$took" -le $(((limit + 10) * 1000)) ] ||
	explain "took $took ms, expected at most $limit s and 10"; }

# Those that live are not paused and in no group.
nobody_is_left() {
	local at
	for at in "${urls[@]}"; do
		[ "$at" = -e ] && continue
		journal "$at" 0 >/dev/null 2>&1 || continue
		[ "$(journal "$at" '(j["state"]["paused"], j["state"]["groups"])')" = \
			"(False, [])" ] ||
			explain "left at $at: $(journal "$at" 'j["state"]')"
	done
}

# ---- what arrives ----

@test "lazy and eager endpoints get all bytes, flattened and one by one" {
	local init format
	for init in lazy eager; do
		urls=()
		gpu_endpoint "$init" --nccl-init "$init"
		for format in flattened_bucket none; do
			push --verify hash --load-format "$format"
			expect_status 0
			out_has 'verified by hash'
		done
		nobody_is_left
		[ "$(journal "$url" 'j["totals"]["tensors"]')" = 10 ] || explain "other tensors"
	done
}

@test "eager and lazy ones in one group are told that they wait for each other" {
	gpu_endpoint eager --nccl-init eager
	local eager=$url
	gpu_endpoint lazy --nccl-init lazy
	# the eager one asks for the id only once it has loaded NCCL
	[ -z "${doubles:-}" ] || limit=8
	push --json
	expect_status 10
	expect_json '[l["cause"] for l in lines if l["type"] == "hang"]' "['mixed-joining']"
	json '[l["likely"] for l in lines if l["type"] == "hang"][0]' |
		grep -q "(eager) by $eager, and with"
	nobody_is_left
}

@test "what is made on the GPU is what the CPU makes, for the hash" {
	local lora=$repo/tests/data/lora
	gpu_endpoint one
	safetensors made.safetensors a_proj.weight:BF16:300,257 b_proj.weight:BF16:128,256 \
		c_proj.weight:F32:70,30 \
		h_proj.weight:F16:9,9 norm.weight:BF16:77 >/dev/null
	/usr/bin/python3 "$repo/tests/cli/numbers.py" tame made.safetensors
	source=made.safetensors
	push --quantize fp8 --verify hash -v
	expect_status 0
	out_has 'verified by hash'
	err_has 'transform: 6 tensors made on the GPU, 2 on the CPU'
	push --quantize fp8 --verify hash -v --transform-on cpu --load-format none
	expect_status 0
	err_lacks 'made on the GPU'
	source=$lora/bases/dense
	push --lora "$lora/good/plain" --verify hash -v --load-format none
	expect_status 0
	out_has 'verified by hash'
	grep -q 'transform: [1-9].* made on the GPU, 0 on the CPU' <<<"$err" ||
		explain "expected all on the GPU"
	nobody_is_left
}

@test "a number that is none stops a push that made tensors on the GPU" {
	gpu_endpoint one
	safetensors made.safetensors a_proj.weight:BF16:30,40 b_proj.weight:BF16:128,256 >/dev/null
	/usr/bin/python3 "$repo/tests/cli/numbers.py" tame made.safetensors
	/usr/bin/python3 "$repo/tests/cli/numbers.py" put made.safetensors b_proj.weight 100 7 nan
	source=made.safetensors
	push --quantize fp8 --trust-values
	expect_status 3
	err_has "tensor 'b_proj.weight' has NaN at row 100, column 7 (made.safetensors)"
	in_time
	nobody_is_left
}

@test "an endpoint is as eager as servers of its lineage" {
	local lineage
	for lineage in sglang-2026 xorl; do
		urls=()
		gpu_endpoint $lineage --lineage $lineage -v
		push --verify none
		expect_status 0
	done
	# Whether it joined before it had agreed to.
	[ "$(grep -nE 'is in the communicator|POST /init' sglang-2026.err | head -n 1 |
		grep -c POST)" = 1 ]
	[ "$(grep -nE 'is in the communicator|POST /init' xorl.err | head -n 1 |
		grep -c POST)" = 0 ]
}

@test "two and three endpoints at once" {
	local format
	gpu_endpoint one
	gpu_endpoint two --keep hash
	for format in flattened_bucket none; do
		push --verify hash --load-format "$format"
		expect_status 0
	done
	gpu_endpoint three --torch 2.6
	push --verify hash --json
	expect_status 0
	expect_json '[(e["ok"], e["state"]) for e in lines[-1]["endpoints"]]' \
		"[(True, 'committed'), (True, 'committed'), (True, 'committed')]"
	nobody_is_left
}

@test "each tensor-parallel rank has a GPU of its own" {
	of_the_double
	gpu_endpoint two --tp 2
	push --verify hash --load-format none
	expect_status 0
	try wsync-endpoint --backend nccl --tp 3
	expect_status 7
	err_has '3 tensor-parallel ranks want GPUs 0 to 2, and there are 2'
	err_has '--shared-gpu'
	try wsync-endpoint --backend nccl --gpu 7
	expect_status 7
	err_has 'there is no GPU 7'
	nobody_is_left
}

@test "several sources by stdin go through one communicator" {
	local i
	gpu_endpoint one
	for i in 1 2 3; do echo "$scratch/small.safetensors	v$i"; done >list
	STDIN=list try wsync-push --stdin "${urls[@]}" --backend nccl --verify hash --json
	expect_status 0
	expect_json '[l["ok"] for l in lines if l["type"] == "result"]' "[True, True, True]"
	[ "$(journal "$url" '(sum(r["path"] == "/init_weights_update_group" for r in j["requests"]),
		j["state"]["weight_version"])')" = \
		"(1, 'v3')" ] || explain "another group"
	nobody_is_left
}

@test "types that torch does not broadcast over NCCL are flattened" {
	safetensors odd.safetensors a:I16:10 b:I64:3 >/dev/null
	gpu_endpoint one
	source=odd.safetensors push --verify hash
	expect_status 0
	source=odd.safetensors push --load-format none
	[ "$status" != 0 ]
	nobody_is_left
}

@test "an endpoint of an older torch reads the id where that looks for it" {
	gpu_endpoint old --torch 1.13
	push --verify hash
	expect_status 0
}

# ---- what fails before ----

@test "an endpoint without a GPU says so when it starts, one that has none refuses the group" {
	try env LD_LIBRARY_PATH= PATH="$PATH" wsync-endpoint --backend nccl --listen 127.0.0.1:0 \
		--nccl-lib /nowhere/x
	[ "$status" = 7 ] || [ -z "${doubles:-}" ] || explain "expected status 7"
	try wsync-endpoint --backend nccl --listen 127.0.0.1:0 --nccl-lib /nowhere/libnccl.so.2
	expect_status 7
	err_has 'NCCL cannot be loaded: /nowhere/libnccl.so.2'
	try wsync-endpoint --nccl-init lazy
	expect_status 2
	endpoint plain
	urls+=(-e "$url")
	push
	expect_status 5
	err_has "Distributed package doesn't have NCCL built in"
	nobody_is_left
}

@test "ranks have NCCL's settings of their servers, and a difference is named" {
	of_the_double
	NCCL_CUMEM_ENABLE=1 gpu_endpoint differs # and does not report it, as real ones
	push
	in_time
	[[ $status = [56] ]] || explain "expected status 5 or 6"
	err_has 'differ in NCCL_CUMEM_ENABLE'
	NCCL_CUMEM_ENABLE=1 push
	expect_status 0
	urls=()
	gpu_endpoint vllm --lineage vllm-0.33
	push -v --on-partial pause --allow-unknown format
	expect_status 0
	err_has "settings of $url: NCCL_CUMEM_ENABLE -2, NCCL_NVLS_ENABLE 2"
}

@test "another version of NCCL is refused at both ends" {
	of_the_double
	local init
	for init in lazy eager; do
		urls=()
		# As a real server, which does not tell its version.
		FAKE_NCCL_VERSION=22304 FAKE_NCCL_TELLS=22809 gpu_endpoint "$init" \
			--nccl-init "$init"
		push
		in_time
		[[ $status = [56] ]] || explain "expected status 5 or 6"
		err_has 'Mismatched NCCL version detected'
		nobody_is_left
	done
	urls=()
	FAKE_NCCL_VERSION=22304 gpu_endpoint tells
	push
	expect_status 6
	err_has "$url has NCCL 2.23.4, and 2.28.9 was loaded here"
	[ "$(journal "$url" '[r for r in j["requests"] if "init_weights" in str(r)]')" = "[]" ] ||
		explain "it was asked to join"
	nobody_is_left
}

@test "two ranks on one GPU are refused at both ends, unless one is told to be elsewhere" {
	local init
	for init in lazy eager; do
		urls=()
		endpoint "$init" --backend nccl --nccl-init "$init"
		urls+=(-e "$url")
		push
		in_time
		[[ $status = [56] ]] || explain "expected status 5 or 6"
		err_has 'NCCL'
		[ -z "${doubles:-}" ] || err_has 'Duplicate GPU detected'
		nobody_is_left
	done
	NCCL_HOSTID=elsewhere push
	expect_status 0
}

# ---- what fails on the way ----

# dies WHEN STATUSES OPTION...: pushes into one that fails so, and one that does not.
dies() {
	local statuses=$2
	urls=()
	gpu_endpoint good-$RANDOM "${@:3}"
	gpu_endpoint bad-$RANDOM --fault "$1" "${@:3}"
	push --verify none
	in_time
	[[ " $statuses " = *" $status "* ]] || explain "$1: expected a status of $statuses"
	[ "$status" = 0 ] || [ -n "$err" ] || explain "$1: nothing is said"
	# the other hears nobody, or does not leave
	case $1 in hang:wire/payload* | *:destroy*) urls=("${urls[@]:0:2}") ;; esac
	nobody_is_left
}

@test "a peer dies or leaves in init" {
	local init
	for init in lazy eager; do
		dies die:wire/connect:1 "4 5 6 9" --nccl-init "$init"
		dies drop:wire/connect:1 "5 6 9" --nccl-init "$init"
		dies refuse:wire/connect:1 "5 6 9" --nccl-init "$init"
	done
}

@test "a peer that never joins is waited for until the deadline" {
	local init
	for init in lazy eager; do
		dies hang:wire/connect:1 10 --nccl-init "$init"
	done
	dies hang:wire/store:1 10
}

@test "a peer dies, leaves or stops in a bucket" {
	dies die:wire/payload:2 "4 6 9"
	dies drop:wire/payload:2 "5 6 9"
	dies garbage:wire/payload:2 "5 6 9"
	dies die:update_weights_from_distributed:2 "4 6 9"
	dies drop:update_weights_from_distributed:1 "4 5 6 9"
	dies hang:wire/payload:2 "9 10"
}

@test "a peer dies or stops when the group is destroyed" {
	local kind
	for kind in die drop refuse; do
		dies "$kind:destroy_weights_update_group:1" "0 4 9"
	done
	dies hang:destroy_weights_update_group:1 0
}

@test "an endpoint that comes back after its death takes the next push" {
	gpu_endpoint one --restart-on-death --fault die:wire/payload:2
	push
	[ "$status" != 0 ] || explain "expected a failure"
	in_time
	eventually journal "$url" 0
	push --verify hash
	expect_status 0
	nobody_is_left
}

@test "a push that is killed leaves nothing that repair does not mend" {
	gpu_endpoint one --fault slow:wire/payload:2 --fault-delay 3s
	start push wsync-push small.safetensors "${urls[@]}" --backend nccl --bucket-size 4KiB \
		--load-format none
	eventually eval '[ "$(journal "$url" "j[\"totals\"][\"updates\"]")" = 1 ]'
	kill -KILL "$pid"
	wait "$pid" || true
	try wsync-ctl repair --again
	expect_status 0
	nobody_is_left
	[ "$(journal "$url" 'j["totals"]["distinct"]')" = 5 ]
}

# The limit must not end a push before the endpoint has answered why.
@test "a GPU out of memory, at each allocation of the endpoint" {
	of_the_double
	limit=120
	local n call
	for call in cuMemAlloc_v2 cuMemHostAlloc; do
		for n in 0 1; do
			urls=()
			FAKE_CUDA_REFUSE="$call $n 2" gpu_endpoint "e-$call-$n"
			push --load-format none
			in_time
			[ "$n" = 1 ] && [ "$status" = 0 ] && continue # one was enough
			[[ $status = [569] ]] || explain "$call $n: expected status 5, 6 or 9"
			err_has 'CUDA_ERROR_OUT_OF_MEMORY'
			nobody_is_left
		done
	done
}

@test "a GPU out of memory, at each allocation of the push" {
	of_the_double
	local n call
	gpu_endpoint one
	for call in cuMemAlloc_v2 cuMemHostAlloc; do
		for n in 0 1; do
			FAKE_CUDA_REFUSE="$call $n 2" push --load-format none
			in_time
			[ "$n" = 1 ] && [ "$status" = 0 ] && continue # one was enough
			[[ $status = [79] ]] || explain "$call $n: expected status 7 or 9"
			err_has 'CUDA_ERROR_OUT_OF_MEMORY'
			nobody_is_left
		done
	done
}

@test "NCCL fails at the endpoint, at each call" {
	of_the_double
	local call
	for call in ncclCommInitRankConfig ncclCommGetAsyncError ncclBroadcast; do
		urls=()
		FAKE_NCCL_REFUSE="$call 0 3" gpu_endpoint "e-$call"
		push
		in_time
		[[ $status = [569] ]] || explain "$call: expected status 5, 6 or 9"
		nobody_is_left
	done
}

@test "staged over nccl: loaded after the sender has ended" {
	safetensors new.safetensors --seed 2 a.weight:BF16:64,32 b.weight:F32:1000 \
		c.weight:BF16:1000,33 d.weight:U8:13 e.weight:F16:7,7
	gpu_endpoint one --lineage xorl --tp 2
	gpu_endpoint two --lineage xorl
	push --protocol update
	expect_status 0
	source=new.safetensors push --stage
	expect_status 0
	in_time
	try wsync-verify weights small.safetensors "${urls[@]}"
	expect_status 0
	try wsync-ctl complete
	expect_status 0
	try wsync-verify weights new.safetensors "${urls[@]}"
	expect_status 0
	nobody_is_left
}
