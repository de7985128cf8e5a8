"""Profiles: what a library asks of a node, as data (epctl/data/profiles/*.toml)."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import resources

import msgspec
from msgspec import Struct
from packaging.version import Version

from epctl.core.errors import EpctlError
from epctl.core.values import same


class Detect(Struct, frozen=True, forbid_unknown_fields=True):
    """When a profile is in force by itself: one of the distributions is installed within the versions, or a fact holds."""

    distributions: tuple[str, ...] = ()
    """PEP 508 requirements on installed distributions: "deepinfer-ep>=2.5,<3"."""
    rdma_driver: str = ""
    """Kernel driver of an RDMA device: efa."""
    env: tuple[str, ...] = ()
    """NAME=value settings, one of which is enough."""
    always: bool = False


class Demands(Struct, frozen=True, forbid_unknown_fields=True):
    """What a profile asks for besides, under a condition. The fields are those of Profile."""

    floors: dict[str, str] = {}
    requires: tuple[str, ...] = ()
    forbids: dict[str, str] = {}
    needs_env: dict[str, str] = {}


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
    """Features: nvlink, rdma, gin, gin_gdaki, gin_efa_gda, nvidia_smi, ibstat, cxx_format, libdwfl, jit, host_compiler, nvshmem,
    ibgda, symmetric_memory, same_nccl, engram_get, gdrcopy, genk, cft. Each is read by a check. Linux is none of
    them, since no other system has what the probes read; nor are mlx5 adapters, which gin_gdaki and ibgda imply, nor the plugin
    aws-ofi-nccl, which the checks of EFA ask for wherever there is EFA, nor strong signals: NCCL_GIN_TYPE=5 alone lacks them, which
    `forbids` tells."""
    forbids: dict[str, str] = {}
    """NAME=value settings (`*`: any value) that rule it out → why."""
    needs_env: dict[str, str] = {}
    """NAME=value settings that it needs → why."""
    when: dict[str, Demands] = {}
    """Condition → further demands where it holds: NAME=value, a setting; or a feature, which another profile in force asks for."""
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


def resolved(chosen_ones: tuple[Profile, ...], settings: dict[str, str]) -> tuple[Profile, ...]:
    """The profiles with those of their conditional demands that hold under `settings` and beside each other."""
    return tuple(_resolved(profile, chosen_ones, settings) for profile in chosen_ones)


def _resolved(profile: Profile, beside: tuple[Profile, ...], settings: dict[str, str]) -> Profile:
    for condition, demands in profile.when.items():
        name, is_setting, value = condition.partition("=")
        if is_setting:
            holds = bool(settings.get(name)) and same(settings[name], value)
        else:
            holds = any(condition in other.requires for other in beside if other.id != profile.id)
        if holds:
            profile = _with(profile, demands)
    return profile


def _with(profile: Profile, demands: Demands) -> Profile:
    floors = dict(profile.floors)
    for key, floor in demands.floors.items():
        if key not in floors or Version(floors[key]) < Version(floor):
            floors[key] = floor
    return msgspec.structs.replace(
        profile,
        floors=floors,
        requires=tuple(dict.fromkeys((*profile.requires, *demands.requires))),
        forbids={**profile.forbids, **demands.forbids},
        needs_env={**profile.needs_env, **demands.needs_env},
    )


def _toml(text: str) -> dict[str, object]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)
