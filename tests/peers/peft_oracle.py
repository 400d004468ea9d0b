# SPDX-License-Identifier: Apache-2.0
"""peft_oracle.py - what PEFT makes of adapters that it saved: the descriptions of peft_cases.py.

    peft_oracle.py FILE N [SEED [FLAT]]    FILE gets the bases and N cases. FLAT: a directory with
                                           the unpacked tensors of a packed base

Each case is a config and a model: PEFT saves the adapter, some cases change what it saved, PEFT
loads that again and merges it (merge_and_unload): in fp32 for `fold`, and for `two-step` in the
base's type with safe_merge, which rounds each change. Of a tied model the reference is what the
adapter computes before it is merged, because PEFT merges the changes of head and embedding both
into their one weight.
"""
import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
import warnings

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer

import peft_cases

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
H, I, V, E, M = 16, 24, 40, 3, 12
P = "base_model.model."
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}
SMALL = {"hidden_size": H, "intermediate_size": I, "vocab_size": V, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]


class Stacks(torch.nn.Module):
    """Experts as three stacks of one shape."""

    def __init__(self, order):
        super().__init__()
        self.config = {"model_type": "custom"}
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleList([torch.nn.Module()])
        layer = self.model.layers[0]
        layer.router = torch.nn.Linear(H, E, bias=False)
        layer.experts = torch.nn.Module()
        for name in order:
            setattr(layer.experts, name, torch.nn.Parameter(torch.zeros(E, H, H)))


class Base:
    def __init__(self, make, modules, dtype="F32", config=None, params=(), **more):
        """modules: the linear ones; params: stacks. make: a model, or the keys of its config."""
        self.make, self.modules, self.dtype, self.params = make, modules, dtype, list(params)
        self.more = more
        model = self.model()
        self.config = config or dict(model.config.to_diff_dict(), architectures=[
            type(model).__name__])
        self.tied = self.config.get("tie_word_embeddings", more.get("tied", False))
        self.names = {n: list(t.shape) for n, t in model.state_dict().items()
                      if not (self.tied and n == "lm_head.weight")}

    def describe(self):
        self.config["tie_word_embeddings"] = self.tied
        return dict({"config": self.config, "tensors": self.names, "dtype": self.dtype,
                     "tied": self.tied}, **{k: v for k, v in self.more.items() if k != "tied"})

    def model(self):
        if not isinstance(self.make, dict):
            return self.make()
        return transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**self.make))

    def tensors(self):
        return peft_cases.base_tensors({"dtype": "F32", "tensors": self.names})

    def filled(self, dtype):
        model = self.model().to(DTYPES[dtype])
        state = model.state_dict()
        for name, (kind, shape, data) in self.tensors().items():
            state[name].copy_(torch.frombuffer(bytearray(data), dtype=DTYPES[kind]).reshape(shape))
        return model.eval()


class Packed(Base):
    """A packed base; its tensors are those of FLAT."""

    def __init__(self, flat):
        self.flat = peft_cases.read_all(flat)
        with open(os.path.join(flat, "config.json")) as f:
            config = json.load(f)
        config = {k: v for k, v in config.items() if k != "quantization_config"}
        super().__init__(dict(config), ATTENTION + MLP, "BF16", config, packed="nf4")

    def tensors(self):
        return self.flat


