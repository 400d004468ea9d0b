# SPDX-License-Identifier: Apache-2.0
"""A shim that lets SGLang be imported where no wheel of its kernels can be: sgl_kernel is made of
CUDA.

SGLang imports names of it at the top of modules, and on a CPU without AMX calls none of them, for
it has torch's own operations instead. So every name is there, those with a capital as an empty
class, and who calls one is told that it is a shim. SGLang 0.4 wants some modules of vllm too
($WSYNC_SHIM=vllm): kernels that it does not call either, and two classes instead of its own of the
same name; it gets its own. Until 0.5.22 its checksums begin with torch.cuda.synchronize, which a
torch without CUDA refuses: with $WSYNC_SHIM=cuda it does nothing. Nothing of SGLang itself is
replaced."""
import importlib.abc
import importlib.machinery
import os
import sys
import types

SAME_IN_SGLANG = {"vllm.model_executor.layers.activation": "sglang.srt.layers.activation",
                  "vllm.model_executor.layers.layernorm": "sglang.srt.layers.layernorm"}
VLLM = {"vllm", "vllm._custom_ops", "vllm.model_executor", "vllm.model_executor.layers",
        *SAME_IN_SGLANG}
EXACTLY = VLLM if os.environ.get("WSYNC_SHIM") == "vllm" else set()


class Absent:
    def __init__(self, name):
        self.__dict__["name"] = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(self.name + "." + name)

    def __call__(self, *_args, **_named):
        raise NotImplementedError("%s is a shim of wsync's tests: there is none on a CPU"
                                  % self.name)


class Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__ in SAME_IN_SGLANG:
            return getattr(sys.modules[SAME_IN_SGLANG[self.__name__]], name)
        return type(name, (), {}) if name[0].isupper() else Absent(self.__name__ + "." + name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "sgl_kernel" or name in EXACTLY:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Finder())  # the last: a real one comes first

if os.environ.get("WSYNC_SHIM") == "cuda":
    import torch.cuda

    torch.cuda.synchronize = lambda *_: None
