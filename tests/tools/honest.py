#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""honest.py - pushes in which everything is right, drawn by chance: each must succeed with the
strongest words that hold, and without a warning that does not.

What servers must have then is computed here from the source, and compared with the checksums of all
ranks. HONEST_PUSHES (300) is the number, HONEST_SEED repeats a run. Factors of adapters are such
that sums are exact in any order.
"""
import array
import collections
import fnmatch
import json
import math
import os
import random
import re
import secrets
import shutil
import struct
import subprocess
import sys

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(TESTS, "peers"), os.path.join(TESTS, "cli")]
import lib  # noqa: E402
import scaled_model  # noqa: E402
import small_model as sm  # noqa: E402
import split_model  # noqa: E402
from tiny_models import XXH  # noqa: E402

COUNT = int(os.environ.get("HONEST_PUSHES") or 300)
SEED = int(os.environ.get("HONEST_SEED") or secrets.randbelow(1 << 31))
sm.H, sm.I, sm.HEADS, sm.VOCAB, sm.EXPERTS, sm.MOE, sm.NOPE, sm.ROPE = 64, 128, 4, 96, 4, 96, 16, 16
H, I, E, BLOCK, EMBED, HEAD = sm.H, sm.I, sm.EXPERTS, sm.BLOCK, "model.embed_tokens.weight", \
    "lm_head.weight"
DENSE = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
MOE = {"qwen2_moe": "Qwen2Moe", "qwen3_moe": "Qwen3Moe", "glm4_moe": "Glm4Moe"}
MLA = {"deepseek_v2": "DeepseekV2", "deepseek_v3": "DeepseekV3", "kimi_k2": "DeepseekV3",
       "deepseek_v32": "DeepseekV32"}
ARCH = {**DENSE, **MOE, **MLA, "gpt_oss": "GptOss"}
# What servers can do, by their sources.
OLD, XORL = ["sglang-0.4", "sglang-0.5"], ["xorl", "xorl-legacy"]
NEW = ["lenient", "sglang-2026", "session", "slime"]
VLLM = ["vllm-0.20", "vllm-0.24", "vllm-0.27", "vllm-0.33"]
LABELS = ["sglang-0.5", *XORL, *NEW, *VLLM[2:]]
SUMS = ["xorl", *NEW, VLLM[3]]
STARTS = ["lenient", "sglang-2026", "session", *VLLM]  # their answers tell two starts apart
TORCH = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def model(family, tied):
    """(config, name -> shape) of a checkpoint."""
    like = "deepseek_v3" if family in MLA else "qwen3_moe" if family in MOE else \
        "qwen3" if family == "qwen3" else "llama"
    c, t = sm.config(like, False), {n: s for n, _, s in sm.tensors(like, False, "BF16")}
    c.update(architectures=[ARCH[family] + "ForCausalLM"], model_type=family,
             tie_word_embeddings=tied, attention_bias=family in ("glm4_moe", "gpt_oss"))
    if family in (*MLA, "glm4_moe"):
        c["num_nextn_predict_layers"] = 1
    t[HEAD] = [sm.VOCAB, H]
    if tied:
        del t[HEAD]
    c.update({"glm4_moe": dict(n_routed_experts=E, n_shared_experts=1, first_k_dense_replace=1,
                               use_qk_norm=True),
              "qwen2_moe": dict(shared_expert_intermediate_size=I),
              "deepseek_v32": dict(index_n_heads=2, index_head_dim=16),
              "gpt_oss": dict(num_local_experts=E)}.get(family, {}))
    for i in range(sm.LAYERS):
        mlp, attn = "model.layers.%d.mlp." % i, "model.layers.%d.self_attn." % i
        if family in ("qwen2", "qwen2_moe") or c["attention_bias"]:
            t.update((attn + p + "_proj.bias", t[attn + p + "_proj.weight"][:1]) for p in "qkv")
        if family == "qwen2_moe":
            del t[attn + "q_norm.weight"], t[attn + "k_norm.weight"]
        if family == "deepseek_v32":
            at = attn + "indexer."
            t.update({at + "wq_b.weight": [32, sm.Q_RANK], at + "wk.weight": [16, H],
                      at + "k_norm.weight": [16], at + "k_norm.bias": [16],
                      at + "weights_proj.weight": [2, H]})
        if family == "gpt_oss":
            for p in ("gate", "up", "down"):
                del t[mlp + p + "_proj.weight"]
            at = mlp + "experts."
            t.update({attn + "o_proj.bias": [H], attn + "sinks": [sm.HEADS],
                      mlp + "router.weight": [E, H], mlp + "router.bias": [E],
                      at + "gate_up_proj_bias": [E, 2 * I], at + "down_proj_bias": [E, H],
                      at + "gate_up_proj": [E, H, 2 * I], at + "down_proj": [E, I, H]})
        if i >= sm.DENSE and family in ("qwen2_moe", "glm4_moe"):
            at, inner = ("expert.", I) if family == "qwen2_moe" else ("experts.", sm.MOE)
            t.update((n + ".weight", shape) for n, *shape in sm.mlp(mlp + "shared_" + at, inner))
            t.update({mlp + "shared_expert_gate.weight": [1, H]} if family == "qwen2_moe" else
                     {mlp + "gate.e_score_correction_bias": [E]})
    return c, {n: s for n, s in t.items() if family != "deepseek_v2" or "e_score" not in n}


# ---- numbers: a tensor is (dtype, shape, bytes) ----

def decode(t):
    letter, raw = "e" if t[0] == "F16" else "f", t[2]
    if t[0] == "BF16":
        raw = bytearray(2 * len(t[2]))
        raw[2::4], raw[3::4] = t[2][0::2], t[2][1::2]
    return struct.unpack("<%d%s" % (math.prod(t[1]), letter), raw)


def encode(dtype, shape, numbers):
    raw = struct.pack("<%d%s" % (len(numbers), "e" if dtype == "F16" else "f"), *numbers)
    if dtype == "BF16":
        raw = array.array("H", [(x + 0x7fff + (x >> 16 & 1)) >> 16
                                for x in array.array("I", raw)]).tobytes()
    return dtype, shape, raw


def convert(t, dtype):
    return t if t[0] == dtype or t[0] not in TORCH else encode(dtype, t[1], decode(t))


def draw(rng, dtype, shape):
    """Numbers of bfloat16 from 2^-5 to 1 of both signs; rough: with all the digits of float32."""
    width = {"rough": 4, "F8_E4M3": 1, "U8": 1}.get(dtype, 2)
    raw = bytearray(rng.randbytes(width * math.prod(shape)))
    high = [b & 0xbf if width == 1 else 0x3d + (b & 1) | b & 0x80 for b in range(256)]
    raw[width - 1::width] = raw[width - 1::width].translate(bytes(high))
    t = {1: dtype, 2: "BF16", 4: "F32"}[width], shape, bytes(raw)
    return t if width != 2 else convert(t, dtype)


def quantize(t):
    codes, scales = scaled_model.quantize(decode(t), *t[1], BLOCK, BLOCK, False)
    return ("F8_E4M3", t[1], bytes(codes)), encode("F32", [-(-n // BLOCK) for n in t[1]], scales)


def unpack(t, scales):
    s, (rows, cols), across = decode(scales), t[1], scales[1][1]
    value = [scaled_model.value(c) for c in range(256)]
    return encode("BF16", t[1], [value[t[2][i * cols + j]] * s[i // BLOCK * across + j // BLOCK]
                                 for i in range(rows) for j in range(cols)])


# ---- sources ----

def put(path, value):
    with open(path, "w") as f:
        f.write(value if isinstance(value, str) else json.dumps(value))
    return path


def save(path, tensors, c=None, shards=0, file="model.safetensors"):
    """A checkpoint in one file, or in several with an index."""
    os.makedirs(path, exist_ok=True)
    index = {}
    for i in range(shards or 1):
        file = "model-%05d-of-%05d.safetensors" % (i + 1, shards) if shards else file
        names = list(tensors)[i::shards or 1]
        index.update((n, file) for n in names)
        split_model.write(path + "/" + file, [(n, *tensors[n]) for n in names])
    if c:
        put(path + "/config.json", c)
    if shards:
        put(path + "/model.safetensors.index.json", {"weight_map": index})
    return path


def lora(rng, path, source, usable, tied):
    """Writes an adapter. Returns name -> change in numbers, or a whole tensor."""
    names = rng.sample(usable, min(len(usable), rng.randint(1, 5)))
    names += [EMBED] * (not tied and rng.random() < 0.3)
    r, alpha, root = rng.choice([1, 4]), rng.choice([2, 4, 8]), rng.random() < 0.3
    c = {"peft_type": "LORA", "r": r, "lora_alpha": alpha, "use_rslora": root, "bias": "none",
         "target_modules": sorted({n[:-len(".weight")] for n in names}), "rank_pattern": {},
         "alpha_pattern": {}}
    file, changes, dtype = {}, {}, rng.choice(["F32", "BF16"])
    for name in names:
        module, rank, top, (rows, cols) = name[:-len(".weight")], r, alpha, source[name][1]
        at = "base_model.model." + module + ".lora_"
        if name != EMBED and rng.random() < 0.3:
            rank, top = c["rank_pattern"][module], c["alpha_pattern"][module] = rng.choice(
                [(1, 2), (4, 2), (4, 16)])
        a, b = ([rng.randint(-4, 4) / 16 for _ in range(rank * n)] for n in (cols, rows))
        if name == EMBED:
            file[at + "embedding_A"] = encode(dtype, [rank, rows], [
                b[i * rank + k] for k in range(rank) for i in range(rows)])
            file[at + "embedding_B"] = encode(dtype, [cols, rank], [
                a[k * cols + j] for j in range(cols) for k in range(rank)])
        else:
            file[at + "A.weight"] = encode(dtype, [rank, cols], a)
            file[at + "B.weight"] = encode(dtype, [rows, rank], b)
        scale = top / (math.sqrt(rank) if root else rank)
        changes[name] = [scale * sum(b[i * rank + k] * a[k * cols + j] for k in range(rank))
                         for i in range(rows) for j in range(cols)]
    biases = [n for n in source if n.endswith("q_proj.bias") and n[:-4] + "weight" in names]
    if biases and rng.random() < 0.5:
        c["bias"] = "lora_only"
    saved = biases if c["bias"] != "none" else []
    if not tied and rng.random() < 0.3:
        c["modules_to_save"] = ["lm_head"]
        saved = saved + [HEAD]
    for n in saved:
        file["base_model.model." + n] = changes[n] = draw(rng, source[n][0], source[n][1])
    save(path, file, file="adapter_model.safetensors")
    put(path + "/adapter_config.json", c)
    return changes


def merge(t, changes, two_step):
    total = None
    for change in changes:
        if isinstance(change, tuple):
            t = convert(change, t[0])
        elif two_step:
            change = decode(encode(t[0], t[1], change))
            t = encode(t[0], t[1], [x + y for x, y in zip(decode(t), change)])
        else:
            total = [x + y for x, y in zip(total, change)] if total else change
    return encode(t[0], t[1], [x + y for x, y in zip(decode(t), total)]) if total else t


# ---- pushes ----

class Scene:
    """Servers of one model, and what they must have."""

    def __init__(self, number, tried):
        self.rng, self.tried, self.said = random.Random("%d.%d" % (SEED, number)), tried, ""
        rng, self.path, self.version, self.held = self.rng, lib.scratch(str(number)), "default", {}
        self.vllm = rng.random() < 0.3
        families = sorted(set(ARCH) - ({"gpt_oss"} if self.vllm else set()))
        self.family = families[number % len(families)]
        self.tied = self.family in DENSE and self.family != "mistral" and rng.random() < 0.4
        self.config, self.shapes = model(self.family, self.tied)
        self.keeps = rng.choice(["BF16", "BF16", "BF16", "F16", "fp8", "fp8"])
        if self.family == "gpt_oss":
            self.keeps = rng.choice(["BF16", "mxfp4"])
        self.dtype = "F16" if self.keeps == "F16" else "BF16"
        self.config["torch_dtype"] = TORCH[self.dtype]
        some = rng.choice([VLLM[:3], VLLM[3:]] if self.vllm else
                          [NEW, XORL, XORL[1:], NEW + XORL])
        if not self.vllm and self.keeps in TORCH and rng.random() < 0.2:
            some = [rng.choice(OLD)]
        size = self.pick("fleet of", 1, 1, 1, 2, 3)
        self.lineages = [self.pick("lineage", *some) for _ in range(size)]
        self.tps = [self.pick("tp", 1, 2) for _ in range(size)]
        self.skip = ["model.layers.0.self_attn.o_proj"] * (
            self.keeps == "fp8" and "xorl-legacy" not in self.lineages and rng.random() < 0.4)
        save(self.path + "/server", {}, dict(self.config, **self.quantization(self.keeps)))
        self.servers, self.stock = [], set()
        for i, (lineage, tp) in enumerate(zip(self.lineages, self.tps)):
            options = ["--ep", "2"] * (self.family not in DENSE and tp == 2 and rng.random() < 0.5)
            if lineage in ("sglang-2026", "session") and rng.random() < 0.4:
                options += ["--device", self.pick("device", "cpu", "cuda")]
                self.stock.add(i)
            self.servers.append(lib.Embedded("--lineage", lineage, "--tp", str(tp), "--model",
                                             self.path + "/server", *options))
        tried["family " + self.family] += 1

    def quantization(self, kind):
        q = {"quant_method": kind}
        if kind == "fp8":
            q.update(weight_block_size=[BLOCK, BLOCK], activation_scheme="dynamic")
            q.update({"modules_to_not_convert": ["lm_head", *self.skip]} if self.skip else {})
        return {"quantization_config": q} if kind in ("fp8", "mxfp4") else {}

    def pick(self, what, *options):
        one = self.rng.choice(options)
        self.tried["%s %s" % (what, one)] += 1
        return one

    def chance(self, what, p):
        yes = self.rng.random() < p
        self.tried[what] += yes
        return yes

    def all_in(self, lineages):
        return set(self.lineages) <= set(lineages)

    def new_path(self, what):
        return "%s/%s%d" % (self.path, what, self.rng.randrange(1 << 40))

    def is_fp8(self, name):
        return re.search(r"(_proj|_with_mqa|\.wq_b|\.wk)\.weight$", name) and \
            "weights_proj" not in name and name[:-len(".weight")] not in self.skip

    def source(self):
        """(tensors, kind): a checkpoint that these servers can take."""
        kinds = ["BF16", "BF16", "F16", "F32", "mixed"]
        kinds += ["fp8"] * 4 if self.keeps == "fp8" else ["rough", "fp8"]
        kind = self.keeps if self.family == "gpt_oss" else self.rng.choice(kinds)
        self.tried["format %s to %s" % (kind, self.keeps)] += 1
        rng, source = self.rng, {}
        for name, shape in self.shapes.items():
            is_float = "e_score" in name or (kind == "mixed" and "norm" in name)
            dtype = "F32" if is_float else "BF16" if kind in ("mixed", "fp8", "mxfp4") else kind
            if kind == "mxfp4" and len(shape) == 3:
                is_down = "down" in name
                rows = [E, H if is_down else 2 * I, (I if is_down else H) // 32]
                source[name + "_blocks"] = draw(rng, "U8", [*rows, 16])
                source[name + "_scales"] = draw(rng, "U8", rows)
            elif kind == "fp8" and self.is_fp8(name):
                grid = [-(-n // BLOCK) for n in shape]
                source[name] = draw(rng, "F8_E4M3", shape)
                source[name + "_scale_inv"] = encode("F32", grid, [
                    (128 + rng.randrange(128)) / 2 ** 14 for _ in range(math.prod(grid))])
            else:
                source[name] = draw(rng, dtype, shape)
        return source, kind

    def transform(self, source, kind, globs):
        """(options, what is sent by its name)."""
        options, sent, adapters = [], dict(source), []
        usable = [n for n, t in source.items() if self.is_fp8(n) and "indexer" not in n and
                  (t[0] != "F8_E4M3" or self.keeps != "fp8")]
        if kind == "fp8" and self.keeps != "fp8":
            options.append("--unpack")
            sent = {n: unpack(t, source[n + "_scale_inv"]) if t[0] == "F8_E4M3" else t
                    for n, t in source.items() if not n.endswith("_scale_inv")}
        if usable and self.family != "gpt_oss" and not globs and self.chance("adapter", 0.3):
            for _ in range(self.pick("adapters", 1, 1, 2)):
                path = self.new_path("lora")
                adapters.append(lora(self.rng, path, sent, usable, self.tied))
                options += ["--lora", path]
            two_step = self.chance("two-step", 0.3)
            options += ["--lora-rounding", "two-step"] * two_step
            for name in {n: 0 for x in adapters for n in x}:
                sent[name] = merge(sent[name], [x[name] for x in adapters if name in x], two_step)
        if self.keeps == "fp8" and kind != "fp8":
            options += ["--quantize", "fp8"]
            for name in [n for n in sent if self.is_fp8(n)]:
                sent[name], sent[name + "_scale_inv"] = quantize(sent[name])
        return options, sent

    def write(self, source, kind, options, globs):
        """The words that name the source, and whether servers can load it as it is."""
        forms = ["plain", "shards", "file", "prefix", "renamed", "extra"]
        forms += ["written"] * (not globs)
        form, path = self.pick("form", *forms), self.new_path("source")
        words, c = [path], dict(self.config, **self.quantization(kind))
        if form in ("prefix", "renamed"):
            at = "actor." if form == "renamed" else self.rng.choice(["module.", "_orig_mod."])
            source = {at + n: t for n, t in source.items()}
        if form == "renamed":
            like = "deepseek_v3" if self.family == "kimi_k2" else self.family
            words += ["--map", put(
                path + ".map", "family mine\narch %s\nlike %s\nrename actor.** -> **\n" % (
                    c["architectures"][0], like))]
        if form == "extra":  # what no server has
            names = ["model.layers.0.self_attn.rotary_emb.inv_freq"]
            if "num_nextn_predict_layers" in c:
                names += ["model.layers.%d.enorm.weight" % sm.LAYERS]
            source = dict(source, **{n: draw(self.rng, "F32", [8]) for n in names})
        save(path, source, c, self.rng.randint(2, 4) if form == "shards" else 0)
        if form == "file":
            words[0] += "/model.safetensors"
        if form == "written":
            block = ["--block-size", "%dx%d" % (BLOCK, BLOCK)] * ("--quantize" in options)
            block += ["--skip-modules", *self.skip] * ("--quantize" in options and bool(self.skip))
            words = [path + ".written"]
            done = self.run("wsync-push", [path, "--write", words[0], *options, *block], alone=True)
            assert "names fit its config.json" in done.stdout, "words"
            options.clear()
        return words, form in ("plain", "shards", "written") and not options and not globs

    def protocol(self, dtypes, part):
        names = ["auto", "auto"] + ["bucket", "whole"] * self.all_in(XORL)
        if dtypes <= {"F32", "F16", "BF16"} and not self.vllm:
            names.append("none")
            if self.all_in(XORL[1:]):
                names.append("receive")
            if self.all_in(XORL[1:]) and dtypes == {self.dtype} and not part and \
                    self.family in (*DENSE, *MOE):
                names.append("ep-scatter")
        name = self.pick("protocol", *names)
        if name in ("bucket", "whole"):
            return ["--protocol", "two-phase", "--two-phase", name]
        return ["--load-format" if name == "none" else "--protocol", name]

    def way(self, as_it_is, dtypes, part):
        """How it gets there."""
        single = len(set(self.tps)) == 1 and self.all_in(NEW + XORL)
        backend = self.pick("backend", "gloo", "gloo", "disk", *["tensor"] * single)
        options = ["--backend", backend]
        if backend == "disk" and (not as_it_is or self.chance("disk-dir", 0.5)):
            options += ["--disk-dir", self.path + "/disk"]
        if backend == "gloo":
            options += self.protocol(dtypes, part)
        flush = self.pick("flush", "last", "last", "never", "every")
        pauses = ["abort"] + ["in_place"] * (flush == "never" and self.all_in(NEW + VLLM))
        pauses += ["wait"] * self.vllm + ["retract"] * self.all_in(NEW)
        options += ["--flush", flush, "--pause", self.pick(
            "pause", *["none"] if "sglang-0.4" in self.lineages else pauses)]
        if self.chance("bucket size", 0.3):
            options += ["--bucket-size", self.rng.choice(["20KiB", "64KiB", "1MiB"])]
        return options

    def due(self, kind, version, options, must):
        """The warnings that are right, and whether they must come: of casts, labels, memory."""
        out, cast = {}, kind if kind in TORCH else "F32" if kind == "rough" else "BF16"
        why = "and twice the bytes or more are sent" if cast == "F32" else \
            "which have fewer digits then" if self.dtype == "BF16" else \
            "and those above 65504 become infinite"
        # An FP8 server keeps norms and embeddings in 16 bits.
        if cast != self.dtype and (self.keeps in TORCH or cast == "F16"):
            out["%s is sent, and it keeps %s: it casts the weights, %s" % (
                TORCH[cast], TORCH[self.dtype], why)] = must and self.keeps in TORCH
        if not version and self.version != "default":
            out["its weight version stays '%s'" % self.version] = must
        if "whole" in options or "receive" in options:
            out["buckets stay in the servers' memory"] = False
        self.version = version or self.version
        return out

    def push(self):
        globs, rng = [], self.rng
        if self.held and self.chance("globs", 0.2):
            globs = [self.pick("choice", "--exclude", "--include"), self.pick(
                "glob", "model.layers.0.*", "*layers.1.*", EMBED)]
        source, kind = self.source()
        transform, sent = self.transform(source, kind, globs)
        is_plain = not transform and not globs
        chosen = [n for n in sent if not globs or
                  fnmatch.fnmatchcase(n, globs[1]) == (globs[0] == "--include")]
        path, as_it_is = self.write(source, kind, transform, globs)
        new = dict(self.held)
        for name in chosen:
            kept, t = "F32" if "e_score" in name else self.dtype, sent[name]
            new[name] = t if "_scale" in name or self.family == "glm4_moe" and \
                name.endswith("mlp.gate.weight") else convert(convert(t, kept), t[0])
        # A rounded tensor has no checksum to compare; nor has a transposed one at a stock server.
        stock = len(self.stock) == len(self.servers)
        exact = not (self.stock and self.family == "gpt_oss") and (
            stock or all(new[n] == sent[n] for n in chosen))
        self.verify = self.pick(
            "verify", "names", "names", *["none"] * (not globs or not self.vllm),
            *["hash"] * (2 * self.all_in(SUMS) * exact))
        options = transform + globs + ["--allow-unknown", "format"] * (self.keeps == "mxfp4")
        version, way = None, self.way(as_it_is, {sent[n][0] for n in chosen}, bool(globs))
        if self.all_in(LABELS) and self.chance("weight version", 0.6):
            version = "v%d" % rng.randrange(10 ** 6)
            options += ["--weight-version", version]
        can_stage = "sglang-0.4" not in self.lineages and (
            "--disk-dir" in way or "gloo" in way and self.all_in(XORL))
        staged = can_stage and self.verify != "hash" and self.chance("stage", 0.3)
        parts = is_plain and not staged and "disk" not in way and path[-1][-7:] != ".written" and \
            not (self.vllm and self.verify == "none") and "ep-scatter" not in way and \
            self.chance("senders", 0.1)
        due = self.due(kind, version, way + ["whole"] * staged, not (globs or staged or parts))
        if staged:
            at = way.index("--flush")
            way = way[:2] + way[2:4] * ("--disk-dir" in way) + way[at + 4:] + ["--stage"]
        args = path + options + way + ["--verify", self.verify]
        left = len(sent) - len(chosen)
        if staged:
            self.run_json(args, globs, left, due, "staged", version)
            self.look()
            done = self.run("wsync-ctl", ["complete", "--json"])
            ends = json.loads(done.stdout.splitlines()[-1])["endpoints"]
            assert all(e["state"] == "committed" for e in ends), "state"
        elif parts:
            step = rng.randrange(1 << 30)
            for i in (1, 2):
                part = {n: t for n, t in source.items() if (".layers.0." in n) == (i == 1)}
                c = dict(self.config, **self.quantization(kind))
                args[:len(path)] = [save(self.new_path("part"), part, c)]
                path = path[:1]
                turn = ["--sender", "%d/2" % i, "--lock", self.path + "/lock"]
                turn += [] if version else ["--round", str(step)]
                self.run_json(args + turn, globs, 0, due, "committed", version if i == 2 else None)
        else:
            args += self.require(args, globs)
            if len(self.servers) > 1 and self.chance("canary", 0.3):
                args += ["--canary", "1", "--canary-check", "true"]
            if self.chance("text", 0.4):
                self.run_text(args, globs, len(chosen), due)
            else:
                self.run_json(args, globs, left, due, "committed", version)
        self.held = new
        self.look()
        if not parts and not globs:
            self.ask_again(path + transform, args, version, exact)

    def require(self, args, globs):
        out = []
        if self.verify != "none":
            out = [self.pick("require", "names", "values", *["format"] * (self.keeps != "mxfp4"))]
        if "never" not in args and not self.all_in(OLD):
            out += ["caches"] * self.chance("require caches", 0.2)
        out += ["bytes"] * (self.verify == "hash" and not globs)
        return [word for x in out for word in ("--require", x)]

    def ask_again(self, source, args, version, exact):
        """Those who compare the same source say yes."""
        if self.all_in(SUMS) and exact and self.chance("wsync-verify", 0.3):
            self.run("wsync-verify", ["weights", *source])
            self.run("wsync-verify", ["names", *source])
        if version and "--stage" not in args and self.chance("only-stale", 0.2):
            # What --require asks for is in no record of a server that tells no single start.
            wants = [x for i, x in enumerate(args) if "--require" not in (x, args[i - 1])]
            done, n = self.run("wsync-push", wants + ["--only-stale"]), len(self.servers)
            words = "all %d endpoint%s weight version %s" % (
                n, "s have" if n > 1 else " has", version)
            assert words in done.stdout, "not " + words

    def run(self, program, args, alone=False):
        urls = [] if alone else [x for s in self.servers for x in ("-e", s.url)]
        argv = [os.path.join(lib.BUILD, "bin", program), *args, *urls]
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=lib.PATIENCE, env=dict(os.environ, **lib.push_env()))
        self.said = "%s\nexit %d\n%s" % (" ".join(argv), done.returncode, done.stdout + done.stderr)
        assert done.returncode == 0, "refused"
        return done

    def run_push(self, args, due):
        done = self.run("wsync-push", args)
        for line in done.stderr.splitlines():
            assert any(w in line for w in due), "unexpected: " + line
        for w, must in due.items():
            assert w in done.stderr or not must, "no warning: " + w
        return done.stdout.splitlines()[-1]

    def run_text(self, args, globs, sent, due):
        last, size = self.run_push(args, due), r"[\d.]+ \w+"
        words = {"hash": ", %sverified by hash" % ("what was sent " * bool(globs)),
                 "names": ", names verified", "none": ""}[self.verify]
        line = r"pushed %s \(\d+ tensors?, \d+ buckets?\) to %d endpoints? in %s, %s/s%s" % (
            size, len(self.servers), size, size, words)
        assert re.match(line, last), "words"
        assert " left out by --" in last if globs else \
            last.endswith(")") == (self.keeps == "mxfp4"), "words"

    def run_json(self, args, globs, left, due, word, version):
        end = json.loads(self.run_push(args + ["--json"], due))
        assert end["ok"] and sum(x["tensors"] for x in end.get("left_out", [])) >= left, "left_out"
        unchecked = self.verify == "none"
        assert unchecked or end["names"]["checked"] and not end["names"]["warnings"], "names"
        for e, lineage in zip(end["endpoints"], self.lineages):
            ev = e["evidence"]
            lasts = "gloo" in args and "ep-scatter" not in args  # the group, to the end
            is_sure = version or lasts or lineage in STARTS
            state = word.replace("staged", "untouched")
            assert e["ok"] and e["state"] == state and not e["paused"], "state"
            assert ev["word"] == (word if is_sure or word == "staged" else "acknowledged"), "word"
            assert unchecked or ev["names"] in ("list", "rules") and ev["names_ok"], "names"
            packed = self.keeps == "mxfp4" and ev["format"]["sends"] != "other"
            right = "allowed" if packed else "right"
            assert ev["format"]["verdict"] == right, "format"

    def look(self):
        """Compares each rank's checksum of each tensor with what it must have."""
        for i, (s, tp) in enumerate(zip(self.servers, self.tps)):
            ranks = s.get("/wsync/checksums")["ranks"]
            assert len(ranks) == tp, "ranks"
            if i in self.stock:
                self.look_at_numbers(s)
                continue
            for got in (r["checksums"] for r in ranks):
                for name in {**self.held, **got}:
                    raw = self.held.get(EMBED if self.tied and name == HEAD else name, [b""])[-1]
                    right = "%016x" % XXH.XXH3_64bits(raw, len(raw))
                    assert got.get(name) == right, "bytes of %s at %s" % (name, s.url)

    def look_at_numbers(self, s):
        """The same of a server whose checksums are of its own parameters."""
        for name, t in self.held.items():
            if t[0] in TORCH and "_scale" not in name:
                got = s.post("/get_weights_by_name", {"name": name, "truncate_size": 3})
                while isinstance(got[0], list):
                    got = sum(got, [])
                assert tuple(got) == decode(t)[:len(got)], "numbers of %s at %s" % (name, s.url)


def main():
    print("HONEST_SEED=%d HONEST_PUSHES=%d" % (SEED, COUNT), flush=True)
    tried, pushes, refused, number = collections.Counter(), 0, 0, 0
    while pushes < COUNT:
        scene = Scene(number, tried)
        number += 1
        try:
            for _ in range(3):
                pushes += 1
                scene.push()
        except AssertionError as e:
            refused += 1
            print("---- %s\n%s, which keeps %s, at %s tp %s\n%s" % (
                e, scene.family, scene.keeps, scene.lineages, scene.tps, scene.said), flush=True)
        for s in scene.servers:
            lib.stop(s.child)
        shutil.rmtree(scene.path)
    print("\n".join("%6d %s" % (tried[what], what) for what in sorted(tried)))
    print("%d honest pushes, %d refused" % (pushes, refused))
    return refused > 0


if __name__ == "__main__":
    sys.exit(main())
