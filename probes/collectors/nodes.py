"""Collector: device files of GPUs and RDMA devices, and whether this user may read and write them.

Document: {"/dev/nvidia0": {"rw": true}, …}; a folder that is there but cannot be listed stands as {"error": "EACCES"}.
access(2) also asks the device rules of the control group, so a node that a container may not use tells false.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from typing import Any

FOLDERS = ("/dev", "/dev/infiniband", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels")
MAX_NODES = 8192
"""An IMEX domain has 2048 channels at most; this stops a folder that somebody filled."""


def collect(root: str = "") -> dict[str, Any]:
    """The document; `root` is put in front of the folders (for tests)."""
    found: dict[str, Any] = {}
    for folder in FOLDERS:
        try:
            names = sorted(os.listdir(root + folder))  # noqa: PTH208 - names, not paths
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                found[folder] = {"error": _code(error)}
            continue
        for name in names:
            if folder == "/dev" and not name.startswith(("nvidia", "gdrdrv")):
                continue
            if len(found) >= MAX_NODES:
                return found
            entry = _node(f"{root}{folder}/{name}")
            if entry is not None:
                found[f"{folder}/{name}"] = entry
    return found


def _node(path: str) -> dict[str, Any] | None:
    """What is known of one device file; None for a folder or a plain file."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - one call
    except OSError as error:
        return {"error": _code(error)}
    if not stat.S_ISCHR(mode):
        return None
    try:
        return {"rw": os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids)}
    except OSError as error:
        return {"error": _code(error)}


def _code(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error))


if __name__ == "__main__":
    json.dump(collect(), sys.stdout)
