"""Where a just-in-time compiler finds its CUDA toolkit. Standard library alone, Python 3.8 or later."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epctl.core.standalone.cuda_home import DEFAULT, find, version_of
else:
    sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120
    import _shared  # noqa: F401
    from standalone.cuda_home import DEFAULT, find, version_of

__all__ = ["DEFAULT", "find", "version_of"]
