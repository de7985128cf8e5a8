"""Cases of `show_gids` beyond the recorded ones."""

from __future__ import annotations

import pytest

from epctl.probes.readers.show_gids import read

HEAD = "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4 \t\tVER\tDEV\n---\t----\t-----\t---\t\t\t\t\t------------ \t---\t---\n"
LOCAL = "mlx5_0\t1\t1\tfe80:0000:0000:0000:9e63:c0ff:fef5:767b\t\t\tv2\tens14np0\n"
MAPPED = "mlx5_0\t1\t5\t0000:0000:0000:0000:0000:ffff:0a4d:040b\t10.77.4.11 \tv2\tens14np0\n"
LOWER = MAPPED.replace("\t5\t", "\t3\t")


def test_line_ends_colours_and_blanks_for_tabs_change_nothing() -> None:
    text = HEAD + LOCAL + MAPPED + "n_gids_found=2\n"
    plain = read(text.encode())
    assert (plain.status, plain.facts.n_gids_found, plain.facts.rocev2_ipv4_index) == ("ok", 2, {"mlx5_0/1": 5})
    assert read(text.replace("\n", "\r\n").encode()) == plain
    assert read(text.replace("v2", "\x1b[31mv2\x1b[0m").encode()) == plain
    assert read(text.expandtabs(8).encode()) == plain


def test_the_lowest_index_counts_whatever_the_order_of_the_rows() -> None:
    assert read((HEAD + MAPPED + LOWER + "n_gids_found=2\n").encode()).facts.rocev2_ipv4_index == {"mlx5_0/1": 3}


def test_a_table_per_device_gives_the_sum_of_the_counts() -> None:
    second = HEAD + LOCAL.replace("mlx5_0", "mlx5_1") + "n_gids_found=1\n"
    reading = read((HEAD + LOCAL + MAPPED + "n_gids_found=2\n" + second).encode())
    assert (reading.status, reading.facts.n_gids_found, len(reading.facts.entries)) == ("ok", 3, 3)


def test_the_same_table_twice_gives_each_row_once() -> None:
    text = HEAD + LOCAL + MAPPED + "n_gids_found=2\n"
    assert read((text + text).encode()) == read(text.encode())


def test_a_count_that_does_not_fit_the_rows_is_reported() -> None:
    reading = read((HEAD + LOCAL + "n_gids_found=2\n").encode())
    assert [(p.kind, p.line) for p in reading.problems] == [("count_mismatch", "n_gids_found=2")]


def test_a_cut_count_is_no_count() -> None:
    reading = read((HEAD + LOCAL + "n_gids_fou").encode())
    assert (reading.status, reading.facts.n_gids_found) == ("partial", None)
    assert [p.kind for p in reading.problems] == ["truncated"]


def test_a_cut_between_two_rows_shows_by_the_missing_count() -> None:
    reading = read((HEAD + LOCAL).encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("truncated", "behind mlx5_0/1 index 1")]


def test_a_whole_table_without_rows_says_zero() -> None:
    reading = read((HEAD + "n_gids_found=0\n").encode())
    assert (reading.status, reading.facts.n_gids_found) == ("ok", 0)


def test_a_file_that_cannot_be_read_is_a_problem_beside_the_rows() -> None:
    complaint = "cat: /sys/class/infiniband/mlx5_0/ports/1/gids/4: Permission denied\n"
    reading = read((HEAD + LOCAL + complaint + "n_gids_found=1\n").encode())
    assert [(p.kind, p.where) for p in reading.problems] == [
        ("permission", "/sys/class/infiniband/mlx5_0/ports/1/gids/4")
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "ls: cannot access '/sys/class/infiniband/': No such file or directory\n" + HEAD + "n_gids_found=0\n",
            "no_devices",
        ),
        ("show_gids: command not found\n", "command_not_found"),
        ("\x00\x01PNG\n", "unparsable"),
    ],
)
def test_an_error_text_gives_its_kind_and_no_rows(text: str, kind: str) -> None:
    reading = read(text.encode())
    assert (reading.status, reading.error and reading.error["kind"], reading.facts.entries) == ("error", kind, [])
    assert reading.facts.n_gids_found is None


@pytest.mark.parametrize(
    "row",
    [
        LOCAL.replace("mlx5_0\t1\t1", "mlx5_0\t1\t-1"),
        LOCAL.replace("mlx5_0\t1\t1", "mlx5_0\t-1\t1"),
        LOCAL.replace("mlx5_0\t1\t1", "mlx5_0\t1\t99999999999999999999"),
    ],
)
def test_a_row_with_a_number_that_no_port_or_table_has_is_damage(row: str) -> None:
    reading = read((HEAD + row + MAPPED + "n_gids_found=2\n").encode())
    assert [entry.index for entry in reading.facts.entries] == [5]
    assert [p.kind for p in reading.problems] == ["unparsable", "count_mismatch"]
