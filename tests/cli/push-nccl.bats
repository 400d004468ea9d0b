#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-push --backend nccl on doubles of libcuda and libnccl, against an endpoint with canned
# answers: what the endpoint is asked, and what is said where something is missing. Bytes do not
# travel here.
load helpers

prepare() {
	safetensors small.safetensors a.weight:BF16:64,32 b.weight:F32:1000 >/dev/null
	mkdir lib
	ln -s "$build/tests/gpu/fake_cuda.so" lib/libcuda.so.1
	nccl=$build/tests/gpu/fake_nccl.so
}

with_doubles() {
	[ -e "$build/tests/gpu/fake_cuda.so" ] || skip "built without CUDA"
	ln -s "$build/tests/gpu/fake_cuda.so" lib/fake_cuda.so # where the other looks for it
	ln -s "$nccl" lib/libnccl.so.2
	export LD_LIBRARY_PATH=$scratch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# server [INFO [NAME]]: a lazy server that agrees at once, to everything.
server() {
	local yes='200:{"success":true,"message":"yes"}' name=${2:-server}
	local info=${1:-'"tp_size":2,"ep_size":1,"dtype":"bfloat16","version":"0.5.9"'}
	start "$name" /usr/bin/python3 "$repo/tests/cli/canned.py" \
		"/server_info=200:{$info}" \
		'/model_info=200:{"weight_version":"7"}' '/flush_cache=200:Cache flushed.' \
		'/pause_generation=200:{"status":"ok","message":"ok"}' \
		'/continue_generation=200:{"status":"ok","message":"ok"}' \
		"/init_weights_update_group=$yes" \
		"/update_weights_from_distributed=$yes" "/destroy_weights_update_group=$yes"
	eventually test -s "$name.out"
	url=http://127.0.0.1:$(head -n 1 "$name.out")
}

push() { try wsync-push small.safetensors -e "$url" --backend nccl --verify none \
	--bucket-size 4KiB "$@"; }

@test "an endpoint is asked to join over nccl, and every bucket is announced" {
	with_doubles
	server
	push --json
	expect_status 0
	expect_json '([l["backend"] for l in lines if l["type"] == "plan"], lines[-1]["buckets"],
		lines[-1]["bytes"])' "(['nccl'], 2, 8096)"
	grep -q '/init_weights_update_group.*"world_size":3.*"backend":"nccl"' server.out
	[ "$(grep -c '/update_weights_from_distributed' server.out)" = 2 ]
	[ "$(grep -c '/destroy_weights_update_group' server.out)" = 1 ]
}

@test "a dry run says how much memory it takes" {
	with_doubles
	try wsync-push -n small.safetensors --backend nccl --bucket-size 4KiB
	expect_status 0
	out_has 'at most 8.50 KiB of the GPU, 64.0 MiB pinned'
	try wsync-push -n small.safetensors --backend nccl --json
	[ "$(json '[(l["gpu_bytes"], l["pinned_bytes"]) for l in lines if l["type"] == "plan"]')" \
		= "[(8351, 67108864)]" ] ||
		explain "other numbers"
	try wsync-push -n small.safetensors --json
	[ "$(json '[(l["gpu_bytes"], l["pinned_bytes"]) for l in lines if l["type"] == "plan"]')" \
		= "[(0, 0)]" ] ||
		explain "gloo takes none"
}

@test "tensors are made on the GPU, or not, and it is said how many" {
	with_doubles
	server
	safetensors small.safetensors a_proj.weight:BF16:300,257 b_proj.weight:F16:64,64 \
		norm.weight:BF16:77 >/dev/null
	/usr/bin/python3 "$repo/tests/cli/numbers.py" tame small.safetensors
	push -v --quantize fp8 --allow-unknown format
	expect_status 0
	err_has 'transform: 2 tensors made on the GPU, 2 on the CPU'
	push -v --quantize fp8 --allow-unknown format --transform-on cpu
	expect_status 0
	err_lacks 'made on the GPU'
	push -v
	expect_status 0
	err_lacks 'made on the GPU'
	try wsync-push -n small.safetensors --quantize fp8 --backend nccl --bucket-size 4KiB --json
	[ "$(json '[(l["gpu_bytes"] - 200 * 2**20 < 0, l["pinned_bytes"] - 64 * 2**20)
		for l in lines if l["type"] == "plan"]')" \
		= "[(True, 1024)]" ] || explain "other numbers"
	out_has '"gpu_bytes":201'
	try wsync-push -n small.safetensors --quantize fp8 --backend gloo --transform-on gpu
	expect_status 2
	err_has '--transform-on gpu: the data plane gloo sends from no GPU'
}

