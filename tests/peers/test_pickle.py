# SPDX-License-Identifier: Apache-2.0
"""The pickle for /update_weights_from_tensor against torch: its unpickler reads ours, we read its.

This file is two programs: the test, and with an argument the peer, which tests/peers/python.sh runs
with some torch. The peer unpickles with an allow-list as servers do, with a stand-in for the one class
that is theirs, and compares every tensor byte by byte.
"""
import io
import os
import pickle
import subprocess
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
ALLOWED = ("builtins.", "collections.", "copyreg.", "functools.", "itertools.", "operator.", "types.", "weakref.",
           "torch.", "sglang.srt.weight_sync.tensor_bucket.")
DENIED = {("builtins", "eval"), ("builtins", "exec"), ("builtins", "compile")}
MODULE = "sglang.srt.weight_sync.tensor_bucket"


class Guarded(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) in DENIED or not (module + ".").startswith(ALLOWED):
            raise RuntimeError("Blocked unsafe class loading (%s.%s)" % (module, name))
        return super().find_class(module, name)


def stand_in():
    """The server's module, with its one class: attributes and nothing else."""
    path = ""
    for part in MODULE.split("."):
        path = path + "." + part if path else part
        sys.modules[path] = types.ModuleType(path)
    metadata = type("FlattenedTensorMetadata", (), {"__module__": MODULE})
    sys.modules[MODULE].FlattenedTensorMetadata = metadata
    return metadata


def pattern(n):
    return bytes((i * 131 + i // 251) & 255 for i in range(n))


def tensors(torch):
    found = [("model.embed.weight", "float32", (7, 33)), ("scalar", "float32", ()), ("none", "float32", (0, 3)),
             ("model.layers.0.q_proj.weight", "bfloat16", (64, 48)), ("h", "float16", (3,)),
             ("model.layers.0.q_proj.scale", "bfloat16", (2, 2, 2, 2)), ("large", "bfloat16", (1, 70000)),
             ("i", "int64", (5,)), ("b", "uint8", (1,))]
    if hasattr(torch, "float8_e4m3fn"):
        found += [("w8", "float8_e4m3fn", (128, 129)), ("w52", "float8_e5m2", (3, 3))]
    return sorted(found, key=lambda t: -torch.empty(0, dtype=getattr(torch, t[1])).element_size())


def lines(wanted):
    return "".join("%s %s %s\n" % (n, d, ",".join(map(str, s)) or "-") for n, d, s in wanted).encode()


def ask(tool, what, data):
    return subprocess.run([tool, what], input=data, stdout=subprocess.PIPE, timeout=60, check=True).stdout


def raw(torch, x):
    return x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if x.numel() else b""


def torch_reads_ours(torch, tool, metadata):
    wanted = tensors(torch)
    made = Guarded(io.BytesIO(ask(tool, "write", lines(wanted)))).load()
    assert sorted(made) == ["flattened_tensor", "metadata"]
    flat = made["flattened_tensor"]
    assert flat.dtype == torch.uint8 and flat.dim() == 1 and flat.is_contiguous()
    expected, at = pattern(flat.numel()), 0
    assert raw(torch, flat) == expected
    for (name, dtype, shape), m in zip(wanted, made["metadata"]):
        assert isinstance(m, metadata) and isinstance(m.shape, torch.Size)
        assert (m.name, m.dtype, tuple(m.shape)) == (name, getattr(torch, dtype), shape), (m.__dict__, name)
        assert m.start_idx == at and m.numel == m.end_idx - m.start_idx
        x = flat[m.start_idx:m.end_idx].view(m.dtype).reshape(m.shape)
        assert raw(torch, x) == expected[at:m.end_idx], name
        at = m.end_idx
    assert at == flat.numel() and len(made["metadata"]) == len(wanted)


def bucket(torch, metadata, wanted):
    at, listed = 0, []
    for name, dtype, shape in wanted:
        m = metadata()
        n = torch.empty(shape, dtype=getattr(torch, dtype)).numel() * \
            torch.empty(0, dtype=getattr(torch, dtype)).element_size()
        m.__dict__.update(name=name, shape=torch.Size(shape), dtype=getattr(torch, dtype), start_idx=at,
                          end_idx=at + n, numel=n)
        listed.append(m)
        at += n
    return {"flattened_tensor": torch.tensor(list(pattern(at)), dtype=torch.uint8), "metadata": listed}


def we_read_torchs(torch, tool, metadata):
    wanted = tensors(torch)
    mine = ask(tool, "read", ask(tool, "write", lines(wanted)))
    assert mine.count(b"\n") == len(wanted), mine
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        theirs = pickle.dumps(bucket(torch, metadata, wanted), protocol)
        if protocol == 2:  # has no bytes: they are text and a call of a codec, which servers deny
            assert b"Blocked unsafe class loading (_codecs.encode)" in ask(tool, "read", theirs)
        else:
            assert ask(tool, "read", theirs) == mine, "protocol %d" % protocol


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


def nothing_is_called(torch, tool, metadata):
    wanted = tensors(torch)
    for evil in (Evil(), {"flattened_tensor": Evil(), "metadata": []}, print):
        assert b"refused: Blocked unsafe class loading" in ask(tool, "read", pickle.dumps(evil))
    made = bucket(torch, metadata, wanted)
    made["metadata"][1].start_idx += 4
    assert b"behind the one before" in ask(tool, "read", pickle.dumps(made, 4))
    whole = ask(tool, "write", lines(wanted))
    for n in list(range(0, 400, 7)) + [len(whole) - 1]:
        assert ask(tool, "read", whole[:n]).startswith(b"refused: "), n


def peer(tool):
    import torch
    metadata = stand_in()
    cases = ((torch_reads_ours, "torch %s reads ours to the bit"), (we_read_torchs, "we read that of torch %s"),
             (nothing_is_called, "what else is named is refused, beside torch %s"))
    for case, title in cases:
        try:
            case(torch, tool, metadata)
            print("ok - " + title % torch.__version__, flush=True)
        except Exception as e:
            print("not ok - %s\n# %s: %s" % (title % torch.__version__, type(e).__name__, e), flush=True)


def main():
    tool = os.path.abspath(os.path.join(os.environ.get("BUILD", "build"), "tests/tools/pickletool"))
    if not os.path.exists(tool):
        print("1..0 # SKIP pickletool is not built")
        return 0
    print("1..6")
    bad = 0
    for version in ("1.13", "2.6"):
        argv = ["setpriv", "--pdeathsig", "KILL", os.path.join(HERE, "python.sh"), version, __file__, tool]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600)
        if done.returncode == 77:
            for _ in range(3):
                print("ok # SKIP " + done.stderr.strip().split("\n")[-1])
            continue
        sys.stdout.write(done.stdout)
        bad |= done.returncode or "not ok" in done.stdout
        if done.returncode:
            sys.stderr.write(done.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(peer(sys.argv[1]) if len(sys.argv) > 1 else main())
