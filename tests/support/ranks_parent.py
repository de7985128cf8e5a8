"""A program as a command is one, for tests: runs a task on a job's ranks, prints events as JSON lines, and ends with its exit code.

python -m tests.support.ranks_parent RANKS REQUEST [LIMITS], the last two as JSON; RANKS 0: as the environment says.
"""

from __future__ import annotations

import os
import sys

import msgspec

from epctl.commands import ending
from epctl.core import launch
from epctl.core.errors import EpctlError
from epctl.ranks.run import Event, Limits, run


def show(event: Event) -> None:
    sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
    sys.stdout.flush()


def main() -> int:
    ranks = int(sys.argv[1])
    limits = msgspec.json.decode(sys.argv[3] if len(sys.argv) > 3 else "{}", type=Limits)
    ending.on_signals()
    try:
        return run(msgspec.json.decode(sys.argv[2]), launch.resolve(os.environ, ranks or None, 2), show, limits=limits)
    except EpctlError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
