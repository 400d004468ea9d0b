# SPDX-License-Identifier: Apache-2.0
"""fault_acts.py - what happens around a push while it waits for an answer, with servers and wire in
order.

Each act has variants, one of which is an option of its point (fault_lib.py): the source changes;
another user pushes; the process reaches a limit of the system. It is done while the request waits
in a proxy, so that the moment does not depend on the machine's speed.
"""
import os
import resource
import shutil
import threading

import lib
import proxy as proxies


class Source:
    """The checkpoint changes under the push."""

    VARIANTS = ["overwrite", "replace", "truncate", "extend"]
    # Success only with one whole checkpoint. A server that loads files itself may say no first.
    CODES = dict.fromkeys(("disk", "vllm-disk"), {0, 3, 5, 9})

    def __init__(self, point, world):
        world.source = os.path.join(world.state, "source")
        shutil.copytree(world.protocol.new, world.source)
        self.path = os.path.join(world.source, "model.safetensors")
        self.variant = point.variant
        with open(os.path.join(world.protocol.other, "model.safetensors"), "rb") as f:
            self.other = f.read()

    def act(self, _):
        if self.variant == "replace":
            with open(self.path + ".tmp", "wb") as f:
                f.write(self.other)
            os.replace(self.path + ".tmp", self.path)
        elif self.variant == "overwrite":
            with open(self.path, "r+b") as f:
                f.write(self.other)
        else:
            os.truncate(self.path, len(self.other) + (1 if self.variant == "extend" else -1))

    def codes(self, protocol):
        return self.CODES.get(protocol.name, {0, 3})


class Rival:
    """Somebody else pushes another checkpoint, with records of his own."""

    VARIANTS = ["rival"]

    def __init__(self, point, world):
        self.world = world

    def act(self, _):
        self.world.rival().wait()

    def codes(self, _):
        return None


class Limit:
    """From now on no file can be opened, no file can grow, no memory can be had."""

    # of which sanitizers die
    VARIANTS = ["files", "size"] + ([] if lib.is_sanitized() else ["memory"])

    def __init__(self, point, world):
        self.variant = point.variant

    def act(self, pid):
        if self.variant == "files":
            what, limit = resource.RLIMIT_NOFILE, len(os.listdir("/proc/%d/fd" % pid))
        elif self.variant == "size":
            what, limit = resource.RLIMIT_FSIZE, 0
        else:
            with open("/proc/%d/statm" % pid) as f:
                what, limit = resource.RLIMIT_AS, int(f.read().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, what, (limit, limit))

    def codes(self, _):
        return None


class Replaced:
    """The server ends, and another start of it, with the weights of its start, has its address."""

    VARIANTS = ["replaced"]

    def __init__(self, point, world):
        self.world, self.victim = world, point.victim
        self.fresh, self.came, self.over = world.new_endpoint(), False, False
        self.at_first = len(self.paths())

    def paths(self):
        return [r["path"] for r in self.fresh.get("/wsync/journal")["requests"]]

    def act(self, _):
        if self.over or self.came:
            return
        self.came = True
        old = self.world.endpoints[self.victim]
        self.world.names[self.fresh.url] = self.world.names.pop(old.url)
        self.world.endpoints[self.victim] = self.fresh
        lib.stop(old.child)

    def codes(self, _):
        return None

    def is_unseen(self):
        """Nobody asked who it is since: then nothing can be known of it."""
        return self.came and not any("_info" in p for p in self.paths()[self.at_first:])

    def end(self):
        self.over = True
        if not self.came:
            lib.stop(self.fresh.child)


KINDS = {"source": Source, "rival": Rival, "limit": Limit, "replaced": Replaced}


def run(kind, point, world, number, start):
    """Runs the push that start() begins, with its act before request `number` to the point's
    step."""
    act, running = KINDS[kind](point, world), []
    begun = threading.Event()

    def do(request):
        if request["path"].split("?")[0] == "/" + point.step and request["nth"] == number:
            begun.wait(lib.PATIENCE)
            act.act(running[0].child.pid)
        if getattr(act, "came", False):
            request["url"] = act.fresh.url

    victim = world.endpoints[point.victim]
    proxy = proxies.Proxy(victim.url, do)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    world.names[victim.url] = proxy.url
    world.proxies.append(proxy)
    try:
        running.append(start())
        begun.set()
        return act, running[0].wait()
    finally:
        world.source = world.protocol.new
        if kind == "replaced":
            act.end()
