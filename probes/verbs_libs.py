"""User space of RDMA: libraries and their symbol versions, providers of libibverbs, device files."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from epctl.core.fact import NOT_READ, Absent, Fact
from epctl.core.snapshot.rdma import DeviceNode, VerbsLibrary
from epctl.probes.documents import absent_of, flag, member, text, texts
from epctl.probes.source import Source
from epctl.probes.sysfs import names

LIBRARIES = ("libibverbs", "libmlx5", "libefa", "librdmacm", "libfabric")
CONFIG = "/etc/libibverbs.d"
_DRIVER_LINE = re.compile(r"^\s{0,8}driver\s{1,8}(\S{1,400})", re.M | re.ASCII)
_DIGITS = re.compile(r"(\d{1,9})")


class Userspace(Struct, frozen=True):
    """The parts of the RDMA area that are about user space."""

    libraries: tuple[VerbsLibrary, ...] = ()
    providers: Fact[tuple[str, ...]] = NOT_READ
    uverbs: Fact[tuple[DeviceNode, ...]] = NOT_READ
    notes: tuple[str, ...] = ()


def look(source: Source) -> Userspace:
    """What the collectors `libraries` and `nodes` found, with the configuration of libibverbs."""
    document = source.document("libraries")
    providers, notes = _providers(source, document)
    return Userspace(libraries(document), providers, uverbs(source), notes)


def libraries(document: Any) -> tuple[VerbsLibrary, ...]:  # noqa: ANN401 - JSON
    """One entry for each library of LIBRARIES."""
    listed = member(document, "libraries")
    return tuple(_library(name, listed) for name in LIBRARIES)


def _library(name: str, listed: Any) -> VerbsLibrary:  # noqa: ANN401 - JSON
    entry = member(listed, name)
    return VerbsLibrary(name, text(entry, "path"), texts(entry, "versions"), texts(entry, "symbols"))


def _providers(source: Source, document: Any) -> tuple[Fact[tuple[str, ...]], tuple[str, ...]]:  # noqa: ANN401 - JSON
    """Providers that libibverbs can load: a library, and a line in its configuration that names it."""
    found = member(document, "providers")
    if isinstance(found, Absent):
        return found, ()
    if not isinstance(found, dict):
        return Absent("unparsable", "providers are no object"), ()
    installed = sorted(name for name in map(_plain, found) if name)
    configured = _configured(source)
    if isinstance(configured, Absent):
        # A libibverbs outside of /usr (conda, Nix) reads its own configuration, whose place is compiled in.
        if not installed:
            return (), ()
        if configured.absent == "not_found" and _is_system(document):
            return (), (f"{CONFIG} is not there: libibverbs loads none of {', '.join(installed)}",)
        return tuple(installed), (f"providers are those with a library; {configured}",)
    notes = [
        f"provider {name} is installed, but {CONFIG} does not name it" for name in installed if name not in configured
    ]
    # The configuration of a distribution names a dozen providers that nobody installs; these two carry EP traffic.
    lacking = sorted(configured & {"mlx5", "efa"} - set(installed))
    notes += [f"{CONFIG} names provider {name}, its library is not found" for name in lacking]
    return tuple(name for name in installed if name in configured), tuple(notes[:8])


def _plain(name: Any) -> str:  # noqa: ANN401 - JSON
    return name if isinstance(name, str) and re.fullmatch(r"[\w.-]{1,64}", name, re.ASCII) else ""


def _configured(source: Source) -> Absent | set[str]:
    """Names behind `driver` in the configuration; a path stands for the provider that its library is named after."""
    files = names(source, CONFIG)
    if isinstance(files, Absent):
        return files
    found: set[str] = set()
    for name in files[:200]:
        content = source.read(f"{CONFIG}/{name}")
        if not isinstance(content, Absent):
            found |= set(_DRIVER_LINE.findall(content[:65536].decode("utf-8", "replace")))
    return {re.sub(r"^lib|-rdmav\d+(\.so)?$", "", entry.rpartition("/")[2]) for entry in found}


def _is_system(document: Any) -> bool:  # noqa: ANN401 - JSON
    path = text(member(member(document, "libraries"), "libibverbs"), "real_path")
    return isinstance(path, str) and path.startswith(("/usr/lib", "/lib"))


def uverbs(source: Source) -> Fact[tuple[DeviceNode, ...]]:
    """/dev/infiniband/uverbs*, by number; none when the folder is not there."""
    return device_nodes(source, "/dev/infiniband", "uverbs")


def device_nodes(source: Source, folder: str, prefix: str) -> Fact[tuple[DeviceNode, ...]]:
    """Device files of `folder` whose name begins with `prefix`, and whether this user may read and write them."""
    document = source.document("nodes")
    failed = absent_of(document)
    if failed is None and isinstance(document, dict):
        refused = absent_of(document.get(folder, {}))
        if refused is not None:
            return refused
        paths = [path for path in document if isinstance(path, str) and path.startswith(f"{folder}/{prefix}")]
        return tuple(DeviceNode(path, flag(document[path], "rw")) for path in sorted(paths, key=_natural))
    why = failed or Absent("unparsable", "the document of device files is no object")
    listed = names(source, folder)
    if isinstance(listed, Absent):
        return why
    found = [f"{folder}/{name}" for name in listed if name.startswith(prefix)]
    return tuple(DeviceNode(path, why) for path in sorted(found, key=_natural))


def _natural(path: str) -> list[tuple[int, str]]:
    """uverbs10 behind uverbs9."""
    return [(int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in _DIGITS.split(path)]
