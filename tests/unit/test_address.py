"""GIDs and IPv6 addresses have one form, whatever the Python."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from epctl.core.address import groups

ROOT = Path(__file__).parent.parent.parent


@given(st.ip_addresses(v=6))
def test_eight_groups_of_four_digits_that_are_the_same_address(address: IPv6Address) -> None:
    assert re.fullmatch(r"([0-9a-f]{4}:){7}[0-9a-f]{4}", groups(address))
    assert IPv6Address(groups(address)) == address


def test_a_mapped_ipv4_address_has_no_dots() -> None:
    assert groups(IPv6Address("::ffff:10.77.4.11")) == "0000:0000:0000:0000:0000:ffff:0a4d:040b"


def test_nobody_uses_the_form_that_changed_in_python_3_13() -> None:
    for folder in ("probes", "commands", "native", "epctl/core", "epctl/checks", "epctl/model"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not re.search(r"\.exploded\b(?!`)", path.read_text()), path
