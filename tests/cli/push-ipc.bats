#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# wsync-push --backend ipc: what is said and refused before a byte is read. What servers read is for
# tests/peers/test_ipc.py.
load helpers

prepare() {
	safetensors small.safetensors a.weight:BF16:64,32 b.weight:F32:1000 >/dev/null
	mkdir lib
	ln -s "$build/tests/gpu/fake_cuda.so" lib/libcuda.so.1
}

with_double() {
	[ -e "$build/tests/gpu/fake_cuda.so" ] || skip "built without CUDA"
	export LD_LIBRARY_PATH=$scratch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# server ANSWER: to every update.
server() {
	start server /usr/bin/python3 "$repo/tests/cli/canned.py" \
		'/server_info=200:{"tp_size":2,"ep_size":1,"dtype":"bfloat16","version":"0.5.9"}' \
		'/model_info=200:{"weight_version":"7"}' '/flush_cache=200:Cache flushed.' \
		'/pause_generation=200:{"status":"ok","message":"ok"}' \
		'/continue_generation=200:{"status":"ok","message":"ok"}' \
		"/update_weights_from_tensor=$1" \
		'/update_weight_version=200:{"success":true,"message":"ok","new_version":"12"}'
	eventually test -s server.out
	url=http://127.0.0.1:$(head -n 1 server.out)
}

push() { try wsync-push small.safetensors -e "$url" --backend ipc --verify none \
	--bucket-size 4KiB "$@"; }

# Of each update: how many elements, whether to flush; and the version.
updates() {
	/usr/bin/python3 - <<-'EOF'
		import json
		for line in open("server.out"):
		    if "update_weights_from_tensor {" in line:
		        b = json.loads(line.split(" ", 2)[2])
		        print(len(b["serialized_named_tensors"]), b["flush_cache"])
		    if "update_weight_version {" in line:
		        print(json.loads(line.split(" ", 2)[2])["new_version"])
	EOF
}

@test "each rank has an element, the last bucket flushes, an empty one follows, then the version" {
	with_double
	server '200:{"success":true,"message":"Success"}'
	push --weight-version 12
	expect_status 0
	[ "$(updates)" = $'2 False\n2 True\n2 False\n12' ] || explain "$(updates)"
}

@test "a dry run says how much memory it takes" {
	with_double
	try wsync-push -n small.safetensors --backend ipc --bucket-size 4KiB
	expect_status 0
	out_has 'at most 2.00 MiB of the GPU, 64.0 MiB pinned'
	safetensors big.safetensors a:U8:3000000 b:U8:3000000 c:U8:3000000 d:U8:3000000 >/dev/null
	try wsync-push -n big.safetensors --backend ipc --bucket-size 3MiB --json
	expect_status 0
	expect_json '[l["gpu_bytes"] for l in lines if l["type"] == "plan"]' "[10485760]"
}

@test "an endpoint of another machine is refused, and nobody asked" {
	with_double
	try wsync-push small.safetensors -e 192.0.2.7:30000 --backend ipc --connect-timeout 5
	expect_status 5
	err_has 'http://192.0.2.7:30000 is on another machine'
	err_has 'nccl and gloo reach others'
}

@test "a machine without a driver says so and asks nobody" {
	server '200:{"success":true,"message":""}'
	try env LD_LIBRARY_PATH= wsync-push small.safetensors -e "$url" --backend ipc
	expect_status 7
	[ "$(wc -l <server.out)" = 1 ] || explain "the server was asked"
	with_double
	push --gpu 5
	expect_status 7
	err_has 'there is no GPU 5: they are numbered 0 to 1'
	[ "$(wc -l <server.out)" = 1 ] || explain "the server was asked"
}

@test "what does not go with it is a usage error" {
	server '200:{"success":true,"message":""}'
	push --protocol update
	expect_status 2
	push --load-format none
	expect_status 2
	push --ipc-device GPU0
	expect_status 2
	err_has "invalid GPU 'GPU0', must be uuid or 0 to 255"
	try wsync-push -n small.safetensors --ipc-device 1
	expect_status 2
	err_has '--ipc-device is for --backend ipc'
	try wsync-push -n small.safetensors --gpu 1
	expect_status 2
	err_has '--gpu is for --backend nccl or ipc'
}

@test "a server that cannot open the memory is resumed, with a hint about containers" {
	with_double
	server '400:{"success":false,"message":"CUDA error: invalid resource handle"}'
	push --on-partial resume
	expect_status 5
	err_has 'invalid resource handle'
	err_has '--ipc=host and --pid=host'
	grep -q '/continue_generation' server.out
}

@test "the trace has what was read and copied, and no wire" {
	with_double
	server '200:{"success":true,"message":"Success"}'
	push --trace t.json
	expect_status 0
	said=$(/usr/bin/python3 "$repo/tests/cli/trace_rows.py" t.json \
		'(total("read"), total("copy"), len(of("apply")), len(of("wire")))') ||
		explain "no trace"
	[ "$said" = "(8096, 8096, 2, 0)" ] || explain "$said"
}

@test "wsync-endpoint reads them, and holds what was sent" {
	with_double
	endpoint first --backend ipc --tp 2
	push --verify hash --weight-version 5 --json
	expect_status 0
	expect_json '(lines[-1]["verify"], lines[-1]["bytes"], lines[-1]["wire_bytes"],
		lines[-1]["endpoints"][0]["state"])' "('hash', 8096, 16192, 'committed')"
	printf '%s\n' small.safetensors small.safetensors >list
	status=0
	timeout 600 wsync-push --stdin -e "$url" --backend ipc --verify hash --bucket-size 4KiB \
		--json <list >out 2>err || status=$?
	[ "$status" = 0 ] || explain "$(cat err)"
	[ "$(grep -c '"type":"result"' out)" = 2 ] || explain "$(cat out)"
}

