#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sglang.sh - a real SGLang of PyPI and what it imports, to run on a CPU: made once and kept.
#
#     tests/peers/sglang.sh 0.5.23          with the torch 2.14 of chroot.sh
#     tests/peers/sglang.sh 0.4.10.post2    with its torch 2.6
#     tests/peers/sglang.sh 0.5.12|0.5.16|0.5.20    what they need otherwise than 0.5.23, on top of
#                                                   a copy of that one
#
# Prints that torch's version and a directory for PYTHONPATH, under $WSYNC_CACHE or the user's cache
# directory: 1 to 2 GB on disk. Everything is pinned in sglang/VERSION.txt, and nothing of CUDA
# among it: what SGLang would import of that stands in sglang/ as a shim. Exits 77, saying why,
# where it cannot be had.
set -euo pipefail

skip() { echo "sglang.sh: $*" >&2; exit 77; }

here=$(cd "$(dirname "$0")" && pwd)
version=${1-}
base=
case $version in
0.5.23)       torch=2.14 wheel_for=3.13 ;; # of the interpreters that it has wheels for the newest
0.5.12|0.5.16|0.5.20)
              torch=2.14 wheel_for=3.13 base=0.5.23 ;;
0.4.10.post2) torch=2.6  wheel_for=3.13 ;;
*)            echo "usage: sglang.sh 0.5.23|0.5.20|0.5.16|0.5.12|0.4.10.post2" >&2; exit 2 ;;
esac

home=~  # of the user, where $HOME is not set
cache=${WSYNC_CACHE:-${XDG_CACHE_HOME:-$home/.cache}/wsync}
made=$cache/sglang-$version
part=$made.part
log=$made.log

# into PYTHON REQUIREMENT...: wheels for that interpreter, whichever runs pip.
into()
{
	local for=$1 g
	shift
	local -a where=(--platform manylinux2014_x86_64 --platform linux_x86_64 --platform any)
	for g in 17 24 26 27 28 31 34 35 39; do where+=(--platform "manylinux_2_${g}_x86_64"); done
	timeout --foreground 1800 python3 -m pip install --no-deps --upgrade --target "$part" \
		--only-binary :all: --implementation cp \
		--python-version "$for" --abi "cp${for/./}" --abi abi3 \
		--abi none "${where[@]}" "$@" \
		>>"$log" 2>&1 </dev/null ||
		skip "pip failed: $(grep -m 1 '^ERROR' "$log") (log: $log)"
}

build()
{
	local python name
	python3 -m pip --version >/dev/null 2>&1 || skip "python3 has no pip"
	[ "$(uname -m)" = x86_64 ] || skip "the pinned wheels are of x86_64"
	python=$("$here/python.sh" "$torch" \
		-c 'import sys; print("%d.%d" % sys.version_info[:2])') ||
		skip "there is no torch $torch"
	echo "sglang.sh: making $made (up to 2 GB, some minutes)" >&2
	rm -rf "$part" "$log"
	if [ "$base" ]; then
		"$here/sglang.sh" "$base" >/dev/null || skip "there is no sglang $base"
		cp -al "$cache/sglang-$base" "$part" # pip replaces files, it writes into none
		# What it replaces keeps the description of its old version, which modules read.
		for name in sglang \
			$(sed -n 's/==.*//; s/-/_/g; /^[a-z]/p' "$here/sglang/$version.txt"); do
			rm -rf "${part:?}/$name" "$part/$name"-*
		done
	fi
	into "$python" -r "$here/sglang/$version.txt"
	into "$wheel_for" "sglang==$version"
	# Thousands of modules, which python.sh's Python would compile at every start; some are made
	# for others.
	WSYNC_SHOW=$cache "$here/python.sh" "$torch" -m compileall -q "$part" >>"$log" 2>&1 || true
}

if [ ! -d "$made" ]; then
	mkdir -p "$cache" || skip "cannot write $cache"
	exec 9>"$made.lock"
	flock -w 2400 9 || skip "somebody else has been making $made for 40 minutes"
	if [ ! -d "$made" ]; then
		build
		mv "$part" "$made"
	fi
fi
echo "$torch $made"
