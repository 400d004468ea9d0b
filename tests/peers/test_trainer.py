# SPDX-License-Identifier: Apache-2.0
"""cmd/python/wsync.py: a trainer's tensors go into torch's own receivers, and nothing is left of
them, however a push ends."""
import glob
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading

import lib
import mkst

sys.path.insert(0, os.path.join(lib.TREE, "cmd", "python"))
import wsync  # noqa: E402
import wsync_tensors  # noqa: E402

suite = lib.Suite()
HOW = {"backend": "gloo", "verify": "none"}  # the receivers cannot list their weights

TRAINER = """
import sys, torch, wsync
model = torch.nn.Sequential(torch.nn.Embedding(5000, 64), torch.nn.Linear(64, 5000, bias=False))
model[1].weight = model[0].weight
model(torch.randint(5000, (8,))).sum().backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
print("trained", flush=True)
wsync.push(model.state_dict(), endpoints=sys.argv[1:], weight_version=9, verify="none")
"""


class Fixture:
    def __init__(self):
        try:
            import torch
        except ImportError as e:
            raise lib.Skip("no torch") from e
        self.torch = torch
        os.environ.update(lib.push_env(), PYTHONPATH=sys.path[0],
                          PATH="%s/bin:%s" % (lib.BUILD, os.environ["PATH"]))
        self.peers = lib.Receivers(".".join(torch.__version__.split(".")[:2]), [1, 2])
        self.small = lib.scratch("small.safetensors")
        mkst.write(self.small, [("a", "F32", (64, 32))], 1)
        for family in "llama", "qwen3":
            subprocess.run([sys.executable, os.path.join(lib.TREE, "tests/cli/small_model.py"),
                            family, lib.scratch(family)], check=True)

    def urls(self):
        return [e.url for e in self.peers.endpoints]


def held(tensors):
    """What a receiver must have of them."""
    return {name: {"dtype": str(t.dtype).rpartition(".")[2], "shape": list(t.shape),
                   "sha256": hashlib.sha256(bytes(t.contiguous().view(-1).numpy())).hexdigest()}
            for name, t in tensors.items()}


def unnamed(pid):
    """The descriptors of a process that are files of wsync's without a name."""
    found = []
    for fd in glob.glob("/proc/%s/fd/*" % pid):
        try:
            found += [fd] if os.readlink(fd).startswith("/memfd:wsync") else []
        except OSError:
            pass  # it is closed now, like the one that glob had
    return found


def left_over():
    """Files without a name that a process of this test has open."""
    files = unnamed(os.getpid())
    for process in glob.glob("/proc/[0-9]*"):
        try:
            with open(process + "/environ", "rb") as f:
                if lib.SCRATCH.encode() in f.read():
                    files += unnamed(os.path.basename(process))
        except OSError:
            pass  # it has ended
    return files


def is_refused(call, *args, **options):
    try:
        call(*args, **options)
    except ValueError:
        return True
    return False


def fails(code, call, *args, **options):
    try:
        call(*args, **options)
    except wsync.Error as e:
        assert e.code == code, (e.code, e.message)
        return e
    raise AssertionError("it did not fail")


@suite.case("an error shows what a terminal would hide")
def hidden(fix):
    error = wsync.Error("refused", "a\u202eb\x1b[2J\u200bc\u2028d \u00e9", "x\u2066y")
    assert str(error) == "a?b?[2J?c?d \u00e9\nhint: x?y", str(error)
    assert error.message[1] == "\u202e"


@suite.case("the script of README.md trains and pushes three times")
def script(fix):
    with open(os.path.join(lib.TREE, "README.md"), encoding="utf-8") as f:
        text = f.read().split("### From Python\n")[1].split("\n`wsync.push`")[0]
    subprocess.run([sys.executable, "-c", textwrap.dedent(text), *fix.urls()], check=True,
                   timeout=lib.PATIENCE)
    for rank in fix.peers.endpoints[1].get("/received"):
        assert sorted(rank) == ["bias", "weight"] and rank["weight"]["shape"] == [64, 64], rank


