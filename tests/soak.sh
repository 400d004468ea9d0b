#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Faults drawn by chance (tests/peers/soak.py): what fails is shown, and how to repeat it; the rest is counted.
set -u
cd "$(dirname "$0")/.." || exit 8
XDG_STATE_HOME=$(mktemp -d) || exit 8
export XDG_STATE_HOME
log=$XDG_STATE_HOME/soak.log
/usr/bin/python3 -u tests/peers/soak.py >"$log" 2>&1 &
child=$!
trap 'kill $child; wait $child; rm -rf "$XDG_STATE_HOME"; exit 1' INT TERM HUP
tail -f --pid=$child "$log" 2>/dev/null | grep --line-buffered -A 8 -e '^# [0-9S]' -e '^not ok' -e Error
wait $child
status=$?
rm -rf "$XDG_STATE_HOME"
exit $status
