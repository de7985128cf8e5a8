"""Takes what identifies a site out of a recording, so that it can be sent to somebody or shown to everybody."""

from __future__ import annotations

from epctl.core.fact import Absent
from epctl.probes import rdma_tree
from epctl.probes.redact_files import FORMS
from epctl.probes.redactor import HOME, HOST_SETTINGS, USER_SETTINGS, Redactor
from epctl.probes.source import Output, Recording


def redact(recording: Recording, hosts: tuple[str, ...] = ()) -> Recording:
    """A copy of `recording` without identifiers. `hosts`: further host names to replace."""
    redactor = Redactor((*hosts, *_hosts(recording)), _users(recording))
    text = redactor.text

    def absent(found: Absent) -> Absent:
        return Absent(found.absent, text(found.detail), text(found.line))

    def output(tool: str, found: Output) -> Output:
        return Output(_raw(redactor, found.stdout, tool), _raw(redactor, found.stderr, ""), found.code)

    return Recording(
        commands={
            tuple(text(word) for word in argv): absent(found) if isinstance(found, Absent) else output(argv[0], found)
            for argv, found in recording.commands.items()
        },
        files={
            text(path): absent(found) if isinstance(found, Absent) else _raw(redactor, found, path)
            for path, found in recording.files.items()
        },
        folders={
            text(path): absent(found) if isinstance(found, Absent) else tuple(text(name) for name in found)
            for path, found in recording.folders.items()
        },
        targets={
            text(path): absent(found) if isinstance(found, Absent) else text(found)
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
    document = recording.documents.get("environment")
    return (
        {str(key): value for key, value in document.items() if isinstance(value, str)}
        if isinstance(document, dict)
        else {}
    )


def _hosts(recording: Recording) -> tuple[str, ...]:
    found = [value for name, value in _settings(recording).items() if name in HOST_SETTINGS]
    process = recording.documents.get("process")
    if isinstance(process, dict) and isinstance(process.get("hostname"), str):
        found.append(process["hostname"])
    for path in ("/proc/sys/kernel/hostname", "/etc/hostname"):
        content = recording.files.get(path)
        if isinstance(content, bytes):
            found.append(content.decode("utf-8", "replace").strip())
    return tuple(name for entry in found for name in (entry, entry.split(".")[0]) if name)


def _users(recording: Recording) -> tuple[str, ...]:
    settings = _settings(recording)
    found = [settings[name] for name in USER_SETTINGS if settings.get(name)]
    texts = [
        *settings.values(),
        *recording.files,
        *(found.decode("utf-8", "replace") for found in recording.files.values() if isinstance(found, bytes)),
    ]
    texts += [str(document) for document in recording.documents.values()]
    texts += [
        output.stdout.decode("utf-8", "replace") for output in recording.commands.values() if isinstance(output, Output)
    ]
    found += [name for text in texts for name in HOME.findall(text)]
    return tuple(found)
