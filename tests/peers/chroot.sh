#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# chroot.sh - a Debian root with a newer torch than this machine's (1.2 GB); prints its path.
#
#     tests/peers/chroot.sh 2.6      Debian 13 (trixie), torch 2.6
#     tests/peers/chroot.sh 2.14     Debian testing (forky), torch 2.14
case ${1-} in
2.6)  suite=trixie ;;
2.14) suite=forky ;;
*)    echo "usage: chroot.sh 2.6|2.14" >&2; exit 2 ;;
esac
exec "$(dirname "$0")/../../packaging/root.sh" "torch-$1" $suite python3 python3-torch python3-numpy
