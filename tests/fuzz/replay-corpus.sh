#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Replays each fuzz target's corpus; one TAP line per target.
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build}
n=0
for src in tests/fuzz/fuzz_*.c; do
    name=$(basename "$src" .c)
    n=$((n + 1))
    [ -x "$build/tests/fuzz/$name" ] || { echo \
        "ok $n - $name # SKIP not built: it needs libmicrohttpd"; continue; }
    if out=$("$build/tests/fuzz/$name" "tests/fuzz/corpus/${name#fuzz_}" 2>&1) &&
        ! grep -q '^not ok' <<<"$out"; then
        echo "ok $n - $name: $(grep -c '^ok' <<<"$out") corpus files replayed"
    else
        echo "not ok $n - $name"
        tail -n 20 <<<"$out" | sed 's/^/# /'
    fi
done
echo "1..$n"
