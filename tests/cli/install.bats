#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# What is installed is complete: programs, pages, completions, and a library to build on with
# pkg-config.
load helpers

prepare() {
	[ "$build" = "$repo/build" ] || skip "for the ordinary build"
	make -C "$repo" --no-print-directory install DESTDIR="$scratch/root" PREFIX=/opt/w \
		>install.log
	root=$scratch/root/opt/w
}

# expect_no_match REGEX FILE
expect_no_match() {
	! grep -E -m 5 "$1" "$2" >&2
}

# flags: what pkg-config says of the installed library.
flags() {
	PKG_CONFIG_PATH=$root/lib/pkgconfig pkg-config --define-variable=prefix="$root" "$@" wsync
}

@test "every program is installed with its page and its completions" {
	for p in $(basename -a "$bin"/wsync-*); do
		"$root/bin/$p" --version >/dev/null
		[ -s "$root/share/bash-completion/completions/$p" ]
		[ -s "$root/share/fish/vendor_completions.d/$p.fish" ]
		if command -v scdoc >/dev/null; then [ -s "$root/share/man/man1/$p.1" ]; fi
	done
	[ -s "$root/share/zsh/site-functions/_wsync" ]
	/usr/bin/python3 -c "import sys; sys.path.append('$root/share/wsync/python'); \
from wsync_manifest import export"
	cmp "$repo/lib/vllm/wsync_vllm.py" "$root/share/wsync/wsync_vllm.py"
}

# builds NAME LANGUAGE: NAME.c, as a program of somebody else in C or C++.
builds() {
	local words compiler=(gcc -std=c11)
	[ "$2" = C ] || compiler=(g++ -std=c++11 -x c++)
	read -ra words < <(flags --cflags --libs)
	"${compiler[@]}" -Wall -Wextra -Werror -o "$1.$2" "$1.c" -x none "${words[@]}"
}

@test "the program of README.md compiles in C and C++, links, and pushes" {
	sed -n '/^### As a library/,/^## /s/^    //p' "$repo/README.md" >trainer.c
	builds trainer C
	command -v g++ >/dev/null && builds trainer C++
	[ -x "$bin/wsync-endpoint" ] || skip "no wsync-endpoint"
	safetensors small.safetensors a.weight:BF16:64,32 b.weight:F32:1000 >/dev/null
	endpoint e
	for program in ./trainer.C*; do
		try "$program" small.safetensors "$url"
		expect_status 0
		expect_out "2 tensors"
		try "$program" "$scratch/none" "$url"
		expect_status 3
		err_has "$scratch/none: "
	done
}

@test "version, options and their errors are those of the library" {
	cat >say.c <<-'END'
		#include <wsync/push.h>
		#include <wsync/registry.h>
		#include <wsync/version.h>
		#include <stdio.h>

		int main(void)
		{
			struct ws_push *push = NULL;
			struct ws_push_opts opts;
			struct ws_err err = WS_ERR_INIT;
			printf("%s %d.%d.%d %s\n", WSYNC_VERSION, WSYNC_VERSION_MAJOR, WSYNC_VERSION_MINOR,
			       WSYNC_VERSION_PATCH, ws_version());
			ws_push_opts_init(&opts);
			opts.dry_run = true;
			opts.disk_dir = "x";
			printf("%d %u %s\n", ws_push_open(&opts, &push, &err), opts.disk_keep, err.msg);
			return 0;
		}
	END
	builds say C
	v=$(flags --modversion)
	[[ $v =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]]
	try ./say.C
	expect_out "$v $v $v
-1 1 {disk_dir} and {disk_path} are for {backend} disk"
}

@test "the library brings no names but its own into a program" {
	foreign=$(nm -g --defined-only "$root/lib/libwsync.a" 2>nm.err |
		awk 'NF == 3 && $3 !~ /^ws_/')
	[ -z "$foreign" ] || { echo "$foreign" >&2; return 1; }
	nm -g "$root/lib/libwsync.a" 2>nm.err | grep -q ' T ws_push_open$'
}

