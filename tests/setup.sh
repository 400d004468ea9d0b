#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what wsync needs on Debian and Ubuntu: tests/setup.sh [-n] [build|gpu|check].
# Root and sudo install by apt; anybody else is shown the one command, and so is everybody with -n.
# Quiet when nothing is missing.
set -euo pipefail

show=
if [ "${1-}" = -n ]; then show=1; shift; fi
what=${1:-check}
build=(gcc make pkg-config libcurl4-openssl-dev libcjson-dev libxxhash-dev libmicrohttpd-dev)
check=(clang libcmocka-dev bats perl scdoc man-db python3 python3-torch python3-numpy curl
       mmdebstrap uidmap procps iproute2 openssl mandoc bash-completion zsh fish gnuplot-nox)
gpu=(libcmocka-dev python3)
case $what in
build) packages=("${build[@]}") ;;
gpu)   packages=("${build[@]}" "${gpu[@]}") ;;
*)     packages=("${build[@]}" "${check[@]}") ;;
esac

# Other systems have other names for these; what is missing shows when it is needed.
if ! command -v apt-get dpkg-query >/dev/null; then
    echo "no apt here; needed are, by Debian's names: ${packages[*]}" >&2
    exit 0
fi

missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0

install="apt-get install -y --no-install-recommends ${missing[*]}"
as=
if [ "$(id -u)" != 0 ]; then as=sudo; fi
if [ -n "$show" ] || { [ -n "$as" ] && ! sudo -n true 2>/dev/null; }; then
    if command -v sudo >/dev/null || [ -z "$as" ]; then
        how="Run:" as=${as:+$as }
    else
        how="Run as root:" as=
    fi
    printf 'wsync needs some packages first. %s\n\n  %s\n\n' "$how" "${as}apt-get update && $as$install" >&2
    exit 1
fi
echo "installing: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { $as apt-get update -q && $as env DEBIAN_FRONTEND=noninteractive $install; } >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    exit 1
fi
