# SPDX-License-Identifier: Apache-2.0
"""Names by the checkpoint that a server started from, against real servers on this CPU.

For each server and family: a server of seed 0 gets the weights of seed 1, as transformers saves
them and with the names that trainers have in memory. Each push must find the names by the server's
own checkpoint and end with 0, and the server must then answer, bit for bit, as one that was started
from seed 1. Of the other spellings, each tensor is left out once: exit status 1, and nothing
changes. SGLang also tells the checksums of its parameters, and of two families only these.

Only when asked for, since the first time it downloads up to 3 GB: WSYNC_TEST_SGLANG=1 and
WSYNC_TEST_VLLM=1, or the families to try (WSYNC_TEST_VLLM=phi3,granite); two or three minutes each.
"""
import json
import os
import re
import struct
import subprocess
import sys

import lib
import test_sglang
import tiny_families
import vllm_server

SGLANG = "0.5.23"
# vLLM's build for CPUs computes mixtures of experts wrongly after an update.
DENSE = ["phi3", "olmo3", "glm4", "seed_oss", "granite", "gemma2", "gemma3_text"]
FAMILIES = {"vllm": DENSE, "sglang": ["mixtral", "ernie4_5_moe", "qwen2_moe", "glm4_moe",
                                      "deepseek_v2", *DENSE]}
# SGLang's build for CPUs loads and updates them, and lacks kernels to compute them.
NO_KERNELS = ["qwen2_moe", "deepseek_v2"]


def fsdp(name):
    """FSDP wraps the whole model and each layer."""
    return "_fsdp_wrapped_module." + re.sub(r"(layers\.\d+\.)", r"\1_fsdp_wrapped_module.", name)


def peft(name):
    """PEFT wraps the whole model and each layer that has an adapter."""
    return "base_model.model." + re.sub(r"(self_attn\.\w+_proj)\.", r"\1.base_layer.", name)


SPELLINGS = {"memory": str, "fsdp": fsdp, "peft": peft}


# ---- checkpoints

def read(path):
    """name -> (its entry in the header, bytes)"""
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), f.read()
    header.pop("__metadata__", None)
    return {name: (t, data[slice(*t["data_offsets"])]) for name, t in header.items()}


