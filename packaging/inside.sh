#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# inside.sh - the part of make.sh that runs inside the root. All its variables come from there.
set -euo pipefail
cd /wsync

if [ -n "$CUDA_HOME" ]; then cuda=(CUDA=1 CUDA_HOME="$CUDA_HOME"); else cuda=(CUDA=0); fi
# Debian's flags harden the programs. Without debug information nothing in them, nor their build ID,
# depends on the paths here.
eval "$(DEB_BUILD_MAINT_OPTIONS=hardening=+all DEB_CFLAGS_APPEND=-g0 dpkg-buildflags --export=sh)"
export DEB_CFLAGS_APPEND=-g0 DEB_BUILD_OPTIONS=noautodbgsym
# make sees no change of these.
flags="$(cat /etc/wsync-root) $CPPFLAGS $CFLAGS $LDFLAGS"
[ -z "$CUDA_HOME" ] || flags+=$("$CUDA_HOME/bin/nvcc" --version | tail -n 1)
[ "$(cat "$BUILD/flags" 2>/dev/null)" = "$flags" ] || rm -rf "$BUILD"
mkdir -p "$BUILD"
echo "$flags" >"$BUILD/flags"
machine=$(uname -m)
glibc=$(getconf GNU_LIBC_VERSION)
glibc=${glibc#* }

# in_tree ARGUMENT...: make in our tree.
in_tree() {
	make --no-print-directory -j"$(nproc)" BUILD="$BUILD" WSYNC_COMMIT="$WSYNC_COMMIT" \
		"${cuda[@]}" "$@"
}

# package_of FILE: the package of Debian that a library belongs to.
package_of() { dpkg -S "*/$(basename "$(realpath "$1")")" | sed 's/[,:].*//; q'; }

# run_path FILE PATH: where it looks for libraries. Not in DT_RPATH, which LD_LIBRARY_PATH of its
# user cannot overrule.
run_path() { patchelf --set-rpath "$2" "$1"; }

# relocatable DIR: bin, libexec/wsync with all libraries but glibc's, and share. Its programs run
# wherever DIR lies.
relocatable() {
	local dir=$1 stage=$BUILD/stage lib from package
	rm -rf "$dir" "$stage"
	in_tree install DESTDIR="$(realpath -m "$stage")" PREFIX=/usr >"$BUILD.log" 2>&1 ||
		{ tail -n 20 "$BUILD.log" >&2; exit 1; }
	mkdir -p "$dir/libexec/wsync" "$dir/share/doc/wsync"
	mv "$stage/usr/bin" "$dir"
	mv "$stage/usr/share"/* "$dir/share"
	cp LICENSE "$dir/share/doc/wsync"
	strip "$dir"/bin/*
	ldd "$dir"/bin/* | awk '$2 == "=>" { print $3 }' | sort -u >"$BUILD/libraries"
	while read -r from; do
		package=$(package_of "$from")
		[ "$package" != libc6 ] || continue
		lib=$dir/libexec/wsync/$(basename "$from")
		cp "$from" "$lib"
		chmod 755 "$lib"
		run_path "$lib" "\$ORIGIN"
		cp "/usr/share/doc/$package/copyright" "$dir/share/doc/wsync/$package.copyright"
	done <"$BUILD/libraries"
	# xxHash is inlined. Many copyright files only name a file of common-licenses.
	cp /usr/share/doc/libxxhash-dev/copyright "$dir/share/doc/wsync/libxxhash.copyright"
	grep -oh '/usr/share/common-licenses/[A-Z][A-Za-z0-9.-]*[A-Za-z0-9]' \
		"$dir/share/doc/wsync"/*.copyright | sort -u | while read -r from; do
		[ ! -f "$from" ] || cp "$from" "$dir/share/doc/wsync"
	done
	for program in "$dir"/bin/*; do
		run_path "$program" "\$ORIGIN/../libexec/wsync"
	done
}

make_bundle() {
	local name=wsync-$VERSION-linux-$machine-glibc$glibc
	rm -f "$DIST"/wsync-*-linux-*.tar.gz
	relocatable "$BUILD/$name"
	tar -C "$BUILD" --sort=name --owner=0 --group=0 --numeric-owner \
		--mtime="@$SOURCE_DATE_EPOCH" --mode=go-w,a+rX -c "$name" | gzip -9n >"$DIST/$name.tar.gz"
	echo "$DIST/$name.tar.gz"
}

# The programs are scripts of the wheel and not Python's: nothing of Python is started for them. In
# an unpacked wheel, which auditwheel looks at, they are elsewhere from the libraries than in an
# installed one.
make_wheel() {
	local tag=py3-none-manylinux_${glibc/./_}_$machine
	local top=$BUILD/wheel data=$BUILD/wheel/wsync-$VERSION.data
	local info=$BUILD/wheel/wsync-$VERSION.dist-info program
	relocatable "$BUILD/tree"
	rm -rf "$top" "$DIST"/wsync-*.whl
	mkdir -p "$data/data" "$info"
	mv "$BUILD/tree/bin" "$data/scripts"
	for program in "$data"/scripts/*; do
		run_path "$program" "\$ORIGIN/../libexec/wsync:\$ORIGIN/../data/libexec/wsync"
	done
	mv "$BUILD/tree"/share/wsync/python/*.py "$BUILD/tree"/share/wsync/*.py "$top"
	rm -r "$BUILD/tree/share/wsync"
	mv "$BUILD/tree"/* "$data/data"
	cp LICENSE "$info"
	printf 'Wheel-Version: 1.0\nGenerator: wsync\nRoot-Is-Purelib: false\nTag: %s\n' \
		"$tag" >"$info/WHEEL"
	{
		sed "s/@VERSION@/$VERSION/" packaging/METADATA
		echo
		cat README.md
	} >"$info/METADATA"
	chmod -R go-w,a+rX "$top"
	python3 -m wheel pack -d "$DIST" "$top" >/dev/null
	echo "$DIST/wsync-$VERSION-$tag.whl"
}

make_deb() {
	local source=$BUILD/deb version=$VERSION~deb$RELEASE deb maintainer
	maintainer=$(sed -n 's/^Maintainer: //p' packaging/debian/control)
	rm -rf "$source" "$BUILD"/*.deb "$DIST"/wsync*~"deb$RELEASE"_*.deb
	mkdir -p "$source"
	cp -r packaging/debian "$source"
	cat >"$source/debian/changelog" <<-END
		wsync ($version) unstable; urgency=medium

		  * Commit ${WSYNC_COMMIT:-unknown}; the changes are in CHANGELOG.md.

		 -- $maintainer  $(date -uRd "@$SOURCE_DATE_EPOCH")
	END
	in_tree all >"$BUILD.log" 2>&1 || { tail -n 20 "$BUILD.log" >&2; exit 1; }
	TREE=$PWD TREE_BUILD=$BUILD TREE_CUDA="${cuda[*]}" \
		make -C "$source" -f debian/rules binary >"$BUILD.log" 2>&1 ||
		{ tail -n 20 "$BUILD.log" >&2; exit 1; }
	lintian --allow-root --fail-on error,warning "$BUILD"/*.deb >&2
	for deb in "$BUILD"/*.deb; do
		mv "$deb" "$DIST"
		echo "$DIST/${deb##*/}"
	done
}

"make_$1"
