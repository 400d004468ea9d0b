#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Faults drawn by chance (tests/peers/test_fault_matrix.py): prints failures and how to repeat them,
# and counts the rest.
set -u
cd "$(dirname "$0")/.." || exit 8
XDG_STATE_HOME=$(mktemp -d) || exit 8
SOAK_POINTS=${SOAK_POINTS:-1000}
export XDG_STATE_HOME SOAK_POINTS
log=$XDG_STATE_HOME/soak.log
/usr/bin/python3 -u tests/peers/test_fault_matrix.py >"$log" 2>&1 &
child=$!
trap 'kill $child; wait $child; rm -rf "$XDG_STATE_HOME"; exit 1' INT TERM HUP
tail -f --pid=$child "$log" 2>/dev/null |
    grep --line-buffered -A 8 -e '^# [0-9S]' -e '^not ok' -e Error
wait $child
status=$?
rm -rf "$XDG_STATE_HOME"
exit $status
