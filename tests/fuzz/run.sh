#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target with libFuzzer, ASan and UBSan for FUZZ_SECONDS each, JOBS at a time. New
# coverage goes to build/fuzz/corpus/NAME, finds to build/fuzz/finds. Arguments name single targets.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${BUILD:-build}/fuzz
seconds=${FUZZ_SECONDS:-600}
if ! echo 'int LLVMFuzzerTestOneInput(void); int LLVMFuzzerTestOneInput(void) { return 0; }' |
    clang -fsanitize=fuzzer,address -x c -o /dev/null - 2>/dev/null; then
    echo "fuzzing needs clang with its runtime libraries: clang, \
libclang-rt-dev by Debian's names" >&2
    exit 1
fi
make --no-print-directory lib BUILD="$build" CC=clang SANITIZE=address,undefined,fuzzer-no-link \
    CFLAGS='-O1 -g'
mkdir -p "$build/bin" "$build/finds"
names=("$@")
[ ${#names[@]} -gt 0 ] || for f in tests/fuzz/fuzz_*.c; do n=$(basename "$f" .c); \
    names+=("${n#fuzz_}"); done
run_one() {
    local n=$1
    mkdir -p "$build/corpus/$n"
    if ! clang -std=c11 -g -O1 -fsanitize=address,undefined,fuzzer -D_GNU_SOURCE -Iinclude -Itests \
        $(printf -- '-I%s ' lib/*/ lib/*/*/) -o "$build/bin/$n" "tests/fuzz/fuzz_$n.c" \
        "$build"/libwsync-endpoint.a "$build"/libwsync-httpd.a "$build"/libwsync.a \
        $(pkg-config --cflags --libs libcurl libcjson libcrypto libmicrohttpd) -lm -ldl \
        -pthread; then
        echo "$n: cannot be built"
        return 1
    fi
    "$build/bin/$n" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$build/finds/$n-" "$build/corpus/$n" "tests/fuzz/corpus/$n" \
        >"$build/$n.log" 2>&1 || {
        echo "$n: FIND, see $build/$n.log"; return 1; }
    echo "$n: $(grep -o 'number_of_executed_units: *[0-9]*' "$build/$n.log" |
        grep -o '[0-9]*$') runs in $seconds s, nothing found"
}
export -f run_one; export build seconds
printf '%s\n' "${names[@]}" | xargs -P "${JOBS:-2}" -I{} bash -c 'run_one {}'
