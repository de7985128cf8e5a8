"""Installed Python distributions, with those that bring DeepEP under another name."""

from __future__ import annotations

from epctl.core.fact import value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.software import DeepEp

ALIASES = {"sgl-deep-ep": "deep-ep", "sgl-deep-ep-v25": "deepinfer-ep"}
"""Distribution → the one whose sources it packages (sgl-project/DeepEP, branches sgl-deepep-packaging and sgl-deepep-v25)."""
WITHOUT_METADATA = "deep-ep"
"""How the probe calls a deep_ep that can be imported and belongs to no distribution."""
_V25 = "2.5"


def release(build: DeepEp) -> str:
    """Release of DeepEP that a build is of; '' when nothing tells."""
    if build.distribution not in ALIASES:
        return build.version or value_or(build.release, "")
    found = value_or(build.release, "")
    return _V25 if not found and build.distribution == "sgl-deep-ep-v25" else found


def deepep(node: Snapshot) -> dict[str, tuple[str, str]]:
    """deep-ep or deepinfer-ep → (release, what is installed in words), for builds of other names and for those without metadata."""
    listed = {entry.name for entry in value_or(node.software.distributions, ())}
    found: dict[str, tuple[str, str]] = {}
    for build in value_or(node.software.deep_ep, ()):
        name = ALIASES.get(build.distribution, build.distribution)
        told = release(build)
        renamed = build.distribution in ALIASES
        if name in listed or not told or not (renamed or build.distribution == WITHOUT_METADATA):
            continue
        if renamed:
            words = f"{build.distribution} {build.version} (DeepEP {told}) is installed"
        else:
            words = f"DeepEP {told} is on the path of the interpreter, without metadata"
        found[name] = (told, words)
    return found
