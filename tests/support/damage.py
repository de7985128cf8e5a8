"""Damaged copies of a fake machine: what a truncated, hostile or half-readable recording looks like."""

from __future__ import annotations

import random
from typing import Any, get_args

from hypothesis import strategies as st

from epctl.core.fact import Absent, Reason
from epctl.probes.source import Output
from tests.support.fake_source import FakeSource

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(["libraries", "providers", "path", "rw", "error", "default", "eth0", "/dev/gdrdrv", "real_path"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["libraries", "libibverbs", "libgdrapi", "providers", "path", "real_path", "versions", "error", "rw", "detail",
                 "/dev/gdrdrv", "/dev/infiniband/uverbs0", "/dev", "ifname", "mtu", "flags", "addr_info", "local", "prefixlen",
                 "dst", "dev", "nexthops", "operstate"]
            )
            | st.text(max_size=8),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)  # fmt: skip
"""JSON that has the keys of the real documents more often than chance would have them."""


def damaged_source(whole: FakeSource, data: st.DataObject) -> FakeSource:
    """`whole` with about a third of its answers truncated, overwritten, replaced by noise, or refused."""
    dice = random.Random(data.draw(st.integers(0, 2**32), label="seed"))  # noqa: S311 - tests
    share = dice.choice((0.03, 0.3, 1.0))
    return FakeSource(
        {path: _damaged(value, dice) if dice.random() < share else value for path, value in whole.files.items()},
        folders={path: _odd_folder(names, dice) for path, names in whole.folders.items() if dice.random() < share / 4},
        targets={
            path: _odd_target(value, dice) if dice.random() < share else value for path, value in whole.targets.items()
        },
        commands={
            argv: _damaged(value, dice) if dice.random() < share else value for argv, value in whole.commands.items()
        },
        documents={
            name: data.draw(json_values, label=name) if dice.random() < share else value
            for name, value in whole.documents.items()
        },
    )


def refusal(dice: random.Random) -> Absent:
    """Any reason."""
    return Absent(dice.choice(get_args(Reason)), "made up")


def _damaged(value: Any, dice: random.Random) -> Any:  # noqa: ANN401 - whatever a source answers
    if isinstance(value, Absent):
        return value
    raw = value.stdout if isinstance(value, Output) else value if isinstance(value, bytes) else value.encode()
    at = dice.randrange(len(raw) + 1)
    noise = dice.randbytes(dice.randrange(1, 60))
    odd = dice.choice(
        (
            b"",
            b"\0",
            b"-1",
            b"9" * 30,
            b"0x" + b"f" * 30,
            "\u0661\u0662".encode(),
            b"\xff\xfe",
            b"nan",
            b"Unknown",
            noise,
        )
    )
    return dice.choice((refusal(dice), raw[:at], raw[at:], raw[:at] + noise + raw[at:], raw[:at] + odd, odd, raw + raw))


def _odd_folder(names: Any, dice: random.Random) -> Any:  # noqa: ANN401 - an Absent or names
    if isinstance(names, Absent):
        return names
    odd = ("\udcff", "", "1" * 30, "-1", "\u0661", "a b", "99999999")
    return dice.choice((refusal(dice), (), (*names, *odd), tuple(names)[1:]))


def _odd_target(value: Any, dice: random.Random) -> Any:  # noqa: ANN401 - an Absent or a path
    longer = f"{value}/x" if isinstance(value, str) else value
    return dice.choice((refusal(dice), "", "/", "\udcff", "/sys/devices/\udcff/0000:zz:00.0", longer))
