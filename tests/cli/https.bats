#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Servers behind https, whose certificates nobody but --ca-file knows.
load helpers

prepare() {
	command -v openssl >/dev/null || skip "no openssl"
	safetensors small.safetensors a:F32:64,32 b:F32:64,32
	certificate known localhost
	endpoint one
	secured one known
}

certificate() { # NAME HOST
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
		-subj "/CN=$2" \
		-addext "subjectAltName=DNS:$2" -keyout "$1.key" -out "$1.pem" 2>/dev/null
}

secured() { # ENDPOINT CERTIFICATE: sets $secure
	start "$1-tls" /usr/bin/python3 "$repo/tests/cli/tls.py" "$url" "$2.pem" "$2.key"
	eventually test -s "$1-tls.out"
	secure=https://localhost:$(head -n 1 "$1-tls.out")
}

@test "a certificate that the system does not know is refused, and --ca-file is what helps" {
	try wsync-ctl info -e "$secure"
	expect_status 4
	err_has "certificate"
	err_has "hint: --ca-file FILE names the certificate of who signed the server's"
	try wsync-ctl info -e "$secure" --ca-file known.pem
	expect_status 0
	out_has "$secure"
	WSYNC_CA_FILE=known.pem try wsync-ctl health -e "$secure"
	expect_status 0
	certificate other localhost
	WSYNC_CA_FILE=known.pem try wsync-ctl health -e "$secure" --ca-file other.pem
	expect_status 4
	try wsync-ctl health -e "${secure/localhost/127.0.0.1}" --ca-file known.pem
	expect_status 4
	err_has "hint: is this the name that the server's certificate is for?"
	try wsync-ctl health -e "${secure/https/http}"
	expect_status 4
	err_has "or it speaks TLS: then its URL is $secure"
	try wsync-ctl health -e "${url/http/https}"
	expect_status 4
	# It answers in plain text, or ends the connection at once.
	err_has "the answer is not TLS" 2>/dev/null || err_has "OpenSSL SSL_connect"
	[[ $err == *"hint: a server that speaks plain HTTP has the URL $url"* ||
		$err == *"hint: does this server speak https? if not, its URL is $url"* ]] ||
		explain "no hint"
}

@test "a file that holds no certificates is said to before anybody is asked" {
	for bad in missing.pem small.safetensors "$PWD"; do
		try wsync-push small.safetensors -e "$secure" --ca-file "$bad"
		[[ $status == [38] ]] || explain "$bad"
		err_has "$bad"
		err_lacks "$secure"
	done
	# shows when it is used
	printf -- '-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n' >damaged.pem
	try wsync-push small.safetensors -e "$secure" --ca-file damaged.pem
	expect_status 3
	err_has "damaged.pem: its certificates cannot be read"
}

@test "every program that asks servers takes it" {
	try wsync-register add "$secure" --ca-file known.pem
	expect_status 0
	export WSYNC_CA_FILE=$PWD/known.pem
	try wsync-register check
	expect_status 0
	try wsync-push small.safetensors --verify hash --weight-version 3
	expect_status 0
	try wsync-list-weights --endpoint "$secure"
	expect_status 0
	out_has float32
	try wsync-verify weights small.safetensors
	expect_status 0
	try wsync-bench control -e "$secure" --samples 2
	expect_status 0
	try wsync-ctl version
	expect_out 3
}

@test "a gateway asks and pushes by https" {
	start gateway wsync-gateway --listen 127.0.0.1:0 --json --ca-file known.pem
	eventually grep -q '"ready"' gateway.out
	url=$(sed -n 's/.*"type":"ready","url":"\([^"]*\)".*/\1/p' gateway.out)
	try wsync-register add "$secure" --ca-file known.pem
	try curl -sS -m 180 -H "Content-Type: application/json" -d "{\"source\":\"$PWD/small.safetensors\"}" \
		"$url/sync_inference_weights"
	out_has '"success":true'
}
