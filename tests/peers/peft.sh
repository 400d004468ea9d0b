#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# peft.sh - PEFT and Transformers of PyPI, to load and merge adapters on a CPU: made once and kept.
#
#     tests/peers/peft.sh 0.21.2
#
# Prints the version of the torch to run it with (chroot.sh) and a directory for PYTHONPATH, under
# $WSYNC_CACHE or the user's cache directory: 100 MB on disk. Everything is pinned in
# peft/VERSION.txt. Exits 77, saying why, where it cannot be had.
set -euo pipefail

skip() { echo "peft.sh: $*" >&2; exit 77; }

here=$(cd "$(dirname "$0")" && pwd)
version=${1-}
case $version in
0.21.2) torch=2.14 ;;
*)      echo "usage: peft.sh 0.21.2" >&2; exit 2 ;;
esac

home=~  # of the user, where $HOME is not set
cache=${WSYNC_CACHE:-${XDG_CACHE_HOME:-$home/.cache}/wsync}
made=$cache/peft-$version
part=$made.part
log=$made.log

build()
{
	local python g
	python3 -m pip --version >/dev/null 2>&1 || skip "python3 has no pip"
	[ "$(uname -m)" = x86_64 ] || skip "the pinned wheels are of x86_64"
	python=$("$here/python.sh" "$torch" \
		-c 'import sys; print("%d.%d" % sys.version_info[:2])') ||
		skip "there is no torch $torch"
	echo "peft.sh: making $made (100 MB)" >&2
	rm -rf "$part" "$log"
	local -a where=(--platform manylinux2014_x86_64 --platform linux_x86_64 --platform any)
	for g in 17 24 26 27 28 31 34 35 39; do where+=(--platform "manylinux_2_${g}_x86_64"); done
	timeout --foreground 1800 python3 -m pip install --no-deps --target "$part" \
		--only-binary :all: --implementation cp --python-version "$python" \
		--abi "cp${python/./}" --abi abi3 --abi none "${where[@]}" \
		-r "$here/peft/$version.txt" >>"$log" 2>&1 </dev/null ||
		skip "pip failed: $(grep -m 1 '^ERROR' "$log") (log: $log)"
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