def bases(flat):
    llama = dict(SMALL, model_type="llama", attention_bias=True)
    moe = dict(SMALL, model_type="qwen3_moe", num_experts=E, num_experts_per_tok=2,
               moe_intermediate_size=M, decoder_sparse_step=1, mlp_only_layers=[])
    stacks = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    order = ["gate_proj", "up_proj", "down_proj"]
    out = {
        "plain": Base(llama, ATTENTION + MLP),
        "bf16": Base(llama, ATTENTION + MLP, "BF16"),
        "sharded": Base(dict(SMALL, model_type="mistral"), ATTENTION + MLP, "BF16", sharded=True),
        "tied": Base(dict(SMALL, model_type="qwen2", tie_word_embeddings=True), ATTENTION + MLP),
        "conv1d": Base({"model_type": "gpt2", "n_embd": H, "n_layer": 2, "n_head": 4,
                        "vocab_size": V, "n_positions": 8, "tie_word_embeddings": True},
                       ["c_attn", "c_proj", "c_fc"]),
        "fused": Base(dict(SMALL, model_type="phi3"), ["qkv_proj", "o_proj", "gate_up_proj",
                                                       "down_proj"]),
        "stacked": Base(moe, ATTENTION, params=stacks),
        "stacked-bf16": Base(dict(SMALL, model_type="mixtral", num_local_experts=E), ATTENTION,
                             "BF16", params=stacks),
        "inputs-first": Base(dict(SMALL, model_type="gpt_oss", num_local_experts=E,
                                  intermediate_size=H), ATTENTION, params=stacks),
        "three-stacks": Base(lambda: Stacks(order), ["router"], config={"model_type": "custom"},
                             params=["experts." + n for n in order]),
    }
    if flat:
        out["packed"] = Packed(flat)
    return out


# ---- kinds of cases: keys of LoraConfig, what changes the saved files, must it be merged? ----

def some(r, names):
    return r.sample(names, r.randint(1, len(names)))


def plain(r, b):
    return {"target_modules": some(r, b.modules), "use_rslora": r.random() < .3,
            "lora_dropout": r.choice([0.0, 0.1])}, None, True


def patterns(r, b):
    ranks = {m: r.randint(1, 5) for m in some(r, b.modules)}
    ranks[r.choice([r".*\.1\..*", "^model", "layers.0.self_attn.q_proj", r"\d+\.mlp\.\w+"])] = 3
    return {"target_modules": b.modules, "rank_pattern": ranks, "use_rslora": r.random() < .3,
            "alpha_pattern": {m: r.choice([1, 2.5, 7]) for m in some(r, b.modules)}}, None, True


def by_expression(r, b):
    names = "|".join(some(r, b.modules))
    return {"target_modules": r.choice([r".*\.(%s)", r".*\.[01]\..*\.(?:%s)$"]) % names}, None, True


def all_linear(r, b):
    return {"target_modules": r.choice(["all-linear", "ALL-LINEAR"])}, None, True


def layers(r, b):
    word = "h" if "c_fc" in b.modules else "layers"
    return {"target_modules": b.modules, "layers_to_transform": r.choice([0, [1], [0, 1]]),
            "layers_pattern": r.choice([None, word])}, None, True


def other_layers(r, b):
    def edit(config, tensors):
        config["layers_to_transform"] = [1]
    return {"target_modules": b.modules}, edit, False


def excluded(r, b):
    return {"target_modules": b.modules,
            "exclude_modules": r.choice([[b.modules[0]], r".*\.1\..*"])}, None, True


def excluded_later(r, b):
    def edit(config, tensors):
        config["exclude_modules"] = r.choice([[b.modules[0]], r".*\.1\..*"])
    return {"target_modules": b.modules}, edit, False


def untargeted(r, b):
    def edit(config, tensors):
        config["target_modules"] = b.modules[1:]
    return {"target_modules": b.modules}, edit, False


def fan_in_fan_out(r, b):
    def edit(config, tensors):
        config["fan_in_fan_out"] = not config["fan_in_fan_out"]
    return {"target_modules": b.modules}, edit, True


def start(r, b):
    how = r.choice([True, False, "gaussian", "orthogonal", "mica", "olora", "pissa",
                    "pissa_niter_2"])
    return {"target_modules": b.modules[:1], "init_lora_weights": how, "r": 2}, None, \
        how in (True, False, "gaussian", "orthogonal", "mica")


