#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Machines without NVIDIA's driver, and builds without the CUDA Toolkit: whoever asks for a GPU is
# told why there is none, with exit code 7 and before any endpoint is spoken to; everybody else
# notices nothing.
load helpers

prepare() {
	safetensors small.safetensors a.weight:BF16:64,32 b.weight:F32:1000 >/dev/null
	# Where there is a driver, one comes before it that is none.
	if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
		mkdir lib && : >lib/libcuda.so.1
		export LD_LIBRARY_PATH=$scratch/lib
	fi
	no_driver='the CUDA driver cannot be loaded: '
	if "$bin/wsync-push" --version | grep -q '^built without CUDA'; \
		then no_driver='this wsync was built without CUDA'; fi
}

# refused COMMAND...: with exit code 7 and the reason, whatever else is missing.
refused() {
	try "$@"
	expect_status 7
	err_has "$no_driver"
	err_has 'hint: '
	out_lacks 'ready'
}

# Whatever of this build may be told to use a GPU. Nobody listens at that port: were it asked, the
# exit code would be 4.
refused_everywhere() {
	refused wsync-push small.safetensors -e http://127.0.0.1:9 --backend nccl
	refused wsync-push small.safetensors -e http://127.0.0.1:9 --backend ipc
	# before endpoints of its own are started
	refused wsync-bench push small.safetensors --backend ipc
	refused wsync-bench push small.safetensors --backend nccl
	refused wsync-bench kernels --on gpu
	refused wsync-bench load small.safetensors --to gpu
	refused wsync-gateway --listen 127.0.0.1:0 --backend nccl
	refused wsync-gateway --listen 127.0.0.1:0 --backend ipc
	refused wsync-endpoint --listen 127.0.0.1:0 --backend nccl
}

# A source in the memory of another process: tests/cli/source-memory.bats.
@test "whoever is told to use a GPU says that there is no driver, and asks nobody" {
	refused_everywhere
	refused wsync-push -n small.safetensors --backend nccl
	refused wsync-push small.safetensors -e http://127.0.0.1:9 --backend nccl \
		--nccl-lib /nowhere/libnccl.so.2
	refused wsync-push -n small.safetensors --backend nccl --quantize fp8 --gpu 1
}

@test "the last line of JSON says it too" {
	try wsync-push small.safetensors -e http://127.0.0.1:9 --backend nccl --json
	expect_status 7
	expect_json 'lines[-1]["type"], lines[-1]["exit"], lines[-1]["error"]["code"]' \
		"('end', 7, 'device')"
}

@test "who asks for no GPU notices nothing" {
	try wsync-push -n small.safetensors --quantize fp8
	expect_status 0
	try wsync-list-weights small.safetensors
	expect_status 0
}

# ---- builds without the toolkit ----

# The build of the other tests, but for what CUDA=0 changes: what is compiled alike is taken from
# it.
build_without() {
	if grep -q __asan_init "$bin/wsync-push"; then skip "for builds without sanitizers"; fi
	without=$scratch/without
	mkdir "$without"
	ln -s "$build/obj" "$build/gen" "$without"
	cp -p "$build/chosen-commit" "$without" # a newer one would make an object of both anew
	TRY_SECONDS=200 try env -u MAKEFLAGS make -C "$repo" \
		--no-print-directory CUDA=0 BUILD="$without" \
		"$without"/bin/wsync-{push,bench,gateway,endpoint} \
		"$without"/tests/gpu/test_{none,nccl,driver}
	expect_status 0
}

@test "gcc and clang compile what stands for CUDA without a warning" {
	local cc
	for cc in gcc clang; do
		command -v "$cc" >/dev/null || continue
		try env -u MAKEFLAGS make -C "$repo" \
			--no-print-directory CUDA=0 CC="$cc" BUILD="$scratch/$cc" \
			CFLAGS='-O2 -Werror' \
			"$scratch/$cc"/obj/lib/gpu/no_cuda.o \
			"$scratch/$cc"/obj/lib/gpu/{nccl_library,nccl_comm,nccl_find,compute}.o \
			"$scratch/$cc"/obj/tests/gpu/test_none.o
		expect_status 0
	done
}

@test "a build without CUDA is complete, and says what it is where a GPU is asked for" {
	build_without
	no_driver='this wsync was built without CUDA'
	PATH=$without/bin:$PATH
	refused_everywhere
	err_has 'make CUDA_HOME=/usr/local/cuda'
	try wsync-push --version
	[ "$(sed -n 4p <<<"$out")" = 'built without CUDA' ] || explain 'another fourth line'
	try wsync-push -n small.safetensors --quantize fp8
	expect_status 0
	try env CMOCKA_MESSAGE_OUTPUT=TAP "$without/tests/gpu/test_none"
	expect_status 0
	out_has 'ok 3 - there_is_nothing_and_that_can_be_closed'
	try env CMOCKA_MESSAGE_OUTPUT=TAP "$without/tests/gpu/test_driver"
	expect_status 0
	out_has '1..0 # SKIP this wsync was built without CUDA'
	# NCCL's calls are the same there.
	try env CMOCKA_MESSAGE_OUTPUT=TAP "$without/tests/gpu/test_nccl"
	expect_status 0
	out_has ' - a_whole_life_in_order'
}
