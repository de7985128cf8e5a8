"""Opens each RDMA device through libibverbs and asks for its limits and the MTUs of its ports, as ibv_devinfo does, for images
without that tool. Nothing is made or registered. One JSON line a device, so that a hang leaves those before it.

Unverified on RDMA hardware: tested against a library that plays it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctl.probes.collectors import _verbs as rdma
else:
    sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120
    import _verbs as rdma


def main() -> None:
    """Prints {"stage": "list", "devices": [NAME]}, then {"stage": "query", "device": NAME, "attributes": …, "ports": […]}."""
    try:
        verbs = rdma.Verbs()
    except OSError as error:
        _tell({"stage": "list", "devices": {"error": "not_found", "detail": str(error)}})
        return
    _tell({"begin": "list"})
    found = verbs.listed()
    if isinstance(found, dict):
        _tell({"stage": "list", "devices": found})
        return
    listed, devices = found
    _tell({"stage": "list", "devices": [name for _, name in devices]})
    for handle, name in devices:
        _tell({"begin": f"query of {name}"})
        _tell({"stage": "query", "device": name, **_query(verbs, handle)})
    verbs.free_list(listed)
    _tell({"stage": "end"})


def _query(verbs: rdma.Verbs, handle: Any) -> dict[str, Any]:  # noqa: ANN401 - ctypes
    context, number = verbs.open(handle)
    if not context:
        refused = rdma.refusal("ibv_open_device", number)
        return {"attributes": refused, "ports": refused}
    try:
        attributes = verbs.attributes(context)
        count = attributes.get("phys_port_cnt", 0)
        ports = attributes if "error" in attributes else [verbs.port(context, i + 1) for i in range(count)]
        return {"attributes": attributes, "ports": ports}
    finally:
        verbs.close(context)


def _tell(entry: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(entry) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
