"""Profiles: what a library asks of a node, as data (epctl/data/profiles/*.toml)."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import resources

import msgspec
from msgspec import Struct

from epctl.core.errors import EpctlError


class Detect(Struct, frozen=True, forbid_unknown_fields=True):
    """When a profile is in force by itself: one of the distributions is installed within the versions, or a fact holds."""

    distributions: tuple[str, ...] = ()
    """PEP 508 requirements on installed distributions: "deepinfer-ep>=2.5,<3"."""
    rdma_driver: str = ""
    """Kernel driver of an RDMA device: efa."""
    env: tuple[str, ...] = ()
    """NAME=value settings, one of which is enough."""
    always: bool = False


class Profile(Struct, frozen=True, forbid_unknown_fields=True):
    """Floors and demands of one consumer of the node."""

    id: str
    title: str
    source: str
    """Where the numbers come from."""
    detect: Detect = Detect()
    floors: dict[str, str] = {}
    """Lowest versions: python, torch, nccl, nvcc, cuda_toolkit, nvshmem, gxx, compute_capability, aws_ofi_nccl, gdrcopy,
    efa_driver, …"""
    requires: tuple[str, ...] = ()
    """Features: linux, nvlink, rdma, gin, gin_gdaki, gin_efa_gda, nvidia_smi, ibstat, cxx_format, libdwfl, jit, host_compiler,
    ibgda, symmetric_memory, engram_get, mlx5, cft, …"""
    forbids: dict[str, str] = {}
    """NAME=value settings (`*`: any value) that rule it out → why."""
    needs_env: dict[str, str] = {}
    """NAME=value settings that it needs → why."""
    notes: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def profiles() -> dict[str, Profile]:
    """All profiles of the package, by id, in the order of their file names."""
    found: dict[str, Profile] = {}
    folder = resources.files("epctl") / "data" / "profiles"
    for path in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if path.name.endswith(".toml"):
            profile = msgspec.convert(_toml(path.read_text("utf-8")), Profile)
            found[profile.id] = profile
    return found


def chosen(names: tuple[str, ...]) -> tuple[Profile, ...]:
    """The profiles called `names`; raises EpctlError for an unknown one."""
    known = profiles()
    for name in names:
        if name not in known:
            raise EpctlError(
                f"there is no profile {name!r}", f"known profiles: {', '.join(known)}", "give one of these to --profile"
            )
    return tuple(known[name] for name in names)


def _toml(text: str) -> dict[str, object]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)
