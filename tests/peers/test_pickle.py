# SPDX-License-Identifier: Apache-2.0
"""The pickle for /update_weights_from_tensor against torch: its unpickler reads ours, we read its.

This file is two programs: the test, and with an argument the peer, which tests/peers/python.sh runs
with some torch. The peer unpickles with an allow-list as servers do, with a stand-in for the one
class that is theirs, and compares every tensor byte by byte. Of pickles whose bytes are on a GPU
torch's own function that rebuilds the tensor runs too; only where it would open the handle a
stand-in is asked, which checks the arguments as torch's C code does.
"""
import io
import os
import pickle
import subprocess
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
ALLOWED = ("builtins.", "collections.", "copyreg.", "functools.", "itertools.", "operator.",
           "types.", "weakref.",
           "torch.", "sglang.srt.weight_sync.tensor_bucket.", "sglang.srt.utils.")
DENIED = {("builtins", "eval"), ("builtins", "exec"), ("builtins", "compile")}
MODULE = "sglang.srt.weight_sync.tensor_bucket"
PATCH = "sglang.srt.utils.patch_torch"
ROOM = 1 << 20  # of the storage, as pickletool has it
UUID = "8d2f0c1a-4c7e-0b11-a0f3-5e0d6c7b8a99"


class Guarded(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) in DENIED or not (module + ".").startswith(ALLOWED):
            raise RuntimeError("Blocked unsafe class loading (%s.%s)" % (module, name))
        return super().find_class(module, name)


def stand_in():
    """The server's modules, with one class: attributes and nothing else."""
    for name in MODULE, PATCH:
        path = ""
        for part in name.split("."):
            path = path + "." + part if path else part
            sys.modules.setdefault(path, types.ModuleType(path))
    metadata = type("FlattenedTensorMetadata", (), {"__module__": MODULE})
    sys.modules[MODULE].FlattenedTensorMetadata = metadata
    return metadata


