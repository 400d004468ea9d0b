#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# build/gpu-kit, which proves the rest where there is a GPU: it is complete, it starts on a machine
# that has nothing, and its report is true, of a machine without a GPU and of the double of one.
load helpers

setup_file() {
	local build=${BUILD:-build}
	cd "$BATS_TEST_DIRNAME/../.." || return
	if ldd "$build/bin/wsync-push" | grep -q 'lib[au]bsan\|libasan' ||
		grep -q __asan_init "$build/bin/wsync-push"; then
		return 0 # what sanitizers link is not for other machines
	fi
	timeout -k 5 300 env -u MAKEFLAGS BUILD="$build" tests/gpu/kit.sh "$BATS_FILE_TMPDIR/kit" \
		>"$BATS_FILE_TMPDIR/log" 2>&1 </dev/null || {
		cat "$BATS_FILE_TMPDIR/log" >&2
		return 1
	}
}

prepare() {
	kit=$BATS_FILE_TMPDIR/kit
	[ -d "$kit" ] || skip "built with sanitizers"
	export WSYNC_TEST_PYTHON=/nowhere/python
}

bare() { try env -i PATH=/usr/bin:/bin WSYNC_TEST_PYTHON=/nowhere/python "$@"; }

@test "the kit has all that its programs are linked with, and fits where kits go" {
	[ "$(du -sm "$kit" | cut -f 1)" -lt 64 ]
	[ -z "$(find "$kit" -type l)" ]
	ldd "$kit"/build/bin/* "$kit"/build/tests/gpu/* >libraries
	[ -z "$(grep 'not found' libraries)" ]
	# Of the machine's own there is libc, and nothing else.
	awk '$3 ~ /^\// { print $3 }' libraries |
		grep -v "^$kit/build/bin/../lib/\|^$kit/build/tests/gpu/../../lib/" | sort -u >own
	[ -z "$(grep -v '/lib\(c\|m\|dl\|rt\|pthread\|resolv\)\.so' own)" ]
	grep -q 'a kit for .* and glibc 2' "$kit/KIT"
}

@test "what the kit's files of bats run and read is in it, or on every machine" {
	local path
	while read -r path; do
		[ -e "$kit/$path" ] || explain "not in the kit: $path"
	done < <(sed -n 's|.*\$repo/\(tests/[a-z0-9_./-]*\).*|\1|p' "$kit"/tests/cli/*.bats | sort -u)
	! grep -hwE 'curl|jq|ss|lsof|pgrep' "$kit"/tests/cli/*.ba* | grep -v '^[[:space:]]*#' ||
		explain "programs that a machine may lack"
}

@test "without a GPU everything is skipped with its reason, and that is no failure" {
	bare OUT="$scratch/report" "$kit/check.sh"
	expect_status 0
	[[ ${out##*$'\n'} =~ ^0\ passed,\ 0\ failed,\ [1-9][0-9]*\ skipped$ ]] ||
		explain "another last line"
	local why='the CUDA driver cannot be loaded: libcuda.so.1'
	[ -e "$build/tests/gpu/fake_cuda.so" ] || why='this wsync was built without CUDA'
	out_has "test_fp8_gpu: all of it # SKIP $why"
	out_has 'test_nccl_torch.py: all of it # SKIP /nowhere/python: No such file or directory'
	[ "$(grep -c '^ok [0-9]* - .* # SKIP' <<<"$out")" = "$(grep -c '^ok' <<<"$out")" ] ||
		explain "one that is no skip"
	grep -q "^1..$(grep -c '^ok' <<<"$out")\$" <<<"$out" || explain "another plan"
	grep -q '^# Results without a GPU' report/RESULTS.md
	grep -q '^| GPU | none that libcuda.so.1 would give |' report/RESULTS.md
	grep -q '^==== test_fp8_gpu' report/log.txt
}

@test "on the double of libcuda the kernels' tests run from the kit" {
	[ -e "$kit/build/tests/gpu/fake_cuda.so" ] || skip "built without CUDA"
	bare WSYNC_TEST_CUDA="$kit/build/tests/gpu/fake_cuda.so" "$kit/check.sh" \
		--out report test_gather test_far bench_speed
	expect_status 0
	[[ ${out##*$'\n'} =~ ^[1-9][0-9]*\ passed,\ 0\ failed,\ 1\ skipped$ ]] ||
		explain "another last line"
	out_has 'ok 1 - test_far_gpu: quantizing'
	out_has 'bench_speed.py: all of it # SKIP a double has no speed'
	grep -q '^# Results on a double of libcuda' report/RESULTS.md
	grep -q '^| CUDA of the driver | 13.0 |' report/RESULTS.md
}

@test "what fails, dies, says too little or never ends is a failure, and shown" {
	mkdir -p tree/tests/gpu tree/build/tests/gpu
	cp "$repo"/tests/gpu/{check,loopback}.py tree/tests/gpu
	local t=tree/build/tests/gpu
	printf '#!/bin/sh\necho 1..2\necho ok 1 - good\necho not ok 2 - bad\necho why >&2\nexit 1\n' >$t/test_a_gpu
	printf '#!/bin/sh\necho 1..2\necho ok 1 - good\nkill -SEGV $$\n' >$t/test_b_gpu
	printf '#!/bin/sh\necho 1..2\necho ok 1 - good\n' >$t/test_c_gpu
	printf '#!/bin/sh\necho 1..1\nsleep 100 & sleep 100\n' >$t/test_d_gpu
	printf '#!/bin/sh\necho nothing\n' >$t/test_e_gpu
	printf '#!/bin/sh\necho 1..1\necho "# 12 GB/s"\necho "ok 1 - fast # SKIP not today"\nexit 3\n' >$t/bench_f
	chmod +x $t/*
	bare python3 tree/tests/gpu/check.py --out report --each 3
	expect_status 1
	[ "${out##*$'\n'}" = "3 passed, 6 failed, 1 skipped" ] || explain "another last line"
	out_has $'not ok 2 - test_a_gpu: bad\n#   '
	out_has '#   why'
	out_has 'it died of SIGSEGV'
	out_has 'exit 0 after 1 of 2 cases'
	out_has 'it was ended after 3 s'
	out_has 'exit 0, and no plan'
	out_has '# exit 3'
	grep -q '^12 GB/s' report/RESULTS.md
	grep -q '^- `test_b_gpu`: the program ends well: it died of SIGSEGV' report/RESULTS.md
	# Time that is over is told too, and leaves nothing out.
	bare python3 tree/tests/gpu/check.py --out report --seconds 0
	expect_status 0
	[ "${out##*$'\n'}" = "0 passed, 0 failed, 6 skipped" ] || explain "another last line"
	bare python3 tree/tests/gpu/check.py --out report test_nothing
	expect_status 1
}

@test "a single case that needs it is left out too, and pushes on a GPU have limits" {
	ask() { try env BUILD="$build" /usr/bin/python3 -B - "$repo/tests/gpu" "$@"; }
	cat >case.py <<-'EOP'
		import sys
		sys.path.insert(0, sys.argv[1])
		from on_torch import lib
		suite = lib.Suite()
		@suite.case("needs NCCL")
		def _(_): lib.need("nccl")
		suite.main(lambda: None)
		limits = {"--init-timeout", "--bucket-timeout"}
		argv = lib.push_argv([], [], ())
		given = [w for i, w in enumerate(argv) if {w, argv[i - 1]} & limits]
		print("#", lib.PATIENCE, *given)
	EOP
	STDIN=case.py WSYNC_TEST_NO_NCCL="no such thing" ask
	out_has 'ok 1 - needs NCCL # SKIP no such thing'
	out_has '# 60.0 --init-timeout 30s --bucket-timeout 30s'
	STDIN=case.py WSYNC_TEST_DEVICE=cpu ask
	out_has 'ok 1 - needs NCCL # 0.0 s'
	out_has '# 600'
	out_lacks timeout
	# All of them have that library from there.
	[ -z "$(grep -lE '^import lib|^from lib' "$repo"/tests/gpu/test_*.py)" ]
}

@test "a run that is killed leaves its report, and one that is told to end its children too" {
	mkdir -p tree/tests/gpu tree/build/tests/gpu
	cp "$repo"/tests/gpu/{check,loopback}.py tree/tests/gpu
	printf '#!/bin/sh\necho 1..2\necho not ok 1 - first\necho "# its reason"\nsleep 60 & echo $! >child\nsleep 60\n' \
		>tree/build/tests/gpu/test_a_gpu
	chmod +x tree/build/tests/gpu/test_a_gpu
	local signal pid
	for signal in KILL TERM; do
		rm -rf report tree/child
		env -i PATH=/usr/bin:/bin WSYNC_TEST_PYTHON=/nowhere/python python3 \
			tree/tests/gpu/check.py --out report >/dev/null &
		pid=$!
		eventually grep -qs 'first: its reason' report/RESULTS.md
		kill -$signal $pid
		wait $pid || true
		grep -q '1 failed' report/RESULTS.md || explain "it does not say what failed"
		[ $signal = KILL ] || eventually sh \
			-c '! kill -0 "$(cat tree/child)" 2>/dev/null'
		kill "$(cat tree/child)" 2>/dev/null || true
	done
}
