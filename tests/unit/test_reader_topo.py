"""Cases of `nvidia-smi topo -m` that no recorded output shows."""

from __future__ import annotations

from epctl.probes.readers.topo import read

MATRIX = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tPIX\t44-51,148-155\t0\t\tN/A
GPU1\tNV18\t X \tSYS\t\t1\t\t4
NIC0\tPIX\tSYS\t X \t\t\t\t
"""
LEGEND = "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
TEXT = MATRIX + LEGEND


def test_blank_cpu_affinity_does_not_shift_the_numa_node() -> None:
    facts = read(TEXT.encode()).facts
    assert facts.cpu_affinity == {"GPU0": "44-51,148-155", "GPU1": None}
    assert facts.numa_affinity == {"GPU0": "0", "GPU1": "1"}
    assert facts.gpu_numa_id == {"GPU0": None, "GPU1": "4"}


def test_tabs_that_became_blanks_read_the_same() -> None:
    assert read(TEXT.expandtabs(8).encode()).facts == read(TEXT.encode()).facts


def test_indented_and_prompted_text_with_a_lost_escape_character_reads_the_same() -> None:
    pasted = "root@node:~# nvidia-smi topo -m\n" + TEXT.replace("\tGPU0\tGPU1", "\t[4mGPU0\tGPU1", 1)
    pasted = pasted.replace("NUMA ID", "NUMA ID[0m").replace("\nNIC0", "\n  NIC0").replace("\n", "\r\n")
    reading = read(pasted.encode())
    assert reading.status == "ok"
    assert reading.facts == read(TEXT.encode()).facts


def test_collapsed_blanks_leave_a_blank_column_unknown() -> None:
    lines = [" ".join(line.split()) if line[:3] in {"GPU", "NIC"} else line for line in TEXT.split("\n")]
    reading = read("\n".join(lines).encode())
    assert [p.kind for p in reading.problems] == ["ambiguous"]
    assert reading.facts.numa_affinity == {"GPU0": "0", "GPU1": None}


def test_a_row_cut_inside_a_level_has_neither_that_level_nor_nearest_nics() -> None:
    reading = read(MATRIX[: MATRIX.rindex("NV18") + 3].encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("truncated", "row GPU1")]
    assert reading.facts.rows == {"GPU0": ["X", "NV18", "PIX"], "GPU1": []}
    assert list(reading.facts.nearest_nics) == ["GPU0"]


def test_a_legend_that_is_missing_leaves_the_device_unknown() -> None:
    reading = read(MATRIX.encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("truncated", "NIC Legend NIC0")]
    assert reading.facts.nics[0].device is None
    assert reading.facts.nearest_nics["GPU0"].devices == ["NIC0"]


def test_a_device_name_cut_at_the_end_is_not_believed() -> None:
    two = TEXT.replace("\tNIC0\tCPU", "\tNIC0\tNIC1\tCPU").replace("NIC0: mlx5_0\n", "NIC0: mlx5_1")
    reading = read(two.encode())
    assert reading.status == "partial"
    assert reading.facts.nics[0].device is None


def test_a_second_matrix_counts_only_when_it_differs() -> None:
    assert read((TEXT + TEXT).encode()) == read(TEXT.encode())
    reading = read((TEXT + TEXT.replace("NV18", "SYS")).encode())
    assert [p.kind for p in reading.problems] == ["repeated_listing"]
    assert reading.facts.nvlink_shown is True


def test_levels_and_device_names_of_old_drivers() -> None:
    old = "\tGPU0\tmlx4_0\tmlx5_bond_0\tCPU Affinity\nGPU0\t X \tSOC\tPHB\t0-9\nmlx4_0\tSOC\t X \tSOC\t\n"
    reading = read((old + "mlx5_bond_0\tPHB\tSOC\t X \t\n").encode())
    assert reading.status == "ok"
    assert reading.facts.nearest_nics["GPU0"].devices == ["mlx5_bond_0"]
    assert reading.facts.numa_affinity == {}


def test_rows_without_their_header_still_give_the_matrix() -> None:
    reading = read(TEXT.partition("\n")[2].encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("truncated", "header")]
    assert reading.facts.columns == ["GPU0", "GPU1", "NIC0"]
    assert reading.facts.cpu_affinity == {}


def test_ten_thousands_of_repeated_rows_leave_a_bounded_number_of_problems() -> None:
    text = "\tGPU0\tCPU Affinity\n" + "".join(f"GPU{i}\tSYS\t0\n" for i in range(1, 3000))
    reading = read(text.encode())
    assert (reading.status, len(reading.problems) <= 201) == ("partial", True)