def pattern(n):
    return bytes((i * 131 + i // 251) & 255 for i in range(n))


def tensors(torch):
    found = [("model.embed.weight", "float32", (7, 33)), ("scalar", "float32", ()),
             ("none", "float32", (0, 3)),
             ("model.layers.0.q_proj.weight", "bfloat16", (64, 48)), ("h", "float16", (3,)),
             ("model.layers.0.q_proj.scale", "bfloat16", (2, 2, 2, 2)),
             ("large", "bfloat16", (1, 70000)),
             ("i", "int64", (5,)), ("b", "uint8", (1,))]
    if hasattr(torch, "float8_e4m3fn"):
        found += [("w8", "float8_e4m3fn", (128, 129)), ("w52", "float8_e5m2", (3, 3))]
    return sorted(found, key=lambda t: -torch.empty(0, dtype=getattr(torch, t[1])).element_size())


def lines(wanted):
    return "".join("%s %s %s\n" % (n, d, ",".join(map(str, s)) or "-") for n, d,
                   s in wanted).encode()


def ask(tool, what, data):
    return subprocess.run([tool, *what.split()], input=data, stdout=subprocess.PIPE,
                          timeout=1200, check=True).stdout


def raw(torch, x):
    return x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if x.numel() else b""


def torch_reads_ours(torch, tool, metadata):
    wanted = tensors(torch)
    check_bucket(torch, metadata, wanted,
                 Guarded(io.BytesIO(ask(tool, "write", lines(wanted)))).load())
    made = Guarded(io.BytesIO(ask(tool, "write", b""))).load()  # what is sent when all has been
    assert made["flattened_tensor"].numel() == 0 and made["metadata"] == []


def check_bucket(torch, metadata, wanted, made):
    assert sorted(made) == ["flattened_tensor", "metadata"]
    flat = made["flattened_tensor"]
    assert flat.dtype == torch.uint8 and flat.dim() == 1 and flat.is_contiguous()
    expected, at = pattern(flat.numel()), 0
    assert raw(torch, flat) == expected
    for (name, dtype, shape), m in zip(wanted, made["metadata"]):
        assert isinstance(m, metadata) and isinstance(m.shape, torch.Size)
        assert (m.name, m.dtype, tuple(m.shape)) == (name, getattr(torch, dtype),
                                                     shape), (m.__dict__, name)
        assert m.start_idx == at and m.numel == m.end_idx - m.start_idx
        x = flat[m.start_idx:m.end_idx].view(m.dtype).reshape(m.shape)
        assert raw(torch, x) == expected[at:m.end_idx], name
        at = m.end_idx
    assert at == flat.numel() and len(made["metadata"]) == len(wanted)


class Opened:
    """Where torch would open the handle: the arguments as its C code wants them, and bytes for
    them."""

    def __init__(self, torch):
        self.torch, self.calls = torch, []
        torch.cuda._lazy_init = lambda: None
        torch.storage.TypedStorage._new_shared_cuda = classmethod(lambda _cls, *args: self(*args))
        torch.storage.TypedStorage._release_ipc_counter = classmethod(lambda _cls, *_args,
            **_device: None)

    def __call__(self, *args):
        kinds = (int, bytes, int, int, bytes, int, bytes, bool)
        assert len(args) == len(kinds) and all(type(a) is k for a, k in zip(args, kinds)), args
        self.calls.append(args)
        handle, size, event = args[1], args[2], args[6]
        assert handle == b"\x01c" + bytes(range(64)) and event == bytes(64), args
        return self.torch.tensor(list(pattern(size)), dtype=self.torch.uint8).storage()


def torch_opens_ours(torch, tool, metadata):
    """By a number, which torch's own function takes."""
    wanted, opened = tensors(torch), Opened(torch)
    made = Guarded(io.BytesIO(ask(tool, "cuda 3 8589934592", lines(wanted)))).load()
    check_bucket(torch, metadata, wanted, made)
    (device, _, size, at, counter, counter_at, _, event_sync), = opened.calls
    assert (device, at, counter, counter_at, event_sync) == (3, 1 << 33, b"", 0,
        False), opened.calls
    assert size == ROOM
    # A storage that is held is found again, for a bucket that may be a larger one.
    made = Guarded(io.BytesIO(ask(tool, "cuda 3 0", lines(wanted[-1:])))).load()
    larger = Guarded(io.BytesIO(ask(tool, "cuda 3 0", lines(wanted)))).load()
    check_bucket(torch, metadata, wanted, larger)
    assert len(opened.calls) == 2 \
        and made["flattened_tensor"].numel() < larger["flattened_tensor"].numel()


def torch_opens_ours_by_uuid(torch, tool, metadata):
    """By what is the same in every process, which the servers' stand-in for it takes."""
    from torch.multiprocessing import reductions
    wanted, opened, seen = tensors(torch), Opened(torch), []

    def rebuild(*args):
        seen.append(args)
        assert args[6] == UUID
        return reductions.rebuild_cuda_tensor(*args[:6], 1, *args[7:])

    sys.modules[PATCH]._rebuild_cuda_tensor_modified = rebuild
    made = Guarded(io.BytesIO(ask(tool, "cuda %s 512" % UUID, lines(wanted)))).load()
    check_bucket(torch, metadata, wanted, made)
    (args,), n = seen, made["flattened_tensor"].numel()
    assert [type(a) for a in args[6:]] == [str, bytes, int, int, bool, bytes, int, bytes,
                                           bool], args
    assert args[:6] == (torch.Tensor, (n,), (1,), 0, torch.storage.TypedStorage, torch.uint8), args
    assert args[8:] == (ROOM, 512, False, b"", 0, bytes(64), False) and len(args) == 15, args
    assert opened.calls[0][0] == 1


def torch_opens_ours_for_vllm(torch, tool, _metadata):
    """vLLM has no list of names, puts the number of its own GPU in, and calls torch's function."""
    from torch.multiprocessing.reductions import rebuild_cuda_tensor
    wanted, opened, at = tensors(torch), Opened(torch), 1 << 33
    made = pickle.loads(ask(tool, "vllm packed %d" % at, lines(wanted)))
    assert list(made) == [UUID] and type(made[UUID]) is tuple and len(made[UUID]) == 15, made
    args = list(made[UUID])
    args[6] = 5
    flat = rebuild_cuda_tensor(*args)
    (device, _, size, offset, *_), = opened.calls
    assert (device, size, offset) == (5, ROOM, at) and flat.dtype == torch.uint8, opened.calls
    assert raw(torch, flat) == pattern(flat.numel()) and flat.is_contiguous()
    made = pickle.loads(ask(tool, "vllm tensors %d" % at, lines(wanted)))
    assert len(made) == len(wanted)
    for (name, dtype, shape), entry in zip(wanted, made):
        (uuid, (function, args)), = entry.items()
        assert uuid == UUID and function is rebuild_cuda_tensor and len(args) == 15
        # as torch's C code shapes bytes of this type
        x = torch.empty(shape, dtype=getattr(torch, dtype))
        assert args[:6] == (torch.Tensor, tuple(shape), x.stride(), 0, torch.storage.TypedStorage,
                            x.dtype), (name, args)
        n = x.numel() * x.element_size()
        assert args[8:] == (n, at, False, b"", 0, bytes(64), False), (name, args)
        at += n
    assert made[0][UUID][1][8] + (1 << 33) == made[1][UUID][1][9]


def bucket(torch, metadata, wanted):
    at, listed = 0, []
    for name, dtype, shape in wanted:
        m = metadata()
        n = torch.empty(shape, dtype=getattr(torch, dtype)).numel() * \
            torch.empty(0, dtype=getattr(torch, dtype)).element_size()
        m.__dict__.update(name=name, shape=torch.Size(shape), dtype=getattr(torch, dtype),
                          start_idx=at,
                          end_idx=at + n, numel=n)
        listed.append(m)
        at += n
    return {"flattened_tensor": torch.tensor(list(pattern(at)), dtype=torch.uint8),
            "metadata": listed}


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
    assert b"does not follow the previous one" in ask(tool, "read", pickle.dumps(made, 4))
    whole = ask(tool, "write", lines(wanted))
    for n in list(range(0, 400, 7)) + [len(whole) - 1]:
        assert ask(tool, "read", whole[:n]).startswith(b"refused: "), n


def peer(tool):
    import torch
    metadata = stand_in()
    cases = ((torch_reads_ours, "torch %s reads ours to the bit"),
             (we_read_torchs, "we read that of torch %s"),
             (torch_opens_ours, "torch %s rebuilds what is on a GPU, by its number"),
             (torch_opens_ours_by_uuid, "and servers do with torch %s, by its UUID"),
             (torch_opens_ours_for_vllm, "and vLLM's workers do with torch %s"),
             (nothing_is_called, "what else is named is refused, beside torch %s"))
    for case, title in cases:
        try:
            case(torch, tool, metadata)
            print("ok - " + title % torch.__version__, flush=True)
        except Exception as e:
            print("not ok - %s\n# %s: %s" % (title % torch.__version__, type(e).__name__, e),
                  flush=True)


def main():
    tool = os.path.abspath(os.path.join(os.environ.get("BUILD", "build"), "tests/tools/pickletool"))
    if not os.path.exists(tool):
        print("1..0 # SKIP pickletool is not built")
        return 0
    print("1..12")
    bad = 0
    for version in ("1.13", "2.6"):
        argv = ["setpriv", "--pdeathsig", "KILL", os.path.join(HERE, "python.sh"), version,
                __file__, tool]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=1200)
        if done.returncode == 77:
            for _ in range(6):
                print("ok # SKIP " + done.stderr.strip().split("\n")[-1])
            continue
        sys.stdout.write(done.stdout)
        bad |= done.returncode or "not ok" in done.stdout
        if done.returncode:
            sys.stderr.write(done.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(peer(sys.argv[1]) if len(sys.argv) > 1 else main())