@test "the version and the file of NCCL are told, and where they came from" {
	with_doubles
	server
	push -v --nccl-lib "$nccl"
	expect_status 0
	err_has "nccl: 2.28.9 on GPU 0 (Double 0?[31m), from $nccl"
	WSYNC_NCCL_LIB=$nccl push -v --gpu 1
	expect_status 0
	err_has "nccl: 2.28.9 on GPU 1 (Double 1?[31m), from $nccl"
	printf '#!/bin/sh\necho %s\n' "$nccl" >python
	chmod +x python
	WSYNC_NCCL_LIB=/nowhere/x push -v --nccl-from ./python
	expect_status 0
	err_has "from $nccl"
}

@test "a machine without a driver says so and asks nobody" {
	server
	try env LD_LIBRARY_PATH= wsync-push small.safetensors -e "$url" --backend nccl \
		--nccl-lib /nowhere/libnccl.so.2
	expect_status 7
	grep -q . server.out
	[ "$(wc -l <server.out)" = 1 ] || explain "the server was asked"
}

@test "a GPU or an NCCL that is not there is named" {
	with_doubles
	server
	push --gpu 5
	expect_status 7
	err_has 'there is no GPU 5: they are numbered 0 to 1'
	push --nccl-lib /nowhere/libnccl.so.2
	expect_status 7
	err_has 'NCCL cannot be loaded: /nowhere/libnccl.so.2'
	push --nccl-lib "$nccl" --nccl-from python3
	expect_status 2
	try env WSYNC_NCCL_LIB=/nowhere/x wsync-push -n small.safetensors
	expect_status 0
	try wsync-push -n small.safetensors --nccl-lib "$nccl"
	expect_status 2
	push --nccl-from /nowhere/python
	expect_status 2
	err_has 'asking /nowhere/python for its NCCL'
	printf '#!/bin/sh\n' >python
	chmod +x python
	push --nccl-from ./python
	expect_status 7
	err_has './python has no libnccl.so.2'
}

@test "an endpoint that tells another version is refused before it is asked for anything" {
	with_doubles
	canned server '/server_info=200:{"tp_size":2,"dtype":"bfloat16","version":"0.5.9","nccl_version":"2.27.5"}' \
		'/model_info=200:{"weight_version":"7"}' '/openapi.json=404:no'
	push --json
	expect_status 6
	err_has "$url has NCCL 2.27.5, and 2.28.9 was loaded here"
	err_has 'hint: all ranks must have one version'
	expect_json 'lines[-1]["error"]["code"], lines[-1]["exit"]' "('data', 6)"
	[ "$(grep -c 'POST' server.out)" = 0 ] || explain "something was asked of it"
	# Over gloo nobody minds.
	try wsync-push small.safetensors -e "$url" --verify none
	err_lacks 'NCCL'
}

# settings ARGUMENTS EXPECTED: what NCCL finds here, for a server with these arguments.
settings() {
	server "$(printf '%s' '"tp_size":2,"dtype":"bfloat16","version":"0.5.9"' "${1:+,$1}")"
	FAKE_NCCL_SEEN=$PWD/seen push
	[ "$(sed 's/^NCCL_//' seen | tr '\n' ' ')" = "$2 COMM_BLOCKING=0 " ] ||
		explain "$1: NCCL finds $(tr '\n' ' ' <seen)"
}

