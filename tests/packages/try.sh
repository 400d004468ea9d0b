#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# try.sh - as root inside a root without wsync: installs a package, and pushes with it.
#
#     try.sh wheel|deb|bundle FILE
set -euo pipefail
cd /
kind=$1 file=$2
case $kind in
wheel)
	python3 -m venv /venv
	/venv/bin/pip install -q --no-index "$file"
	PATH=/venv/bin:$PATH
	;;
deb)
	export DEBIAN_FRONTEND=noninteractive
	apt-get -q update >/dev/null
	apt-get -q install -y --no-install-recommends python3 "$file" >/dev/null
	;;
bundle)
	mkdir "/of somebody"
	tar -C "/of somebody" -xzf "$file" --no-same-owner
	cd "/of somebody"/wsync-*
	PATH=$PWD/bin:$PATH
	;;
esac
for p in bench ctl endpoint gateway list-weights push register verify; do
	"wsync-$p" --version
done

wsync-endpoint --listen 127.0.0.1:0 --json >/endpoint &
endpoint=$!
trap 'kill $endpoint' EXIT
until grep -q '"url"' /endpoint; do kill -0 $endpoint; sleep 0.1; done
url=$(sed -n 's/.*"url":"\([^"]*\)".*/\1/p' /endpoint)
wsync-push synthetic:qwen3-0.6b -e "$url" --weight-version 1 --verify hash

[ "$kind" != bundle ] || exit 0 # no Python here
python3 - "$url" <<'END'
import sys, wsync, wsync_manifest
end = wsync.push("synthetic:qwen3-0.6b", sys.argv[1:], weight_version=2, verify="hash")
print(end["ok"], end["verify"], end["weight_version"])
try:
    wsync.push("/nothing", sys.argv[1:])
except wsync.Error as e:
    print(e.code)
END
if [ "$kind" = wheel ]; then
	/venv/bin/pip install -q --no-index --target /target "$file"
	env PATH=/usr/bin:/bin PYTHONPATH=/target /usr/bin/python3 -c 'import wsync
wsync.register("list", registry="/none")'
	/venv/bin/pip uninstall -q -y wsync
	[ -z "$(find /venv -name '*wsync*')" ]
fi
