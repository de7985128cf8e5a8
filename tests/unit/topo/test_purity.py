"""The graph is arithmetic over what it is given: nothing of it reaches outside."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import epctl.topo

MODULES = sorted(Path(epctl.topo.__file__).parent.glob("*.py"))
PURE = ("epctl.topo", "epctl.core")
OUTSIDE = {"os", "subprocess", "socket", "pathlib", "shutil", "threading", "ctypes", "time"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_imports_are_standard_library_msgspec_and_core(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            top = name.split(".")[0]
            assert name not in OUTSIDE
            assert top in sys.stdlib_module_names or top == "msgspec" or name.startswith(PURE)