@test "NCCL is started here with the settings of the servers, unless the user has set them" {
	with_doubles
	settings '' 'CUMEM_ENABLE=0 NVLS_ENABLE=0 SOCKET_IFNAME='
	settings '"enable_nccl_nvls":true' 'CUMEM_ENABLE=0 NVLS_ENABLE=1 SOCKET_IFNAME='
	settings '"enable_symm_mem":true' 'CUMEM_ENABLE=1 NVLS_ENABLE=1 SOCKET_IFNAME='
	settings '"enable_kv_cache_sharding":true' 'CUMEM_ENABLE=1 NVLS_ENABLE=0 SOCKET_IFNAME='
	settings '"enable_kv_cache_sharding":true,"nnodes":2' \
		'CUMEM_ENABLE=0 NVLS_ENABLE=0 SOCKET_IFNAME='
	settings '"moe_a2a_backend":"deepep_v2"' 'CUMEM_ENABLE=1 NVLS_ENABLE=0 SOCKET_IFNAME='
	settings '"moe_a2a_backend":"deepep"' 'CUMEM_ENABLE=0 NVLS_ENABLE=0 SOCKET_IFNAME='
	export NCCL_CUMEM_ENABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_COMM_BLOCKING=1
	settings '' 'CUMEM_ENABLE=1 NVLS_ENABLE=0 SOCKET_IFNAME=lo'
}

@test "servers that start NCCL with different settings are not put into one group" {
	with_doubles
	server '"tp_size":1,"version":"0.5.9"' one
	local first=$url
	server '"tp_size":1,"version":"0.5.9","enable_symm_mem":true' other
	push -e "$first" --json
	expect_status 5
	err_has "$url and $first start NCCL with different settings"
	[ "$(grep -c POST one.out other.out | tr '\n' ' ')" = 'one.out:0 other.out:0 ' ] ||
		explain "a server was asked to change"
	# All of them were started with this value, says the user.
	NCCL_CUMEM_ENABLE=1 push -e "$first"
	expect_status 0
}

@test "the GPU may be named by its UUID" {
	with_doubles
	server
	push -v --gpu GPU-41
	expect_status 0
	err_has 'on GPU 1 '
	push --gpu gpu-4
	expect_status 7
	err_has '2 GPUs have a UUID that begins with gpu-4'
	push --gpu x
	expect_status 2
	err_has "invalid GPU 'x', must be 0 to 255, or a UUID"
}

@test "what NCCL_DEBUG asks for is no line of ours, and no file is cut short by it" {
	with_doubles
	server
	export NCCL_DEBUG
	for NCCL_DEBUG in VERSION WARN INFO info; do
		push --json
		expect_status 0
		expect_json 'lines[0]["type"], lines[-1]["ok"]' "('start', True)"
		out_lacks 'NCCL version'
		err_has 'NCCL version 22809 of the double'
		err_has 'NCCL INFO the double speaks'
	done
	# Where stderr is a file, it is added to. What the user names stays named.
	echo before >log
	wsync-push small.safetensors -e "$url" --backend nccl --verify none -v >said 2>>log
	head -n 1 log | grep -qx before
	grep -q 'NCCL INFO the double speaks' log
	grep -q 'POST' log
	NCCL_DEBUG_FILE=$scratch/nccl.log push --json
	err_lacks 'the double'
	out_lacks 'the double'
	grep -q 'NCCL INFO the double speaks' nccl.log
}

@test "a refusal of the first bucket ends the group and tells the endpoint to continue" {
	with_doubles
	start server /usr/bin/python3 "$repo/tests/cli/canned.py" \
		'/server_info=200:{"tp_size":1,"dtype":"bfloat16","version":"0.5.9"}' \
		'/model_info=200:{}' \
		'/flush_cache=200:Cache flushed.' '/pause_generation=200:{"status":"ok"}' \
		'/continue_generation=200:{"status":"ok"}' \
		'/init_weights_update_group=200:{"success":true,"message":""}' \
		'/update_weights_from_distributed=400:{"success":false,"message":"no room"}' \
		'/destroy_weights_update_group=200:{"success":true,"message":""}'
	eventually test -s server.out
	url=http://127.0.0.1:$(head -n 1 server.out)
	push --json --on-partial resume
	expect_status 5
	grep -q '/continue_generation' server.out
	grep -q '/destroy_weights_update_group' server.out
}

@test "an endpoint that confirms a bucket of which no byte was sent is partial" {
	with_doubles
	server
	# The double waits for ranks that never join, so the broadcast never begins.
	export FAKE_NCCL_TOGETHER=1
	push --json --bucket-timeout 5s --on-partial pause
	expect_status 10
	grep -q '/update_weights_from_distributed' server.out
	expect_json 'lines[-1]["wire_bytes"]' 0
	expect_json '[(e["state"], e["paused"]) for e in lines[-1]["endpoints"]]' \
		"[('partial', True)]"
}
