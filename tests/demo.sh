#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job, shown: a checkpoint with Qwen3-0.6B's names and shapes goes into two running
# endpoints of two tensor-parallel ranks each. All files are under build/demo, locks too. The script
# removes them at its end, except the checkpoint. Each run has a directory of its own, so that
# several can run at once.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}
bin=$build/bin
dir=$build/demo
model=synthetic:qwen3-0.6b
mkdir -p "$dir"
run=$(mktemp -d "$dir/run.XXXXXX")
export WSYNC_REGISTRY=$run/registry.json
XDG_STATE_HOME=$(realpath "$run")
export XDG_STATE_HOME
unset WSYNC_API_KEY_FILE WSYNC_ADMIN_API_KEY_FILE
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY all_proxy

pids=()
finish() {
    for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
    for p in "${pids[@]}"; do wait "$p" 2>/dev/null || true; done
    rm -rf "$run"
}
trap finish EXIT

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi

prompt() { printf '\n%s$ %s%s\n' "$bold" "$*" "$plain"; }

# Shows a command as it would be typed, then runs it.
show() {
    prompt "${*//$bin\//}"
    "$@"
}

start_endpoint() { # sets $url
    local log=$run/endpoint$1.log
    : >"$log" # the process below makes it some time later
    "$bin/wsync-endpoint" --listen 127.0.0.1:0 --tp 2 --keep memory --json >"$log" 2>&1 &
    pids+=($!)
    for _ in $(seq 100); do
        url=$(sed -n 's/.*"type":"ready".*"url":"\([^"]*\)".*/\1/p' "$log")
        [ -n "$url" ] && break
        sleep 0.1
    done
    [ -n "$url" ] || { echo "endpoint $1 did not start:" >&2; cat "$log" >&2; exit 1; }
}

exec 9>"$dir/lock"
flock 9
if [ ! -f "$dir/ckpt/config.json" ]; then
    echo "writing a checkpoint with Qwen3-0.6B's names and shapes to $dir/ckpt (1.2 GB) ..."
    "$build/tests/tools/mkcheckpoint" "$model" "$dir/ckpt"
fi
exec 9>&-

urls=()
for i in 1 2; do
    start_endpoint "$i"
    urls+=("$url")
    echo "endpoint $i: $url, 2 tensor-parallel ranks"
done

for u in "${urls[@]}"; do show "$bin/wsync-register" add "$u"; done
show "$bin/wsync-register" list
prompt "wsync-list-weights $dir/ckpt | sed -n '1,6p;\$p'"
"$bin/wsync-list-weights" "$dir/ckpt" | sed -n '1,6p;$p'
show "$bin/wsync-verify" names "$dir/ckpt" --config "$dir/ckpt"
show "$bin/wsync-push" "$dir/ckpt" --weight-version 1 --verify hash
show "$bin/wsync-push" "$dir/ckpt" --quantize fp8 --weight-version 2 --verify hash
show "$bin/wsync-ctl" version
echo
echo "Both endpoints hold what was sent, byte for byte. Try '$bin/wsync-push --help'."
