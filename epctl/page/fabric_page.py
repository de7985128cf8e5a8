"""The page of `epctl fabric`: the fabric, one batch step by step, and where its bytes go."""

from __future__ import annotations

from typing import Any

from epctl.fabric.request import Request
from epctl.page.assemble import page
from epctl.page.fabric_variants import HASHES, Simulated, variants

SCHEMA = {"name": "epctl.page.fabric", "version": 1}


def fabric_page(request: Request, simulated: Simulated, *, version: str = "") -> str:
    """HTML. `simulated` gives the report of a request. Raises RefusalError for a request that cannot be."""
    found = variants(request, simulated)
    layout = found.topologies[found.base.partition("|")[0]]["fabric"]
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "epctl": version,
        "most_hashes": HASHES,
        "variants": found,
    }
    title = f"epctl fabric: {layout.nodes} nodes x {layout.gpus_per_node} GPUs"
    scripts = ("page.js", "drawing.js", "fabric_draw.js", "fabric_panel.js", "fabric.js")
    return page(title=title, body="fabric.html", scripts=scripts, data=data)
