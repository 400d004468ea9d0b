#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what wsync needs on Debian and Ubuntu: tests/setup.sh [-n] [build|gpu|check].
# Root and sudo install by apt; anybody else is shown the one command, and so is everybody with -n.
# Quiet when nothing is missing.
set -euo pipefail

show=
if [ "${1-}" = -n ]; then show=1; shift; fi
what=${1:-check}
build=(gcc libc6-dev make pkg-config libcurl4-openssl-dev libcjson-dev libxxhash-dev libssl-dev \
    libmicrohttpd-dev)
check=(g++ clang libcmocka-dev bats perl scdoc man-db python3 python3-torch python3-numpy curl
       mmdebstrap uidmap procps iproute2 openssl mandoc bash-completion zsh fish shellcheck
       codespell)
gpu=(libcmocka-dev python3)
case $what in
build) packages=("${build[@]}") ;;
gpu)   packages=("${build[@]}" "${gpu[@]}") ;;
*)     packages=("${build[@]}" "${check[@]}") ;;
esac

# Other systems have other names for these; what is missing shows when it is needed.
if ! { command -v apt-get && command -v dpkg-query; } >/dev/null; then
    echo "no apt here; needed are, by Debian's names: ${packages[*]}" >&2
    exit 0
fi

missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done

# Ubuntu 24.04 has no python3-torch. Before the first `apt-get update` apt has no package lists to
# check.
drop_missing_torch() {
    local p policy others=()
    [[ " ${missing[*]} " == *" python3-torch "* ]] || return 0
    compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null || return 0
    policy=$(LC_ALL=C apt-cache policy python3-torch) || return 0
    case $policy in *'Candidate: '[!\(]*) return 0 ;; esac
    echo "apt has no python3-torch: the tests that need it are skipped" >&2
    for p in "${missing[@]}"; do
        [ "$p" = python3-torch ] || others+=("$p")
    done
    missing=("${others[@]}")
}
drop_missing_torch
[ ${#missing[@]} -gt 0 ] || exit 0

apt_install="apt-get install -y --no-install-recommends"
as=
if [ "$(id -u)" != 0 ]; then as=sudo; fi
if [ -n "$show" ] || { [ -n "$as" ] && ! sudo -n true 2>/dev/null; }; then
    if command -v sudo >/dev/null || [ -z "$as" ]; then
        how="Run:" as=${as:+$as }
    else
        how="Run as root:" as=
    fi
    printf 'wsync needs some packages first. %s\n\n  %s\n\n' "$how" \
        "${as}apt-get update && $as$apt_install ${missing[*]}" >&2
    exit 1
fi
echo "installing: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run() {
    $as env DEBIAN_FRONTEND=noninteractive "$@" >"$log" 2>&1 </dev/null ||
        { tail -n 20 "$log" >&2; exit 1; }
}
run apt-get update -q
drop_missing_torch
[ ${#missing[@]} = 0 ] || run $apt_install "${missing[@]}"
