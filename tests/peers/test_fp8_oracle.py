# SPDX-License-Identifier: Apache-2.0
"""FP8 of fp8tool against torch's own float8_e4m3fn, bit for bit, by both scale rules.

This file is two programs: the test, and with an argument the oracle, which tests/peers/python.sh
runs with torch 2.6. The oracle makes the tensors, asks fp8tool for theirs, and computes the same in
torch: amax of each block, a true division or a product with the reciprocal, clamp, and torch's
conversion.
"""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LEVELS = ("scalar", "avx2")
LEAST = {"xorl": 1e-12, "slime": 1e-10}


class Oracle:
    """fp8tool's answer to one tensor, and torch's."""

    def __init__(self, torch, tool):
        self.torch, self.tool, self.compared = torch, tool, 0

    def raw(self, x):
        return x.contiguous().reshape(-1).view(self.torch.uint8).numpy().tobytes()

    def ask(self, requests):
        """What fp8tool says to [(tensor, rule, level, (bn, bk))], in one run of it."""
        torch, sent = self.torch, []
        for x, rule, level, block in requests:
            kind = "bf16" if x.dtype == torch.bfloat16 else "f32"
            sent.append(("%s %s %s %d %d %d %d\n" % (kind, rule, level, *x.shape, *block)).encode())
            sent.append(self.raw(x))
        done = subprocess.run([self.tool], input=b"".join(sent), stdout=subprocess.PIPE,
                              timeout=1200, check=True)
        out, at, answers = done.stdout, 0, []
        for x, rule, level, (bn, bk) in requests:
            end = out.index(b"\n", at)
            said, at = out[at:end].decode(), end + 1
            if said != "ok":
                answers.append(said)
                continue
            rows, cols = x.shape
            down, across = -(-rows // bn), -(-cols // bk)
            codes = out[at:at + rows * cols]
            at += rows * cols
            answers.append((codes, out[at:at + 4 * down * across]))
            at += 4 * down * across
        assert at == len(out), "%d bytes too many" % (len(out) - at)
        return answers

    def expect(self, x, rule, block):
        torch, F = self.torch, self.torch.nn.functional
        name, ue8m0 = rule.split("+")[0], rule.endswith("+ue8m0")
        rows, cols = x.shape
        bn, bk = block
        down, across = -(-rows // bn), -(-cols // bk)
        padded = F.pad(x.float(), (0, across * bk - cols, 0, down * bn - rows))
        tiles = padded.view(down, bn, across, bk)
        s = tiles.abs().amax(dim=(1, 3)).clamp(min=LEAST[name]) / 448.0
        if ue8m0:
            m, e = torch.frexp(s)
            s = torch.ldexp(torch.ones_like(s), torch.where(m == 0.5, e - 1, e))
        wide = s[:, None, :, None]
        y = tiles / wide if name == "xorl" else tiles * (1.0 / wide)
        q = y.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)
        q = q.view(down * bn, across * bk)[:rows, :cols]
        return self.raw(q), self.raw(s)

    def check(self, cases, levels=LEVELS):
        """Every (tensor, rule, block) at every level that the machine has."""
        requests = [(x, rule, level, block) for x, rule, block in cases for level in levels]
        answers = self.ask(requests)
        for (x, rule, level, block), answer in zip(requests, answers):
            if answer == "no":
                continue
            where = "%s %s %s %s %s" % (list(x.shape), x.dtype, rule, level, block)
            assert isinstance(answer, tuple), "%s: %s" % (where, answer)
            codes, scales = self.expect(x, rule, block)
            assert answer[1] == scales, where + ": scales differ"
            if answer[0] != codes:
                i = next(i for i in range(len(codes)) if codes[i] != answer[0][i])
                raise AssertionError("%s: element %d, %r, is %02x, in torch %02x" % (
                    where, i, x.reshape(-1)[i].item(), answer[0][i], codes[i]))
            self.compared += len(codes)


RULES = ("xorl", "slime", "xorl+ue8m0", "slime+ue8m0")


def patterns(torch):
    """Every finite bf16 there is."""
    bits = torch.arange(0x10000, dtype=torch.int32)
    return bits[(bits & 0x7f80) != 0x7f80].to(torch.int16).view(torch.bfloat16)


def cases_of_all_patterns(o):
    """As one block, in blocks of like size (subnormals and zeros among them), and shuffled."""
    torch, x = o.torch, patterns(o.torch)
    shuffled = x[torch.randperm(len(x))]
    for rule in RULES:
        for block in ((512, 256), (1, 128), (128, 128), (1, 1), (3, 50)):
            yield x.view(-1, 256), rule, block
            yield shuffled.view(-1, 128), rule, block
        # By scales from tiny to huge: each pattern beside one greatest value, in rows of their own.
        for power in range(-132, 128, 10):
            row = x.clone()
            greatest = torch.tensor(2.0 ** power * 1.71875, dtype=torch.bfloat16)
            row[row.float().abs() > greatest.float()] = greatest
            yield row.view(1, -1), rule, (1, len(row))


def weights(o, rows, cols, dtype):
    torch = o.torch
    x = torch.randn(rows, cols) * 0.02 * torch.exp(3 * torch.randn(rows, 1))
    x[torch.rand(rows, cols) < 0.02] = 0.0
    x[torch.rand(rows, cols) < 0.01] *= 2.0 ** -20
    x[torch.rand(rows, cols) < 0.01] *= -0.0
    return x.to(dtype)


def cases_of_ragged_shapes(o):
    sides = (1, 2, 31, 127, 128, 129, 255, 256, 257)
    shapes = [(r, c) for r in sides for c in (1, 3, 64, 128, 129, 384, 385)]
    for i, (rows, cols) in enumerate(shapes):
        for dtype in (o.torch.bfloat16, o.torch.float32):
            for rule in RULES[:2]:
                yield weights(o, rows, cols, dtype), rule, ((128, 128), (64, 32), (1, 128),
                    (512, 512))[i % 4]
    for dtype in (o.torch.bfloat16, o.torch.float32):
        for rule in RULES:
            yield weights(o, 257, 385, dtype), rule, (128, 128)


def cases_of_zeros_and_extremes(o):
    torch = o.torch
    for dtype in (torch.bfloat16, torch.float32):
        greatest, least = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
        for value in (0.0, -0.0, greatest, -greatest, least, -least, least / 64, 1e-12, 1e-10,
                      448.0, 464.0):
            x = torch.full((130, 140), value).to(dtype)
            y = x.clone()
            y[5, 7], y[129, 139] = -greatest, least / 128
            for rule in RULES:
                yield x, rule, (128, 128)
                yield y, rule, (128, 128)


def cases_around_borders(o):
    """f32 within 8 units of every step and tie of every scale: what bf16 has no room for."""
    torch = o.torch
    codes = torch.arange(0x7f, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    borders = torch.cat([codes, (codes[1:] + codes[:-1]) / 2])
    for seed in range(40):
        torch.manual_seed(seed)
        amax = torch.exp(8 * torch.randn(1))
        near = (borders * (amax / 448.0)).view(torch.int32)[:, None] + torch.arange(-8, 9,
            dtype=torch.int32)
        x = near.clamp(min=0).view(torch.float32).reshape(1, -1)
        x = torch.where(x > amax, amax, x)
        x[0, ::2] *= -1
        x = torch.cat([amax[None], x], dim=1)
        for rule in RULES:
            yield x, rule, (1, x.shape[1])


def what_is_no_number(o):
    torch = o.torch
    requests, places = [], []
    for bits in list(range(0x7f80, 0x8000)) + list(range(0xff80, 0x10000)):
        value = torch.tensor([bits - 0x10000 if bits > 0x7fff else bits],
                             dtype=torch.int16).view(torch.bfloat16)
        row, col = bits % 257, bits * 7 % 385
        x = torch.zeros(257, 385, dtype=torch.bfloat16)
        x[row, col] = value[0]
        x[256, 384] = value[0]
        dense = x if bits % 2 else x.float()
        requests.append((dense, RULES[bits % 2], "-", ((128, 128), (512, 512))[bits % 3 == 0]))
        places.append("bad %d %d" % (row, col))
    for answer, place in zip(o.ask(requests), places):
        assert answer == place, "%s, not %s" % (answer, place)


def oracle(tool):
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(1)
    o = Oracle(torch, tool)
    titles = {
        cases_of_all_patterns: "every bf16 pattern",
        cases_of_ragged_shapes: "ragged shapes from 1x1 to 257x385",
        cases_of_zeros_and_extremes: "zeros, subnormals and extremes",
        cases_around_borders: "floats around every border",
        what_is_no_number: "every NaN and infinity is refused at its place",
    }
    print("1..%d" % len(titles), flush=True)
    for i, (what, title) in enumerate(titles.items(), 1):
        before = o.compared
        try:
            if what is what_is_no_number:
                what(o)
            else:
                o.check(list(what(o)))
            print("ok %d - %s # %d numbers" % (i, title, o.compared - before), flush=True)
        except Exception as e:
            print("not ok %d - %s\n# %s: %s" % (i, title, type(e).__name__, e), flush=True)


def main():
    tool = os.path.abspath(os.path.join(os.environ.get("BUILD", "build"), "tests/tools/fp8tool"))
    if not os.path.exists(tool):
        print("1..0 # SKIP fp8tool is not built")
        return 0
    argv = ["setpriv", "--pdeathsig", "KILL", os.path.join(HERE, "python.sh"), "2.6", __file__,
            tool]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=1200)
    if done.returncode == 77:
        print("1..0 # SKIP " + done.stderr.strip().split("\n")[-1])
        return 0
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(oracle(sys.argv[1]) if len(sys.argv) > 1 else main())
