"""Puts epctl/core on the path of the examined interpreter, which has no epctl: `from standalone import elf` works after it."""
# os.path throughout: what any interpreter has, and fast to start with.
# ruff: noqa: PTH113, PTH118, PTH120

from __future__ import annotations

import os
import sys

_ABOVE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
# An installed epctl has probes/ inside of the package, a checkout beside it (epctl/probes is a link there).
CORE = next(
    folder
    for folder in (os.path.join(_ABOVE, "core"), os.path.join(_ABOVE, "epctl", "core"))
    if os.path.isfile(os.path.join(folder, "standalone", "__init__.py"))
)
if CORE not in sys.path:
    sys.path.append(CORE)