@test "the library has neither the endpoint nor an HTTP server, and needs no libmicrohttpd" {
	nm "$root/lib/libwsync.a" >symbols 2>nm.err
	expect_no_match 'MHD_' symbols
	expect_no_match ' ws_+(serve|gateway)_' symbols
	flags --static --print-requires --print-requires-private >requires
	flags --static --libs >>requires
	expect_no_match microhttpd requires
	[ "$(find "$root" -name '*.a' -printf '%f\n')" = libwsync.a ] || explain "two archives"
	left=$(find "$root/include" -name serve.h -o -name gateway.h -o -name tool)
	[ -z "$left" ] || explain "headers of programs are installed: $left"
}

@test "what is in the archive is compiled, whoever asks for it at link time" {
	try env -u MAKEFLAGS make -C "$repo" --no-print-directory \
		-n lib BUILD="$scratch/lto" CFLAGS="-O2 -flto=auto"
	expect_status 0
	lines=$(grep -e ' -flto=auto .*lib/net/http/http\.c$' <<<"$out")
	[[ $lines == *" -fno-lto "* ]] ||
		explain "the linker is to compile lib/net/http/http.c: $lines"
}

@test "each header stands alone, in C11 and in C++" {
	for h in "$root"/include/wsync/*.h; do # twice, for its guard
		printf '#include <wsync/%s>\n' "${h##*/}" "${h##*/}" >"alone_$(basename "$h" .h).c"
	done
	gcc -std=c11 -pedantic -Wall -Wextra -Werror -I"$root/include" -fsyntax-only alone_*.c
	command -v g++ >/dev/null || skip "no C++ compiler"
	for f in alone_*.c; do cp "$f" "${f%.c}.cc"; done
	g++ -std=c++11 -pedantic -Wall -Wextra -Werror -I"$root/include" -fsyntax-only alone_*.cc
	# Whatever declares a function does so for C++ too, and the library has it.
	without=$(grep -L 'extern "C"' $(grep -l '^[a-z].*(.*);' "$root"/include/wsync/*.h) || true)
	[ -z "$without" ] || { echo "no extern \"C\": $without" >&2; return 1; }
	cat alone_*.c | gcc -std=c11 -I"$root/include" -E -P -xc - | tr '\n' ' ' |
		sed 's/[;}]/&\n/g' |
		grep -oP '^(?!.*\btypedef\b)(?!.*[{}]).*?\bws_\w+(?= *\()' |
		grep -oE 'ws_[a-z0-9_]+$' | sort -u >declared
	[ "$(wc -l <declared)" -gt 50 ]
	nm -g --defined-only "$root/lib/libwsync.a" 2>nm.err | awk '$2 == "T" { print $3 }' |
		sort -u >defined
	[ -z "$(comm -23 declared defined)" ] || { comm -23 declared defined >&2; return 1; }
}

@test "the version of the package is that of the programs" {
	[ "wsync-push $(flags --modversion)" = "$("$root/bin/wsync-push" --version | head -n 1)" ]
}

@test "uninstall leaves no file behind" {
	make -C "$repo" --no-print-directory uninstall DESTDIR="$scratch/root" PREFIX=/opt/w \
		>uninstall.log
	left=$(find "$scratch/root" ! -type d)
	[ -z "$left" ] || { echo "$left" >&2; return 1; }
}

@test "directories with blanks and quotes are installed into, and nothing else there is removed" {
	local to="$scratch/de st" prefix="/opt/it's w"
	local dirs=(DESTDIR="$to" PREFIX="$prefix") root="$to$prefix"
	mkdir -p "$root/include/wsync" "$root/share/wsync" "$root/bin"
	echo "not ours" | tee de "$root/include/wsync/other.h" "$root/share/wsync/other" \
		"$root/bin/wsync" >st
	everything() { find "$scratch" ! -path "$scratch/[a-z]*.log" ! -type d -exec md5sum {} + |
		sort; }
	before=$(everything)
	make -C "$repo" --no-print-directory install "${dirs[@]}" >blanks.log
	"$root/bin/wsync-push" --version >/dev/null
	PYTHONDONTWRITEBYTECODE='' /usr/bin/python3 \
		-c "import sys; sys.path.append(sys.argv[1]); import wsync_manifest" \
		"$root/share/wsync/python"
	export PKG_CONFIG_PATH=$root/lib/pkgconfig
	eval "words=($(pkg-config --cflags --libs wsync))" # as a shell reads it
	[[ " ${words[*]} " == *" -I$prefix/include "*" -L$prefix/lib "* ]] ||
		{ echo "${words[*]}" >&2; return 1; }
	[ "$(pkg-config --variable=libdir wsync)" = "$prefix/lib" ]
	make -C "$repo" --no-print-directory uninstall "${dirs[@]}" >gone.log
	diff -u <(echo "$before") <(everything)
	[ ! -e "$root/share/wsync/python" ]
}

@test "a directory that is empty or relative is refused, and so is what pkg-config cannot read" {
	local make=(env -u MAKEFLAGS make -C "$repo" --no-print-directory -n)
	for goal in install uninstall; do
		try "${make[@]}" "$goal" DESTDIR="$scratch/root" includedir=
		expect_status 2
		err_has "includedir is '': it must be an absolute path"
	done
	try "${make[@]}" install DESTDIR="$scratch/root" PREFIX=usr
	expect_status 2
	err_has "bindir is 'usr/bin': it must be an absolute path"
	try "${make[@]}" install DESTDIR="$scratch/root" PREFIX='/opt/a#b'
	expect_status 2
	err_has 'libdir and includedir must be without #'
	try "${make[@]}" lib BUILD="$scratch/a b"
	expect_status 2
	err_has "BUILD is '$scratch/a b': it must be one directory"
}

@test "without scdoc everything but the pages is installed" {
	make -C "$repo" --no-print-directory install DESTDIR="$scratch/bare" PREFIX=/opt/w \
		HAVE_SCDOC= >bare.log 2>bare.err
	[ -x "$scratch/bare/opt/w/bin/wsync-push" ]
	[ ! -e "$scratch/bare/opt/w/share/man" ]
	grep -qxF 'not built: the man pages, which need scdoc (install the package scdoc, or make deps)' bare.err
	try env -u MAKEFLAGS make -C "$repo" --no-print-directory HAVE_SCDOC= \
		BUILD="$scratch/bare" "$scratch/bare/man/wsync.7"
	expect_status 2
	err_has 'missing: scdoc (install the package scdoc, or make deps)'
}

@test "without libmicrohttpd no test is built that needs the endpoint" {
	try env -u MAKEFLAGS make -C "$repo" --no-print-directory \
		-n tests-build HAVE_MHD= CUDA=0 BUILD="$scratch/bare"
	expect_status 0
	local headers='#include "(serve_.*|pickle_bucket|wsync/tool/serve)\.h"'
	for f in $(cd "$repo" && grep -lEr "$headers" tests --include='*.c'); do
		[[ $out != *" $f"$'\n'* ]] || { echo "$f needs it" >&2; false; }
	done
}

@test "setup skips torch where apt has none, and no other package" {
	compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null || skip "no package lists"
	mkdir tools
	printf '#!/bin/sh\nfor p; do case " $LACKS " in *" $p "*) exit 1 ;; esac; done\necho install ok installed\n' >tools/dpkg-query
	printf '#!/bin/sh\nprintf "%%s:\\n  Installed: (none)\\n  Candidate: (none)\\n" "$2"\n' \
		>tools/apt-cache
	printf '#!/bin/sh\nexit 1\n' >tools/apt-get
	chmod +x tools/*
	LACKS=python3-torch try env PATH="$PWD/tools:$PATH" "$repo/tests/setup.sh" -n
	expect_status 0
	expect_err "apt has no python3-torch: the tests that need it are skipped"
	LACKS="bats python3-torch" try env PATH="$PWD/tools:$PATH" "$repo/tests/setup.sh" -n
	expect_status 1
	err_has "apt-get install -y --no-install-recommends bats"
	LACKS=bats try env PATH="$PWD/tools:$PATH" "$repo/tests/setup.sh" -n
	expect_status 1
	[[ $err != *torch* ]] || explain "torch is installed"
}

@test "tests do not run before the programs are built" {
	try env BUILD="$scratch/nothing" "$repo/tests/run"
	expect_status 2
	expect_err "tests/run: no programs in $scratch/nothing/bin; build first: make tests-build"
}
