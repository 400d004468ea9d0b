# SPDX-License-Identifier: Apache-2.0
"""What trainers keep, fused, transposed, wrapped or one file per rank, arrives as the checkpoint
would.

The layouts are made here, with nothing of wsync's rules: slices and strides of arrays of 16-bit
elements. A checkpoint under its own names goes into one endpoint, the same weights in a trainer's
layout into another; both must end with the same checksums, rank by rank.
"""
import array
import json
import os
import random
import shutil
import struct
import sys
import urllib.request

from lib import BUILD, PATIENCE, Lines, Session, Suite, push, scratch, start, stop

HIDDEN, HEADS, KV, DIM, INNER, MID, EXPERTS, VOCAB = 256, 8, 2, 32, 512, 64, 8, 1000
CONFIG = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
          "hidden_size": HIDDEN,
          "intermediate_size": INNER, "moe_intermediate_size": MID, "num_hidden_layers": 2,
          "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": DIM,
          "num_experts": EXPERTS, "mlp_only_layers": [0], "decoder_sparse_step": 1,
          "vocab_size": VOCAB, "tie_word_embeddings": False}


class Tensor:
    def __init__(self, shape, data):
        self.shape, self.data = list(shape), data
        assert len(data) == self.count(self.shape), (shape, len(data))

    @staticmethod
    def count(shape):
        n = 1
        for d in shape:
            n *= d
        return n

    def rows(self, first, n):
        """So many of the first axis; what is not there is padding."""
        width = self.count(self.shape[1:])
        data = self.data[first * width:(first + n) * width]
        data.extend([0x7f7f] * (n * width - len(data)))
        return Tensor([n] + self.shape[1:], data)

    def columns(self, first, n):
        rows, width = self.shape
        data = array.array("H")
        for r in range(rows):
            data.extend(self.data[r * width + first:r * width + first + n])
        return Tensor([rows, n], data)

    def transposed(self):
        rows, width = self.shape
        data = array.array("H")
        for c in range(width):
            data.extend(self.data[c::width])
        return Tensor([width, rows], data)


def stacked(tensors):
    """One after the other along the first axis."""
    data = array.array("H")
    for t in tensors:
        data.extend(t.data)
    return Tensor([sum(t.shape[0] for t in tensors)] + tensors[0].shape[1:], data)


def planes(tensors):
    """As many planes of a new first axis."""
    return Tensor([len(tensors)] + tensors[0].shape, stacked(tensors).data)


