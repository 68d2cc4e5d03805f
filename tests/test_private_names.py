"""Each private name of torch and Lightning that this project uses exists in the installed release."""

import importlib
import inspect

import pytest

from fsdl_dev.models import torch_private
from fsdl_dev.parallel import lightning_private

NAMES = [
    (path, name)
    for table in (torch_private.IN_PLACE, lightning_private.IN_PLACE)
    for path, names in table.items()
    for name in names or (None,)
]


@pytest.mark.parametrize("path,name", NAMES)
def test_a_class_has_its_private_name(path, name):
    module, _, cls = path.partition(":")
    owner = getattr(importlib.import_module(module), cls)
    if name is None or hasattr(owner, name):
        return
    sources = [inspect.getsource(each) for each in owner.__mro__ if each.__module__ != "builtins"]
    assert any(f"self.{name}" in source or f'"{name}"' in source for source in sources), (
        f"{path} has no {name} any more: change what uses it, or pin the release"
    )


@pytest.mark.parametrize("name", torch_private.LATE)
def test_a_late_name_of_torch_is_there(name):
    assert callable(torch_private.late(name))
