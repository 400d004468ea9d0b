#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# root.sh - a root directory with a release of Debian, made once and kept.
#
#     packaging/root.sh NAME SUITE PACKAGE...
#
# Prints the path of the root, under $WSYNC_CACHE or the user's cache directory, so that every
# clone finds it again. It is built beside its final name and renamed when complete; two callers at
# once build it once. Other packages, or another suite, make it anew; a root to build packages in
# has security updates, and is made anew every month. Exits 77, saying why, where
# such a root cannot be made.
set -euo pipefail

skip() { echo "root.sh: $*" >&2; exit 77; }

[ $# -ge 3 ] || { echo "usage: root.sh NAME SUITE PACKAGE..." >&2; exit 2; }
name=$1 suite=$2
shift 2
packages=$(IFS=,; echo "$*")

home=~  # of the user, where $HOME is not set
cache=${WSYNC_CACHE:-${XDG_CACHE_HOME:-$home/.cache}/wsync}
root=$cache/$name
part=$root.part
log=$cache/$name.log
stamp=etc/wsync-root          # written last, by the owner of the root's files
# What is built in a root takes libraries from it, so it is not older than a month.
made="$suite $packages"
case $name in
build-*) made+=" $(date +%Y-%m)" ;;
esac
is_there() { [ "$(cat "$root/$stamp" 2>/dev/null)" = "$made" ]; }

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

# Without root, the files that mmdebstrap made belong to the user's subordinate ids.
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
	local keys=/usr/share/keyrings/debian-archive-keyring.gpg from
	from=$(mirror)
	from=${from:-http://deb.debian.org/debian}
	from=${from%/}
	# shellcheck disable=SC2016  # expanded by mmdebstrap's shell
	local -a how=(mmdebstrap --variant=minbase --include="$packages"
		--dpkgopt='path-exclude=/usr/share/doc/*'
		--dpkgopt='path-include=/usr/share/doc/*/copyright'
		--dpkgopt='path-exclude=/usr/share/man/*'
		--customize-hook="echo '$made' >\"\$1\"/$stamp")
	case $suite in
	# Testing's Release files are valid for a week, and a mirror may stand still for longer.
	forky) how+=(--aptopt='Acquire::Check-Valid-Until "false"') ;;
	esac
	# Libraries that a package takes with it are the newest that can be had: of a release whose
	# support has ended the archive of security updates has gaps.
	case $name in
	build-*) how+=(--customize-hook="mkdir \"\$1\"/wsync \"\$1\"/cuda; \
		echo 'deb $from-security $suite-security main' \
		>\"\$1\"/etc/apt/sources.list.d/security.list; chroot \"\$1\" sh -c \
		'apt-get update && apt-get -y --ignore-missing upgrade || \
			echo W: some security updates are missing'") ;;
	esac
	command -v mmdebstrap >/dev/null || skip "mmdebstrap is not installed"
	if [ -r "$keys" ]; then how+=(--keyring="$keys"); fi
	if [ "$(id -u)" != 0 ]; then
		how+=(--mode=unshare)
	elif unshare --mount true 2>/dev/null; then
		how=(unshare --mount "${how[@]}")  # its mounts end with it, however it ends
	fi
	discard "$part"
	echo "root.sh: making $root (about a minute)" >&2
	"${how[@]}" "$suite" "$part" "$from" >"$log" 2>&1 </dev/null ||
		skip "mmdebstrap $suite failed: $(grep -m 1 '^E:' "$log") (log: $log)"
	if grep -q '^W: some security' "$log"; then
		echo "root.sh: $name: security updates are missing:" >&2
		grep '^E: Failed' "$log" >&2 || :
	fi
}

if ! is_there; then
	mkdir -p "$cache" || skip "cannot write $cache"
	exec 9>"$root.lock"
	flock -w 900 9 || skip "somebody else has been making $root for 15 minutes"
	if is_there; then
		: # by the other one
	elif (build); then
		discard "$root"
		mv "$part" "$root"
	else
		[ -e "$root/$stamp" ] || exit 77 # an older one is better than none
	fi
fi
echo "$root"
