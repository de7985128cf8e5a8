"""What the DeepEP that is installed answers to a plan's question (--against deep_ep). The answer is none of the snapshot's facts: it
depends on the question."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import msgspec
from msgspec import Struct

from epctl.probes.child import finish
from epctl.probes.source import COLLECTORS

LIMIT_S = 180.0
"""Processes, a communicator of eight GPUs, and a first compile."""
MARK = b"epctl-answer "


class Answer(Struct, frozen=True):
    """`reason`: why there is no answer."""

    package: str = ""
    reason: str = ""
    values: dict[str, float | int | str] = {}


def ask(question: dict[str, Any], python: str | None = None, limit_s: float = LIMIT_S) -> Answer:
    """Asks the deep_ep of `python` (this interpreter's by default). Never raises: what goes wrong is the reason."""
    script = str(COLLECTORS / "against_deep_ep.py")
    try:
        argv = (python or sys.executable, "-W", "ignore", script, json.dumps(question))
        done = finish(argv, limit_s, dict(os.environ))
    except OSError as error:
        return Answer(reason=f"{python}: {error.strerror or error}")
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARK):
            try:
                return msgspec.json.decode(line.removeprefix(MARK), type=Answer)
            except msgspec.MsgspecError as error:
                return Answer(reason=f"its answer is damaged: {error}")
    if done.cut:
        return Answer(reason=f"it {done.cut}")
    last = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    return Answer(reason=f"it ended with code {done.code}: {last[-1].strip()[:200] if last else 'no message'}")