def write(path, tensors):
    header, at = {}, 0
    os.makedirs(os.path.dirname(path), exist_ok=True)
    for name, t in tensors.items():
        end = at + 2 * len(t.data)
        header[name] = {"dtype": "BF16", "shape": t.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            t.data.tofile(f)


def write_config(directory):
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as f:
        json.dump(CONFIG, f)


def make_checkpoint():
    draw, model = random.Random(1), {}

    def add(name, *shape):
        data = array.array("H")
        data.frombytes(draw.randbytes(2 * Tensor.count(shape)))
        model[name] = Tensor(shape, data)

    add("model.embed_tokens.weight", VOCAB, HIDDEN)
    for layer in range(2):
        prefix = "model.layers.%d." % layer
        add(prefix + "input_layernorm.weight", HIDDEN)
        for which, heads in (("q", HEADS), ("k", KV), ("v", KV)):
            add(prefix + "self_attn.%s_proj.weight" % which, heads * DIM, HIDDEN)
        add(prefix + "self_attn.o_proj.weight", HIDDEN, HEADS * DIM)
        add(prefix + "self_attn.q_norm.weight", DIM)
        add(prefix + "self_attn.k_norm.weight", DIM)
        add(prefix + "post_attention_layernorm.weight", HIDDEN)
        modules = ["mlp"] if layer == 0 else ["mlp.experts.%d" % e for e in range(EXPERTS)]
        for module in modules:
            inner = INNER if layer == 0 else MID
            add(prefix + module + ".gate_proj.weight", inner, HIDDEN)
            add(prefix + module + ".up_proj.weight", inner, HIDDEN)
            add(prefix + module + ".down_proj.weight", HIDDEN, inner)
    add("model.layers.1.mlp.gate.weight", EXPERTS, HIDDEN)
    add("model.norm.weight", HIDDEN)
    add("lm_head.weight", VOCAB, HIDDEN)
    return model


def untouched(model):
    """What no trainer fuses."""
    fused = (".q_proj.", ".k_proj.", ".v_proj.", ".gate_proj.", ".up_proj.", ".down_proj.")
    return {n: t for n, t in model.items() if not any(f in n for f in fused)}


def expert(model, e, which):
    return model["model.layers.1.mlp.experts.%d.%s_proj.weight" % (e, which)]


def fuse(model):
    """Stacked q, k, v and gate, up; all experts of a layer in one transposed tensor; compiled."""
    out = untouched(model)
    for layer in range(2):
        attention = "model.layers.%d.self_attn." % layer
        out[attention + "qkv_proj.weight"] = stacked(
            [model[attention + "%s_proj.weight" % w] for w in "qkv"])
    mlp = "model.layers.0.mlp."
    out[mlp + "gate_up_proj.weight"] = stacked([model[mlp + "gate_proj.weight"],
                                                model[mlp + "up_proj.weight"]])
    out[mlp + "down_proj.weight"] = model[mlp + "down_proj.weight"]
    out["model.layers.1.mlp.experts.gate_up_proj"] = planes(
        [stacked([expert(model, e, "gate"), expert(model, e, "up")]).transposed()
         for e in range(EXPERTS)])
    out["model.layers.1.mlp.experts.down_proj"] = planes(
        [expert(model, e, "down").transposed() for e in range(EXPERTS)])
    return {"_orig_mod." + n.replace(".mlp.", ".mlp._checkpoint_wrapped_module."): t for n,
            t in out.items()}


def megatron_attention(model, prefix, tp, rank):
    """Query groups of this rank, each with its queries, its key and its value."""
    groups, per = KV // tp, HEADS // KV * DIM
    parts = []
    for g in range(rank * groups, (rank + 1) * groups):
        parts += [model[prefix + "q_proj.weight"].rows(g * per, per),
                  model[prefix + "k_proj.weight"].rows(g * DIM, DIM),
                  model[prefix + "v_proj.weight"].rows(g * DIM, DIM)]
    return stacked(parts)


def megatron(model, tp, rank):
    """Its names and its shards, the vocabulary padded to a multiple of 128 and tp."""
    padded = -(-VOCAB // (128 * tp)) * 128
    out = {"embedding.word_embeddings.weight":
           model["model.embed_tokens.weight"].rows(rank * padded, padded),
           "output_layer.weight": model["lm_head.weight"].rows(rank * padded, padded),
           "decoder.final_layernorm.weight": model["model.norm.weight"],
           "decoder.layers.1.mlp.router.weight": model["model.layers.1.mlp.gate.weight"]}
    for layer in range(2):
        to, prefix = "decoder.layers.%d." % layer, "model.layers.%d." % layer
        attention = prefix + "self_attn."
        out[to + "self_attention.linear_qkv.weight"] = megatron_attention(model, attention, tp,
            rank)
        out[to + "self_attention.linear_qkv.layer_norm_weight"] = model[prefix
            + "input_layernorm.weight"]
        out[to + "self_attention.q_layernorm.weight"] = model[attention + "q_norm.weight"]
        out[to + "self_attention.k_layernorm.weight"] = model[attention + "k_norm.weight"]
        share = HEADS * DIM // tp
        out[to + "self_attention.linear_proj.weight"] = model[attention + "o_proj.weight"].columns(
            rank * share, share)
    out["decoder.layers.0.mlp.linear_fc1.layer_norm_weight"] = model[
        "model.layers.0.post_attention_layernorm.weight"]
    out["decoder.layers.1.pre_mlp_layernorm.weight"] = model[
        "model.layers.1.post_attention_layernorm.weight"]
    share = INNER // tp
    mlp = "model.layers.0.mlp."
    out["decoder.layers.0.mlp.linear_fc1.weight"] = stacked(
        [model[mlp + w].rows(rank * share, share) for w in ("gate_proj.weight", "up_proj.weight")])
    out["decoder.layers.0.mlp.linear_fc2.weight"] = model[mlp + "down_proj.weight"].columns(rank
        * share, share)
    share = MID // tp
    for e in range(EXPERTS):
        prefix = "model.layers.1.mlp.experts.%d." % e
        for which in ("gate", "up"):
            out[prefix + which + "_proj.weight"] = expert(model, e, which).rows(rank * share, share)
        out[prefix + "down_proj.weight"] = expert(model, e, "down").columns(rank * share, share)
    return out


def shard(model, tp, ep, rank):
    """Names of the checkpoint; experts divided among ep, each among tp / ep."""
    out, within = {}, tp // ep
    for name, t in model.items():
        size, at = tp, rank
        if ".experts." in name:
            size, at = within, rank % within
            if int(name.split(".")[5]) // (EXPERTS // ep) != rank // within:
                continue
        heads = KV if ".k_proj." in name or ".v_proj." in name else 0
        if heads and heads < tp:
            at, size = at // (tp // heads), heads
        if "embed" in name or "lm_head" in name:
            out[name] = t.rows(rank * -(-VOCAB // tp), -(-VOCAB // tp))
        elif ".o_proj." in name or ".down_proj." in name:
            out[name] = t.columns(at * (t.shape[1] // size), t.shape[1] // size)
        elif "_proj." in name:
            out[name] = t.rows(at * (t.shape[0] // size), t.shape[0] // size)
        else:
            out[name] = t
    return out


class Embedded:
    def __init__(self, *options):
        self.child = start([os.path.join(BUILD, "bin", "wsync-endpoint"), "--listen", "127.0.0.1:0",
                            "--json", *options], stdout=-1)
        lines = Lines(self.child.stdout)
        assert lines.next()["type"] == "start"
        self.url = lines.next()["url"]

    def checksums(self):
        with urllib.request.urlopen(self.url + "/weights_checker?action=checksum",
                                    timeout=PATIENCE) as reply:
            return [rank["checksums"] for rank in json.load(reply)["ranks"]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        stop(self.child)


def checksums_after(options, paths, *push_options):
    with Embedded(*options) as endpoint:
        done = push([endpoint], paths, *push_options)
        assert done.rc == 0, str(done)
        return endpoint.checksums()


class Fixture:
    def __init__(self):
        self.model = make_checkpoint()
        self.plain = scratch("plain")
        write_config(self.plain)
        write(os.path.join(self.plain, "model.safetensors"), self.model)
        self.loaded = ["--model", self.plain, "--tp", "2"]
        self.held = checksums_after([], [self.plain])
        self.params = checksums_after(self.loaded, [self.plain])

    def check(self, paths, *options):
        """By the tensors that arrive, and by what becomes of them in a server of the model."""
        for small in ((), ("--bucket-size", "100kB")):
            held = checksums_after([], paths, *small, *options)
            assert [sorted(r) for r in held] == [sorted(r) for r in self.held]
            assert held == self.held
        assert checksums_after(self.loaded, paths, "--verify", "names", *options) == self.params


suite = Suite()


@suite.case("fused, transposed and wrapped")
def fused(f):
    directory = scratch("fused")
    write_config(directory)
    write(os.path.join(directory, "model.safetensors"), fuse(f.model))
    f.check([directory])
    with Embedded("--tp", "2") as endpoint:
        done = push([endpoint], [directory], "--verify", "hash", "-v")
        assert done.rc == 0, str(done)
        views = {e["name"] for e in done.of("tensor") if e["recipe"] == "view"}
        assert len(views) == 6 + 2 + 3 * EXPERTS, sorted(views)


@suite.case("a directory of Megatron's, one sub-directory of each rank")
def megatrons(f):
    directory = scratch("megatron")
    write_config(directory)
    for rank in range(2):
        write(os.path.join(directory, "mp_rank_%02d" % rank, "model.safetensors"),
              megatron(f.model, 2, rank))
    f.check([directory], "--sharded", "tp=2")


@suite.case("a file of each rank, experts divided twice")
def sharded(f):
    paths = []
    for rank in range(4):
        paths.append(os.path.join(scratch("sharded"), "%d.safetensors" % rank))
        write(paths[-1], shard(f.model, 4, 2, rank))
    f.check(paths, "--sharded", "tp=4,ep=2", "--config", f.plain)
    f.check([scratch("sharded")], "--sharded", "tp=4,ep=2", "--config", f.plain)


@suite.case("a manifest")
def manifest(f):
    path = os.path.join(scratch("sharded"), "shards.json")
    with open(path, "w", encoding="utf-8") as out:
        json.dump({"tp": 4, "ep": 2, "shards": [["%d.safetensors" % r] for r in range(4)]}, out)
    f.check([path], "--sharded", "tp=4", "--config", f.plain)


@suite.case("one directory of ranks after the other on stdin")
def session(f):
    with Embedded() as endpoint:
        pushes = Session([endpoint], "--sharded", "tp=2")
        for _ in range(2):
            assert pushes.push(scratch("megatron"))["ok"]
        rc, end = pushes.close()
        assert rc == 0, end
        assert endpoint.checksums() == f.held


@suite.case("a rank's file that is missing leaves endpoints untouched")
def missing(f):
    paths = [os.path.join(scratch("sharded"), "%d.safetensors" % r) for r in range(4)]
    with Embedded() as endpoint:
        twice = push([endpoint], [paths[i] for i in (0, 1, 1, 3)], "--sharded", "tp=4,ep=2",
                     "--config",
                     f.plain)
        assert twice.rc == 2 and "ranks 1 and 2 are the same" in twice.stderr, str(twice)
        # What rank 1 saved, under rank 2's name.
        os.makedirs(scratch("mixed-up"), exist_ok=True)
        shutil.copy(paths[1], os.path.join(scratch("mixed-up"), "2.safetensors"))
        paths[2] = os.path.join(scratch("mixed-up"), "2.safetensors")
        done = push([endpoint], paths, "--sharded", "tp=4,ep=2", "--config", f.plain)
        assert done.rc == 3, str(done)
        assert "rank 2: tensor 'model.layers.1.mlp.experts.0.gate_proj.weight'" in done.stderr, \
            done.stderr
        assert endpoint.checksums() in ([], [{}])


if __name__ == "__main__":
    sys.exit(suite.main(Fixture))
