"""Let PyPI's torchvision be imported beside a CPU build of torch.

On Linux, PyPI's torchvision wheel is linked against CUDA. Beside a CPU build of torch its C++ library
cannot load, and `import torchvision` dies with "operator torchvision::nms does not exist"; timm,
torchmetrics and Lightning die with it. Where, and only where, that pair is installed, this writes two
small files into the environment: an import hook that declares the two missing operator schemas just
before torchvision is first imported, and the .pth line that installs the hook at start-up. Models,
transforms and datasets then work; the C++ operators (nms, roi_align, decode_jpeg) stay absent.
Anywhere else it does nothing, and removes the hook if an earlier pair left it behind.
"""

import importlib.util
import re
import sys
import sysconfig
from pathlib import Path

HOOK = '''"""Declare torchvision's operator schemas where torch is a CPU build and torchvision a CUDA one.

Written by tools/torchvision_cpu.py of fsdl_dev; delete it together with zz_torchvision_cpu_shim.pth.
"""
import importlib.machinery
import os
import sys


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            return None
        try:
            with open(os.path.join(spec.submodule_search_locations[0], "version.py")) as version:
                linked_to_cuda = "+cu" in version.read()
        except OSError:
            return None
        import torch

        if linked_to_cuda and torch.version.cuda is None:
            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            sys.modules[__name__]._library = library  # it unregisters when it is collected
        return None


sys.meta_path.insert(0, _Finder())
'''
NAME = "_torchvision_cpu_shim"


def version_file(package: str) -> str:
    """Return the text of a package's version.py without importing the package ("" when absent)."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return ""
    path = Path(spec.submodule_search_locations[0]) / "version.py"
    return path.read_text() if path.exists() else ""


def main() -> int:
    torch, torchvision = version_file("torch"), version_file("torchvision")
    if not torch or not torchvision:
        print("torchvision: nothing to do, torch and torchvision are not both installed")
        return 0
    cpu_torch = re.search(r"^cuda\b.*=\s*None\s*$", torch, re.M) and not re.search(
        r"^hip\b.*=\s*'", torch, re.M
    )
    needed = bool(cpu_torch) and "+cu" in torchvision
    site_packages = Path(sysconfig.get_paths()["purelib"])
    files = {
        site_packages / f"{NAME}.py": HOOK,
        site_packages / "zz_torchvision_cpu_shim.pth": f"import {NAME}\n",
    }
    present = [path for path, text in files.items() if path.exists() and path.read_text() == text]
    if not needed:
        stale = [path for path in files if path.exists()]
        for path in stale:
            path.unlink()
        print(
            "torchvision: matches torch" + (", removed the CPU import hook" if stale else ", nothing to do")
        )
    elif len(present) == len(files):
        print("torchvision: CUDA wheel beside a CPU torch, the import hook is in place")
    else:
        for path, text in files.items():
            path.write_text(text)
        print(
            "torchvision: CUDA wheel beside a CPU torch, installed an import hook so that it can be imported"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
