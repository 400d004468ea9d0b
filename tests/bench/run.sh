#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The whole benchmark, in about five minutes; arguments go to bench.py (--help lists them).
set -euo pipefail
exec /usr/bin/python3 -B "$(dirname "$0")/bench.py" "$@"
