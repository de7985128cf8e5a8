"""What users point `epctl topo` at, read into what the graph is made of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from epctl.core.errors import EpctlError
from epctl.probes import load, paths
from epctl.probes.readers import read
from epctl.topo import report, slurm, xml_tree
from epctl.topo.from_matrix import Matrix
from epctl.topo.from_subnet import Cable, SubnetNode
from epctl.topo.gather import Input
from epctl.topo.graph import SCHEMA_NAME

if TYPE_CHECKING:
    from epctl.probes.reading import Reading

MOST_TEXT_BYTES = 8 * 1024 * 1024
_MATRIX = re.compile(rb"^[^\S\n]{0,32}(?:\x1b\[\d{0,2}m)?[^\S\n]{0,8}GPU0\b", re.MULTILINE)
_SUBNET = re.compile(
    rb"^(?:Switch|Ca|Rt)\s+\d{1,4}\s+\"|^# *Topology file: generated|^# *Initiated from node", re.MULTILINE
)
_TODO = (
    "give a bundle, a snapshot, a saved topology (JSON), a topology file of NCCL (XML), or the text of `nvidia-smi topo -m`, "
    "`ibnetdiscover` or Slurm's topology.conf"
)


def input_of(path: Path) -> Input:
    """One file or folder, by what is in it. Raises EpctlError for what is none of the known kinds, damaged, or too large."""
    if paths.kind_of(path) != "file":
        return Input(str(path), load.from_path(path))
    head = paths.content(path, 4096)
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if head[:2] == b"\x1f\x8b":
        return Input(path.name, load.from_path(path))
    if start == b"{":
        return _json(path)
    raw = paths.content(path, MOST_TEXT_BYTES)
    if len(raw) > MOST_TEXT_BYTES:
        why = f"it is larger than {MOST_TEXT_BYTES >> 20} MiB; no topology that can be drawn is"
        raise EpctlError(f"{path} is refused", why, "give the part of it that matters")
    if start == b"<":
        return Input(path.name, xml_tree.parse(raw, str(path)))
    return _text(path, raw)


def is_topology(path: Path) -> bool:
    """Whether a path looks like one of the kinds that are read here, and not like a TOML file. False for a path that is not there."""
    kind = paths.kind_of(path)
    if kind != "file":
        return kind == "folder"
    head = paths.content(path, 4096)
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    return start in (b"{", b"<") or head[:2] == b"\x1f\x8b" or bool(_SUBNET.search(head) or _MATRIX.search(head))


def sample_of(name: str) -> Input:
    """A packaged sample."""
    return Input(name, load.sample(name))


def named(word: str) -> Input:
    """`sample:NAME`, or a path."""
    return sample_of(word.removeprefix("sample:")) if word.startswith("sample:") else input_of(Path(word))


def _json(path: Path) -> Input:
    class Head(msgspec.Struct):
        schema: dict[str, Any]

    raw = paths.content(path, load.MAX_SNAPSHOT_BYTES)
    if len(raw) > load.MAX_SNAPSHOT_BYTES:
        why = f"it is larger than {load.MAX_SNAPSHOT_BYTES >> 20} MiB"
        raise EpctlError(f"{path} is refused", why, "make it again with `epctl topo --format json`")
    try:
        head = msgspec.json.decode(raw, type=Head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EpctlError(f"{path} is no topology", f"its JSON could not be read: {error}", _TODO) from None
    if head.schema.get("name") == SCHEMA_NAME:
        return Input(path.name, report.decode(raw, str(path)))
    return Input(path.name, load.from_path(path))


def _text(path: Path, raw: bytes) -> Input:
    if _SUBNET.search(raw):
        return _subnet(path, raw)
    if _MATRIX.search(raw):
        return _matrix(path, raw)
    text = raw.decode("utf-8", "replace")
    if slurm.looks_like(text):
        return Input(path.name, slurm.parse(text, str(path)))
    raise EpctlError(f"{path} is no topology", _why_none(text, raw), _TODO)


def _why_none(text: str, raw: bytes) -> str:
    if not text.strip():
        return "it is empty"
    if b"\0" in raw or text.count("\ufffd") > len(text) // 20:
        return "it is binary, not text"
    message = (read("topo", raw).error or {}).get("message", "")
    return f"it begins with {message[:80]!r}" if message else "no known kind of text"


def _facts(path: Path, reading: Reading[Any], what: str) -> tuple[Any, tuple[str, ...]]:
    if reading.status in ("error", "empty"):
        told = reading.error or {}
        why = ": ".join(
            part for part in (str(told.get("kind", "")).replace("_", " "), str(told.get("message", ""))) if part
        )
        raise EpctlError(f"{path} holds no {what}", why or "it is empty", f"run {what} again and give its output")
    notes = tuple(
        " ".join(part for part in (problem.kind.replace("_", " "), problem.where, problem.line) if part)
        for problem in reading.problems
    )
    return reading.facts, notes


def _matrix(path: Path, raw: bytes) -> Input:
    facts, notes = _facts(path, read("topo", raw), "`nvidia-smi topo -m`")
    nics = {nic.label: nic.device or nic.label for nic in facts.nics}
    rows = {label: tuple(cells) for label, cells in facts.rows.items()}
    numa = {gpu: value for gpu, value in facts.numa_affinity.items() if value}
    return Input(path.name, Matrix(tuple(facts.gpus), tuple(facts.columns), rows, nics, numa), notes)


def _subnet(path: Path, raw: bytes) -> Input:
    facts, notes = _facts(path, read("ibnetdiscover", raw), "`ibnetdiscover`")
    nodes = [*facts.switches, *facts.cas, *facts.routers]
    return Input(
        path.name, tuple(SubnetNode(node.type, node.guid, node.name or "", _cables(node)) for node in nodes), notes
    )


def _cables(node: Any) -> tuple[Cable, ...]:  # noqa: ANN401 - a node of the reader
    return tuple(
        Cable(link.port, link.peer_type, link.peer_guid, link.peer_port, link.peer_name or "", link.gbps)
        for link in node.links
    )
