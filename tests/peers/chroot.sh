#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# chroot.sh - a Debian root with a newer torch than this machine's, made once and kept.
#
#     tests/peers/chroot.sh 2.6      Debian 13 (trixie), torch 2.6
#     tests/peers/chroot.sh 2.14     Debian testing (forky), torch 2.14
#
# Prints the path of the root, under $WSYNC_CACHE or the user's cache directory, so that every
# clone finds it again (1.2 GB, about a minute the first time). It is built beside its final name
# and renamed when complete; two callers at once build it once. Exits 77, saying why, where such a
# root cannot be made.
set -euo pipefail

skip() { echo "chroot.sh: $*" >&2; exit 77; }

more=()
case ${1-} in
2.6)  suite=trixie ;;
2.14) suite=forky
      # Testing's Release files are valid for a week only, and a mirror may stand still for longer.
      more=(--aptopt='Acquire::Check-Valid-Until "false"') ;;
*)    echo "usage: chroot.sh 2.6|2.14" >&2; exit 2 ;;
esac

home=~  # of the user, where $HOME is not set
cache=${WSYNC_CACHE:-${XDG_CACHE_HOME:-$home/.cache}/wsync}
root=$cache/torch-$1
part=$root.part
log=$cache/torch-$1.log
stamp=etc/wsync-torch          # written last, by the owner of the root's files

# The Debian archive that apt uses here: the first one that carries the main component of a
# release (security, updates and other people's archives do not count). Both forms of sources.
mirror()
{
	local -a files=()
	local f
	for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
		/etc/apt/sources.list.d/*.sources; do
		if [ -r "$f" ]; then files+=("$f"); fi
	done
	[ ${#files[@]} -gt 0 ] || return 0
	awk '
	function offer(uris, suites, comps,    u, s, n, i) {
		if (found || (" " comps " ") !~ / main /) return
		n = split(suites, s, " ")
		known = "^(bullseye|bookworm|trixie|forky|stable|testing|unstable|sid)$"
		for (i = 1; i <= n; i++)
			if (s[i] ~ known) {
				split(uris, u, " ")
				if (u[1] !~ /security/) { print u[1]; found = 1 }
				return
			}
	}
	function stanza() {
		if (uris != "" && !off) offer(uris, suites, comps)
		uris = suites = comps = ""; off = 0
	}
	FNR == 1 { stanza() }
	/^[ \t]*#/ { next }
	FILENAME ~ /\.sources$/ {
		if ($0 ~ /^[ \t]*$/) { stanza(); next }
		key = tolower($1); rest = $0; sub(/^[^:]*:[ \t]*/, "", rest)
		if (key == "uris:") uris = rest
		else if (key == "suites:") suites = rest
		else if (key == "components:") comps = rest
		else if (key == "enabled:" && tolower(rest) ~ /^no/) off = 1
		next
	}
	$1 == "deb" {
		sub(/\[[^]]*\]/, "")
		line = ""; for (i = 4; i <= NF; i++) line = line " " $i
		offer($2, $3, line)
	}
	END { stanza() }' "${files[@]}"
}

# What mmdebstrap left for somebody who is not root belongs to his subordinate users.
discard()
{
	[ -e "$1" ] || return 0
	if [ "$(id -u)" = 0 ]; then
		rm -rf --one-file-system "$1"
	else
		unshare -r --map-auto rm -rf --one-file-system "$1"
	fi || skip "cannot remove $1"
}

build()
{
	# shellcheck disable=SC2054  # the commas are mmdebstrap's
	local -a how=(mmdebstrap --variant=minbase --include=python3,python3-torch,python3-numpy
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*'
		"${more[@]}" --customize-hook="echo $suite >\"\$1\"/$stamp")
	local keys=/usr/share/keyrings/debian-archive-keyring.gpg from
	from=$(mirror)
	command -v mmdebstrap >/dev/null || skip "mmdebstrap is not installed"
	if [ -r "$keys" ]; then how+=(--keyring="$keys"); fi
	if [ "$(id -u)" != 0 ]; then
		how+=(--mode=unshare)
	elif unshare --mount true 2>/dev/null; then
		how=(unshare --mount "${how[@]}")  # its mounts end with it, however it ends
	fi
	discard "$part"
	echo "chroot.sh: making $root (1.2 GB, about a minute)" >&2
	"${how[@]}" "$suite" "$part" "${from:-http://deb.debian.org/debian}" >"$log" 2>&1 \
		</dev/null ||
		skip "mmdebstrap $suite failed: $(grep -m 1 '^E:' "$log") (log: $log)"
}

if [ ! -e "$root/$stamp" ]; then
	mkdir -p "$cache" || skip "cannot write $cache"
	exec 9>"$root.lock"
	flock -w 900 9 || skip "somebody else has been making $root for 15 minutes"
	if [ ! -e "$root/$stamp" ]; then
		discard "$root"
		build
		mv "$part" "$root"
	fi
fi
echo "$root"