@suite.case("three steps of a training arrive, turned, negated and of every type, byte for byte")
def steps(fix):
    torch = fix.torch
    model = torch.nn.Sequential(torch.nn.Embedding(500, 64), torch.nn.Linear(64, 500, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for version in 4, 5, 6:
        model(torch.randint(500, (8,))).sum().backward()
        optimizer.step()
        state = model.state_dict()
        assert list(state) == ["0.weight", "1.weight"]  # one tensor
        state.update(turned=state["0.weight"].t(), part=state["0.weight"][3:7, 1::2],
                     steps=torch.tensor(version), half=torch.full((3, 5), 1.5).half(),
                     brain=torch.arange(7.).bfloat16(), minus=torch._neg_view(torch.ones(9)),
                     none=torch.zeros(0, 4), mask=torch.tensor([True, False]),
                     bytes=torch.arange(5).to(torch.uint8))
        events = []
        end = wsync.push(state, fix.urls(), weight_version=version, on_event=events.append, **HOW)
        assert end["ok"] and end["weight_version"] == str(version), end
        assert [e["type"] for e in events][::len(events) - 1] == ["start", "end"], events
        del state["none"]  # nothing of it is sent
        state["minus"] = -torch.ones(9)
        brain = state.pop("brain")
        expected = held(state)
        expected["brain"] = held({"brain": brain.view(torch.int16)})["brain"]
        expected["brain"]["dtype"] = "bfloat16"
        lib.check_held(fix.peers.endpoints, expected)
    assert not left_over(), left_over()


@suite.case("a wrong name raises what is meant, and a second call goes on")
def wrong_name(fix):
    model = lib.scratch("llama")
    with lib.Embedded("--model", model) as e:
        state = {n: fix.torch.zeros(t["shape"], dtype=fix.torch.bfloat16)
                 for n, t in lib.oracle(os.path.join(model, "model.safetensors")).items()}
        assert wsync.verify(state, [e.url], command="names")["ok"]
        state["model.nrom.weight"] = state.pop("model.norm.weight")
        found = []
        for call, how in (wsync.push, {}), (wsync.verify, {"command": "names"}):
            error = fails("mismatch", call, state, [e.url], on_event=found.append, **how)
            assert "model.nrom.weight" in error.message and error.endpoint == e.url, error
            assert error.hint.startswith("did you mean model.norm.weight?"), error
            assert error.hint in str(error) and error.end["exit"] == 1, error
        assert [f["near"] for f in found if f["type"] == "mismatch"][0] == "model.norm.weight"
        assert not left_over(), left_over()
        state["model.norm.weight"] = state.pop("model.nrom.weight")
        assert wsync.push(state, [e.url], verify="hash", config=model)["verify"] == "hash"
        assert wsync.verify(state, [e.url], config=model)["ok"]
        state["model.norm.weight"] += 1
        fails("mismatch", wsync.verify, state, [e.url], config=model)


@suite.case("other failures are raised too: usage, an endpoint that is not there, no program")
def failures(fix):
    assert "--nope" in fails("usage", wsync.push, "x", nope=1).message
    fails("input", wsync.push, lib.scratch("nothing"), fix.urls())
    url = "http://127.0.0.1:%d" % lib.free_port()
    error = fails("unreachable", wsync.push, fix.small, [url], on_event=None)
    assert (error.endpoint, error.phase) == (url, "connect"), vars(error)
    hollow = fix.torch.Tensor._make_wrapper_subclass(
        type("Hollow", (fix.torch.Tensor,), {"__torch_dispatch__": classmethod(
            lambda cls, f, types, args=(), kwargs=None: args[0])}), (4,))
    for wrong in 1, fix.torch.ones(3).to_sparse(), fix.torch.zeros(1, device="meta"), hollow, \
            fix.torch.zeros(1, dtype=fix.torch.complex64):
        assert is_refused(wsync.push, {"a": wrong}, fix.urls()), wrong
    # an option without its value takes no other word for it; no endpoint is not every endpoint
    fails("usage", wsync.push, fix.small, fix.urls(), weight_version=True)
    for urls in (u for u in []), url:
        assert is_refused(wsync.push, fix.small, urls), urls
    path, os.environ["PATH"] = os.environ["PATH"], "/nowhere"
    try:
        assert "wsync-push" in fails("system", wsync.push, "x").message
        os.environ["PATH"] = lib.scratch("bin")
        os.mkdir(os.environ["PATH"])
        with open(lib.scratch("bin/wsync-push"), "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\necho wsync-push: warning: it warns >&2\nkill -9 $$\n")
        os.chmod(f.name, 0o755)
        sys.stderr = None  # as in a program without a console
        error = fails("system", wsync.push, "x")
        assert "-9" in error.message, error
    finally:
        os.environ["PATH"], sys.stderr = path, sys.__stderr__
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code) == (str(error), "system")
    assert not left_over(), left_over()


@suite.case("a head that the model's config ties is sent once, others under each of their names")
def ties(fix):
    weight = fix.torch.arange(600.).view(200, 3)
    state = {"lm_head.weight": weight, "model.embed_tokens.weight": weight, "other": weight}
    assert is_refused(wsync.push, state, fix.urls(), include=[])
    with open(os.path.join(lib.scratch("qwen3"), "config.json")) as f:
        config = json.load(f)
    with open(lib.scratch("mixture.json"), "w") as f:  # its servers may keep a head of their own
        json.dump(dict(config, num_experts=4), f)
    for family, names in (("llama", sorted(state)), ("qwen3", sorted(state)[1:]),
                          ("mixture.json", sorted(state))):
        wsync.push(state, fix.urls(), config=lib.scratch(family), **HOW)
        for rank in fix.peers.endpoints[1].get("/received"):
            assert sorted(rank) == names, (family, rank)
    for more, sent in (({}, 2), ({"ffn_config": {"moe_num_experts": 4}}, 3),
                       ({"text_config": {"mlp": [{"n_routed_experts": 4}]}}, 3),
                       ({"model_type": "granitemoe"}, 3), ({"architectures": ["AMoEForX"]}, 3),
                       ({"text_config": {"tie_word_embeddings": False}}, 3),
                       ({"ffn_config": {"ffn_hidden_size": 4}, "attn_config": None}, 2)):
        with open(lib.scratch("tied.json"), "w") as f:
            json.dump(dict(config, **more), f)
        kept = wsync_tensors._without_ties(state, lib.scratch("tied.json"))
        assert len(kept) == sent, (more, sorted(kept))
    state["lm_head.weight"] = weight.clone()
    wsync.push(state, fix.urls(), config=lib.scratch("qwen3"), **HOW)
    assert len(fix.peers.endpoints[0].get("/received")[0]) == 3


@suite.case("endpoints are registered, and a push without endpoints goes to them")
def registry(fix):
    url = fix.urls()[0]
    end = wsync.register("add", url, pool="math", timeout="30s")
    assert end["ok"], end
    assert wsync.push(fix.small, pool="math", **HOW)["endpoints"][0]["url"] == url
    assert wsync.register("remove", url)["ok"]
    fails("usage", wsync.push, fix.small, **HOW)


@suite.case("if on_event raises, the push ends and the paused endpoint is resumed")
def callback(fix):
    def stop(event):
        if event["type"] == "endpoint" and event["phase"] == "pause":
            raise KeyError("enough")
    with lib.Embedded("--fault", "hang:flush_cache:1") as e:  # before any weight is sent
        try:
            wsync.push({"a": fix.torch.zeros(1000)}, [e.url], on_event=stop)
        except KeyError:
            journal = e.get("/wsync/journal")
            paths = [r["path"] for r in journal["requests"]]
            assert "/pause_generation" in paths and "/continue_generation" in paths, paths
            assert not journal["state"]["paused"] and not left_over(), left_over()
            return
    raise AssertionError("it was swallowed")


@suite.case("a fork of the trainer does not keep the memory of a push")
def fork(fix):
    children = []

    def make(event):
        if event["type"] == "plan":
            children.append(lib.start(["sleep", "600"], pass_fds=[
                int(os.path.basename(fd)) for fd in unnamed(os.getpid())]))
    with lib.Embedded() as e:
        wsync.push({"a": fix.torch.zeros(1000)}, [e.url], on_event=make)
    child, = children
    sizes = [os.stat(fd).st_size for fd in unnamed(child.pid)]
    lib.stop(child)
    assert sizes == [0], sizes


@suite.case("a push runs in a thread while this one goes on")
def thread(fix):
    ended = []
    with lib.Embedded("--fault", "slow:update_weights_from_distributed:1") as e:
        t = threading.Thread(target=lambda: ended.append(
            wsync.push({"a": fix.torch.zeros(1000)}, [e.url])))
        t.start()
        lib.await_true(lambda: any(r["path"] == "/update_weights_from_distributed"
                                   for r in e.get("/wsync/journal")["requests"]), "the transfer")
        t.join(lib.PATIENCE)
        assert ended and ended[0]["ok"], ended


def trainer(e):
    """One in the middle of a push."""
    child = lib.start([sys.executable, "-c", TRAINER, e.url], stdout=subprocess.PIPE,
                      stderr=subprocess.PIPE, text=True, start_new_session=True)
    lib.await_true(lambda: any(r["path"] == "/update_weights_from_distributed"
                               for r in e.get("/wsync/journal")["requests"]), "the transfer")
    assert left_over()
    return child


@suite.case("Ctrl-C ends the push in order, and nothing is left")
def interrupted(_):
    with lib.Embedded("--fault", "hang:update_weights_from_distributed:1") as e:
        child = trainer(e)
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does
        _, err = child.communicate(timeout=lib.PATIENCE)
        lib.stop(child)
        assert child.returncode == -signal.SIGINT, (child.returncode, err)
        assert "KeyboardInterrupt" in err and "interrupted" in err, err
        assert not left_over(), left_over()


@suite.case("a trainer that is killed leaves no file, and the next push ends what it began")
def killed(fix):
    with lib.Embedded("--fault", "slow:update_weights_from_distributed:1", "--fault-delay",
                      "8s") as e:
        child = trainer(e)
        os.kill(child.pid, signal.SIGKILL)
        lib.stop(child)
        lib.await_true(lambda: not left_over(), "the end of the file")
        assert wsync.push({n: fix.torch.zeros(5000, 64) for n in ("0.weight", "1.weight")}, [e.url],
                          verify="hash", lock_wait="60s")["ok"]
        assert not e.get("/wsync/journal")["state"]["paused"]


sys.exit(suite.main(Fixture))
