#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a compiler does not see: shell scripts, spelling, man pages, and clang-tidy where it is
# installed. Quiet when all is well; a tool that is not installed is named once and skipped.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
failed=0
missing=()

have() {
    command -v "$1" >/dev/null || { missing+=("$1"); return 1; }
}

# git where there is a repository, so that nothing untracked is judged; else everything outside
# build/.
files() {
    git ls-files -- "$@" 2>/dev/null || find . -path ./build -prune -o -type f -name "${1##*/}" \
        -print
}

if have shellcheck; then
    # SC2046: what pkg-config prints is to be split.
    files '*.sh' .ci/run | sort -u | xargs shellcheck --severity=warning --exclude=SC2046 ||
        failed=1
    files '*.bash' | xargs shellcheck --shell=bash --severity=warning || failed=1
    # Only errors: variables of tests come from helpers.bash and go to it.
    files '*.bats' | xargs shellcheck --shell=bats --severity=error || failed=1
fi

# What a success may say comes from one file.
if git grep -nE '"[^"]*(verified by hash|names verified)' -- 'lib/*.c' 'cmd/*.c' 2>/dev/null |
    grep -v '^lib/push/evidence.c:'; then
    echo "lint.sh: words of success belong into lib/push/evidence.c"
    failed=1
fi

if have codespell; then
    # Tests mistype modle and lama on purpose; sharable is a word of torch; nd and tru are parts of
    # string literals.
    files '*' | grep -v '^tests/fuzz/corpus/' |
        xargs codespell --quiet-level=35 --ignore-words-list=modle,lama,sharable,nd,tru || failed=1
fi

# 100 columns, with tabs of 8: two files side by side on a laptop. Shell tests quote messages, JSON
# and sed scripts that cannot be broken, so their strings do not count. Nor do the choices of an
# option in a page.
for kind in '*.c' '*.h' '*.cu' '*.py' '*.scd' '*.sh' 'tests/*.bash' '*.bats' Makefile; do
    files "$kind" | grep -v '^\(\./\)\?tests/data/'
done | xargs perl -MText::Tabs -ne '
    $text = expand($_);
    $text =~ s/\x27[^\x27]*\x27|"(?:\\.|[^"\\])*"/""/g
        if $ARGV =~ /sh$|bats$/ && !/^\s*#|^\@test/;
    $text = "" if $ARGV =~ /scd$/ && /^\*--/;
    if (length($text) > 101) { print STDERR "$ARGV:$.: wider than 100 columns\n"; $wide = 1 }
    close ARGV if eof;
    END { exit $wide // 0 }' README.md CHANGELOG.md HACKING.md || failed=1

# The library does not know the options of the programs: it names fields, "{pause}" (err.h). Options
# of others are what users type at a server, a container or a converter; what follows the name of a
# program of ours is a command.
files 'lib/*.c' | xargs perl -0777 -ne '
    my $others = qr/--(?:enable|disable|quantization|ipc=host|pid|gpus)\b/;
    my $tools = qr/\b(?:python|accelerate|hf) [^;]*/;
    my $vllm = qr/--(?:weight-transfer-config|worker-extension-cls)\b/;
    while (m{/\*.*?\*/|\x27(?:[^\x27\\]|\\.)+\x27|((?:"(?:[^"\\]|\\.)*"\s*)+)}gs) {
        next unless defined $1;
        (my $s = $1) =~ s/"\s*"//g;
        $s =~ s/^" --.*//; # the end of a command
        $s =~ s/wsync-[a-z-]+ [^;]*|$others|$vllm|$tools//g;
        if ($s =~ /--[a-z]/) { print STDERR "$ARGV: the library names an option: $s\n"; $named = 1 }
    }
    END { exit $named // 0 }' || failed=1

if have scdoc && have mandoc; then
    page=$(mktemp)
    trap 'rm -f "$page"' EXIT
    for f in man/*.scd; do
        scdoc <"$f" >"$page" || { echo "$f: scdoc refuses it" >&2; failed=1; continue; }
        # a request of roff, which scdoc 1.11 lets through
        if grep -n "^'" "$f"; then echo "$f: a line begins with '" >&2; failed=1; fi
        mandoc -T lint -W error "$page" || { echo "in $f" >&2; failed=1; }
    done
fi

# Slow, and of use only with the configuration: LINT_TIDY=1 make lint
if [ -n "${LINT_TIDY:-}" ] && have clang-tidy; then
    files 'lib/*.c' 'cmd/*.c' | xargs clang-tidy --quiet \
        --checks='-*,bugprone-*,-bugprone-easily-swappable-parameters,-bugprone-reserved-identifier,clang-analyzer-*' \
        -- -std=c11 -D_GNU_SOURCE -Iinclude -Icmd/common \
        $(printf -- '-I%s ' lib/*/ lib/*/*/) || failed=1
fi

[ ${#missing[@]} = 0 ] || echo "lint: not installed: ${missing[*]}" >&2
exit "$failed"
