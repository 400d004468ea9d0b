# SPDX-License-Identifier: Apache-2.0
"""vllm_server.py - a real vLLM on this machine, models for it, and what it computes.

Everything that serves and loads is vLLM's own; only the communicator is that of lib/vllm. The
models are random, of two layers, without a tokenizer, and untied: on a CPU vLLM keeps a packed copy
of the head, which an update of the embedding does not reach.
"""
import atexit
import contextlib
import json
import os
import random
import signal
import struct
import subprocess
import urllib.error
import urllib.request

import lib

VERSION = "0.32.0"
SECONDS = 120  # of every call: far more than it takes, but shorter than lib.PATIENCE
EXTENSION = os.path.join(lib.TREE, "lib", "vllm")
HIDDEN, HEADS, KV_HEADS, INNER, WORDS, LAYERS = 64, 4, 2, 128, 256, 2
HEAD = 32  # the smallest size that the attention of vLLM for CPUs has
CONFIG = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "vocab_size": WORDS,
          "intermediate_size": INNER, "head_dim": HEAD, "num_attention_heads": HEADS,
          "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
          "max_position_embeddings": 512, "hidden_act": "silu", "tie_word_embeddings": False,
          "attention_bias": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
FAMILIES = {"llama": ("LlamaForCausalLM", []),
            "qwen3": ("Qwen3ForCausalLM", [("self_attn.q_norm", [HEAD]),
                                           ("self_attn.k_norm", [HEAD])])}
PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3], [17] * 20, list(range(3, 120))]


# ---- checkpoints

def shapes(family):
    """(name, shape) of every tensor, layer by layer, in the order of a real checkpoint."""
    yield "model.embed_tokens.weight", [WORDS, HIDDEN]
    for i in range(LAYERS):
        for name, shape in [("input_layernorm", [HIDDEN]),
                            ("self_attn.q_proj", [HEADS * HEAD, HIDDEN]),
                            ("self_attn.k_proj", [KV_HEADS * HEAD, HIDDEN]),
                            ("self_attn.v_proj", [KV_HEADS * HEAD, HIDDEN]),
                            *FAMILIES[family][1],
                            ("self_attn.o_proj", [HIDDEN, HEADS * HEAD]),
                            ("post_attention_layernorm", [HIDDEN]),
                            ("mlp.gate_proj", [INNER, HIDDEN]), ("mlp.up_proj", [INNER, HIDDEN]),
                            ("mlp.down_proj", [HIDDEN, INNER])]:
            yield "model.layers.%d.%s.weight" % (i, name), shape
    yield "model.norm.weight", [HIDDEN]
    yield "lm_head.weight", [WORDS, HIDDEN]


