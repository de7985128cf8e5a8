"""`epctl fabric --topology` with what `epctl topo` writes and reads."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.cli import Run, three_lines

SUBNET = Path(__file__).parents[1] / "data" / "readers" / "ibnetdiscover" / "hdr_extra_fields.txt"


def test_json_of_topo_gives_the_machine_and_flags_the_rest(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "topo.json"
    assert run("topo", "--sample", "hgx-h100-ib", "--format", "json", "-o", file).code == 0
    ran = run("fabric", "--topology", file, "--nodes", "2", "--spines", "2", "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    found, plain = (
        json.loads(ran.out),
        json.loads(run("fabric", "--nodes", "2", "--spines", "2", "--format", "json").out),
    )
    assert (found["fabric"], found["traffic"]) == (plain["fabric"], plain["traffic"])
    assert found["notes"][:2] == [
        (
            "topo.json: 1 machine with 8 GPUs. What is not shown there is as flags or defaults say: rail wiring, 2 spines, "
            "oversubscription 1, 1 plane."
        ),
        "1 of 2 nodes are taken to be like those of topo.json.",
    ]


def test_a_subnet_gives_the_cables(run: Run) -> None:
    argv = ("fabric", "--topology", SUBNET, "--gpus-per-node", "1", "--format", "json")
    found = json.loads(run(*argv).out)
    fabric = found["fabric"]
    assert (fabric["wiring"], fabric["nodes"], fabric["leaves"], fabric["spines"], fabric["uplinks"]) == (
        "custom",
        4,
        2,
        1,
        2,
    )
    assert found["notes"][0].startswith(
        "The fabric is that of hdr_extra_fields.txt, link by link: 4 machines, 1 GPU each"
    )
    assert not any("--wiring" in note for note in found["notes"])


def test_files_of_two_machines_are_two_nodes(run: Run, tmp_path: Path) -> None:
    names = []
    for number in (1, 2):
        names.append(tmp_path / f"{number}.json")
        run("topo", "--sample", "hgx-h100-ib", "--format", "json", "-o", names[-1])
        names[-1].write_text(names[-1].read_text().replace("hgx-h100-31", f"node{number}"))
    ran = run("fabric", "--topology", names[0], "--topology", names[1], "--spines", "2", "--format", "json")
    found = json.loads(ran.out)
    assert (found["fabric"]["nodes"], found["fabric"]["gpus_per_node"]) == (2, 8)
    assert found["notes"][0].startswith("1.json and 2.json: 2 machines with 8 GPUs each.")


def test_what_contradicts_or_is_no_fabric_is_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "topo.json"
    run("topo", "--sample", "hgx-h100-ib", "--format", "json", "-o", file)
    three_lines(run("fabric", "--topology", file, "--gpus-per-node", "4"))
    three_lines(run("fabric", "--topology", SUBNET))
    toml = tmp_path / "f.toml"
    toml.write_text("nodes = 2\n")
    three_lines(run("fabric", "--topology", file, "--topology", toml))
    (tmp_path / "bad.json").write_text('{"schema": 1}')
    three_lines(run("fabric", "--topology", tmp_path / "bad.json"))


def test_compare_takes_json_beside_words(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "topo.json"
    run("topo", "--sample", "hgx-h100-ib", "--format", "json", "-o", file)
    ran = run("fabric", "compare", str(file), "nodes=2", "--spines", "1", "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    reports = json.loads(ran.out)["reports"]
    assert [report["fabric"]["nodes"] for report in reports] == [1, 2]
    assert reports[0]["notes"][0].startswith("topo.json: 1 machine with 8 GPUs.")
    assert [row["rdma_bytes"] for row in reports[0]["traffic"]] == [0, 0, 0, 0]  # one machine sends nothing out