@test "--ipc-device tells the GPU by its number, and by a wrong one nothing is opened" {
	with_double
	endpoint first --backend ipc
	push --ipc-device 0
	expect_status 0
	push --ipc-device 1
	[ "$status" != 0 ] || explain "GPU 1 was taken for GPU 0"
}

@test "tensors are made on the GPU that lends them, and are right" {
	with_double
	endpoint first --backend ipc
	safetensors small.safetensors a_proj.weight:BF16:300,257 b_proj.weight:F16:64,64 \
		norm.weight:BF16:77 >/dev/null
	/usr/bin/python3 "$repo/tests/cli/numbers.py" tame small.safetensors
	push -v --quantize fp8 --verify hash
	expect_status 0
	err_has 'transform: 2 tensors made on the GPU, 2 on the CPU'
	push -v --quantize fp8 --verify hash --transform-on cpu
	expect_status 0
	err_lacks 'made on the GPU'
	FAKE_CUDA_REFUSE="cuModuleLoadData 0 209" push -v --quantize fp8 --verify hash
	expect_status 0
	err_has 'warning: the CPU transforms all tensors, which is slow, because the GPU cannot: '
	FAKE_CUDA_VERSION=12080 FAKE_CUDA_REFUSE="cuModuleLoadData 0 200" push --quantize fp8
	expect_status 0
	err_has 'the driver supports CUDA 12.8, and the kernels were built with CUDA '
	# After a kernel has failed the GPU is lost for the process: no further line is tried.
	printf '%s\n' small.safetensors small.safetensors >lines
	STDIN=lines FAKE_CUDA_REFUSE="cuLaunchKernel 0 700" try wsync-push --stdin -e "$url" \
		--backend ipc --quantize fp8 --json
	expect_status 7
	expect_json '[l["ok"] for l in lines if l["type"] == "result"]' '[False]'
	err_has 'hint: this process cannot use the GPU any more: start the program again'
	FAKE_CUDA_REFUSE="cuModuleLoadData 0 209" push -v --quantize fp8 --transform-on gpu
	expect_status 7
}

@test "wsync-bench measures it, with an endpoint of its own that reads the same GPU" {
	with_double
	try wsync-bench push small.safetensors --backend ipc --gpu 1 --samples 2 \
		--bucket-size 4KiB --json
	expect_status 0
	expect_json 'lines[-1]["ok"]' True
}