def make(family, seed):
    """A directory with a checkpoint of random bfloat16 numbers; made once."""
    path = lib.scratch("vllm-%s.%d" % (family, seed))
    if os.path.isdir(path):
        return path
    os.mkdir(path)
    with open(path + "/config.json", "w") as f:
        json.dump(dict(CONFIG, model_type=family, architectures=[FAMILIES[family][0]]), f)
    numbers, header, data = random.Random(seed), {}, bytearray()
    for name, shape in shapes(family):
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        # The upper halves of float32 numbers around 0, or around 1 for norms.
        mean, spread = (1.0, 0.1) if "norm" in name else (0.0, 0.2)
        raw = b"".join(struct.pack("<f", numbers.gauss(mean, spread))[2:] for _ in range(n))
        header[name] = {"dtype": "BF16", "shape": shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    return path


def tensors(path):
    """(name, dtype as vLLM names it, shape, bytes) of every tensor of a checkpoint, in order."""
    with open(path + "/model.safetensors", "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), f.read()
    header.pop("__metadata__", None)
    return [(name, lib.TORCH_NAME[t["dtype"]], t["shape"], data[slice(*t["data_offsets"])])
            for name, t in header.items()]


# ---- a server

def python(version=VERSION):
    """The Python that has this vLLM."""
    made = subprocess.run([os.path.join(lib.HERE, "vllm.sh"), version], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=8000, check=False)
    if made.returncode == 77:
        raise lib.Skip(made.stderr.strip().split("\n")[-1])
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


ON_CPU = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1",
          "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


class Server:
    """A vLLM that serves a checkpoint. extension: with that of lib/vllm; dev: with the routes that
    update weights; engine: with this weight transfer engine, or None; key: with this API key;
    command: of its Python; device: the environment that says where it computes."""

    def __init__(self, model, tp=1, extension=True, dev=True, engine="nccl", key=None, options=(),
                 version=VERSION, command=None, device=None):
        self.model, self.tp, self.key = model, tp, key
        port = lib.free_port()
        self.url = "http://127.0.0.1:%d" % port
        self.log = open(lib.scratch("vllm-%d.err" % port), "w+")
        env = {**(ON_CPU if device is None else device),
               "VLLM_SERVER_DEV_MODE": str(int(dev)), "VLLM_HOST_IP": "127.0.0.1",
               "GLOO_SOCKET_IFNAME": "", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
               "VLLM_CACHE_ROOT": lib.scratch("vllm-cache"),
               "PYTHONPATH": EXTENSION, "PYTHONDONTWRITEBYTECODE": "1"}
        argv = [command or python(version), "-m", "vllm.entrypoints.openai.api_server",
                "--model", model, "--tensor-parallel-size", str(tp),
                "--host", "127.0.0.1", "--port", str(port),
                "--enforce-eager", "--skip-tokenizer-init", "--max-model-len", "256", "--dtype",
                "bfloat16", "--served-model-name", "tiny", "--max-logprobs", "10"]
        if engine:
            argv += ["--weight-transfer-config", json.dumps({"backend": engine})]
        if extension:
            argv += ["--worker-extension-cls", "wsync_vllm.WorkerExtension"]
        if key:
            argv += ["--api-key", key]
        # A session of its own, so that what it starts can be ended with it.
        self.child = lib.start(argv + list(options), env, stdout=self.log, stderr=self.log,
                               stdin=subprocess.DEVNULL, start_new_session=True)
        atexit.register(self.stop)  # its engines and workers outlive it otherwise

    def await_ready(self):
        def ready():
            assert self.child.poll() is None, "vllm ended with %d" % self.child.returncode
            try:
                return self.get("/health", seconds=5)[0] == 200
            except OSError:
                return False
        lib.await_true(ready, "vllm %s" % self.url)
        return self

    def stop(self):
        atexit.unregister(self.stop)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        lib.stop(self.child)
        self.log.close()

    def __enter__(self):
        return self.await_ready()

    def __exit__(self, *_):
        self.stop()

    def ask(self, path, data, seconds):
        """(status, reply): JSON where it is that, else text."""
        head = {"Content-Type": "application/json"} if data is not None else {}
        if self.key:
            head["Authorization"] = "Bearer " + self.key
        request = urllib.request.Request(self.url + path, data, head)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as reply:
                status, text = reply.status, reply.read()
        except urllib.error.HTTPError as e:
            status, text = e.code, e.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode(errors="replace")

    def get(self, path, seconds=SECONDS):
        return self.ask(path, None, seconds)

    def post(self, path, body=None, seconds=SECONDS):
        return self.ask(path, b"" if body is None else json.dumps(body).encode(), seconds)

    def call(self, path, body=None):
        """post() of a call that must succeed; its reply."""
        status, reply = self.post(path, body)
        assert status == 200, "%s: %d %s" % (path, status, reply)
        return reply

    def rpc(self, method, **more):
        """What each worker returns for a method."""
        return self.call("/collective_rpc", dict(more, method=method))["results"]


def logprobs(server):
    """Exact floats that every weight has a part in: the log probabilities of the prompts' tokens
    and of the likeliest next ones."""
    out = []
    for prompt in PROMPTS:
        reply = server.call("/v1/completions", {
            "model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0, "logprobs": 5,
            "prompt_logprobs": 1, "return_tokens_as_token_ids": True, "ignore_eos": True})
        choice = reply["choices"][0]
        out.append([[sorted((token, p["logprob"]) for token, p in (place or {}).items())
                     for place in choice["prompt_logprobs"]],
                    choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"],
                    choice["logprobs"]["top_logprobs"]])
    return out
