# SPDX-License-Identifier: Apache-2.0
"""torchvision of PyPI with Debian's torch: its compiled operations do not load there, and it will
not be imported without these two being known. They are declared and never called; the rest is the
real one."""
import os
import sys

import torch

_operations = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _operations.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

_here = os.path.abspath(__file__)
for _directory in sys.path:
    _file = os.path.join(_directory, "torchvision", "__init__.py")
    if os.path.exists(_file) and os.path.abspath(_file) != _here:
        __file__ = _file
        __path__ = [os.path.dirname(_file)]
        with open(_file, encoding="utf-8") as _text:
            exec(compile(_text.read(), _file, "exec"))
        break
else:
    raise ModuleNotFoundError("No module named 'torchvision'", name="torchvision")
