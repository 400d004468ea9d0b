#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""skip_rules.py - writes tests/unit/skip_rules.h: what real servers leave in 16 bits.

    skip_rules.py RULE=KIND:FILE... >tests/unit/skip_rules.h

FILE is quant_utils.py of vLLM or utils.py of SGLang's folder layers/quantization, of the release
whose rule is named. KIND is how that release calls the function: vllm, plain (the list as it is),
shard (lists with and without "model.", and a table of fused modules), or path (without that table).
The function itself is taken out of the file and called; nothing of it is repeated here.
"""
import ast
import sys
from types import MappingProxyType
from typing import List, Literal, Mapping

LISTS = [
    [], ["self_attn"], ["mlp"], ["layers.0"], ["model.layers.0"], ["o_proj"], ["q_proj"],
    ["lm_head"], ["mlp.gate"], ["gate"], ["model.layers.0.mlp.gate"], ["experts"], ["proj"],
    ["model.layers.1"], ["model.layers.0.self_attn"], ["model.layers.0.self_attn.o_proj"],
    ["layers.0.self_attn.o_proj"], ["model.layers.0.self_attn.o_proj.weight"],
    ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj",
     "model.layers.0.self_attn.v_proj"],
    ["model.layers.0.self_attn.qkv_proj"], ["self_attn.qkv_proj"],
    ["model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"],
    ["model.layers.0.mlp.gate_up_proj"], ["model.layers.0.mlp.experts"],
    ["model.layers.0.mlp.experts.3.down_proj"], ["layers.0.mlp.experts.3.down_proj"],
    ["mlp.experts."], ["model.layers.0.mlp.shared_experts.down_proj"],
    ["model.layers.0.mlp.shared_experts"], ["model.layers.0."], ["re:.*o_proj"], ["*o_proj"],
    ["model.layers.0.linear_attn.in_proj_a"], ["in_proj_a"], ["visual", "lm_head"],
]
FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
# The module of the checkpoint, and that of the server.
L = "model.layers.0."
MODULES = {
    **{L + f"self_attn.{x}_proj": L + "self_attn.qkv_proj" for x in "qkv"},
    L + "self_attn.o_proj": L + "self_attn.o_proj",
    "model.layers.10.self_attn.o_proj": "model.layers.10.self_attn.o_proj",
    **{L + f"mlp.{x}_proj": L + "mlp.gate_up_proj" for x in ("gate", "up")},
    L + "mlp.down_proj": L + "mlp.down_proj",
    L + "mlp.experts.0.gate_proj": L + "mlp.experts",
    L + "mlp.experts.3.down_proj": L + "mlp.experts",
    L + "mlp.shared_experts.gate_proj": L + "mlp.shared_experts.gate_up_proj",
    L + "mlp.shared_experts.down_proj": L + "mlp.shared_experts.down_proj",
    L + "linear_attn.in_proj_ba": L + "linear_attn.in_proj_ba",
    L + "linear_attn.in_proj_a": L + "linear_attn.in_proj_a",
}


def function(path):
    """is_layer_skipped of the file, and the names beside it that it uses."""
    wanted = {"is_layer_skipped", "_module_path_match", "_FALLBACK_FUSED_SHARDS"}
    body = []
    for node in ast.parse(open(path, encoding="utf-8").read()).body:
        target = getattr(node, "target", None)
        if getattr(node, "name", getattr(target, "id", None)) in wanted:
            body.append(node)
    names = {"MappingProxyType": MappingProxyType, "List": List, "Mapping": Mapping,
             "Literal": Literal}
    exec(compile(ast.Module(body, []), path, "exec"), names)
    return names["is_layer_skipped"]


def ask(skipped, kind, entries, server):
    if kind != "vllm" and kind != "plain":
        entries = [v for e in entries for v in (e.removeprefix("model."),
                                                "model." + e.removeprefix("model."))]
    if kind == "plain" and server.endswith(".experts"):
        return False  # these releases have no list for experts
    try:
        return skipped(server, entries, FUSED if kind in ("vllm", "shard") else {})
    except ValueError:
        return None  # such a server does not start


MARKS = {True: "1", False: "0", None: "-"}
print("/* SPDX-License-Identifier: Apache-2.0 */")
print("/* skip_rules.h - written by tests/peers/skip_rules.py: which modules do servers of these")
print(" * releases leave in 16 bits (1)? Their own functions answer; -: they do not start. */")
print("static const char *const skip_modules[] = {")
print("".join(f'\t"{module}",\n' for module in MODULES) + "};")
print("static const struct {\n\tenum ws_skip_rule rule;\n\tconst char *entries[3], *answers;")
print("} skip_rules[] = {")
for arg in sys.argv[1:]:
    rule, rest = arg.split("=")
    kind, path = rest.split(":")
    skipped = function(path)
    for entries in LISTS:
        marks = "".join(MARKS[ask(skipped, kind, entries, m)] for m in MODULES.values())
        names = ",\n\t    ".join(f'"{e}"' for e in entries)
        print(f'\t{{ WS_SKIP_{rule}, {{ {names or "NULL"} }},\n\t  "{marks}" }},')
print("};")
