"""The model is arithmetic: it reaches for nothing outside, and loads fast."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import epctl.model

MODULES = sorted(Path(epctl.model.__file__).parent.rglob("*.py"))
CORE = ("errors", "snapshot", "fact", "views", "capability", "context", "render.safe")
PURE = ("epctl.model", *(f"epctl.core.{part}" for part in CORE))
OUTSIDE = {"os", "subprocess", "socket", "pathlib", "shutil", "threading", "ctypes", "time"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: "/".join(path.parts[-2:]))
def test_imports_are_standard_library_msgspec_and_pure_core(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            top = name.split(".")[0]
            assert name not in OUTSIDE
            assert top in sys.stdlib_module_names or top == "msgspec" or name.startswith(PURE)
