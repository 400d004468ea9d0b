#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Processes that reach the store's port and are of no group.
load helpers

prepare() {
	safetensors one.safetensors a:F32:64,32 b:F32:64,32 c:F32:64,32
	port=$(free_port)
}

# push_beside ROUTE COMMAND: COMMAND runs to its end before the first request to ROUTE is passed on.
push_beside() {
	proxy "$url" "if path == '$1' and nth == 1: run(\"$2\")"
	try wsync-push one.safetensors -e "$url" --bucket-size 8KiB --master-port "$port" "${@:3}"
}

@test "what strangers do while the weights are sent changes nothing, and is told" {
	endpoint one
	push_beside /update_weights_from_distributed \
		"/usr/bin/python3 -S $repo/tests/cli/strangers.py $port"
	expect_status 0
	err_has "warning: a connection from 127.0.0.1:"
	err_has "was closed, and had no effect: it tried to set a key that no rank of this group sets"
	err_has "it joined when all ranks had joined"
}

@test "what strangers do before the group forms changes nothing, and is told" {
	endpoint one --tp 2
	push_beside /init_weights_update_group \
		"/usr/bin/python3 -S $repo/tests/cli/strangers.py $port" --json
	expect_status 0
	expect_json 'sum("had no effect" in l.get("message", "") for l in lines
		if l["type"] == "warning") > 3' True
	expect_json 'lines[-1]["endpoints"][0]["state"]' committed
}

@test "a crowd of strangers does not keep the ranks out" {
	endpoint one --tp 2
	mkfifo gate
	exec 8<>gate
	push_beside /init_weights_update_group "/usr/bin/python3 -S $repo/tests/cli/strangers.py \
		$port 600 <gate >crowd & until grep -q here crowd; do sleep 0.05; done"
	exec 8>&-
	expect_status 0
	err_has "too many connections, of which it did least"
}