def write(path, tensors):
    header, data = {}, bytearray()
    for name, (t, raw) in tensors.items():
        header[name] = dict(t, data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    with open(path, "wb") as f:
        text = json.dumps(header).encode()
        f.write(struct.pack("<Q", len(text)) + text + data)
    return path


def make(family, python, env):
    """The checkpoints of both seeds, and what the second one's tensors are in memory."""
    models = [lib.scratch("like-%s.%d" % (family, seed)) for seed in (0, 1)]
    memory = lib.scratch("like-%s.safetensors" % family)
    for seed, path in enumerate(models):
        if not os.path.isdir(path):
            with open(lib.scratch("like.err"), "w") as log:  # shown where a case fails
                subprocess.run([*python, "-W", "ignore", tiny_families.__file__, family, str(seed),
                                path, memory], env={**os.environ, **env, "HF_HUB_OFFLINE": "1"},
                               check=True, timeout=300, stdout=log, stderr=log)
    return models, read(memory)


# ---- servers: each with its answers to a prompt, which every weight has a part in

class Vllm(vllm_server.Server):
    answers = vllm_server.logprobs

    @staticmethod
    def python():
        return [vllm_server.python()], {}


class Sglang(test_sglang.Server):
    def __init__(self, model):
        super().__init__(SGLANG, model)
        with open(model + "/config.json") as f:
            self.computes = json.load(f)["model_type"] not in NO_KERNELS

    @staticmethod
    def python():
        return test_sglang.python_of(SGLANG)

    def answers(self):
        told = lib.run_program("wsync-list-weights", ["--checksum", "reported", "--json"], [self])
        sums = {t["name"]: t["checksum"] for t in told.of("tensor")}
        assert len(sums) > 10 and None not in sums.values(), told
        return [sums] + [self.logprobs(prompt) for prompt in vllm_server.PROMPTS if self.computes]

    def logprobs(self, prompt):
        status, reply = self.post("/generate", {
            "input_ids": prompt, "return_logprob": True, "logprob_start_len": 0,
            "top_logprobs_num": 5, "sampling_params": {
                "max_new_tokens": 4, "temperature": 0, "ignore_eos": True}})
        assert status == 200, reply
        return [reply["output_ids"]] + [reply["meta_info"][kind + "_logprobs"] for kind in (
            "input_token", "output_token", "input_top", "output_top")]


def served(kind, model, use):
    """What use() returns for a server of the model."""
    server = kind(model)
    try:
        server.await_ready()
        return use(server)
    finally:
        server.stop()


# ---- cases

def verify_names(source, like):
    return lib.run_program("wsync-verify", ["names", source, "--like", like, "--json"], [])


def offline(family, like, spelled):
    """Each spelling is the whole model, and without any one tensor it is not."""
    for spelling, tensors in spelled.items():
        path = write(lib.scratch("offline.safetensors"), tensors)
        done = verify_names(path, like)
        assert done.rc == 0, "%s, %s: %s" % (family, spelling, done)
        for left_out in tensors:
            write(path, {n: t for n, t in tensors.items() if n != left_out})
            done = verify_names(path, like)
            assert done.rc in without(left_out, tensors), "%s, %s, without %s: %s" % (
                family, spelling, left_out, done)


def without(name, tensors):
    """The exit statuses that are right without this tensor."""
    if name.endswith("lm_head.weight"):
        embedding = name.replace("lm_head.", "model.embed_tokens.")
        return [0 if tensors[name][1] == tensors[embedding][1] else 1]
    # Without the stack that has two sizes, the order of a square one's axes may be unknown.
    return [1, 3] if name.endswith("experts.gate_up_proj") else [1]


def push(server, source, *options):
    done = lib.run_program("wsync-push", [source, "--json", *options], [server])
    return done, done.end["endpoints"][0]


def pushes(server, models, spelled):
    """The answers: before, and after each way of sending seed 1."""
    told = {"before": server.answers()}
    lacking = dict(next(iter(spelled.values())))
    lacking.pop(next(n for n in lacking if "layers.1." in n))
    done, end = push(server, write(lib.scratch("lacking.safetensors"), lacking))
    assert done.rc == 1 and end["state"] == "untouched" and not end["paused"], done
    assert server.answers() == told["before"], "a refused push changed the answers"
    for way in ("unchanged", *spelled):
        source = models[1] if way == "unchanged" else write(
            lib.scratch("spelled.safetensors"), spelled[way])
        done, end = push(server, source)
        assert done.rc == 0, "%s: %s" % (way, done)
        assert end["evidence"]["names"] in ("reference", "list"), done
        told[way] = server.answers()
        print("# %s: names by %s" % (way, end["evidence"]["names"]), flush=True)
        done, end = push(server, models[0])
        assert done.rc == 0 and server.answers() == told["before"], "back to seed 0: %s" % done
    return told


def check(kind, family):
    models, memory = make(family, *kind.python())
    spelled = {way: {spell(n): t for n, t in memory.items()} for way, spell in SPELLINGS.items()}
    offline(family, models[0], spelled)
    told = served(kind, models[0], lambda server: pushes(server, models, spelled))
    fresh = served(kind, models[1], kind.answers)
    assert fresh != told.pop("before"), "the prompts do not tell the checkpoints apart"
    wrong = [way for way, answers in told.items() if answers != fresh]
    assert not wrong, "it does not answer as a fresh start: %s" % wrong


suite = lib.Suite()
suite.SECONDS = 7200


def set_up():
    if not suite.cases:
        raise lib.Skip("set WSYNC_TEST_SGLANG=1 or WSYNC_TEST_VLLM=1: the first time each "
                       "downloads up to 3 GB")


for which in (Vllm, Sglang):
    words = os.environ.get("WSYNC_TEST_" + which.__name__.upper(), "0").replace(",", " ").split()
    known = FAMILIES[which.__name__.lower()]
    for one in [f for f in known if f in words] or (known if set(words) - {"0"} else []):
        suite.case("%s, %s: any spelling, the bits of a fresh start" % (which.__name__, one))(
            lambda _, which=which, one=one: check(which, one))


if __name__ == "__main__":
    sys.exit(suite.main(set_up))
