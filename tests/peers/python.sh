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

# Asked before the root is made, which takes minutes. A plain chroot has no mount as its /, and
# nothing can be mounted in it that is sure not to show outside.
mine=(unshare --mount)
[ "$(id -u)" = 0 ] || mine=(unshare -r --mount)
if ! why=$("${mine[@]}" true 2>&1); then
	echo "python.sh: no torch $version without a mount namespace: ${why##*$'\n'}" >&2
	exit 77
fi
root=$("$here/chroot.sh" "$version")

# Inside the namespace. $1 is the root, $2.. the directories to show at their own paths, then -- and
# the command. A directory whose mount point cannot be made is shown by its nearest ancestor.
# shellcheck disable=SC2016  # expanded by the shell inside
enter='
	root=$1; shift
	for d in /proc /sys /dev; do mount --rbind "$d" "$root$d" || exit 77; done
	while [ "$1" != -- ]; do
		d=$1; shift
		mkdir -p "$root$d" 2>/dev/null || while [ ! -d "$root$d" ]; do d=${d%/*}; done
		[ -n "$d" ] || { echo "python.sh: cannot show $1 inside $root" >&2; exit 77; }
		mount --rbind "$d" "$root$d" || exit 77
	done
	shift
	exec setpriv --pdeathsig KILL chroot "$root" \
		/bin/sh -c "cd \"\$1\" && shift && exec python3 \"\$@\"" - "$PWD" "$@"
'
exec "${mine[@]}" sh -c "$enter" - "$root" "$(realpath "${TMPDIR:-/tmp}")" "$tree" \
    ${WSYNC_SHOW:+"$WSYNC_SHOW"} -- "$@"