def other_start(r, b):
    def edit(config, tensors):
        config["init_lora_weights"] = r.choice(
            ["Gaussian", "GAUSSIAN", "OLoRA", "PiSSA", "pissa_niter_4", "PISSA_niter_4", "CorDA",
             "corda", "EVA", "eva", "LoftQ", "Orthogonal", "orthogonal", "MiCA", "xavier", 1, None])
    return {"target_modules": b.modules[:1], "r": 2}, edit, False


def bias(r, b):
    return {"target_modules": b.modules, "bias": r.choice(["all", "lora_only"])}, None, True


def saved(r, b):
    return {"target_modules": b.modules, "modules_to_save":
            [r.choice(["ln_f", "ln_1"] if "c_fc" in b.modules else ["norm", "input_layernorm"])]}, \
        None, True


def saved_ends(r, b):
    ends = ["wte" if "c_fc" in b.modules else "embed_tokens", "lm_head"]
    return {"target_modules": b.modules[:1], "modules_to_save": some(r, ends)}, None, not b.tied


def saved_both(r, b):
    def edit(config, tensors):
        names = [n for n in tensors if is_end(n)]
        for n in names[1:]:
            tensors[n] = [tensors[n][0], "~" + names[0]]
    ends = ["wte" if "c_fc" in b.modules else "embed_tokens", "lm_head"]
    return {"target_modules": b.modules[:1], "modules_to_save": ends,
            "ensure_weight_tying": r.random() < .5}, edit, True


def ends(r, b):
    names = ["wte" if "c_fc" in b.modules else "embed_tokens", "lm_head"]
    return {"target_modules": some(r, names) + b.modules[:1]}, None, not b.tied


def tied_ends(r, b):
    """As optimizers leave the factors of head and embedding, which are the same memory."""
    def edit(config, tensors):
        for n in [n for n in tensors if "lm_head.lora_" in n]:
            other = next(x for x in tensors if x.endswith(
                "lora_embedding_B" if "lora_A" in n else "lora_embedding_A"))
            tensors[n] = [tensors[n][0], "^" + other]
    names = ["wte" if "c_fc" in b.modules else "embed_tokens", "lm_head"]
    return {"target_modules": names, "ensure_weight_tying": b.tied}, edit, b.tied


def is_end(name):
    return any(w in name for w in ("embed_tokens.weight", "lm_head.weight", "wte.weight"))


def unknown(r, b):
    def edit(config, tensors):
        config["future_field"] = value
    value = r.choice([None, False, [], {}, "", True, 3, "x", ["a"]])
    return {"target_modules": b.modules}, edit, not value


def field(r, b):
    """Fields that PEFT knows, with values that change nothing."""
    def edit(config, tensors):
        config.update(more)
    more = r.choice([{"megatron_core": "other.core"}, {"runtime_config": {"a": 1}},
                     {"qalora_group_size": 32}, {"loftq_config": {"loftq_bits": 2}},
                     {"inference_mode": False}, {"revision": "main"}, {"eva_config": {"rho": 1.5}},
                     {"task_type": "CAUSAL_LM"}, {"base_model_name_or_path": "x/y"},
                     {"auto_mapping": {"base_model_class": "A"}}, {"ensure_weight_tying": True}])
    return {"target_modules": b.modules}, edit, True


def variant(r, b):
    def edit(config, tensors):
        config.update(more)
    more = r.choice([{"use_dora": True}, {"lora_bias": True}, {"alora_invocation_tokens": [1]},
                     {"layer_replication": [[0, 2], [0, 2]]}, {"trainable_token_indices": [1, 2]},
                     {"kasa_config": {}}, {"kasa_config": {"beta": .1}}, {"use_qalora": True},
                     {"use_bdlora": {"nblocks": 2}}, {"monteclora_config": {"num_samples": 2}},
                     {"arrow_config": {"top_k": 2}}, {"megatron_config": {"a": 1}},
                     {"peft_type": "IA3"}, {"use_rslora": "true"}, {"lora_alpha": None}])
    return {"target_modules": b.modules}, edit, False


