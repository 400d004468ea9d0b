#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Many endpoints, some of which come and go: who needs which weights, and who may get traffic.
load helpers

prepare() { safetensors small.safetensors {a,b,c,d,e,f}.weight:F32:64,16; }

@test "a version that is an integer does not go back without --allow-older" {
	endpoint e
	try wsync-push small.safetensors -e "$url" --weight-version 57
	expect_status 0
	try wsync-push small.safetensors -e "$url" --weight-version 1
	expect_status 5
	err_has "$url has weight version 57, and 1 is older"
	err_has "to go back to it: --allow-older"
	expect_journal "$url" 'paths.count("/pause_generation"), s["weight_version"]' "(1, '57')"
	try wsync-push small.safetensors -e "$url" --weight-version 57
	expect_status 0
	try wsync-push small.safetensors -e "$url" --weight-version 1 --allow-older
	expect_status 0
	try wsync-push small.safetensors -e "$url" --weight-version step-0
	expect_status 0
	try wsync-push small.safetensors -e "$url" --weight-version 0
	expect_status 0
}

# cut OPTION...: a push to $url that is ended by SIGTERM between two buckets.
cut() {
	start cut wsync-push small.safetensors -e "$url" --bucket-size 4KiB --bucket-timeout 300s "$@"
	eventually requested /update_weights_from_distributed 2
	kill "$pid"
	finished cut 143
}

@test "a server with some old and some new weights is resumed by force only" {
	endpoint e --fault slow:update_weights_from_distributed:2 --fault-delay 60s
	cut
	golden_err fleet/cut.err
	try wsync-ctl resume -e "$url"
	expect_status 5
	err_has "$url: it has some old and some new weights, and would answer with them"
	err_has "--force resumes it all the same"
	expect_journal "$url" 's["paused"]' True
	try wsync-ctl resume -e "$url" --force
	expect_status 0
	expect_journal "$url" 's["paused"]' False
}
