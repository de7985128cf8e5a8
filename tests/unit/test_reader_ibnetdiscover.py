"""Subnets beyond the recorded ones."""

from __future__ import annotations

import pytest

from epctl.probes.readers.ibnetdiscover import read

TEXT = (
    "# Initiated from node 0002c9 port 0002c9\n\nvendid=0x2c9\nswitchguid=0x1(1)\n"
    'Switch\t36 "S-0000000000000001"\t\t# "leaf;1 "a"" base port 0 lid 4 lmc 0\n'
    '[1][ext 5]\t"H-00000000000000aa"[1](aa) \t\t# "gpu1 lid 9 mlx5_0" lid 7 4xXDR\n'
    '[2]\t"S-0000000000000001"[3]\t\t# "leaf;1 "a"" lid 4 4xFDR10\n'
    '[3]\t"S-0000000000000001"[2]\t\t# "leaf;1 "a"" lid 4 2x??\n\n'
    'caguid=0xaa\nCa\t2 "H-00000000000000aa"\t\t# "gpu1 mlx5_0"\n'
    '[1](aa) \t"S-0000000000000001"[1]\t\t# lid 7 lmc 0 "leaf;1 "a"" lid 4 4xXDR\n'
)


def test_names_with_quotes_and_lids_do_not_mislead() -> None:
    facts = read(TEXT.encode()).facts
    first = facts.switches[0].links[0]
    assert (first.peer_lid, first.peer_name, first.gbps) == (7, "gpu1 lid 9 mlx5_0", 800.0)
    assert (facts.switches[0].name, facts.cas[0].links[0].lid, facts.hosts) == ('leaf;1 "a"', 7, ["gpu1"])


def test_an_unknown_speed_is_null_and_a_cable_counts_once() -> None:
    facts = read(TEXT.encode()).facts
    assert (facts.switches[0].links[2].speed, facts.switches[0].links[2].gbps, facts.switches[0].links[2].width) == (
        None,
        None,
        2,
    )
    assert (facts.n_switch_to_switch_cables, facts.switches[0].links[1].gbps) == (1, 40.0)


def test_crlf_and_a_repeated_listing_change_nothing() -> None:
    assert read(TEXT.replace("\n", "\r\n").encode() * 2) == read(TEXT.encode())


def test_a_line_that_is_cut_is_reported_and_its_lid_is_not_believed() -> None:
    reading = read(TEXT[: TEXT.rindex(" 4xXDR")].encode())
    assert (reading.status, [p.kind for p in reading.problems]) == ("partial", ["truncated"])
    assert reading.facts.cas[0].links[0].peer_lid is None


def test_links_without_their_head_are_reported() -> None:
    reading = read(TEXT[TEXT.index("[2]") :].encode())
    assert (reading.status, reading.facts.n_switches, reading.facts.n_cas) == ("partial", 0, 1)


def test_a_warning_among_good_text_makes_it_partial() -> None:
    reading = read(b"ibwarn: [1] _do_madrpc: recv failed: Connection timed out\n" + TEXT.encode())
    assert (reading.status, reading.problems[0].kind, reading.facts.n_switches) == (
        "partial",
        "discovery_incomplete",
        1,
    )


def test_a_head_without_nodes_is_not_ok() -> None:
    assert read(b"#\n# Topology file: generated on Tue\n#\n").status == "partial"


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"ibnetdiscover: command not found\n", "command_not_found"),
        (b"ibwarn: [9] mad_rpc_open_port: can't open UMAD port (mlx5_9:1)\n", "permission_or_no_port"),
        (b"<html></html>", "unparsable"),
    ],
)
def test_an_error_gives_its_kind_and_no_nodes(raw: bytes, kind: str) -> None:
    reading = read(raw)
    assert (reading.status, reading.facts.switches) == ("error", [])
    assert reading.error is not None
    assert reading.error["kind"] == kind
