#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# python.sh - run a Python script of this tree with a given torch: python.sh VERSION SCRIPT ARGS...
#
# The machine's own python3-torch when it is that version (Debian 12 has 1.13, Debian 13 has 2.6).
# Otherwise it lives in a root made by chroot.sh, entered in a mount namespace of its own: nothing
# stays mounted, paths inside are the paths outside (the tree, $TMPDIR and $WSYNC_SHOW), the network
# is the host's. Every step is an exec, so the caller's child IS the Python process, and it is
# killed when the caller dies. Exits 77 where that torch is not to be had.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$here/../.." && pwd)
version=$1
shift

# Debian builds torch without libuv, and newer torch asks for it by default; gloo would look for the
# machine's name.
export USE_LIBUV=0 GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME-lo} PYTHONDONTWRITEBYTECODE=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

case $(dpkg-query -W -f '${Version}' python3-torch 2>/dev/null || true) in
"$version".*) exec setpriv --pdeathsig KILL /usr/bin/python3 "$@" ;;
esac
if [ "$version" = 1.13 ]; then
	echo "python.sh: this machine's python3-torch is not 1.13" >&2
	exit 77
fi

"$tree/packaging/enter.sh" || exit # before the root is made, which takes minutes
root=$("$here/chroot.sh" "$version")

exec "$tree/packaging/enter.sh" "$root" "$(realpath "${TMPDIR:-/tmp}")" "$tree" \
	${WSYNC_SHOW:+"$WSYNC_SHOW"} -- python3 "$@"
