# SPDX-License-Identifier: Apache-2.0
# What every bats file loads:  load helpers
#
# Each test runs in a fresh directory ($scratch, removed afterwards) with a home and a state of its
# own. `try wsync-push ...` runs a program and leaves $status, $out and $err, stdout and stderr
# apart. A golden file holds what a program printed when somebody last looked at it and found it
# good: `make bless` writes it anew. Much of this is read by the tests alone.
# shellcheck disable=SC2034
bats_require_minimum_version 1.5.0

repo=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
build=${BUILD:-build}
case $build in /*) ;; *) build=$repo/$build ;; esac
bin=$build/bin
tools=$build/tests/tools

# bats notes the line before every command, so as to name the one that failed. That was a third of
# the CPU time of its shells; now it does so in the test itself, not in what that calls.
setup() {
	trap '[[ ${FUNCNAME[0]} != @(setup|"$BATS_TEST_NAME") ]] || bats_debug_trap "$BASH_SOURCE"' DEBUG
	scratch=$(mktemp -d "${TMPDIR:-/tmp}/wsync-cli.XXXXXX")
	cd "$scratch" || return
	export HOME=$scratch/home XDG_STATE_HOME=$scratch/state PATH=$bin:$PATH
	export TERM=xterm COLUMNS=80 LC_ALL=C.UTF-8
	mkdir -p "$HOME"
	background=()
	if declare -F prepare >/dev/null; then prepare; fi
}

teardown() {
	local pid
	for pid in "${background[@]}"; do kill "$pid" 2>/dev/null &&
		{ kill -CONT "$pid" 2>/dev/null || :; wait "$pid" 2>/dev/null; }; done
	cd / && rm -rf "$scratch"
}

# Seconds, of every wait: only a hang takes three minutes.
patience=${WSYNC_TEST_PATIENCE:-180}

# try COMMAND...: ended after $patience seconds. $status, $out, $err; never fails by itself. STDIN
# is the file that it reads.
try() {
	status=0
	timeout -k 5 "${TRY_SECONDS:-$patience}" "$@" >"$scratch/.out" 2>"$scratch/.err" \
		<"${STDIN:-/dev/null}" || status=$?
	out=$(<"$scratch/.out")
	err=$(<"$scratch/.err")
	last="$*"
}

# What went wrong, into the TAP output.
explain() {
	printf '%s\n' "$1" "command: $last" "status: $status" "stdout: $out" "stderr: $err" >&2
	return 1
}

expect_status() { [ "$status" = "$1" ] || explain "expected status $1"; }
expect_out() { [ "$out" = "$1" ] || explain "expected on stdout: $1"; }
expect_err() { [ "$err" = "$1" ] || explain "expected on stderr: $1"; }
# Part of the text, literally.
out_has() { [[ $out == *"$1"* ]] || explain "expected within stdout: $1"; }
err_has() { [[ $err == *"$1"* ]] || explain "expected within stderr: $1"; }
out_lacks() { [[ $out != *"$1"* ]] || explain "not expected within stdout: $1"; }
err_lacks() { [[ $err != *"$1"* ]] || explain "not expected within stderr: $1"; }

# golden NAME: $out equals tests/cli/golden/NAME. golden_err NAME: the same for $err.
# What differs from run to run is made constant first: the scratch directory, ports on loopback.
golden() { compare_golden "$1" "$out"; }
golden_err() { compare_golden "$1" "$err"; }
compare_golden() {
	local file=$repo/tests/cli/golden/$1 text
	text=$(sed -E -e "s|$scratch|SCRATCH|g" -e 's|127\.0\.0\.1:[0-9]+|127.0.0.1:PORT|g' <<<"$2")
	if [ -n "${BLESS:-}" ]; then
		mkdir -p "${file%/*}"
		printf '%s\n' "$text" >"$file"
	else
		diff -u "$file" - <<<"$text" >&2 || explain "differs from golden/$1 (make bless)"
	fi
}

# timeless: durations and rates in $out and $err become the words TIME and RATE.
timeless() {
	local words='s/[0-9.]+ (ns|us|ms|s)\b/TIME/g; s|[0-9.]+ [kMG]?B/s|RATE|g'
	out=$(sed -E "$words" <<<"$out")
	err=$(sed -E "$words" <<<"$err")
}

# json FILTER: python's view of $out as JSON lines; FILTER is an expression over `lines`, printed.
json() {
	/usr/bin/python3 -S -c 'import json, sys
lines = [json.loads(l) for l in sys.stdin]
print(eval(sys.argv[1]))' "$1" <<<"$out"
}

# expect_json FILTER TEXT: what `json FILTER` prints.
expect_json() { local got; got=$(json "$1"); [ "$got" = "$2" ] ||
	explain "expected $1 = $2, got $got"; }

# A TCP port that nobody listens on. The kernel gives those from 32768 on to other connections.
free_port() {
	local port
	while port=$((20000 + RANDOM % 12000)) && (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
	echo "$port"
}

# start NAME COMMAND...: in the background, output in NAME.out and NAME.err, ended by teardown.
# Sets $pid. SIGTERM is the way to stop it: bash starts background jobs with SIGINT ignored.
start() {
	local name=$1
	shift
	# of an earlier one: who waits for a word of this one must not find that
	rm -f "$scratch/$name.out"
	"$@" >"$scratch/$name.out" 2>"$scratch/$name.err" </dev/null 3>&- &
	pid=$!
	background+=("$pid")
}

# eventually COMMAND...: until it succeeds, for $patience seconds at most. A pause is a read from a
# FIFO that nobody writes to: no process is started for it, as for sleep(1).
eventually() {
	local end=$((SECONDS + patience)) nothing
	until "$@"; do
		[ "$SECONDS" -lt "$end" ] || { echo "never: $*" >&2; return 1; }
		[ -p "$scratch/.pause" ] || mkfifo "$scratch/.pause"
		read -rt 0.05 nothing <>"$scratch/.pause" || :
	done
}

# finished NAME STATUS [PID]: what `start` began as NAME, the latest unless PID says which, ends so.
# Killed after $patience seconds, as by `try`.
finished() {
	local of=${3:-$pid}
	# bash reaps its children meanwhile: tail does not wait for a zombie.
	timeout "${TRY_SECONDS:-$patience}" tail -s 0.05 -f --pid "$of" /dev/null || kill -KILL "$of"
	status=0
	wait "$of" || status=$?
	out=$(<"$scratch/$1.out") err=$(<"$scratch/$1.err") last=$1
	expect_status "$2"
}

# safetensors FILE NAME:DTYPE:DIMS...: a file with random but reproducible bytes, which is made once
# for all tests of a bats file.
safetensors() {
	local made
	made=$BATS_FILE_TMPDIR/$(cksum <<<"${*:2}")
	[ -e "$made" ] || /usr/bin/python3 -S "$repo/tests/peers/mkst.py" "$made" "${@:2}"
	cp -T "$made" "$1"
}

# llama DIR [SED [OPTION...]]: a checkpoint of a tiny Llama with its config.json; SED edits its
# NAME:DTYPE:DIMS lines, the options are those of mkst.py.
llama() {
	local dir=$1 l
	mkdir -p "$dir"
	cat >"$dir/config.json" <<-END
		{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
		 "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
		 "num_key_value_heads": 2, "vocab_size": 128, "tie_word_embeddings": false}
	END
	{
		echo model.embed_tokens.weight:BF16:128,64
		for l in 0 1; do
			printf "model.layers.$l.%s\n" input_layernorm.weight:BF16:64 \
				self_attn.q_proj.weight:BF16:64,64 \
				self_attn.k_proj.weight:BF16:32,64 \
				self_attn.v_proj.weight:BF16:32,64 \
				self_attn.o_proj.weight:BF16:64,64 \
				post_attention_layernorm.weight:BF16:64 \
				mlp.gate_proj.weight:BF16:128,64 \
				mlp.up_proj.weight:BF16:128,64 mlp.down_proj.weight:BF16:64,128
		done
		printf '%s\n' model.norm.weight:BF16:64 lm_head.weight:BF16:128,64
	} | sed -E "${2:-}" >"$dir.names"
	xargs -a "$dir.names" -d '\n' /usr/bin/python3 -S "$repo/tests/peers/mkst.py" \
		"$dir/model.safetensors" "${@:3}"
}

# likely_model FAMILY: a small checkpoint in m/ whose numbers are all of a likely size.
likely_model() {
	/usr/bin/python3 -S "$repo/tests/cli/small_model.py" "$1" m
	/usr/bin/python3 -S -c 'import struct
with open("m/model.safetensors", "r+b") as f:
	data = bytearray(f.read())
	begin = 8 + struct.unpack_from("<Q", data)[0]
	for i in range(begin + 1, len(data), 2):
		data[i] = 0x3c | data[i] & 3
	f.seek(0); f.write(data)'
}

# holds URL...: every number of every tensor is that of m/.
holds() {
	local url
	for url in "$@"; do
		try wsync-verify weights m -e "$url" --samples 1000
		expect_status 0
	done
}

# canned NAME PATH=STATUS:TEXT...: a server with canned answers; sets $url. Its requests: NAME.out.
canned() {
	local name=$1
	shift
	start "$name" /usr/bin/python3 -S "$repo/tests/cli/canned.py" "$@"
	eventually test -s "$scratch/$name.out"
	url=http://127.0.0.1:$(head -n 1 "$scratch/$name.out")
}

# endpoint NAME OPTION...: starts wsync-endpoint; its URL is in $url.
endpoint() {
	local name=$1
	shift
	start "$name" wsync-endpoint --listen 127.0.0.1:0 --json "$@"
	eventually grep -q '"ready"' "$scratch/$name.out"
	url=$(sed -n 's/.*"type":"ready".*"url":"\([^"]*\)".*/\1/p' "$scratch/$name.out")
}

