"""Whatever happens to a tool's text on its way, a reader gives facts or a reason.

Never an exception, never a hang, never facts that were not there.
"""

from __future__ import annotations

import json
import re
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epctl.probes.readers import TOOLS, read
from epctl.probes.reading import Reading

FIXTURES = Path(__file__).parent.parent / "data" / "readers"
LIMIT_S = 60.0
"""Far above what 10 MB take; a reader that is quadratic needs hours."""

ERRORS = (
    b"bash: {tool}: command not found\n",
    b"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.195\n",
    b"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
    b'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nOSError: [Errno 5] Input/output error\n',
    b"error while loading shared libraries: libibumad.so.3: cannot open shared object file: No such file or directory\n",
    "sh: 1: Befehl nicht gefunden \u2026 Zugriff verweigert\n".encode(),
    b"<html><head><title>502 Bad Gateway</title></head><body></body></html>\n",
    b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 8,
    b"Permission denied\n",
    b"Killed\n",
)


@lru_cache
def originals(tool: str) -> tuple[bytes, ...]:
    found = []
    for path in sorted((FIXTURES / tool).glob("*.json")):
        expected = json.loads(path.read_text())
        found.append((path.parent / expected["fixture"]).read_bytes())
    return tuple(found)


def check(tool: str, raw: bytes) -> Reading[Any]:
    """Reads, and holds the reading against the contract of `Reading`."""
    found = read(tool, raw)
    encoded = msgspec.json.encode(found)
    assert json.loads(encoded)["status"] == found.status
    assert (found.error is not None) == (found.status == "error"), found
    if found.status == "ok":
        assert found.problems == ()
    if found.status == "partial":
        assert found.problems
    if found.status in ("error", "empty"):
        assert found.facts == type(found.facts)(), "facts beside an error were made up"
    return found


tools = pytest.mark.parametrize("tool", TOOLS)


@tools
@pytest.mark.parametrize("raw", [b"", b"\n", b"  \r\n\t\n", b"\xef\xbb\xbf"])
def test_no_text_is_empty_and_holds_no_facts(tool: str, raw: bytes) -> None:
    assert check(tool, raw).status == "empty"


@tools
@pytest.mark.parametrize("error", ERRORS, ids=range(len(ERRORS)))
def test_an_error_message_in_place_of_output_is_an_error_without_facts(tool: str, error: bytes) -> None:
    found = check(tool, error.replace(b"{tool}", TOOLS[tool].split()[0].encode()))
    assert found.status == "error"
    assert found.error
    assert found.error["kind"]


@tools
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_text_cut_anywhere_gives_facts_or_a_reason(tool: str, data: st.DataObject) -> None:
    raw = data.draw(st.sampled_from(originals(tool)))
    check(tool, raw[: data.draw(st.integers(0, len(raw)))])


@tools
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_lines_lost_repeated_swapped_or_overwritten_give_facts_or_a_reason(tool: str, data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from(originals(tool))).split(b"\n")
    for _ in range(data.draw(st.integers(1, 6))):
        i = data.draw(st.integers(0, len(lines) - 1))
        k = data.draw(st.integers(0, len(lines) - 1))
        what = data.draw(st.sampled_from(["drop", "repeat", "swap", "junk", "indent", "number"]))
        if what == "drop" and len(lines) > 1:
            del lines[i]
        elif what == "repeat":
            lines.insert(k, lines[i])
        elif what == "swap":
            lines[i], lines[k] = lines[k], lines[i]
        elif what == "junk":
            lines[i] = data.draw(st.binary(max_size=60))
        elif what == "indent":
            lines[i] = b"\t" + lines[i].strip()
        else:
            lines[i] = re.sub(
                rb"\d+",
                data.draw(st.sampled_from([b"", b"-1", b"9" * 5000, b"NaN", "٣".encode(), b"0x", b"1e999"])),
                lines[i],
                count=1,
            )
    check(tool, b"\n".join(lines))


@tools
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(raw=st.binary(max_size=2000))
def test_any_bytes_give_a_reading(tool: str, raw: bytes) -> None:
    check(tool, raw)


@tools
def test_colours_and_crlf_do_not_change_what_is_read(tool: str) -> None:
    for raw in originals(tool):
        plain = check(tool, raw)
        lines = raw.replace(b"\r\n", b"\n").split(b"\n")
        coloured = b"\n".join(b"\x1b[1m\x1b[32m" + line + b"\x1b[0m" if line else line for line in lines)
        assert check(tool, coloured) == plain
        assert check(tool, b"\r\n".join(lines)) == plain


@tools
@pytest.mark.slow
def test_ten_megabytes_of_repeated_output_or_of_one_line_end_in_time(tool: str) -> None:
    raw = max(originals(tool), key=len)
    line = max(raw.split(b"\n"), key=len)
    for big in (
        raw * (10_000_000 // len(raw)),
        line * (10_000_000 // max(1, len(line))),
        b"\n".join([line] * (10_000_000 // (len(line) + 1))),
    ):
        begin = time.monotonic()
        check(tool, big)
        assert time.monotonic() - begin < LIMIT_S
