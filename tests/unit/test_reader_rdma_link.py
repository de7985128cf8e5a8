"""Cases of `rdma link` beyond the recorded ones."""

from __future__ import annotations

import pytest

from epctl.probes.readers.rdma_link import read

FIRST = "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1f0np0 \n"
SECOND = "link mlx5_1/2 state DOWN physical_state POLLING netdev ens1f1np1 \n"


def test_line_ends_and_colours_change_nothing() -> None:
    plain = read((FIRST + SECOND).encode())
    assert [(x.device, x.port, x.netdev) for x in plain.facts.links] == [
        ("mlx5_0", 1, "ens1f0np0"),
        ("mlx5_1", 2, "ens1f1np1"),
    ]
    assert read((FIRST + SECOND).replace("\n", "\r\n").encode()) == plain
    assert read((FIRST + SECOND).replace("ACTIVE", "\x1b[32mACTIVE\x1b[0m").encode()) == plain


def test_the_form_of_old_versions_says_the_same() -> None:
    reading = read(
        b"1/1: mlx5_0/1: subnet_prefix fe80:0000:0000:0000 lid 13 sm_lid 49151 lmc 0 state ACTIVE physical_state LINK_UP \n"
    )
    link = reading.facts.links[0]
    assert reading.status == "ok"
    assert (link.device, link.port, link.lid, link.sm_lid, link.state, link.netdev) == (
        "mlx5_0",
        1,
        13,
        49151,
        "ACTIVE",
        None,
    )


def test_a_link_cut_inside_its_state_is_reported_and_not_made_up() -> None:
    reading = read((FIRST + SECOND[: SECOND.index("WN ")]).encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("truncated", "mlx5_1/2")]
    assert [x.device for x in reading.facts.links] == ["mlx5_0"]


def test_an_interface_whose_name_was_cut_is_left_out() -> None:
    reading = read((FIRST + SECOND[: SECOND.index("np1 ")]).encode())
    assert [p.kind for p in reading.problems] == ["truncated"]
    assert (reading.facts.links[1].state, reading.facts.links[1].phys_state, reading.facts.links[1].netdev) == (
        "DOWN",
        "POLLING",
        None,
    )


def test_a_missing_last_line_end_is_no_damage() -> None:
    assert read((FIRST + SECOND).rstrip("\n").encode()) == read((FIRST + SECOND).encode())


def test_capabilities_over_several_lines_belong_to_the_link_above() -> None:
    reading = read((FIRST + "    caps: <SM, NOTICE,\n\tCM, IP_BASED_GIDS> \n" + SECOND).encode())
    assert [x.caps for x in reading.facts.links] == [["SM", "NOTICE", "CM", "IP_BASED_GIDS"], None]


def test_capabilities_cut_in_the_middle_are_reported() -> None:
    reading = read((FIRST + "    caps: <SM, NOT").encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("truncated", "mlx5_0/1")]


def test_the_second_of_two_listings_counts() -> None:
    reading = read((FIRST + FIRST.replace("ACTIVE", "DOWN")).encode())
    assert (reading.status, [x.state for x in reading.facts.links]) == ("ok", ["DOWN"])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Wrong device name\n", "no_such_device"),
        ('Object "link" is unknown, try "rdma help".\n', "unsupported"),
        ("kernel answers: Operation not permitted\n", "permission"),
        ("link\n", "unparsable"),
        ("1: lo: <LOOPBACK,UP> mtu 65536 state UNKNOWN\n", "unparsable"),
    ],
)
def test_an_error_text_gives_its_kind_and_no_links(text: str, kind: str) -> None:
    reading = read(text.encode())
    assert (reading.status, reading.error and reading.error["kind"], reading.facts.links) == ("error", kind, [])


def test_digits_of_other_scripts_are_no_numbers() -> None:
    reading = read("link mlx5_0/1 lid ٣ state ACTIVE physical_state LINK_UP \n".encode())
    assert [p.kind for p in reading.problems] == ["unparsable"]
    assert reading.facts.links[0].lid is None
