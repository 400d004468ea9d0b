# SPDX-License-Identifier: Apache-2.0
"""The programs against real SGLang servers, which run on this machine's CPU.

Only when asked for, since the first time it fetches up to 2 GB from PyPI: WSYNC_TEST_SGLANG=1, or
the versions to try ("0.5.23 0.4.10.post2"). Scheduler, model, HTTP server and everything that
updates weights are SGLang's own; what stands for its CUDA kernels is sglang/sitecustomize.py. The
model is a random llama of two layers without a tokenizer. What it holds is read back by
/get_weights_by_name, and compared here.
"""
import contextlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import lib

sys.path.insert(0, os.path.join(lib.TREE, "tests", "cli"))
import packed_model  # noqa: E402
import scaled_model  # noqa: E402

VERSIONS = ["0.5.23", "0.4.10.post2"]
HIDDEN, HEADS, KV_HEADS, INNER, WORDS, LAYERS = 64, 4, 2, 128, 256, 2
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
          "num_hidden_layers": LAYERS, "vocab_size": WORDS, "intermediate_size": INNER,
          "head_dim": 16,
          "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-6,
          "rope_theta": 10000.0, "max_position_embeddings": 512, "hidden_act": "silu",
          "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1,
          "eos_token_id": 2}


# ---- checkpoints

def shapes():
    width = HEADS * 16
    yield "model.embed_tokens.weight", [WORDS, HIDDEN]
    yield "model.norm.weight", [HIDDEN]
    yield "lm_head.weight", [WORDS, HIDDEN]
    for i in range(LAYERS):
        at = "model.layers.%d." % i
        for name, shape in (("self_attn.q_proj", [width, HIDDEN]),
                            ("self_attn.k_proj", [KV_HEADS * 16, HIDDEN]),
                            ("self_attn.v_proj", [KV_HEADS * 16, HIDDEN]),
                            ("self_attn.o_proj", [HIDDEN, width]),
                            ("mlp.gate_proj", [INNER, HIDDEN]), ("mlp.up_proj", [INNER, HIDDEN]),
                            ("mlp.down_proj", [HIDDEN, INNER]), ("input_layernorm", [HIDDEN]),
                            ("post_attention_layernorm", [HIDDEN])):
            yield at + name + ".weight", shape


