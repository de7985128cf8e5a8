"""`epctl topo`, as users call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import Run, json_error, three_lines

DATA = Path(__file__).parents[1] / "data" / "readers"
DUMP = DATA / "nccl_topo_xml" / "dgx_a100_dump.xml"


def test_text_of_a_sample_says_what_it_is_and_fits_80_columns(run: Run) -> None:
    ran = run("topo", "--sample", "hgx-h200-roce-degraded")
    assert ran.code == 0
    assert ran.err == ""
    assert "SAMPLE hgx-h200-roce-degraded: packaged example data (composed by hand), not" in ran.out
    assert "GPU 3  PIX    200   504.12  mlx5_3, by default mlx5_0 mlx5_1 mlx5_2" in ran.out
    assert "by the default choice one GPU loses up to 200 Gb/s" in ran.out
    assert "  export NCCL_IB_HCA==mlx5_0:1," in ran.out
    assert "active NVLinks of GPU 5: NVML says 14, nvidia-smi" in ran.out
    assert "\x1b" not in ran.out
    too_wide = [line for line in ran.out.splitlines() if len(line) > 80]
    assert all("export" in line or "UCX_NET_DEVICES" in line for line in too_wide)  # to be copied


def test_ep_says_the_layout_and_why_not_more(run: Run) -> None:
    ran = run("topo", "--from", DATA / "topo" / "dgx1_v100_device_name_columns.txt", "--ep", "8")
    assert ran.code == 0
    assert "scale-out x scale-up = 2 x 4" in ran.out
    assert "GPU 0 and GPU 5 share no NVLink" in ran.out


def test_ep_that_is_not_possible_ends_with_1(run: Run) -> None:
    ran = run("topo", "--sample", "h200x2-vm", "--ep", "4")
    assert ran.code == 1
    assert "EP is not possible" in ran.out


@pytest.mark.parametrize("ep", ["0", "-1", "99999", "x", "", "8.0", "9" * 30, "\u0661"])
def test_ep_out_of_bounds(run: Run, ep: str) -> None:
    three_lines(run("topo", "--sample", "hgx-h100-ib", "--ep", ep))


def test_json_comes_back_as_a_source(run: Run, tmp_path: Path) -> None:
    saved = tmp_path / "topo.json"
    assert run("topo", "--sample", "hgx-h100-ib", "--format", "json", "-o", saved).code == 0
    first = json.loads(saved.read_text())
    again = json.loads(run("topo", "--from", saved, "--format", "json").out)
    assert first["schema"] == {"name": "epctl.topo", "version": 1}
    assert again["pairings"] == first["pairings"]
    assert again["graph"]["nodes"] == first["graph"]["nodes"]
    kinds = {node["kind"] for node in first["graph"]["nodes"]}
    assert kinds >= {
        "host",
        "numa",
        "host_bridge",
        "root_port",
        "pcie_switch",
        "pcie_port",
        "gpu",
        "nic",
        "port",
        "nvswitch",
        "rail",
    }
    assert all({"a", "b", "kind", "source"} <= set(edge) for edge in first["graph"]["edges"])


@pytest.mark.parametrize(
    ("format_", "start"),
    [
        ("dot", "graph topology {"),
        ("mermaid", "flowchart TB"),
        ("svg", "<svg "),
        ("slurm", "SwitchName=all Nodes=hgx-h100-31"),
        ("nccl-xml", '<system version="1">'),
    ],
)
def test_other_formats(run: Run, format_: str, start: str) -> None:
    ran = run("topo", "--sample", "hgx-h100-ib", "--format", format_)
    assert ran.code == 0
    assert ran.out.startswith(start)


def test_strict_ends_with_3_where_sources_disagree(run: Run) -> None:
    assert run("topo", "--sample", "gb200-nvl", "--strict").code == 3
    assert run("topo", "--sample", "hgx-h100-ib", "--strict").code == 0


def test_no_device_at_all_ends_with_4(run: Run) -> None:
    ran = run("topo", "--sample", "laptop")
    assert ran.code == 4
    assert "GPUs: not found" in ran.out


def test_this_machine(run: Run) -> None:
    ran = run("topo", "--format", "json")
    assert ran.code in (0, 4)
    assert json.loads(ran.out)["graph"]["sources"][0]["kind"] == "live"


def test_several_sources_and_samples(run: Run) -> None:
    ran = run(
        "topo",
        "--sample",
        "hgx-h100-ib",
        "--sample",
        "gb200-nvl",
        "--from",
        DATA / "ibnetdiscover" / "hdr_extra_fields.txt",
    )
    assert ran.code == 0
    assert ran.out.startswith("epctl topo: 6 machines, 12 GPUs, 20 NICs, 4 NVSwitches, 8 switches")


def test_a_sample_list(run: Run) -> None:
    assert "hgx-h100-ib" in run("topo", "--sample", "list").out


def test_folders_of_bundles_and_of_texts_are_sources(run: Run, tmp_path: Path) -> None:
    sample = Path(__file__).parents[2] / "epctl" / "data" / "samples" / "hgx-h100-ib"
    assert run("topo", "--from", sample).out.startswith("epctl topo: 1 machine, 8 GPUs, 10 NICs, 4 NVSwitches")
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "topo.txt").write_bytes((DATA / "topo" / "dgx_a100_10nic_tabs.txt").read_bytes())
    ran = run("topo", "--from", folder, "--ep", "8")
    assert "8 GPUs" in ran.out.splitlines()[0]
    assert "scale-out x scale-up = 1 x 8" in ran.out


def test_errors_are_json_too_where_json_is_asked_for(run: Run, tmp_path: Path) -> None:
    json_error(run("topo", "--from", tmp_path / "none", "--format", "json"), "input_invalid")
    json_error(run("topo", "--sample", "hgx-h100-ib", "--ep", "0", "--format", "json"), "input_invalid")
    json_error(run("topo", "--sample", "hgx-h100-ib", "--format", "json", "-o", tmp_path / "a" / "b"), "input_invalid")
    json_error(run("topo", "diff", "sample:x", "sample:laptop", "--format", "json"), "input_invalid")


def test_options_that_would_say_nothing_are_told_not_dropped(run: Run) -> None:
    three_lines(run("topo", "--sample", "hgx-h100-ib", "--host", "hgx-h100-31"))
    three_lines(run("topo", "--sample", "hgx-h100-ib", "--python", "/usr/bin/python3"))
    ran = run("topo", "--sample", "hgx-h100-ib", "--host", "hgx-h100-31", "--format", "nccl-xml")
    assert ran.code == 0


def test_adapters_are_listed_as_people_count(run: Run) -> None:
    out = run("topo", "--sample", "p5-efa").out
    tree = [line.split()[0] for line in out.splitlines() if line.startswith("    rdmap")]
    assert tree == sorted(tree, key=lambda name: int(name[5:].split("s")[0]))
    heads = [word for line in out.splitlines() if line.startswith("       rdmap") for word in line.split()]
    assert heads == tree


BAD = {
    "missing": (None, "does not exist"),
    "bomb.xml": (b'<!DOCTYPE s [<!ENTITY a "b">]><system>&a;</system>', "document type or entities"),
    "large.xml": (b"<system>" + b" " * 10_000_000 + b"</system>", "larger than 8 MiB"),
    "large.txt": (b"SwitchName=s Nodes=n\n" * 500_000, "larger than 8 MiB"),
    "circle.conf": (b"SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "make a circle"),
    "twice.conf": (b"SwitchName=a Nodes=n\nSwitchName=a Nodes=m\n", "is there twice"),
    "other.txt": (b"hello\n", "is no topology"),
    "empty.txt": (b"", "is empty"),
    "binary": (bytes(range(256)) * 20, "it is binary, not text"),
    "crowd.xml": (
        b'<system><cpu numaid="0">'
        + b"".join(
            b'<pci busid="0000:%02x:%02x.0" class="0x030200"><gpu dev="%d"/></pci>' % (i // 32, i % 32, i)
            for i in range(2000)
        )
        + b"</cpu></system>",
        "at most 128 of a machine",
    ),
    "broken.json": (b'{"schema":', "is no topology"),
    "list.json": (b"[1]", "is no topology"),
    "other.json": (b'{"schema":{"name":"epctl.plan","version":1}}', "is not a snapshot"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_error_in_words(run: Run, tmp_path: Path, name: str) -> None:
    raw, why = BAD[name]
    path = tmp_path / name
    if raw is not None:
        path.write_bytes(raw)
    ran = run("topo", "--from", path)
    three_lines(ran)
    assert why in ran.err


def test_unknown_format_and_sample(run: Run) -> None:
    three_lines(run("topo", "--sample", "hgx-h100-ib", "--format", "pdf"))
    three_lines(run("topo", "--sample", "nothing"))


def test_a_matrix_cannot_become_a_topology_file(run: Run) -> None:
    ran = run("topo", "--from", DATA / "topo" / "b300_8gpu_bonds.txt", "--format", "nccl-xml")
    three_lines(ran)
    assert "no source tells the PCI address" in ran.err


def test_vm_writes_a_file_that_topo_reads(run: Run, tmp_path: Path) -> None:
    made = tmp_path / "guest.xml"
    ran = run("topo", "vm", DUMP, "--map", "0000:07:00.0=0000:05:00.0,0000:0c:00.0=0000:06:00.0", "-o", made)
    assert (ran.code, ran.out) == (0, "")
    assert "note: left out, for they are not mapped: 0000:0f:00.0" in ran.err
    assert "PXB" in run("topo", "--from", made).out


def test_vm_takes_a_map_file_and_a_snapshot(run: Run, tmp_path: Path) -> None:
    maps = tmp_path / "map"
    maps.write_text("# host = guest\n0000:18:00.0=0000:05:00.0  # GPU 0\n0000:19:00.0=0000:06:00.0\nnuma0=numa0\n")
    saved = tmp_path / "host.json"
    run("topo", "--sample", "hgx-h100-ib", "--format", "json", "-o", saved)
    ran = run("topo", "vm", saved, "--map-file", maps)
    assert ran.code == 0
    assert 'busid="0000:05:00.0" class="0x030200" vendor="0x10de" device="0x2330"' in ran.out


def test_vm_with_a_map_that_is_none_shows_its_beginning(run: Run, tmp_path: Path) -> None:
    maps = tmp_path / "map"
    maps.write_bytes(bytes(range(128, 256)) * 100)
    ran = run("topo", "vm", DUMP, "--map-file", maps)
    three_lines(ran)
    assert "maps nothing" in ran.err
    assert len(ran.err.splitlines()[0]) < 300


def test_vm_without_a_map_says_how_to_give_one(run: Run) -> None:
    ran = run("topo", "vm", DUMP)
    three_lines(ran)
    assert "--map 0000:18:00.0=0000:05:00.0" in ran.err


def test_diff(run: Run) -> None:
    same = run("topo", "diff", "sample:hgx-h100-ib", "sample:hgx-h100-ib")
    assert same.code == 0
    assert "wired alike" in same.out
    ran = run("topo", "diff", "sample:hgx-h100-ib", "sample:hgx-h200-roce-degraded", "--format", "json")
    assert ran.code == 1
    whole = json.loads(ran.out)
    assert whole["schema"]["name"] == "epctl.topo.diff"
    assert {"kind": "attribute", "what": "mlx5_3 gbps", "before": "400", "after": "200"} in whole["diff"]["changes"]
    text = run("topo", "diff", "sample:hgx-h100-ib", "sample:hgx-h200-roce-degraded")
    assert "  ~ 0000:05:00.0 - gpu5 (nvlink): 5 links, 132.81 GB/s -> 3 links, 79.686" in text.out


def test_a_topology_file_of_nccl_spells_pci_codes_as_its_snapshot_does(run: Run, tmp_path: Path) -> None:
    run("topo", "--sample", "hgx-h100-ib", "--format", "nccl-xml", "-o", tmp_path / "node.xml")
    ran = run("topo", "diff", tmp_path / "node.xml", "sample:hgx-h100-ib", "--all", "--format", "json")
    changes = [one for one in json.loads(ran.out)["diff"]["changes"] if one["kind"] == "attribute"]
    codes = [one for one in changes if one["what"].endswith((" class", " vendor", " device"))]
    assert not [one for one in codes if {"before", "after"} <= set(one)]


def test_options_in_front_of_a_subcommand_are_told_not_dropped(run: Run) -> None:
    three_lines(run("topo", "--sample", "hgx-h100-ib", "diff", "sample:hgx-h100-ib", "sample:gb200-nvl"))


def test_help_names_the_subcommands(run: Run) -> None:
    ran = run("topo", "--help")
    assert ran.code == 0
    assert "vm " in ran.out
    assert "diff " in ran.out