# fetch URL [JSON]: GET, or POST of JSON; prints the reply's body, and fails unless it is a success.
# For tests that run on machines with a GPU, which may have no curl. It also starts faster.
fetch() (
	at=${1#http://} path=/ method=${2+POST} body=${2-} status='' line='' LC_ALL=C
	[[ $at != */* ]] || path=/${at#*/}
	at=${at%%/*}
	exec 8<>"/dev/tcp/${at/://}" || exit # a test may have an 8 of its own
	printf '%s %s HTTP/1.0\r\nHost: %s\r\n' "${method:-GET}" "$path" "$at" >&8
	[ -z "$method" ] ||
		printf 'Content-Type: application/json\r\nContent-Length: %d\r\n' ${#body} >&8
	printf '\r\n%s' "$body" >&8
	while IFS= read -rt "$patience" line <&8 && [ "$line" != $'\r' ]; do
		status=${status:-$line}
	done
	timeout "$patience" cat <&8
	[[ $status = *' 2'??\ * ]]
)

# journal URL EXPRESSION: over the endpoint's journal j, its state s, the paths of its requests, and
# its updates over a group.
journal() {
	fetch "$1/wsync/journal" | /usr/bin/python3 -S -c 'import json, sys
j = json.load(sys.stdin)
s, paths = j["state"], [r["path"] for r in j["requests"]]
updates = [r for r in j["requests"] if r["path"] == "/update_weights_from_distributed"]
print(eval("(" + sys.argv[1] + ")"))' "$2"
}

# expect_journal URL EXPRESSION TEXT: what `journal URL EXPRESSION` prints.
expect_journal() { local got; got=$(journal "$1" "$2"); [ "$got" = "$3" ] ||
	explain "expected of $1: $2 = $3, got $got"; }

# shown: the journal of endpoint $url.
shown() { fetch "$url/wsync/journal"; }

# requested PATH [N]: endpoint $url has had at least N requests to it.
requested() { [ "$(shown | grep -o "\"path\":\"$1\"" | wc -l)" -ge "${2:-1}" ]; }

# lines_to OPTION...: a push to $url, as push, of the lines of file descriptor 7.
lines_to() {
	[ -p sources ] || mkfifo sources
	start push bash -c "exec wsync-push --stdin --json -e $url $* <sources"
	push=$pid
	exec 7>sources
}
# results N: that push has ended so many lines.
results() { [ "$(grep -c '"type":"result"' push.out)" = "$1" ]; }

# proxy URL BEFORE [AFTER [ARG...]]: a proxy of that endpoint (proxy.py); its URL is in $url then.
proxy() {
	start proxy /usr/bin/python3 -S "$repo/tests/cli/proxy.py" "$@"
	eventually test -s "$scratch/proxy.out"
	url=http://127.0.0.1:$(head -n 1 "$scratch/proxy.out")
}

# meddle URL ROUTE NUMBER COMMAND: a proxy of that endpoint. COMMAND runs once, while that request
# waits.
meddle() { proxy "$1" 'if path == args[0] and nth == int(args[1]): run(args[2])' pass "${@:2}"; }

# replies BEFORE [RANKS]: a proxy of $url that changes replies. RANKS is Python that changes `ranks`
# of checksums.
replies() {
	proxy "$url" "$1" 'if "ranks" in reply: exec(args[0], {"ranks": reply["ranks"], "kept": kept})' "${2:-pass}"
}

# Every program that was built.
programs() { basename -a "$bin"/wsync-*; }

# The doubles of libcuda and libnccl, or the real ones that WSYNC_TEST_CUDA and WSYNC_NCCL_LIB name,
# where programs of this test look for them. $doubles: they are doubles, which move bytes between
# processes.
gpu_libraries() {
	mkdir lib
	case ${WSYNC_TEST_CUDA:-} in
	'' | *fake_cuda.so)
		doubles=y
		ln -s "$build/tests/gpu/fake_cuda.so" lib/libcuda.so.1
		# where the other looks for it
		ln -s "$build/tests/gpu/fake_cuda.so" lib/fake_cuda.so
		ln -s "$build/tests/gpu/fake_nccl.so" lib/libnccl.so.2
		unset WSYNC_NCCL_LIB
		export FAKE_NCCL_TOGETHER=1
		;;
	*/*) ln -s "$WSYNC_TEST_CUDA" lib/libcuda.so.1 ;;
	esac
	export LD_LIBRARY_PATH=$scratch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
		NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo}
}

of_the_double() { [ -n "${doubles:-}" ] || skip "only a double can be told so"; }