def real_variant(r, b):
    more = r.choice([{"use_dora": True}, {"lora_bias": True, "target_modules": b.modules[:1]},
                     {"trainable_token_indices": [1, 3]},
                     {"layer_replication": [[0, 2], [0, 2]]}])
    return dict({"target_modules": b.modules}, **more), None, False


def half(r, b):
    def edit(config, tensors):
        name = r.choice(sorted(n for n in tensors if ".lora_" in n))
        shape = tensors.pop(name)
        if how == "other":
            tensors[name.replace(".weight", ".other.weight")] = shape
        elif how == "prefix":
            tensors[name[len(P):]] = shape
        elif how == "named":
            names = [n for n in tensors if ".lora_" in n]
            for n in names:
                tensors[n.replace(".weight", ".default.weight")] = tensors.pop(n)
            tensors[name.replace(".weight", ".other.weight")] = shape
    how = r.choice(["gone", "other", "prefix", "named"])
    return {"target_modules": b.modules}, edit, False


def across(r, b):
    """A module's adapter for a model whose matrix is the other way round."""
    def edit(config, tensors):
        name = r.choice(sorted(n for n in tensors if ".lora_A" in n))
        (rank, cols), (rows, _) = (tensors[name.replace("lora_A", x)][0] for x in
                                   ("lora_A", "lora_B"))
        if rows != cols:
            tensors[name] = [[rank, rows], ""]
            tensors[name.replace("lora_A", "lora_B")] = [[cols, rank], ""]
    return {"target_modules": b.modules}, edit, False


def params(r, b):
    more = {"rank_pattern": {b.params[0].split(".")[-1]: 3}} if r.random() < .4 else {}
    names = some(r, b.params)
    return dict({"target_modules": some(r, b.modules) if r.random() < .5 else [],
                 "target_parameters": names, "use_rslora": r.random() < .3}, **more), None, \
        len(b.params) < 3 or len(names) == 1


def params_across(r, b):
    def edit(config, tensors):
        names = sorted(n for n in tensors if "experts" in n and ".lora_A" in n)
        for a in names:
            lora_b = a.replace("lora_A", "lora_B")
            (n, cols), (rows, _) = tensors[a][0], tensors[lora_b][0]
            tensors[a], tensors[lora_b] = [[n, rows], ""], [[cols, n], ""]
    return {"target_modules": [], "target_parameters": some(r, b.params)}, edit, False


def matrix_param(r, b):
    name = r.choice(b.modules) + ".weight"
    return {"target_modules": [], "target_parameters": [name],
            "rank_pattern": {name[:-7]: 3} if r.random() < .5 else {}}, None, True


DENSE = [plain, plain, patterns, by_expression, all_linear, layers, other_layers, excluded,
         excluded_later, untargeted, fan_in_fan_out, start, other_start, other_start, bias, saved,
         saved_ends, ends, unknown, field, variant, real_variant, half, across, matrix_param]
TIED = [saved_ends, ends, saved_both, tied_ends]
MOE = [params, params, params_across, plain, all_linear]
KINDS = {"tied": DENSE + TIED * 2, "conv1d": DENSE + TIED, "stacked": MOE * 3,
         "stacked-bf16": MOE * 3, "inputs-first": MOE * 2, "three-stacks": [params, params]}


# ---- PEFT ----

