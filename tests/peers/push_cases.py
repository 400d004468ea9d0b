# SPDX-License-Identifier: Apache-2.0
"""push_cases.py - wsync-push into endpoints made of a real torch: one suite, run per version.

Every byte that any rank received is compared, by hash, with the files. The endpoints are shared by
all cases (importing torch takes seconds); a rank forgets what it held when it joins a new group.
"""
import json
import os
import subprocess
import sys

import lib
import mkst

GIB = 1 << 30
# What torch's gloo will not broadcast as itself (Debian's 2.14 lacks a build option of gloo).
REFUSED = {"1.13": {"BF16"}, "2.6": set(), "2.14": {"F16", "BF16"}}
POOL = [1, 1, 2, 2, 4]
PLAIN = [("embed.weight", "F32", (2000, 300)), ("layers.0.w", "F32", (513, 1025)),
         ("layers.0.b", "F32", (1025,)), ("layers.1.w", "F32", (777, 1025)),
         ("layers.1.q", "U8", (3, 100003)), ("layers.1.h", "F16", (513, 77)),
         ("layers.1.i", "I64", (31, 3)), ("odd", "U8", (13,)), ("one", "U8", (1,)),
         ("scale", "F32", ())]
BFLOAT = [("model.layers.%d.mlp.%s.weight" % (i, n), "BF16", (300 + i, 511))
          for i in range(6) for n in ("gate_proj", "up_proj", "down_proj")]
FLOAT8 = [("a.weight", "F8_E4M3", (1000, 77)), ("a.weight_scale_inv", "F32", (8, 1)),
          ("b.weight", "F8_E5M2", (33, 3)), ("b.bias", "BF16", (33,)),
          ("c.weight", "F8_E4M3", (1, 1))]
TINY = [("t%d" % i, "U8", (i,)) for i in range(1, 34)] + [("f", "F32", (1,)), ("h", "BF16", (3,))]


def make(name, tensors, seed=0):
    path = lib.scratch(name + ".safetensors")
    mkst.write(path, tensors, seed)
    return path


def group(suite, tps, tensors, options, title):
    world = 1 + sum(tps)
    shape = " + ".join("tp %d" % tp for tp in tps)

    @suite.case("world of %d (%s), %s" % (world, shape, title))
    def check(fix):
        endpoints = fix.peers.choose(*tps)
        path = make("plain", tensors, seed=world)
        result = lib.push(endpoints, [path], *options)
        assert result.rc == 0 and result.end["ok"], result
        lib.check_held(endpoints, lib.oracle(path))