def make(seed, spoiled=None):
    """A directory with a checkpoint; of the tensor `spoiled` the second dimension is too small."""
    path = lib.scratch("llama.%s%s" % (seed, ".spoiled" if spoiled else ""))
    if os.path.isdir(path):
        return path
    os.mkdir(path)
    with open(path + "/config.json", "w") as f:
        json.dump(CONFIG, f)
    numbers, header, data = random.Random(seed), {}, b""
    for name, shape in shapes():
        shape = [shape[0], shape[1] // 2] if name == spoiled else shape
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        # The upper halves of float32 numbers about 0, or 1 for norms: bfloat16.
        one = 1.0 if "norm" in name else 0.0
        raw = b"".join(struct.pack("<f", numbers.gauss(one, 0.05))[2:] for _ in range(n))
        header[name] = {"dtype": "BF16", "shape": shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    return path


def numbers_of(path):
    """name -> its rows of numbers, straight from the file."""
    with open(path + "/model.safetensors", "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), f.read()
    header.pop("__metadata__", None)
    for name, t in header.items():
        raw = data[slice(*t["data_offsets"])]
        flat = [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0] for i in range(0, len(raw), 2)]
        width = t["shape"][-1]
        yield name, flat if len(t["shape"]) == 1 else [flat[i:i + width]
                                                       for i in range(0, len(flat), width)]


# ---- a server

def prepare(version):
    made = subprocess.run([os.path.join(lib.HERE, "sglang.sh"), version], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=4000, check=False)
    if made.returncode == 77:
        raise lib.Skip(made.stderr.strip().split("\n")[-1])
    assert made.returncode == 0, made.stderr
    return made.stdout.strip().split(" ", 1)


def python_of(version):
    """The command that runs Python with this SGLang, and its environment."""
    torch, directory = prepare(version)
    return [os.path.join(lib.HERE, "python.sh"), torch], {
        "PYTHONPATH": os.path.join(lib.HERE, "sglang") + ":" + directory,
        "WSYNC_SHOW": os.path.dirname(directory),
        "WSYNC_SHIM": "vllm" if version < "0.5" else "cuda" if version < "0.5.23" else "",
        "SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1"}


class Server:
    def __init__(self, version, model=None, tp=1, url=None):
        python, env = python_of(version)
        self.version, self.new = version, version.startswith("0.5.")
        self.url = url or "http://127.0.0.1:%d" % lib.free_port()
        self.log = open(lib.scratch("sglang-%s-%s.err" % (version, self.url.rsplit(":", 1)[1])),
                        "w+")
        env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(i) for i in range(tp))
        argv = [*python, "-m", "sglang.launch_server",
                "--model-path", model or make(0), "--tp-size", str(tp),
                "--device", "cpu", "--host", "127.0.0.1",
                "--port", self.url.rsplit(":", 1)[1], "--attention-backend", "torch_native",
                "--sampling-backend", "pytorch", "--disable-cuda-graph",
                "--disable-overlap-schedule",
                "--skip-tokenizer-init", "--max-total-tokens", "4096", "--max-running-requests",
                "8",
                "--mem-fraction-static", "0.05"]
        if model:  # what it would generate at first may be NaN
            argv.append("--skip-server-warmup")
        # A group of its own: what it starts ends with it.
        self.child = lib.start(argv, env, stdout=self.log, stderr=self.log, start_new_session=True)

    def await_ready(self):
        def ready():
            assert self.child.poll() is None, "sglang %s ended with %d" % (self.version,
                self.child.returncode)
            self.log.flush()
            with open(self.log.name, errors="replace") as f:
                return "ready to roll" in f.read()
        lib.await_true(ready, "sglang %s" % self.version)

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        lib.stop(self.child)

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=lib.PATIENCE) as reply:
                return reply.status, json.loads(reply.read() or "null")
        except urllib.error.HTTPError as e:
            return e.code, json.loads(e.read() or "null")

    def model_info(self):
        with urllib.request.urlopen(self.url + "/get_model_info", timeout=lib.PATIENCE) as reply:
            return json.load(reply)

    def check_holds(self, path):
        """Every number of every tensor; norms are asked for as whole as matrices."""
        for name, rows in numbers_of(path):
            status, got = self.post("/get_weights_by_name",
                                    {"name": name, "truncate_size": 1 << 20})
            assert status == 200, "%s: %s" % (name, got)
            assert got == rows, "sglang %s does not hold %s of %s" % (self.version, name,
                os.path.basename(path))

    def generate(self, tokens, **more):
        return self.post("/generate", dict({"input_ids": [5, 6, 7], "sampling_params": {
            "max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}}, **more))


def run(program, server, *args, rc=0):
    argv = [os.path.join(lib.BUILD, "bin", program), *args, "--endpoint", server.url, "--json"]
    result = lib.Running([], [], argv=argv).wait()
    assert result.rc == rc, "%s %s: %s" % (program, " ".join(args), result)
    return result


def push(server, path, *options, rc=0):
    return run("wsync-push", server, path, *options, rc=rc)


# ---- cases, each for every server

suite = lib.Suite()


@suite.case("a server is what its routes show")
def lineage(servers):
    for s in servers:
        end = run("wsync-ctl", s, "info").of("endpoint")[0]
        assert end["version"] == s.version, end
        assert end["lineage"] == ("session" if s.new else "sglang-0.4"), end
        run("wsync-verify", s, "names", make(1))


@suite.case("gloo, in one bucket and in many: flattened where the server knows that")
def gloo(servers):
    for s in servers:
        for seed, options in enumerate(([], ["--bucket-size", "16KiB"]), 1):
            plan = push(s, make(seed), "--backend", "gloo", *options).of("plan")[0]
            assert plan["load_format"] == ("flattened_bucket" if s.new else "none"), plan
            s.check_holds(make(seed))


@suite.case("the weights in the requests, as pickles that SGLang reads")
def tensor(servers):
    for s in servers:
        if s.new:
            push(s, make(4), "--backend", "tensor")
            push(s, make(5), "--backend", "tensor", "--bucket-size", "16KiB")
            s.check_holds(make(5))
        else:
            result = push(s, make(4), "--backend", "tensor", rc=5)
            assert "takes no protocol tensor" in result.stderr, result


@suite.case("from disk, the source itself and a checkpoint that is written for it")
def disk(servers):
    for s in servers:
        push(s, make(6), "--backend", "disk")
        s.check_holds(make(6))
        push(s, make(7), "--backend", "disk", "--disk-dir", lib.scratch("disk." + s.version))
        s.check_holds(make(7))


def bytes_of(path, name):
    with open(path + "/model.safetensors", "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), f.read()
    return header[name]["shape"], data[slice(*header[name]["data_offsets"])]


def bf16_numbers(raw):
    return [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0] for i in range(0, len(raw), 2)]


def adapter(seed):
    """For the weights of make(seed): rank 4, of two modules in each layer."""
    path, numbers, tensors = lib.scratch("adapter.%d" % seed), random.Random(seed), []
    for i in range(LAYERS):
        for module, out in (("self_attn.q_proj", HEADS * 16), ("mlp.up_proj", INNER)):
            for part, shape in (("lora_A", [4, HIDDEN]), ("lora_B", [out, 4])):
                tensors.append(("base_model.model.model.layers.%d.%s.%s.weight" % (i, module, part),
                                "F32", shape,
                                struct.pack("<%df" % (shape[0] * shape[1]),
                                            *(numbers.gauss(0, 0.05)
                                              for _ in range(shape[0] * shape[1])))))
    scaled_model.save(path, tensors, {})
    with open(path + "/adapter_config.json", "w") as f:
        json.dump({"peft_type": "LORA", "r": 4, "lora_alpha": 8}, f)
    os.rename(path + "/model.safetensors", path + "/adapter_model.safetensors")
    return path


def packed(seed):
    """make(seed) with its matrices in nf4."""
    path, tensors = lib.scratch("nf4.%d" % seed), []
    for name, shape in shapes():
        shape, raw = bytes_of(make(seed), name)
        if "_proj" in name:
            tensors += packed_model.Nf4(bf16_numbers(raw), shape, False).tensors(name, None)
        else:
            tensors.append((name, "BF16", shape, raw))
    scaled_model.save(path, tensors, dict(CONFIG, quantization_config=packed_model.QUANT["nf4"]))
    return path


@suite.case("written, merged and unpacked: it loads from disk what it would get from a push")
def written(servers):
    for i, s in enumerate(servers):
        for source, *options in ((make(1), "--lora", adapter(1)), (packed(2), "--unpack")):
            where = lib.scratch("written.%d%s" % (i, options[0]))
            argv = [os.path.join(lib.BUILD, "bin", "wsync-push"), source, *options, "--json",
                    "--write", where]
            result = lib.Running([], [], argv=argv).wait()
            assert result.rc == 0, result
            push(s, where, "--backend", "disk", *(["--verify", "hash"] if s.new else []))
            s.check_holds(where)
            push(s, make(3))
            push(s, source, *options)
            s.check_holds(where)


@suite.case("staged on disk: it answers with its old weights until the word")
def staged(servers):
    for s in servers:
        push(s, make(1))
        push(s, make(2), "--stage", "--backend", "disk", "--disk-dir",
             lib.scratch("staged." + s.version))
        s.check_holds(make(1))
        assert s.generate(2)[0] == 200
        result = run("wsync-ctl", s, "complete", *([make(2), "--verify", "hash"] if s.new else []))
        assert result.end["endpoints"][0]["paused_ns"] > 0 or not s.new, result
        s.check_holds(make(2))


@suite.case("several sources on stdin, in one group")
def session(servers):
    for s in servers:
        talk = lib.Session([s])
        for seed in (1, 2):
            assert talk.push(make(seed))["ok"]
            s.check_holds(make(seed))
        assert talk.close()[0] == 0


@suite.case("a weight version, where the server has one")
def version(servers):
    for s in servers:
        if not s.new:
            assert "has no place for a weight version" in push(s, make(1), "--weight-version", "v",
                rc=5).stderr
            continue
        for backend in ("gloo", "tensor", "disk"):
            push(s, make(1), "--backend", backend, "--weight-version", "by-" + backend)
            assert s.model_info()["weight_version"] == "by-" + backend, s.model_info()


@suite.case("wsync-verify tells these weights from those")
def verify(servers):
    for s in servers:
        push(s, make(1))
        run("wsync-verify", s, "weights", make(1))
        run("wsync-verify", s, "weights", make(2), rc=1)


@suite.case("requests under way: aborted, put back, or waited for, and the server goes on")
def under_load(servers):
    for s in servers:
        # One that holds requests refuses a flush, and in a session nothing may run.
        kept = ["retract", "in_place"] if s.new else []
        ways = [["--pause", "abort"]] + [["--pause", mode, "--flush", "never"] for mode in kept]
        if not s.new:
            ways.append(["--pause", "none", "--flush", "never"])
        for seed, options in enumerate(ways, 1):
            answers = []
            asking = [threading.Thread(target=lambda: answers.append(s.generate(300)))
                      for _ in range(3)]
            for t in asking:
                t.start()
            time.sleep(0.5)
            push(s, make(seed), *options)
            for t in asking:
                t.join(lib.PATIENCE)
            assert len(answers) == 3, "%s: %d answers" % (options, len(answers))
            s.check_holds(make(seed))
            status, reply = s.generate(4)
            assert status == 200 and len(reply["output_ids"]) == 4, reply
            if options != ["--pause", "abort"]:
                assert [r["meta_info"]["completion_tokens"] for _,
                        r in answers] == [300] * 3, answers


@suite.case("what a server cannot load is partial, and the next push mends it")
def misfit(servers):
    for s in servers:
        # a down_proj would be padded in silence
        bad = make(1, "model.layers.1.self_attn.q_proj.weight")
        result = push(s, bad, "--verify", "none", rc=5)
        assert result.end["endpoints"][0]["state"] == "partial", result
        push(s, make(2))
        s.check_holds(make(2))


@suite.case("a push and a flush clear the prefix cache, --flush never does not")
def cleared(servers):
    for s in servers:
        command = "wsync-push %s -q -e %s" % (make(1), s.url)
        for clears in (command, "wsync-ctl flush -q -e " + s.url):
            row = lib.caches(s, clears)
            assert row["verdict"] == "cleared" and row["cached_before"] > 100, row
        row = lib.caches(s, command + " --flush never")
        assert row["verdict"] == "cached" and row["cached_after"] > 100, row


@suite.case("paused, flushed and resumed")
def life(servers):
    for s in servers:
        run("wsync-ctl", s, "pause")
        run("wsync-ctl", s, "resume")
        run("wsync-ctl", s, "flush")
        run("wsync-ctl", s, "health")
        run("wsync-ctl", s, "repair")


@suite.case("probabilities agree before and after a push of the same weights")
def logprobs(servers):
    with open(lib.scratch("prompts"), "w") as f:
        f.write(json.dumps({"input_ids": [5, 6, 7, 8, 9, 10]}) + "\n")
    for s in servers:
        saved = lib.scratch("saved." + s.version)
        push(s, make(1))
        run("wsync-verify", s, "logprobs", "--prompts", lib.scratch("prompts"), "--save", saved)
        push(s, make(2))
        run("wsync-verify", s, "logprobs", saved, "--max-difference", "0.01", rc=1)
        push(s, make(1))
        run("wsync-verify", s, "logprobs", saved, "--max-difference", "0.01")


def start_all(servers):
    wanted = os.environ.get("WSYNC_TEST_SGLANG", "")
    if wanted in ("", "0"):
        raise lib.Skip("WSYNC_TEST_SGLANG is not set; it fetches up to 2 GB from PyPI")
    began = time.monotonic()
    for version in VERSIONS if wanted == "1" else wanted.split():
        servers.append(Server(version))
    try:
        for s in servers:
            s.await_ready()
    except (AssertionError, TimeoutError):
        lib.show_logs(began)
        raise
    return servers


def main():
    servers = []
    try:
        return suite.main(lambda: start_all(servers))
    finally:
        for s in servers:
            s.stop()


if __name__ == "__main__":
    sys.exit(main())
