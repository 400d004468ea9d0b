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

# bytes: of the files whose names are on stdin, each ended by NUL.
bytes() { xargs -0 stat -c %s -- | awk '{ n += $1 } END { print n }'; }

@test "the kit has all that its programs are linked with, and fits where kits go" {
	# With the sources that travel with it, of which an archive without git knows no list.
	local size tree=0
	size=$(find "$kit" -type f -print0 | bytes)
	if git -C "$repo" ls-files --error-unmatch Makefile >/dev/null 2>&1; then
		tree=$(cd "$repo" && git ls-files -z --cached | bytes)
	fi
	[ $((size + tree)) -lt 50000000 ] || explain "the kit has $size bytes, its sources $tree"
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

@test "the plan for the first minutes names what is in the kit, and without a GPU skips it" {
	local step
	bare "$kit/check.sh" --first --list
	expect_status 0
	for step in test_fp8_gpu 'bench_speed.py kernels' test_comm_gpu test_machine_torch.py \
		test_nccl_torch.py test_ipc_torch.py test_manifest_torch.py 'bench_speed.py load' \
		'test_merge_gpu under racecheck' 'test_fp8_gpu under racecheck'; do
		[ "$(grep -cx "$step" <<<"$out")" = 1 ] || explain "once: $step"
	done
	# In this order.
	[ "$(sed -n '/^bench_speed.py k/,$p' <<<"$out" | head -n 3 | xargs)" = \
		"bench_speed.py kernels test_comm_gpu test_machine_torch.py" ] || explain "another order"
	local n
	n=$(wc -l <<<"$out")
	bare "$kit/check.sh" --first --out report
	expect_status 0
	[ "${out##*$'\n'}" = "0 passed, 0 failed, $n skipped" ] || explain "another last line"
	out_lacks 'it is not built'
	out_lacks 'no reason told'
	[ "$(echo report/*)" = "report/RESULTS.md report/log.txt" ] || explain "other files"
	grep -q '^| holder | it has no driver |' report/RESULTS.md
	# The time that all of it may take, and each of its programs.
	bare python3 -c 'import sys; sys.path.insert(0, sys.argv[1]); import check
assert check.FIRST_SECONDS < 450 and all(s.each < 180 for s in check.FIRST)' "$kit/tests/gpu"
	expect_status 0
}

@test "on the double of libcuda the kernels' tests run from the kit" {
	[ -e "$kit/build/tests/gpu/fake_cuda.so" ] || skip "built without CUDA"
	local on_double=(WSYNC_TEST_CUDA="$kit/build/tests/gpu/fake_cuda.so")
	bare "${on_double[@]}" "$kit/check.sh" --out report bench_speed
	expect_status 0
	out_has 'bench_speed.py: all of it # SKIP a double has no speed'
	# Of the plan all but what lasts; on little, as there is no speed.
	bare "${on_double[@]}" WSYNC_TEST_TRY=1 WSYNC_TEST_PATIENCE=600 "$kit/check.sh" --first \
		--out report test_far test_gather test_merge test_comm bench_speed test_machine
	expect_status 0
	[[ ${out##*$'\n'} =~ ^[1-9][0-9]*\ passed,\ 0\ failed,\ 2\ skipped$ ]] ||
		explain "another last line"
	out_has 'ok 1 - test_far_gpu: quantizing'
	out_has '- bench_speed.py kernels: blocks of FP8'
	out_has '- bench_speed.py load: a file'
	out_has '- test_comm_gpu: a_rank_alone_joins_broadcasts_and_leaves'
	out_has '# SKIP a double has no races'
	grep -q '^| holder | it keeps GPU 0 open |' report/RESULTS.md
	grep -q '^an abort while nobody comes takes ' report/RESULTS.md
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

# stub PATH LINE...: a program of these lines.
stub() {
	printf '%s\n' "${@:2}" >"$1"
	chmod +x "$1"
}

@test "what a machine is shown to be unable to do is left out, with that reason" {
	mkdir -p tree/tests/gpu tree/tests/cli tree/build/tests/gpu path
	cp "$repo"/tests/gpu/{check,loopback}.py tree/tests/gpu
	stub path/bats '#!/bin/sh' 'echo 1..1; echo ok 1 - it ran'
	local t=tree/tests/gpu says case first second title
	for says in nccl_torch nccl_trouble ipc_torch manifest_torch; do
		stub $t/test_$says.py 'print("1..1\nok 1 - it ran")'
	done
	for says in endpoint-nccl endpoint-ipc source-memory push-vllm-ipc; do
		echo "# WSYNC_TEST_CUDA" >tree/tests/cli/$says.bats
	done
	stub $t/bench_speed.py 'import os' \
		'for name in "NCCL", "IPC": print("#", name, os.environ.get("WSYNC_TEST_NO_" + name))' \
		'print("1..1\nok 1 - it ran")'
	# A GPU, which bats asks for.
	local cuda=(WSYNC_TEST_CUDA="$build/tests/gpu/fake_cuda.so")
	[ -e "$build/tests/gpu/fake_cuda.so" ] || skip "built without CUDA"
	# The titles are those of the real one.
	mapfile -t title < <(sed -n 's/^@suite.case("\(.*\)")$/\1/p' \
		"$repo/tests/gpu/test_machine_torch.py")
	for case in 'ok ok' 'not_ok ok' 'ok not_ok' 'dies dies'; do
		read -r first second <<<"${case//_/-}"
		stub $t/test_machine_torch.py "print('1..2', flush=True)" "import os" \
			"if '$first' == 'dies': os.abort()" \
			"print('${first/-/ } 1 - ${title[0]}\n${second/-/ } 2 - ${title[1]}')"
		bare "${cuda[@]}" PATH="$PWD/path:/usr/bin:/bin" python3 tree/tests/gpu/check.py \
			--out report
		case $case in
		'ok ok') [ "${out##*$'\n'}" = "11 passed, 0 failed, 0 skipped" ] ;;
		'not_ok ok') [ "${out##*$'\n'}" = "7 passed, 1 failed, 3 skipped" ] ;;
		'ok not_ok') [ "${out##*$'\n'}" = "5 passed, 1 failed, 5 skipped" ] ;;
		*) [ "${out##*$'\n'}" = "1 passed, 1 failed, 8 skipped" ] ;;
		esac || explain "$case: another last line"
		[[ $first = ok ]] || {
			out_has 'test_nccl_torch.py: all of it # SKIP two processes cannot use NCCL'
			out_has 'endpoint-nccl.bats: all of it # SKIP two processes cannot use NCCL'
			out_has '# NCCL two processes cannot use NCCL'
		}
		[[ $second = ok ]] || {
			out_has 'source-memory.bats: all of it # SKIP a process cannot open'
			out_has '# IPC a process cannot open'
		}
		[ "$case" != 'ok ok' ] || out_has '# NCCL None'
	done
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

@test "what compute-sanitizer finds is a failure, and so is its silence" {
	mkdir -p tree/tests/gpu tree/build/tests/gpu path
	cp "$repo"/tests/gpu/{check,loopback}.py tree/tests/gpu
	stub tree/build/tests/gpu/test_merge_gpu '#!/bin/sh' 'echo 1..1; echo ok 1 - merged'
	stub path/compute-sanitizer '#!/bin/sh' '[ "$1 $2" = "--tool racecheck" ] || exit 1; shift 2' \
		'"$@"; [ -z "$SAYS" ] || echo "========= $SAYS"'
	[ -e "$build/tests/gpu/fake_cuda.so" ] || skip "built without CUDA"
	cp "$build/tests/gpu/fake_cuda.so" cuda.so # which is not called a double
	race() {
		bare PATH="$PWD/path:/usr/bin:/bin" WSYNC_TEST_CUDA="$PWD/cuda.so" SAYS="$1" python3 \
			tree/tests/gpu/check.py --first --out report "test_merge_gpu under"
	}
	race 'RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)'
	expect_status 0
	[ "${out##*$'\n'}" = "1 passed, 0 failed, 0 skipped" ] || explain "another last line"
	race 'RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)'
	expect_status 1
	out_has 'SUMMARY: 3 hazards'
	race ''
	expect_status 1
	out_has 'no summary'
}

# ended FILE: no process has the number in that file, or only a zombie that nobody has reaped yet.
ended() { ! grep -qs . "/proc/$(<"$1")/cmdline"; }

@test "a run that is killed leaves its report, and one that is told to end its children too" {
	mkdir -p tree/tests/gpu tree/build/tests/gpu
	# What keeps the GPU open ends with either.
	stub python '#!/bin/sh' "echo \$\$ >'$PWD/holder'" 'exec cat >/dev/null'
	cp "$repo"/tests/gpu/{check,loopback}.py tree/tests/gpu
	printf '#!/bin/sh\necho 1..2\necho not ok 1 - first\necho "# its reason"\necho $$ >group\nsleep 60 & echo $! >child\nsleep 60\n' \
		>tree/build/tests/gpu/test_a_gpu
	chmod +x tree/build/tests/gpu/test_a_gpu
	local signal pid
	for signal in KILL TERM; do
		rm -rf report tree/child holder
		env -i PATH=/usr/bin:/bin WSYNC_TEST_PYTHON="$PWD/python" python3 \
			tree/tests/gpu/check.py --out report >/dev/null &
		pid=$!
		eventually grep -qs 'first: its reason' report/RESULTS.md
		eventually sh -c 'grep -qs cat "/proc/$(cat holder)/cmdline"'
		kill -$signal $pid
		wait $pid || true
		grep -q '1 failed' report/RESULTS.md || explain "it does not say what failed"
		[ $signal = KILL ] || eventually ended tree/child
		eventually ended holder
		kill -- "-$(cat tree/group)" 2>/dev/null || true
	done
}
