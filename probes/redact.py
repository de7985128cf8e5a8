"""Takes what identifies a site out of a recording, so that it can be sent to somebody or shown to everybody."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import epctl
from epctl.core.fact import Absent
from epctl.probes import rdma_tree
from epctl.probes.redact_files import FORMS
from epctl.probes.redactor import HOME, HOST_SETTINGS, USER_SETTINGS, Redactor, is_address, is_system_path
from epctl.probes.source import Output, Recording

_PEER = re.compile(r"\bHostname:\s*([A-Za-z0-9][A-Za-z0-9.-]{1,100})", re.I)
_NODE = re.compile(r"(?:^|[\"'])([A-Za-z0-9][A-Za-z0-9.-]{1,100}) (?:HCA-\d|(?:mlx\d|hca|bnxt|irdma|efa)\w*)", re.M)
"""A node's description as the driver sets it: host name and adapter."""
_SWITCH = re.compile(r"\bMF0;([A-Za-z0-9][A-Za-z0-9.-]{1,100}):")
"""A managed switch's description: its host name stands before its model."""
_LITERAL = re.compile(r'"([^"\n]*)"')
_WORD = re.compile(r"[a-z0-9]+")
_WORD_RUN = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)+")


def redact(recording: Recording, hosts: tuple[str, ...] = ()) -> Recording:
    """A copy of `recording` without identifiers. `hosts`: further host names to replace."""
    redactor = Redactor((*hosts, *_hosts(recording)), _users(recording), words(recording))
    text, path_of = redactor.text, redactor.path

    def absent(found: Absent) -> Absent:
        return Absent(found.absent, text(found.detail), text(found.line))

    def output(tool: str, found: Output) -> Output:
        return Output(_raw(redactor, found.stdout, tool), _raw(redactor, found.stderr, ""), found.code)

    return Recording(
        commands={
            tuple(path_of(word) for word in argv): absent(found)
            if isinstance(found, Absent)
            else output(argv[0] if argv else "", found)
            for argv, found in recording.commands.items()
        },
        files={
            path_of(path): absent(found) if isinstance(found, Absent) else _raw(redactor, found, path)
            for path, found in recording.files.items()
        },
        folders={
            path_of(path): absent(found)
            if isinstance(found, Absent)
            else tuple(redactor.entry(path, name) for name in found)
            for path, found in recording.folders.items()
        },
        targets={
            path_of(path): absent(found) if isinstance(found, Absent) else path_of(found)
            for path, found in recording.targets.items()
        },
        documents={
            name: absent(found) if isinstance(found, Absent) else redactor.tree(found)
            for name, found in recording.documents.items()
        },
    )


def _raw(redactor: Redactor, content: bytes, origin: str) -> bytes:
    """`origin`: the path or the tool that it comes from. Text is replaced; a binary file (PCI configuration space) has no
    identifiers in text form and stays. Of vital product data, which hold serial numbers, the mark that epctl reads stays."""
    if origin.endswith("/device/vpd"):
        return rdma_tree.BRIDGE_MARK if rdma_tree.BRIDGE_MARK in content else b""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        if b"\0" in content:
            return content
        text = content.decode("utf-8", "replace")
    return FORMS.get(origin, Redactor.text)(redactor, text).encode()


def _settings(recording: Recording) -> dict[str, str]:
    """Environment variables, and what stands beside them in the document."""
    document = recording.documents.get("environment")
    if not isinstance(document, dict):
        return {}
    variables = document.get("variables")
    members = {**document, **(variables if isinstance(variables, dict) else {})}
    return {str(key): value for key, value in members.items() if isinstance(value, str)}


def _hosts(recording: Recording) -> tuple[str, ...]:
    found = [value for name, value in _settings(recording).items() if name in HOST_SETTINGS]
    process = recording.documents.get("process")
    if isinstance(process, dict) and isinstance(process.get("hostname"), str):
        found.append(process["hostname"])
    for path, content in recording.files.items():
        if isinstance(content, bytes) and path in ("/proc/sys/kernel/hostname", "/etc/hostname"):
            found.append(content.decode("utf-8", "replace").strip())
        elif isinstance(content, bytes) and path.endswith("/node_desc"):
            found += _NODE.findall(content.decode("utf-8", "replace"))
    for text in _outputs(recording):
        found += _PEER.findall(text)
        found += _NODE.findall(text)
        found += _SWITCH.findall(text)
    return tuple(
        name for entry in dict.fromkeys(found) if not is_address(entry) for name in (entry, entry.split(".")[0]) if name
    )


def _users(recording: Recording) -> tuple[str, ...]:
    settings = _settings(recording)
    found = {settings[name] for name in USER_SETTINGS if settings.get(name)}
    home = settings.get("home", "").rstrip("/")
    found.add(home.rpartition("/")[2])
    texts = [
        *recording.files,
        *(found.decode("utf-8", "replace") for found in recording.files.values() if isinstance(found, bytes)),
        *(text for document in recording.documents.values() for text in _strings(document)[0]),
        *_outputs(recording),
    ]
    found |= {name for text in texts for _, name in HOME.findall(text)}
    return tuple(name for name in found if name)


def _outputs(recording: Recording) -> list[str]:
    return [
        output.stdout.decode("utf-8", "replace") for output in recording.commands.values() if isinstance(output, Output)
    ]


def _strings(document: Any) -> tuple[list[str], list[str]]:  # noqa: ANN401 - JSON
    """Texts and keys in a document, however deep it is."""
    texts: list[str] = []
    keys: list[str] = []
    left = [document]
    while left:
        thing = left.pop()
        if isinstance(thing, str):
            texts.append(thing)
        elif isinstance(thing, dict):
            keys += map(str, thing)
            left += thing.values()
        elif isinstance(thing, list | tuple):
            left += thing
    return texts, keys


def words(recording: Recording) -> frozenset[str]:
    """Lower-case words that mean something to a reader: those of its source, of system paths, of keys and of tools."""
    places = [path for path in (*recording.files, *recording.folders, *recording.targets) if is_system_path(path)]
    places += [found for found in recording.targets.values() if isinstance(found, str) and is_system_path(found)]
    places += [word for argv in recording.commands for word in argv]
    texts: list[str] = []
    for document in recording.documents.values():
        values, keys = _strings(document)
        texts += [text for text in values if is_system_path(text)]
        texts += keys
    found = set(_vocabulary())
    for place in (*places, *texts):
        found.update(_parts(place))
    return frozenset(found)


def _parts(text: str) -> set[str]:
    text = text.lower()
    return {*_WORD.findall(text), *_WORD_RUN.findall(text)}


@functools.cache
def _vocabulary() -> frozenset[str]:
    """Words in the string literals of epctl: everything that readers and checks can look for is one."""
    found: set[str] = set()
    package = Path(epctl.__file__).resolve().parent
    for folder in (package / "core", package / "checks", Path(__file__).resolve().parent):
        for source in folder.rglob("*.py"):
            for literal in _LITERAL.findall(source.read_text("utf-8")):
                found |= _parts(literal)
    return frozenset(found)
