#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make.sh - builds packages inside a root with nothing but Debian's compiler and libraries.
#
#     packaging/make.sh wheel|bundle|deb|roots
#
# The Makefile calls it. BUILD is the build directory, VERSION and WSYNC_COMMIT what is built;
# CUDA_HOME, if not empty, is the CUDA Toolkit that makes the kernels. Wheels and bundles are built
# with the oldest Debian that can be had, because they run with its glibc and later ones; .deb files
# with DEBIAN (12). Two builds of a commit in equal roots are equal. The results are in $BUILD/dist.
# `roots` only makes the roots. Exits 77 where there can be none.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tree=$(dirname "$here")
what=$1
cd "$tree"
case $BUILD in
/* | *..*) echo "make.sh: BUILD is $BUILD: it must be a directory of the tree" >&2; exit 2 ;;
esac
command -v mmdebstrap >/dev/null ||
	{ echo "make.sh: mmdebstrap is not installed (make deps)" >&2; exit 77; }
"$here/enter.sh" || exit

declare -A suites=([11]=bullseye [12]=bookworm [13]=trixie)
packages=(gcc g++ libc6-dev make pkg-config libcurl4-openssl-dev libcjson-dev libxxhash-dev
	libssl-dev libmicrohttpd-dev scdoc patchelf python3 python3-wheel debhelper lintian)
declare -A more=([11]=python3-distutils)
root_of() { "$here/root.sh" "build-$1" "${suites[$1]}" "${packages[@]}" ${more[$1]-}; }

case $what in
deb) releases=("${DEBIAN:-12}") ;;
*)   releases=(11 12 13) ;;
esac
root=
for release in "${releases[@]}"; do
	[ -n "${suites[$release]-}" ] ||
		{ echo "make.sh: DEBIAN is $release: it must be one of 11, 12 and 13" >&2; exit 2; }
	root=$(root_of "$release") && break
	root=
	echo "make.sh: not with Debian $release (above)" >&2
done
[ -n "$root" ] || { echo "make.sh: no root to build in (above)" >&2; exit 77; }
[ "$what" != roots ] || { root_of "${DEBIAN:-12}" >/dev/null; exit; }

shown=("$tree:/wsync") # nvcc puts a hash of the path into what it makes
# Of a toolkit that is part of the system, the rest of the system cannot be shown.
if [ -n "${CUDA_HOME-}" ]; then
	CUDA_HOME=$(realpath "$CUDA_HOME")
	if [ "$CUDA_HOME" = /usr ]; then
		[ "${CUDA-}" != 1 ] ||
			{ echo "make.sh: CUDA=1: not with a toolkit in /usr" >&2; exit 1; }
		echo "make.sh: built without CUDA: its toolkit is in /usr, and not on its own" >&2
		CUDA_HOME=
	else
		"$CUDA_HOME/bin/nvcc" --version | grep -q 'release 1[12]\.' ||
			echo "make.sh: the kernels of this package need driver 580 or later;" \
				"with CUDA 12.8 or 12.9 (CUDA_HOME) they need 570" >&2
		shown+=("$CUDA_HOME:/cuda")
		CUDA_HOME=/cuda
	fi
fi

# Of the commit, or where this is no checkout the time that the archive gave a file.
if [ -z "${SOURCE_DATE_EPOCH-}" ] && git ls-files --error-unmatch Makefile >/dev/null 2>&1; then
	SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
fi
: "${SOURCE_DATE_EPOCH:=$(stat -c %Y CHANGELOG.md)}"
mkdir -p "$BUILD/dist"
exec 8>"$BUILD/dist/.lock"
flock -w 1800 8 || { echo "make.sh: another build of packages goes on" >&2; exit 1; }
"$here/enter.sh" "$root" "${shown[@]}" -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
	HOME=/root SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" VERSION="$VERSION" RELEASE="$release" \
	WSYNC_COMMIT="${WSYNC_COMMIT-}" CUDA_HOME="${CUDA_HOME-}" BUILD="$BUILD/packages-$release" \
	DIST="$BUILD/dist" /wsync/packaging/inside.sh "$what" </dev/null 8>&-