def suite_for(version):
    suite = lib.Suite()

    @suite.case("the endpoints take what torch's own rank 0 sends (control)")
    def control(fix):
        endpoints = fix.peers.choose(1, 2)
        path = make("control", PLAIN, seed=99)
        argv = [os.path.join(lib.HERE, "python.sh"), version,
                os.path.join(lib.TREE, "tests", "bench", "torch_sender.py"), path]
        for e in endpoints:
            argv += ["--endpoint", e.url]
        done = subprocess.run(argv, timeout=lib.PATIENCE, capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0, done.stderr
        lib.check_held(endpoints, lib.oracle(path))

    flattened = ("--load-format", "flattened_bucket", "--bucket-size", "2MiB")
    per_tensor = ("--load-format", "none", "--bucket-size", "2MiB")
    each = [t for t in PLAIN if t[1] not in REFUSED[version]]
    for tps in ([1], [2], [1, 1], [4], [2, 2], [1, 2, 4]):
        group(suite, tps, PLAIN, flattened, "flattened buckets")
        group(suite, tps, each, per_tensor, "one broadcast per tensor")

    @suite.case("bfloat16 in flattened buckets")
    def bfloat(fix):
        endpoints = fix.peers.choose(2, 1)
        path = make("bfloat", BFLOAT)
        result = lib.push(endpoints, [path], "--bucket-size", "1MiB")
        assert result.rc == 0, result
        assert len(result.of("bucket")) > 3, result
        lib.check_held(endpoints, lib.oracle(path))

    bfloat_is_refused = "BF16" in REFUSED[version]

    @suite.case("bfloat16 one by one" + (" is refused by this torch, and nobody left paused"
                                         if bfloat_is_refused else ""))
    def bfloat_each(fix):
        endpoint, = fix.peers.choose(1)
        path = make("bfloat", BFLOAT)
        before = len(endpoint.journal())
        result = lib.push([endpoint], [path], "--load-format", "none")
        if bfloat_is_refused:
            assert result.rc == 5 and ("bfloat16" in result.stderr or
                                       "Invalid scalar type" in result.stderr), result
            done = endpoint.steps(before)
            assert done.count("/pause_generation") == done.count("/continue_generation"), done
        else:
            assert result.rc == 0, result
            lib.check_held([endpoint], lib.oracle(path))

    @suite.case("float8 in flattened buckets" + (" is unknown to this torch, and refused"
                                                 if version == "1.13" else ""))
    def float8(fix):
        endpoints = fix.peers.choose(2)
        path = make("float8", FLOAT8)
        result = lib.push(endpoints, [path])
        if version == "1.13":
            assert result.rc == 5 and "float8" in json.dumps(result.end), result
        else:
            assert result.rc == 0, result
            lib.check_held(endpoints, lib.oracle(path))

    @suite.case("float8 one by one is refused before a byte leaves")
    def float8_each(fix):
        endpoint, = fix.peers.choose(1)
        path = make("float8", FLOAT8)
        before = len(endpoint.journal())
        result = lib.push([endpoint], [path], "--load-format", "none")
        assert result.rc not in (0, None) and "float8" in result.stderr, result
        assert "/update_weights_from_distributed" not in endpoint.steps(before), result

    @suite.case("tensors of one byte and of odd sizes, a bucket for each")
    def tiny(fix):
        endpoints = fix.peers.choose(1, 1)
        path = make("tiny", TINY)
        result = lib.push(endpoints, [path], "--bucket-size", "1",
                          "--load-format", "flattened_bucket")
        assert result.rc == 0, result
        assert result.end["buckets"] == len(TINY), result
        lib.check_held(endpoints, lib.oracle(path))

    @suite.case("one tensor of 1 GiB")
    def big(fix):
        endpoints = fix.peers.choose(1)
        path = make("big", [("big", "F32", (GIB // 4096, 1024)), ("small", "U8", (5,))])
        result = lib.push(endpoints, [path], "--load-format", "flattened_bucket")
        assert result.rc == 0 and result.end["bytes"] == GIB + 5, result
        lib.check_held(endpoints, lib.oracle(path))
        os.unlink(path)

    if version == "2.6":
        @suite.case("a server that is slow with larger buckets gets smaller ones")
        def sizes(_fix):
            peers = lib.Receivers(version, [1], options=["--slow-above", str(16 << 20)])
            path = make("sizes", [("t%d" % i, "F32", (250007,)) for i in range(1400)])
            result = lib.push(peers.endpoints, [path])
            assert result.rc == 0, result
            plan, buckets = result.of("plan")[0], result.of("bucket")
            assert plan["bucket_size"] == 31 << 20 and plan["bucket_size_auto"], plan
            # There is no room to try 62 MiB. Whether half of 15.5 is faster, the times decide.
            tried = {b["bucket_size"] for b in buckets}
            assert {31 << 20, 31 << 19} <= tried <= {31 << i for i in range(17, 21)}, result
            assert buckets[-1]["bucket_size"] < 31 << 20, result
            assert sum(b["bucket_size"] == 31 << 20 for b in buckets) < 8, result
            assert result.end["bucket_size"] == buckets[-1]["bucket_size"], result
            assert result.end["buckets"] == len(buckets) == buckets[-1]["count"], result
            assert sum(b["bytes"] for b in buckets) == plan["bytes"], result
            lib.check_held(peers.endpoints, lib.oracle(path))
            peers.stop()
            os.unlink(path)

    @suite.case("three pushes through one group")
    def session(fix):
        endpoints = fix.peers.choose(2, 2)
        before = [len(e.journal()) for e in endpoints]
        session = lib.Session(endpoints, "--bucket-size", "2MiB")
        for i in range(3):
            path = make("push%d" % i, PLAIN, seed=100 + i)
            result = session.push(path)
            assert result and result["ok"], result
            lib.check_held(endpoints, lib.oracle(path))
        rc, end = session.close()
        assert rc == 0 and end["ok"], end
        for e, n in zip(endpoints, before):
            done = e.steps(n)
            assert done.count("/init_weights_update_group") == 1, done
            assert done.count("/destroy_weights_update_group") == 1, done
            assert done.count("/pause_generation") == done.count("/continue_generation") == 3, done

    @suite.case("init, pause, buckets, resume, destroy; flush is said each time, true at last")
    def order(fix):
        endpoints = fix.peers.choose(1, 2)
        before = [len(e.journal()) for e in endpoints]
        result = lib.push(endpoints, [make("plain", PLAIN, seed=5)], "--bucket-size", "1MiB")
        assert result.rc == 0, result
        for e, n in zip(endpoints, before):
            journal = e.journal()[n:]
            done = [s for s in (j["path"] for j in journal) if s.split("_")[0] in (
                "/init", "/pause", "/update", "/continue", "/destroy")]
            updates = [j for j in journal if j["path"] == "/update_weights_from_distributed"]
            assert done == ["/init_weights_update_group", "/pause_generation"] + \
                ["/update_weights_from_distributed"] * len(updates) + \
                ["/continue_generation", "/destroy_weights_update_group"], done
            flags = [u["body"].get("flush_cache") for u in updates]
            assert flags == [False] * (len(updates) - 1) + [True] and len(flags) > 3, flags

    @suite.case("gloo's variants: lazy connections, ranks as sequence numbers, the batched store")
    def variants(fix):
        if version == "1.13":
            raise lib.Skip("this torch has none of them")
        path = make("plain", PLAIN, seed=6)
        for env in ({"TORCH_GLOO_LAZY_INIT": "1"},
                    {"GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER": "1", "GLOO_ENABLE_STORE_V2_API": "1"}):
            peers = lib.Receivers(version, [1, 2], env)
            result = lib.push(peers.endpoints, [path], "--bucket-size", "2MiB")
            assert result.rc == 0, (env, str(result))
            lib.check_held(peers.endpoints, lib.oracle(path))
            peers.stop()

    return suite


class Fixture:
    def __init__(self, version):
        # Debian testing is a moving target: only who asked for it tests against it.
        if version == "2.14" and not os.path.isdir(lib.torch_root(version)):
            raise lib.Skip("no torch %s; tests/peers/chroot.sh %s makes it" % (version, version))
        self.peers = lib.Receivers(version, POOL)


def main(version):
    sys.exit(suite_for(version).main(lambda: Fixture(version)))
