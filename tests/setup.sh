#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what wsync needs on Debian and Ubuntu: tests/setup.sh [build|check].
# Root and sudo install by apt; anybody else is shown the one command. Quiet when nothing is missing.
set -euo pipefail

what=${1:-check}
build=(gcc make pkg-config libcurl4-openssl-dev libcjson-dev libxxhash-dev libmicrohttpd-dev)
check=(clang libcmocka-dev bats perl scdoc man-db python3 python3-torch python3-numpy
       mmdebstrap procps iproute2 mandoc bash-completion zsh fish)
packages=("${build[@]}")
[ "$what" = build ] || packages+=("${check[@]}")

missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0

install="apt-get install -y --no-install-recommends ${missing[*]}"
if ! command -v apt-get >/dev/null; then
    echo "wsync needs these packages (Debian names): ${missing[*]}" >&2
    exit 1
fi
as=
if [ "$(id -u)" != 0 ]; then
    if ! sudo -n true 2>/dev/null; then
        printf 'wsync needs some packages first. Run:\n\n  sudo %s\n\n' "$install" >&2
        exit 1
    fi
    as=sudo
fi
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { $as apt-get update -q && $as env DEBIAN_FRONTEND=noninteractive $install; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    exit 1
fi