def effective(model, base):
    """The weights with which a model computes, its adapter not merged."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    out = {}
    for name, module in inner.named_modules():
        if isinstance(module, LoraLayer):
            w = module.get_base_layer().weight
            out[name + ".weight"] = w + module.get_delta_weight("default").to(w.dtype)
    return out


def merged(base, adapter, dtype, safe):
    model = PeftModel.from_pretrained(base.filled(dtype), adapter)
    ends = effective(model, base) if base.tied else {}
    state = model.merge_and_unload(safe_merge=safe).state_dict()
    if base.tied:
        state.update({n: t for n, t in ends.items() if is_end(n)})
        head = state.pop("lm_head.weight")
        body = ends.get("lm_head.weight")
        name = next(n for n in state if is_end(n))
        if name not in ends and body is not None:
            state[name] = base.filled(dtype).state_dict()[name]
        if "lm_head.weight" not in ends and name in ends:
            head = base.filled(dtype).state_dict()[name]
        if not torch.equal(head if body is None else body, state[name]):
            raise ValueError("head and embedding differ, and servers tie them")
    return state


def in_bytes(t):
    return bytes(t.detach().contiguous().view(torch.uint8).numpy().tobytes())


def reference(base, case, adapter):
    safe = case["rounding"] == "two-step"
    state = {n: t.to(DTYPES[base.dtype])
             for n, t in merged(base, adapter, base.dtype if safe else "F32", safe).items()}
    if set(state) != set(base.names):
        raise ValueError("the merged model has other tensors")
    return peft_cases.digest({n: (base.dtype, list(t.shape), in_bytes(t))
                              for n, t in state.items()})


def written(config, base, directory):
    """What PEFT saves of a new adapter: its config, and names and shapes of its tensors."""
    get_peft_model(base.filled("F32"), LoraConfig(**config)).save_pretrained(directory)
    with open(os.path.join(directory, "adapter_config.json")) as f:
        saved_config = json.load(f)
    tensors = {}
    for n, (_, shape, _) in peft_cases.read_all(directory).items():
        plain_name = n.removeprefix(P).replace(".base_layer.", ".")
        tensors[n] = [shape, "=" + plain_name if n.endswith(".base_layer.weight") else ""]
    if base.tied:
        body = next(n for n in base.names if is_end(n))
        tensors = {n: [s, "=" + body if w == "=lm_head.weight" else w]
                   for n, (s, w) in tensors.items()}
    return saved_config, tensors


def make_case(r, base_name, base, kind, directory):
    keys, edit, must = kind(r, base)
    keys = dict({"r": r.randint(1, 5), "lora_alpha": r.choice([1, 2, 3.5, 8, 16])}, **keys)
    try:
        config, tensors = written(keys, base, os.path.join(directory, "saved"))
    except Exception:  # PEFT has no such adapter
        return None
    if not tensors:
        return None
    before = json.dumps([config, tensors])
    if edit:
        edit(config, tensors)
        if json.dumps([config, tensors]) == before:
            return None
    case = {"base": base_name, "kind": kind.__name__, "seed": r.randint(0, 9999), "must": must,
            "rounding": r.choice(["fold", "two-step"]), "config": config, "tensors": tensors}
    for n in [n for n in tensors if tensors[n][1].startswith("~")]:  # the same numbers
        tensors[n][1] = "+" + tensors[n][1][1:]
    adapter = os.path.join(directory, "adapter")
    peft_cases.write_adapter(adapter, case, base.tensors())
    try:
        case["want"] = reference(base, case, adapter)
    except Exception as e:
        case.update(want=None, why=("%s: %s" % (type(e).__name__, e)).split("\n")[0][:120])
    return case


def make(path, n, seed=0, flat=None):
    made, cases = bases(flat), []
    r = random.Random(seed)
    todo = [(name, kind) for name in made for kind in KINDS.get(name, DENSE)]
    while len(cases) < n:
        for name, kind in r.sample(todo, len(todo)):
            with tempfile.TemporaryDirectory() as d, contextlib.redirect_stderr(io.StringIO()):
                case = make_case(r, name, made[name], kind, d)
            if case and len(cases) < n:
                cases.append(case)
    peft_cases.write_description(path, {k: b.describe() for k, b in made.items()}, cases)


if __name__ == "__main__":
    make(sys.argv[1], int(sys.argv[2]), *[int(a) for a in sys.argv[3:4]],
         flat=(sys.argv[4:5] or [None])[0])
