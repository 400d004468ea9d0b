#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# enter.sh - run a command inside a root directory, with some directories of this machine.
#
#     packaging/enter.sh ROOT DIRECTORY[:PATH]... -- COMMAND...
#
# In a mount namespace of its own: nothing stays mounted, the directories have the same paths
# inside, or PATH; the network and the processes are the host's. Every step is an exec, so the
# caller's child IS the command, and it is killed when the caller dies. The working directory is the
# caller's, or / where the root lacks it. Exits 77 where there are no mount namespaces, and tries
# only that without arguments.
set -euo pipefail

# A plain chroot has no mount as its /, and nothing can be mounted in it that is sure not to show
# outside.
mine=(unshare --mount)
[ "$(id -u)" = 0 ] || mine=(unshare -r --mount)
if ! why=$("${mine[@]}" true 2>&1); then
	echo "enter.sh: another root needs a mount namespace: ${why##*$'\n'}" >&2
	exit 77
fi
[ $# -gt 0 ] || exit 0

# Inside the namespace. $1 is the root, $2.. the directories, then -- and the command. A directory
# whose mount point cannot be made is shown by its nearest ancestor.
# shellcheck disable=SC2016  # expanded by the shell inside
enter='
	root=$1; shift
	for d in /proc /sys /dev; do mount --rbind "$d" "$root$d" || exit 77; done
	while [ "$1" != -- ]; do
		d=${1%:*}; to=${1##*:}
		mkdir -p "$root$to" 2>/dev/null ||
			while [ ! -d "$root$to" ]; do d=${d%/*}; to=${to%/*}; done
		[ -n "$to" ] || { echo "enter.sh: cannot show $1 inside $root" >&2; exit 77; }
		mount --rbind "$d" "$root$to" || exit 77
		shift
	done
	shift
	exec setpriv --pdeathsig KILL chroot "$root" \
		/bin/sh -c "cd \"\$1\" 2>/dev/null || cd /; shift && exec \"\$@\"" - "$PWD" "$@"
'
exec "${mine[@]}" sh -c "$enter" - "$@"
