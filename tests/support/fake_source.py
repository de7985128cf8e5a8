"""A Source for tests: what it holds it answers, everything else is not there."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from epctl.core.fact import Absent
from epctl.probes.source import COMMAND_TIMEOUT_S, DOCUMENT_TIMEOUT_S, Output


class FakeSource:
    """A machine made of dictionaries. Folders follow from the paths of files and links unless they are given; a path that is
    a file or a folder is its own link target. Any value may be an Absent."""

    def __init__(
        self,
        files: Mapping[str, str | bytes | Absent] | None = None,
        folders: Mapping[str, Sequence[str] | Absent] | None = None,
        targets: Mapping[str, str | Absent] | None = None,
        commands: Mapping[tuple[str, ...], str | bytes | Output | Absent] | None = None,
        documents: Mapping[str, Any] | None = None,
    ) -> None:
        self.files = dict(files or {})
        self.targets = dict(targets or {})
        self.commands = dict(commands or {})
        self.documents = dict(documents or {})
        self.folders: dict[str, Sequence[str] | Absent] = {**self._derived(folders or {}), **(folders or {})}
        self.asked: list[tuple[str, ...]] = []
        """Commands in the order of the calls."""

    def _derived(self, given: Mapping[str, Sequence[str] | Absent]) -> dict[str, tuple[str, ...]]:
        names: dict[str, set[str]] = {}
        for path in (*self.files, *self.targets, *given):
            while path not in ("/", ""):
                parent, name = posixpath.split(path)
                names.setdefault(parent, set()).add(name)
                path = parent
        return {folder: tuple(sorted(found)) for folder, found in names.items()}

    def run(self, *argv: str, timeout_s: float = COMMAND_TIMEOUT_S) -> Output | Absent:  # noqa: ARG002
        self.asked.append(argv)
        found = self.commands.get(argv, Absent("tool_missing", f"{argv[0]} is not on PATH"))
        if isinstance(found, (Absent, Output)):
            return found
        return Output(found.encode() if isinstance(found, str) else found)

    def read(self, path: str) -> bytes | Absent:
        found = self.files.get(path, Absent("not_found", f"{path} does not exist"))
        return found.encode() if isinstance(found, str) else found

    def entries(self, path: str) -> tuple[str, ...] | Absent:
        found = self.folders.get(path, Absent("not_found", f"{path} does not exist"))
        return found if isinstance(found, Absent) else tuple(sorted(found))

    def target(self, path: str) -> str | Absent:
        if path in self.targets:
            return self.targets[path]
        if path in self.files or path in self.folders:
            return path
        return Absent("not_found", f"{path} does not exist")

    def document(self, name: str, timeout_s: float = DOCUMENT_TIMEOUT_S) -> Any | Absent:  # noqa: ANN401, ARG002
        return self.documents.get(name, Absent("tool_missing", f"no collector {name}"))
