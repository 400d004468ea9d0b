# SPDX-License-Identifier: Apache-2.0
"""wsync's programs, called from a trainer:

    import wsync
    wsync.push("ckpt/step-120", endpoints=["http://gpu7:30000"], weight_version=120)
    wsync.push(model.state_dict(), config="/models/qwen3-8b", weight_version=121, verify="hash")

Options are those of the programs: weight_version=120 is --weight-version=120, True gives an option
without a value, a list repeats it, None and False leave it out. on_event is called with every JSON
line (wsync-json(5)) as a dict. The result is the last of these lines. wsync.Error is raised when
the program fails, ValueError for arguments that cannot be given to it.

Every call waits for its program without Python's lock, so it can run in a thread beside training;
the tensors must stay as they are until it returns.
"""
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import threading
from typing import IO, Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

Event = Dict[str, Any]
OnEvent = Optional[Callable[[Event], None]]
Path = Union[str, "os.PathLike[str]"]
Source = Union[Path, Sequence[Path], Mapping[str, Any]]


class Error(Exception):
    """What a program says of its failure. code is a word like "mismatch": error.code in
    wsync-json(5). hint, phase and endpoint are None if unknown; end is the last line, or None."""

    def __init__(self, code: str, message: str, hint: Optional[str] = None,
                 phase: Optional[str] = None, endpoint: Optional[str] = None,
                 end: Optional[Event] = None):
        super().__init__(code, message, hint, phase, endpoint, end)
        self.code, self.message, self.hint = code, message, hint
        self.phase, self.endpoint, self.end = phase, endpoint, end

    def __str__(self) -> str:
        return _shown(self.message) + (f"\nhint: {_shown(self.hint)}" if self.hint else "")


def _shown(text: str) -> str:
    """For a terminal: a server may have chosen words of it."""
    return "".join(c if c.isprintable() else "?" for c in text)


def push(source: Source, endpoints: Optional[Sequence[str]] = None, *, on_event: OnEvent = None,
         **options: Any) -> Event:
    """Pushes a checkpoint, several that are one, or a dict of tensors, as wsync-push does.

    endpoints are URLs; None: the registered ones. The tensors are all on GPUs, and read there, or
    all in the host's memory, and copied once. A head that config says is tied is not sent again,
    except of a mixture of experts: servers may keep a head of its own.
    """
    return _with_source("wsync-push", [], source, endpoints, on_event, options)


def verify(source: Source, endpoints: Optional[Sequence[str]] = None, *, command: str = "weights",
           on_event: OnEvent = None, **options: Any) -> Event:
    """Asks whether servers have these weights, or with command "names" whether they would take
    them, as wsync-verify does. Raises Error with the code "mismatch" if not."""
    return _with_source("wsync-verify", [command], source, endpoints, on_event, options)


def register(command: str, *arguments: str, on_event: OnEvent = None, **options: Any) -> Event:
    """register("add", URL, pool="math"): manages the registry, as wsync-register does."""
    return _run("wsync-register", [command, *arguments, *_words(options)], on_event)


def _words(options: Mapping[str, Any]) -> List[str]:
    """Those without a value are last: one that needs a value then takes no other word for it."""
    words, flags = [], []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, (list, tuple)) and not value:
            raise ValueError(f"{name} is an empty list; None is the default")
        for v in value if isinstance(value, (list, tuple)) else [value]:
            if v is True:
                flags.append(flag)
            elif v is not None and v is not False:
                words.append(f"{flag}={v}")
    return words + flags


def _with_source(program: str, words: List[str], source: Source,
                 endpoints: Optional[Sequence[str]], on_event: OnEvent,
                 options: Mapping[str, Any]) -> Event:
    urls = None if endpoints is None else list(endpoints)
    if isinstance(endpoints, str) or urls == []:
        raise ValueError("endpoints: a list of URLs, or None for the registered ones")
    to = [f"--endpoint={e}" for e in urls or []]
    if not isinstance(source, Mapping):
        each = [source] if isinstance(source, (str, os.PathLike)) else list(source)
        paths = [os.fspath(p) for p in each]
        paths = ["./" + p if p.startswith("-") else p for p in paths]
        return _run(program, [*words, *paths, *to, *_words(options)], on_event)
    from wsync_tensors import as_source
    with as_source(source, options.get("config")) as path:
        return _run(program, [*words, path, *to, *_words(options)], on_event)


def _program(name: str) -> str:
    """The one that was installed with this file, else the one on the PATH."""
    try:
        files = importlib.metadata.files("wsync") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    here = os.path.realpath(__file__)
    if not any(os.path.realpath(str(f.locate())) == here for f in files):
        files = []  # of another one
    own = [str(f.locate()) for f in files if f.name == name]
    own += [os.path.join(os.path.dirname(here), "bin", name)]  # pip --target
    found = next((p for p in own if os.access(p, os.X_OK)), None) or shutil.which(name)
    if not found:
        raise Error("system", f"{name} is neither installed with this module nor on the PATH")
    return found


def _relay(pipe: IO[str], said: List[str]) -> None:
    with pipe:
        for line in pipe:
            said.append(line)
            try:
                sys.stderr.write(line)
            except Exception:  # it is closed: the program must not wait for us
                pass


def _run(program: str, words: List[str], on_event: OnEvent) -> Event:
    said: List[str] = []
    end: Optional[Event] = None
    # In a session of its own a terminal's Ctrl-C does not reach it: a second signal from here would
    # be one too many, and end it at once.
    child = subprocess.Popen([_program(program), "--json", *words], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                             errors="replace", start_new_session=True)
    out, err = child.stdout, child.stderr
    assert out and err  # of which mypy cannot know
    relay = threading.Thread(target=_relay, args=(err, said), daemon=True)
    try:  # from here on: Ctrl-C may come before the thread runs
        relay.start()
        for line in out:
            if not (line.startswith("{") and line.endswith("}\n")):
                break  # it was killed, or prints its help
            event = json.loads(line)
            end = event if event["type"] == "end" else None
            if on_event is not None:
                on_event(event)
            if end:
                break  # what it has started may have the pipe for longer
    except BaseException:
        child.terminate()  # it cleans up within seconds
        raise
    finally:
        if not end:
            for _ in out:
                pass
        out.close()
        code = child.wait()
        if relay.ident:
            relay.join(5)
    if end and end["ok"] and code == 0:
        return end
    why = (end or {}).get("error") or {}
    lines = [t.strip().rpartition(program + ": ")[2] for t in said if ": warning: " not in t]
    told = lines[0] if lines and code > 0 else f"{program} ended with status {code}"
    raise Error(why.get("code") or ("usage" if code == 2 else "system"), why.get("message") or told,
                why.get("hint"), why.get("phase"), why.get("endpoint"), end)
