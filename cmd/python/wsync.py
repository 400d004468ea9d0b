# SPDX-License-Identifier: Apache-2.0
"""wsync's programs, called from a trainer:

    import wsync
    wsync.push("ckpt/step-120", endpoints=["http://gpu7:30000"], weight_version=120)
    wsync.push(model.state_dict(), config="/models/qwen3-8b", weight_version=121, verify="hash")

Options are those of the programs: weight_version=120 is --weight-version 120, True gives an option
without a value, a list repeats it, None and False leave it out. on_event is called with every JSON
line (wsync-json(5)) as a dict. The result is the last of these lines. A failure raises wsync.Error.

Every call waits for its program without Python's lock, so it can run in a thread beside training;
the tensors must stay as they are until it returns.
"""
import ctypes
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

Event = Dict[str, Any]
OnEvent = Optional[Callable[[Event], None]]
Source = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]],
               Mapping[str, Any]]
DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
          "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
          "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8",
          "bool": "BOOL"}


class Error(Exception):
    """What a program says of its failure. code is a word like "mismatch": error.code in
    wsync-json(5). hint, phase and endpoint are None if unknown; end is the last line, or None."""

    def __init__(self, code: str, message: str, hint: Optional[str] = None,
                 phase: Optional[str] = None, endpoint: Optional[str] = None,
                 end: Optional[Event] = None):
        super().__init__(message + (f"\nhint: {hint}" if hint else ""))
        self.code, self.message, self.hint = code, message, hint
        self.phase, self.endpoint, self.end = phase, endpoint, end


def push(source: Source, endpoints: Optional[Sequence[str]] = None, *, on_event: OnEvent = None,
         **options: Any) -> Event:
    """Pushes a checkpoint, several that are one, or a dict of tensors, as wsync-push does.

    endpoints are URLs; without them the registered ones. The tensors are all on GPUs, and read
    there, or all in the host's memory, and copied once.
    """
    return _with_source("wsync-push", [], source, endpoints, on_event, options)


def verify(source: Source, endpoints: Optional[Sequence[str]] = None, *, command: str = "weights",
           on_event: OnEvent = None, **options: Any) -> Event:
    """Asks whether servers have these weights, or with command "names" whether they would take
    them, as wsync-verify does. Raises Error with the code "mismatch" if not."""
    return _with_source("wsync-verify", [command], source, endpoints, on_event, options)


def register(command: str, *arguments: str, on_event: OnEvent = None, **options: Any) -> Event:
    """register("add", URL, pool="math"): manages the registry, as wsync-register does."""
    return _run("wsync-register", [command, *_words(options), "--", *arguments], on_event)


def _words(options: Mapping[str, Any]) -> List[str]:
    words = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        for v in value if isinstance(value, (list, tuple)) else [value]:
            if v is not None and v is not False:
                words += [flag] if v is True else [f"{flag}={v}"]
    return words


def _with_source(program, words, source, endpoints, on_event, options):
    if isinstance(endpoints, str):
        raise TypeError("endpoints: a list of URLs, not one string")
    words = [*words, *_words(options), *(f"--endpoint={e}" for e in endpoints or [])]
    if not isinstance(source, Mapping):
        paths = [source] if isinstance(source, (str, os.PathLike)) else source
        return _run(program, [*words, "--", *map(os.fspath, paths)], on_event)
    tensors = {n: t.detach() for n, t in _once(source).items()}
    devices = {t.device.type for t in tensors.values()}
    # The file has no name: it is gone with the last process that has it open, however that ends.
    with open(os.memfd_create("wsync"), "r+b") as f:
        path = f"/proc/{os.getpid()}/fd/{f.fileno()}"
        keep: Any = None  # until the program has ended
        if devices == {"cuda"}:
            from wsync_manifest import export
            with tempfile.TemporaryDirectory(prefix="wsync-") as d:
                keep = export(tensors, os.path.join(d, "m.json"), config=options.get("config"))
                with open(os.path.join(d, "m.json"), "rb") as manifest:
                    shutil.copyfileobj(manifest, f)
            path = "cuda-ipc:" + path
        elif devices <= {"cpu"}:
            _write(tensors, f)
        else:
            raise ValueError("tensors are on " + ", ".join(sorted(devices)) + ": all must be on "
                             "GPUs (cuda), or all in the memory of the host (cpu)")
        f.flush()
        try:
            return _run(program, [*words, "--", path], on_event)
        finally:
            f.truncate(0)  # forks of this process may have it open for long
            del keep


def _once(tensors):
    """Without the later names of a tensor that has several, like a head that is the embedding."""
    seen, kept = set(), {}
    for name, t in tensors.items():
        if not hasattr(t, "data_ptr") or hasattr(t, "full_tensor"):
            raise ValueError(f"{name}: not a plain tensor; gather sharded tensors, leave out "
                             "the rest")
        same = (str(t.device), t.data_ptr(), t.dtype, tuple(t.shape), t.stride())
        if t.numel() == 0 or same not in seen:
            seen.add(same)
            kept[name] = t
    return kept


def _write(tensors, f):
    """Writes a safetensors file. Beside it is at most one tensor's copy, of one that has gaps."""
    header, at = {}, 0
    for name, t in tensors.items():
        dtype = str(t.dtype).rpartition(".")[2]
        if dtype not in DTYPES:
            raise ValueError(f"{name}: tensors of {dtype} cannot be sent")
        end = at + t.numel() * t.element_size()
        header[name] = {"dtype": DTYPES[dtype], "shape": list(t.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    f.write(len(text).to_bytes(8, "little") + text)
    for t in tensors.values():
        whole = t.contiguous()
        size = whole.numel() * whole.element_size()
        if size:
            f.write((ctypes.c_ubyte * size).from_address(whole.data_ptr()))


def _program(name):
    """The one that was installed with this file, else the one on the PATH."""
    try:
        files = importlib.metadata.files("wsync") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    own = [str(f.locate()) for f in files if f.name == name]
    found = next((p for p in own if os.access(p, os.X_OK)), None) or shutil.which(name)
    if not found:
        raise Error("system", f"{name} is neither installed with this module nor on the PATH")
    return found


def _run(program, words, on_event):
    # A pipe's reader in a thread of its own: a full pipe of either kind would stop the program.
    said: List[str] = []

    def relay(pipe):
        for line in pipe:
            said.append(line)
            sys.stderr.write(line)

    end = None
    with subprocess.Popen([_program(program), "--json", *words], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                          errors="replace") as child:
        thread = threading.Thread(target=relay, args=(child.stderr,), daemon=True)
        thread.start()
        try:
            for line in child.stdout:
                if not line.endswith("\n"):
                    break  # it was killed
                event = json.loads(line)
                end = event if event["type"] == "end" else None
                if on_event is not None:
                    on_event(event)
        except BaseException as e:
            # It cleans up within seconds. A terminal's Ctrl-C, which it has got, counts once.
            child.send_signal(signal.SIGINT if isinstance(e, KeyboardInterrupt) else signal.SIGTERM)
            shutil.copyfileobj(child.stdout, open(os.devnull, "w"))
            child.wait()
            raise
        finally:
            thread.join(5)  # somebody whom it has started may keep the pipe
    if end and end["ok"] and child.returncode == 0:
        return end
    e = (end or {}).get("error") or {}
    told = said[0].partition(": ")[2].strip() if said else f"{program} ended: {child.returncode}"
    raise Error(e.get("code") or ("usage" if child.returncode == 2 else "system"),
                e.get("message") or told, e.get("hint"), e.get("phase"), e.get("endpoint"), end)
