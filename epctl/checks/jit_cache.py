"""Folders where the EP libraries keep the kernels that they compiled."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.checks.jit import JIT
from epctl.core.check import Seen, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known
from epctl.core.snapshot.software import JitCache
from epctl.core.views import libraries
from epctl.core.views.gin import SEVERAL_NODES
from epctl.core.wording import counted

SHARED = frozenset(
    (
        "nfs",
        "nfs4",
        "lustre",
        "gpfs",
        "ceph",
        "beegfs",
        "wekafs",
        "panfs",
        "cifs",
        "smb3",
        "afs",
        "orangefs",
        "glusterfs",
    )
)
"""File systems that several nodes mount, as /proc/mounts names them."""
_LOCAL_FUSE = frozenset(("fuse.fuse-overlayfs", "fuse.squashfuse", "fuse.squashfuse_ll", "fuse.lxcfs", "fuse.mergerfs"))
"""FUSE in front of a local disk: root file systems of rootless containers."""
_DEEPGEMM = ("deep-gemm", "sgl-deep-gemm")
_MOVED = "export EP_JIT_CACHE_DIR=LOCAL_FOLDER/deep_ep DG_JIT_CACHE_DIR=LOCAL_FOLDER/deep_gemm"
_WAIT_S = 100
"""Seconds after which DeepEP's ranks give up waiting for the others (its CPU timeout)."""


def _owner_in_use(context: Context, cache: JitCache, *, installed: bool) -> bool:
    """A library that writes to this folder is in use or planned; `installed`: its package is there."""
    if cache.owner == "deepgemm":
        return any(name in context.distributions for name in _DEEPGEMM)
    if cache.owner != "deepep":
        return False
    profiles = [profile for profile in context.wants("jit") if profile.id.startswith("deepep")]
    return any(libraries.installed(context, profile) or not installed for profile in profiles)


def _caches(context: Context, *, installed: bool = False) -> Iterator[JitCache]:
    for cache in known(context.node.software.jit_caches, "JIT caches"):
        if _owner_in_use(context, cache, installed=installed):
            yield cache


def is_shared(filesystem: str) -> bool:
    """Other nodes may see the same folder."""
    return filesystem in SHARED or (filesystem.startswith("fuse") and filesystem not in (*_LOCAL_FUSE, "fuseblk"))


@check(
    "JIT-NFS-RACE",
    area="jit",
    severity="warn",
    title="The JIT cache is on a shared file system",
    why="At a cold start all ranks compile at once and rename their result into place; a rank on another node does not yet see the "
    "winner's folder and stops in an assertion.",
    fix="Point EP_JIT_CACHE_DIR (DeepGEMM: DG_JIT_CACHE_DIR) to a local disk, or fill the cache with one rank first. LOCAL_FOLDER: "
    "one that belongs to the user of the job alone, as what lies there is run.",
    commands=(_MOVED,),
    reference="https://github.com/deepseek-ai/DeepEP/issues/683 https://github.com/deepseek-ai/DeepEP/pull/684 "
    "https://github.com/deepseek-ai/DeepGEMM/pull/301",
    needs=(JIT, SEVERAL_NODES),
)
def jit_nfs_race(context: Context) -> Iterator[Seen]:
    for cache in _caches(context):
        if isinstance(cache.filesystem, Absent):
            yield unread(f"file system of {cache.path}", cache.filesystem)
            continue
        text = f"{cache.owner}: {cache.path} is on {cache.filesystem}"
        if not is_shared(cache.filesystem):
            yield good(text)
        elif isinstance(cache.entries, int) and cache.entries > 0:
            yield bad(
                f"{text}; there are {counted(cache.entries, 'kernel')}, new shapes are compiled on demand",
                severity="info",
            )
        else:
            yield bad(f"{text}, {'empty' if cache.entries == 0 else 'its entries could not be counted'}")


@check(
    "JIT-COLD-TIMEOUT",
    area="jit",
    severity="info",
    title="No kernel is compiled yet",
    why=f"At the first step ranks of this node compile for a while; ranks that are done wait {_WAIT_S} s for them and then give up.",
    fix="Compile on each node before the job (run the library's test once), or raise its CPU timeout.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/424",
    needs=(JIT, SEVERAL_NODES),
)
def jit_cold_timeout(context: Context) -> Iterator[Seen]:
    for cache in _caches(context, installed=True):
        if isinstance(cache.entries, Absent):
            yield unread(f"entries of {cache.path}", cache.entries)
        elif cache.entries:
            yield good(f"{cache.owner}: {cache.path} holds {counted(cache.entries, 'kernel')}")
        else:
            yield bad(f"{cache.owner}: {cache.path} {'is empty' if cache.exists is True else 'does not exist yet'}")


@check(
    "JIT-CACHE-READONLY",
    area="jit",
    severity="fail",
    title="The JIT cache may not be written",
    why="A kernel is compiled into a folder of the cache and renamed into place; where that folder cannot be made, the first "
    "dispatch fails.",
    fix="Point EP_JIT_CACHE_DIR (DeepGEMM: DG_JIT_CACHE_DIR) to a folder that the job may write, or mount one there. LOCAL_FOLDER: "
    "one that belongs to the user of the job alone, as what lies there is run.",
    commands=(_MOVED,),
    reference="https://github.com/deepseek-ai/DeepEP/blob/main/csrc/jit/compiler.hpp",
    needs=(JIT,),
)
def jit_cache_readonly(context: Context) -> Iterator[Seen]:
    for cache in _caches(context):
        if isinstance(cache.writable, Absent):
            yield unread(f"access to {cache.path}", cache.writable)
        elif cache.writable:
            yield good(f"{cache.owner}: {cache.path} may be written")
        elif isinstance(cache.entries, int) and cache.entries > 0:
            yield bad(
                f"{cache.owner}: {cache.path} may not be written; only its {counted(cache.entries, 'kernel')} can be used",
                severity="warn",
            )
        else:
            yield bad(f"{cache.owner}: {cache.path} may not be written by this user")
