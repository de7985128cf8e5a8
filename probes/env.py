"""Environment variables and NCCL's configuration files."""

from __future__ import annotations

import re
from typing import Any

from epctl.core.fact import Absent, Fact
from epctl.core.snapshot.gpu import Setting
from epctl.core.snapshot.software import EnvArea
from epctl.probes import documents
from epctl.probes.collectors.environment import is_secret, is_wanted
from epctl.probes.source import RecordingSource, Source

SYSTEM_CONF = "/etc/nccl.conf"
MAX_CONF_CHARS = 1023
"""NCCL cuts names and values of its configuration files there (src/misc/param.cc, setEnvFile)."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def env(source: Source) -> EnvArea:
    """Variables that concern EP, and the settings of NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf."""
    document = source.document("environment")
    variables = _variables(document)
    conf, files, notes = _conf(source, _user_conf(document, variables))
    return EnvArea(variables=variables, nccl_conf=conf, nccl_conf_files=files, notes=notes)


def _variables(document: Any) -> Fact[tuple[Setting, ...]]:  # noqa: ANN401 - JSON
    found = documents.member(document, "variables")
    if isinstance(found, Absent):
        return found
    if not isinstance(found, dict):
        return Absent("unparsable", "the environment is no object", documents.text_of(found)[:80])
    settings = [
        Setting(documents.text_of(name), documents.text_of(value))
        for name, value in list(found.items())[: documents.MAX_ITEMS]
        if isinstance(name, str) and isinstance(value, str) and is_wanted(name) and not is_secret(name, value)
    ]
    return tuple(sorted(settings, key=lambda setting: setting.name))


def _user_conf(document: Any, variables: Fact[tuple[Setting, ...]]) -> str:  # noqa: ANN401 - JSON
    """Path of the user's file; NCCL_CONF_FILE takes the place of ~/.nccl.conf."""
    if isinstance(variables, tuple):
        named = next((setting.value for setting in variables if setting.name == "NCCL_CONF_FILE"), "")
        if named:
            return named
    home = documents.text(document, "home")
    return f"{home.rstrip('/')}/.nccl.conf" if isinstance(home, str) and home.startswith("/") else ""


def _conf(source: Source, user_path: str) -> tuple[Fact[tuple[Setting, ...]], tuple[str, ...], tuple[str, ...]]:
    """Settings, the files they come from, and remarks. Of two files that set the same name the user's wins: NCCL reads it
    first and never overwrites."""
    merged: dict[str, str] = {}
    files: list[str] = []
    notes: list[str] = []
    failure: Absent | None = None
    for path in dict.fromkeys(filter(None, (user_path, SYSTEM_CONF))):
        raw = source.read(path)
        if isinstance(raw, Absent):
            failure = failure if raw.absent == "not_found" else raw
            continue
        if isinstance(source, RecordingSource):
            source.recording.files[path] = told(raw)
        settings, remarks = parse_conf(raw, path)
        files.append(path)
        notes.extend(remarks)
        for setting in settings:
            merged.setdefault(setting.name, setting.value)
    if failure is not None and not files:
        return failure, (), tuple(notes)
    if failure is not None:
        notes.append(f"one file of NCCL settings could not be read: {failure}")
    return tuple(Setting(name, value) for name, value in merged.items()), tuple(files), tuple(notes)


def told(raw: bytes) -> bytes:
    """The part of a file that a bundle keeps: settings that epctl wants and that are no secret. NCCL_CONF_FILE can name any
    file of the machine."""
    kept = []
    for line in raw.decode("utf-8", "replace").replace("\0", "").split("\n"):
        name, equals, value = line.partition("=")
        if equals and _NAME.fullmatch(name.strip()) and is_wanted(name.strip()) and not is_secret(name, value.strip()):
            kept.append(line + "\n")
    return "".join(kept).encode()


def parse_conf(raw: bytes, path: str) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """Settings of one file as NCCL understands it, and remarks on lines that it does not: a line is NAME=value, `#` in the
    first column makes it a comment, and blanks are not stripped, so `NAME = value` sets a name that nobody asks for."""
    found: dict[str, str] = {}
    notes: list[str] = []
    for line in raw.decode("utf-8", "replace").replace("\0", "").split("\n"):
        if line.startswith("#") or "=" not in line:
            continue
        name, _, value = line.partition("=")
        name = name[:MAX_CONF_CHARS]
        if _NAME.fullmatch(name):
            if is_wanted(name) and not is_secret(name, value):
                found.setdefault(name, value[:MAX_CONF_CHARS].rstrip("\r"))
        elif _NAME.fullmatch(name.strip()):
            notes.append(f"{path}: NCCL does not see {name.strip()!r}, there are blanks around its name")
    return tuple(Setting(name, value) for name, value in found.items()), tuple(notes[:100])
