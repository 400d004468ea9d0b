#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kit.sh [DIR]: puts together build/gpu-kit, or DIR: `make check-gpu` for a machine that has a GPU,
# Python and nothing else. `make gpu-kit` runs this when everything is built; CC is needed again, to
# link.
#
# Its folders are the tree's, so that the tests find each other as they do here. The programs are
# linked once more, to look for libraries beside themselves; LD_LIBRARY_PATH would reach the Pythons
# that they start, whose libraries are others. libc stays behind, with all that belongs to it: the
# driver and torch bring threads and memory of the machine's own.
set -euo pipefail
build=${BUILD:-build}
kit=${1:-$build/gpu-kit}
rm -rf "$kit"
mkdir -p "$kit/build/lib" "$kit/cmd"

for made in "$build"/{obj,gen,libwsync*.a}; do ln -s "$PWD/$made" "$kit/build/"; done
cp -p "$build"/chosen-* "$kit/build" # or all of that would be made anew
cuda=()
[ -e "$build/tests/gpu/fake_cuda.so" ] || cuda=(CUDA=0) # as that was built
# shellcheck disable=SC2016  # for make and for the loader
"${MAKE:-make}" --no-print-directory BUILD="$kit/build" "${cuda[@]}" programs gpu-programs \
    LDFLAGS="${LDFLAGS-} -s -no-pie -Wl,-z,noseparate-code,--build-id=none,--disable-new-dtags,-rpath,'\$\$ORIGIN/../lib:\$\$ORIGIN/../../lib'"
find "$kit/build" -maxdepth 1 ! -type d -delete
# of the doubles, which run everywhere
find "$kit/build/tests/gpu" -name 'test_*' ! -name '*_gpu' -delete

of_libc='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|anl|nsl|mvec|BrokenLocale))\.so'
find "$kit/build" -type f -perm -u+x -exec ldd {} + |
    awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
while read -r name path; do
    [[ $name =~ $of_libc ]] || install -m 644 "$path" "$kit/build/lib/$name"
done

for dir in tests/gpu tests/cli; do
    mkdir -p "$kit/$dir"
    cp -p "$dir"/*.py "$kit/$dir"
done
mkdir -p "$kit/tests/peers" # what runs on a GPU, and what that imports
cp -p tests/peers/{lib,mkst,receiver,test_vllm,tiny_families,vllm_server}.py "$kit/tests/peers"
mkdir -p "$kit/lib" && cp -Rp lib/vllm "$kit/lib"
[ ! -d cmd/python ] || cp -Rp cmd/python "$kit/cmd"
# What is written in bats, with bats, which is shell; python3 may be anywhere there.
for file in tests/cli/*.bats; do
    if head -c 1000 "$file" | grep -q WSYNC_TEST_CUDA; then cp \
        -p "$file" tests/cli/helpers.bash "$kit/tests/cli"; fi
done
for file in "$kit"/tests/cli/*.py; do # and what nothing here runs
    name=$(basename "$file" .py)
    grep -rqwE "$name(\.py)?" "$kit/tests" --exclude="$name.py" || rm "$file"
done
find "$kit/tests/cli" -name '*.ba*' -exec sed -i 's|/usr/bin/python3|python3|g' {} +
bats=$(realpath "$(command -v bats || echo /usr/bin/bats)")
bats=${BATS_ROOT:-${bats%/bin/*}} # within bats, the command is another
if [ -e "$bats/libexec/bats-core" ]; then
    for dir in bin/bats lib/bats-core libexec/bats-core; do
        mkdir -p "$kit/bats/${dir%/*}"
        cp -Rp "$bats/$dir" "$kit/bats/$dir"
    done
fi
# What those files read.
for dir in bases/dense good/plain; do
    mkdir -p "$kit/tests/data/lora/${dir%/*}"
    cp -Rp "tests/data/lora/$dir" "$kit/tests/data/lora/$dir"
done
rm -rf "$kit"/*/*/__pycache__
cat >"$kit/check.sh" <<'EOS'
#!/bin/sh
# Every GPU test; --help says more. The last line counts, $OUT/RESULTS.md is the report.
exec "${PYTHON:-python3}" "$(dirname "$0")/tests/gpu/check.py" "$@"
EOS
chmod +x "$kit/check.sh"
# The oldest libc that it runs on is the newest whose symbols it asks for.
libc=$(find "$kit/build" -type f -exec objdump -T {} + 2>/dev/null | grep -o 'GLIBC_[0-9.]*' |
    sort -uV | tail -n 1)
echo "$(git describe --always --dirty 2>/dev/null ||
    echo 0.1.0), a kit for $(uname -m) and glibc ${libc#GLIBC_}" >"$kit/KIT"
printf '%s: %s, %s\n' "$kit" "$(du -sh "$kit" | cut -f 1)" "$(cat "$kit/KIT")"
