#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# What make wheel, make bundle and make deb have made, tried where it is to run: in roots of Debian
# with nothing else. `make check-packages` builds it first.
cache=${WSYNC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/wsync} # the user's, before helpers change HOME
load ../cli/helpers

prepare() {
	[ "$(id -u)" = 0 ] || skip "packages are installed by root"
	export WSYNC_CACHE=$cache TRY_SECONDS=1800 # a network may be slow
	dist=$build/dist
}

# root NAME SUITE PACKAGE...: sets $root to a copy, to be changed.
root() {
	try "$repo/packaging/root.sh" "$@"
	[ "$status" != 77 ] || skip "$err"
	expect_status 0
	root=$scratch/root
	cp -a "$out" "$root"
	# how this machine reaches the network
	cp -L /etc/resolv.conf "$root/etc"
	cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs" || :
}

# inside COMMAND...: in the root, and with our tree.
inside() {
	try "$repo/packaging/enter.sh" "$root" "$repo" "$dist" -- env -i HOME=/root LC_ALL=C.UTF-8 \
		PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

with_pip=(python3 python3-venv python3-pip ca-certificates)

# runs KIND FILE: in $root, with the name and number of this version, verified.
runs() {
	inside "$repo/tests/packages/try.sh" "$@"
	expect_status 0
	out_has "verified by hash, weight version 1"
}
python_runs() { [[ $out == *$'True hash 2\ninput' ]] || explain "no push from Python"; }

# on_glibc FILE SUITE: it was made for the glibc of that release, or an older one.
on_glibc() {
	local -A has=([bullseye]=2.31 [bookworm]=2.36 [trixie]=2.41)
	local needs
	needs=$(sed -E 's/.*(manylinux_|glibc)([0-9]+)[._]([0-9]+).*/\2.\3/' <<<"$1")
	[ "$(printf '%s\n' "$needs" "${has[$2]}" | sort -V | head -n 1)" = "$needs" ] ||
		skip "it needs glibc $needs"
}

wheel_runs() {
	on_glibc "$(ls "$dist"/wsync-*-manylinux_*.whl)" "$2"
	root "pip-$1" "$2" "${with_pip[@]}"
	runs wheel "$(ls "$dist"/wsync-*-manylinux_*.whl)"
	python_runs
}
bundle_runs() {
	on_glibc "$(ls "$dist"/wsync-*-glibc*.tar.gz)" "$2"
	root "empty-$1" "$2" ca-certificates
	runs bundle "$(ls "$dist"/wsync-*-glibc*.tar.gz)"
}
deb_runs() {
	root "empty-$1" "$2" ca-certificates
	runs deb "$(ls "$dist"/wsync_*~deb12_*.deb)"
	python_runs
}

@test "the wheel, Debian 11" { wheel_runs 11 bullseye; }
@test "the wheel, Debian 12" { wheel_runs 12 bookworm; }
@test "the wheel, Debian 13" { wheel_runs 13 trixie; }
@test "the bundle, Debian 11" { bundle_runs 11 bullseye; }
@test "the bundle, Debian 12" { bundle_runs 12 bookworm; }
@test "the bundle, Debian 13" { bundle_runs 13 trixie; }
@test "the .deb, Debian 12" { deb_runs 12 bookworm; }
@test "the .deb, Debian 13" { deb_runs 13 trixie; }

@test "a program in C is built with wsync-dev" {
	root empty-12 bookworm ca-certificates
	sed -n '/^### As a library/,/^## /s/^    //p' "$repo/README.md" >"$root/trainer.c"
	inside sh -ec 'apt-get -q update >&2
		apt-get -q install -y --no-install-recommends gcc libc6-dev pkg-config "$@" >&2
		cc /trainer.c -o /trainer $(pkg-config --cflags --libs wsync)
		/trainer /nothing http://127.0.0.1:1 || exit 0' - "$dist"/wsync-dev_*~deb12_*.deb
	expect_status 0
	err_has "cannot connect"
}

@test "the wheel is under 15 MB, and equal to one that is built elsewhere" {
	local wheel
	wheel=$(ls "$dist"/wsync-*-manylinux_*.whl)
	[ "$(stat -c %s "$wheel")" -lt 15000000 ] || explain "$(stat -c %s "$wheel") bytes"
	git -C "$repo" ls-files --error-unmatch Makefile >/dev/null 2>&1 || skip "no checkout"
	mkdir again
	git -C "$repo" ls-files -z | (cd "$repo" && xargs -0 cp --parents -t "$scratch/again")
	try make -C again --no-print-directory wheel \
		SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$repo" log -1 --format=%ct)}"
	expect_status 0
	cmp "$wheel" "again/$out"
}

@test "auditwheel and twine agree with the wheel" {
	local wheel
	wheel=$(ls "$dist"/wsync-*-manylinux_*.whl)
	root pip-13 trixie "${with_pip[@]}"
	inside sh -ec 'python3 -m venv /t && /t/bin/pip install -q auditwheel==6.8.2 twine==7.0.0'
	[ "$status" = 0 ] || skip "PyPI is not there: ${err##*$'\n'}"
	inside /t/bin/auditwheel show "$wheel"
	expect_status 0
	out=$(tr -s '\n ' '  ' <<<"$out") # lines are folded
	local tag=${wheel##*none-}
	out_has "consistent with the following platform tag: \"${tag%.whl}\"."
	inside /t/bin/twine check --strict "$wheel"
	expect_status 0
	out_has PASSED
}
