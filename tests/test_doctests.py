"""Every example in a docstring runs. `tiny_model` stands for a model's folder in them."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import skfusion

MODULES = [module.name for module in pkgutil.walk_packages(skfusion.__path__, prefix="skfusion.")]


@pytest.mark.parametrize("name", ["skfusion", *MODULES])
def test_examples(name, folder):
    module = importlib.import_module(name)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testmod(module, extraglobs={"tiny_model": folder()}, optionflags=flags)
    assert result.failed == 0
