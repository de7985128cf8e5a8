"""NCCL's topology files: what is refused, what is written, the file of a guest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctl.commands.topo_input import input_of
from epctl.core.errors import EpctlError
from epctl.probes import load
from epctl.probes.readers import nccl_topo_xml
from epctl.topo.gather import Input, gather
from epctl.topo.to_nccl_xml import nccl_xml
from epctl.topo.tree import Tree
from epctl.topo.vm import guest_file, mapping_of
from epctl.topo.xml_tree import Element, parse, text

DATA = Path(__file__).parents[2] / "data" / "readers" / "nccl_topo_xml"
WHOLE = [
    "dgx_a100_dump",
    "azure_ndv5_static",
    "aws_p4d_static_comments",
    "gcp_h100_empty_link_speed",
    "gb10_c2c_nic_without_pci",
]
BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE s [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">'.encode() for i in range(10))
    + b']><system version="1">&k;</system>'
)
BAD = {
    "a bomb": (BOMB, "document type or entities"),
    "an entity from a file": (
        b'<!DOCTYPE s [<!ENTITY x SYSTEM "file:///etc/passwd">]><system>&x;</system>',
        "document type or entities",
    ),
    "ten megabytes": (b"<system>" + b" " * 10_000_000 + b"</system>", "bytes; up to"),
    "many elements": (b"<system>" + b"<cpu/>" * 70_000 + b"</system>", "more than 65536 elements"),
    "deep nesting": (b"<system>" + b"<pci>" * 500, "nested more than 128 deep"),
    "another document": (b"<graphs version='1'/>", "not <system>"),
    "a cut one": (b'<system version="1"><cpu numaid="0">', "no element found"),
    "one function twice": (
        b'<system><cpu numaid="0"><pci busid="0000:18:00.0" class="0x03"/><pci busid="0000:18:00.0" class="0x03"/></cpu></system>',
        "is there twice",
    ),
    "nothing": (b"", "no element found"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_in_words(name: str) -> None:
    raw, why = BAD[name]
    with pytest.raises(EpctlError) as told:
        parse(raw, "topo.xml")
    assert why in str(told.value)
    assert str(told.value).startswith("error: topo.xml is ")


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=200).map(lambda inner: f"<system>{inner}</system>".encode()))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        parse(raw, "f")
    except EpctlError:
        return


@pytest.mark.parametrize("name", WHOLE)
def test_elements_come_back_as_they_were(name: str) -> None:
    root = parse((DATA / f"{name}.xml").read_bytes(), name)
    assert parse(text(root).encode(), name) == root


words = st.text(st.characters(codec="ascii", exclude_characters='"<>&\n\r\t', exclude_categories=("Cc",)), max_size=20)
attributes = st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), words, max_size=5)
elements = st.recursive(
    st.builds(Element, st.sampled_from(["cpu", "nic", "net"]), attributes, st.just([])),
    lambda inner: st.builds(Element, st.sampled_from(["cpu", "nic"]), attributes, st.lists(inner, max_size=3)),
    max_leaves=8,
)


@given(elements)
def test_whatever_is_written_is_read_back(element: Element) -> None:
    root = Element("system", {"version": "1"}, [element])
    assert parse(text(root).encode(), "f") == root


@pytest.mark.parametrize("value", ['a"b', "a<b", "a&b", "x" * 256])
def test_values_that_nccl_could_not_read_are_not_written(value: str) -> None:
    with pytest.raises(EpctlError, match="cannot be written for NCCL"):
        text(Element("system", {"version": value}))


def shape(tree: Tree) -> dict[str, object]:
    """What NCCL takes from a file: which GPUs and NICs, how far apart, how many links."""
    host = tree.hosts()[0].id
    gpus, nics = tree.of_kind("gpu", host), tree.of_kind("nic", host)
    links = {gpu.label: sum(edge.num_links for edge in tree.at[gpu.id] if edge.kind == "nvlink") for gpu in gpus}
    near = {"NODE": "PHB"}
    paths = {
        (gpu.label, nic.label): near.get(word := str(tree.level(gpu.id, nic.id)), word) for gpu in gpus for nic in nics
    }
    rates = {nic.label: nic.attrs.get("gbps") for nic in nics}
    return {
        "links": links,
        "paths": paths,
        "rates": rates,
        "addresses": {gpu.label: gpu.attrs.get("pci") for gpu in gpus},
    }


@pytest.mark.parametrize("name", ["hgx-h100-ib", "hgx-h200-roce-degraded", "gb200-nvl", "h200x2-vm"])
def test_a_snapshot_written_for_nccl_is_the_same_machine(name: str) -> None:
    tree = Tree(gather([Input(name, load.sample(name))]))
    written, notes = nccl_xml(tree)
    back = Tree(gather([Input("f.xml", parse(written.encode(), "f"))]))
    assert shape(back) == shape(tree)
    assert notes == []


def test_the_file_of_32_adapters_fits_what_nccl_reads() -> None:
    written, notes = nccl_xml(Tree(gather([Input("p5", load.sample("p5-efa"))])))
    assert notes == []
    assert sum(1 for _ in parse(written.encode(), "f").walk()) <= 256


@pytest.mark.parametrize("name", ["dgx_a100_dump", "gcp_h100_empty_link_speed"])
def test_a_dump_survives_the_graph(name: str) -> None:
    tree = Tree(gather([input_of(DATA / f"{name}.xml")]))
    back = Tree(gather([Input("f.xml", parse(nccl_xml(tree)[0].encode(), "f"))]))
    assert shape(back) == shape(tree)


def test_the_reader_of_dumps_reads_what_is_written() -> None:
    written, _ = nccl_xml(Tree(gather([Input("hgx", load.sample("hgx-h100-ib"))])))
    reading = nccl_topo_xml.read(written.encode())
    assert reading.status == "ok"
    assert [(gpu.busid, gpu.nvlinks, gpu.sm) for gpu in reading.facts.gpus][:2] == [
        ("0000:18:00.0", 18, 90),
        ("0000:28:00.0", 18, 90),
    ]
    assert [net.gbps for net in reading.facts.nets][:1] == [400.0]


def test_a_matrix_has_no_addresses() -> None:
    tree = Tree(gather([input_of(DATA.parent / "topo" / "b300_8gpu_bonds.txt")]))
    with pytest.raises(EpctlError, match="cannot be written"):
        nccl_xml(tree)


def test_of_two_machines_one_is_to_be_named() -> None:
    tree = Tree(gather([Input("a", load.sample("hgx-h100-ib")), Input("b", load.sample("gb200-nvl"))]))
    with pytest.raises(EpctlError, match="of one machine"):
        nccl_xml(tree)
    assert 'busid="0008:01:00.0"' in nccl_xml(tree, "nvl72-r2-t06")[0]


# -- the guest


def dump() -> Element:
    return parse((DATA / "dgx_a100_dump.xml").read_bytes(), "dump")


MAP = ["0000:07:00.0=0000:05:00.0,0000:0c:00.0=06:00.0", "00000000:47:00.0=0000:07:00.0"]


def test_the_guest_keeps_the_tree_and_loses_what_is_the_hosts() -> None:
    made = guest_file(dump(), mapping_of(MAP))
    root = parse(made.text.encode(), "guest")
    assert {element.tag for element in root.walk()} == {"system", "cpu", "pci"}
    assert [cpu.attrs for cpu in root.of("cpu")] == [
        {"numaid": number, "arch": "x86_64", "vendor": "AuthenticAMD", "familyid": "143", "modelid": "49"}
        for number in ("3", "1")
    ]
    (outer,) = root.of("cpu")[0].of("pci")
    assert outer.attrs["busid"].startswith("ffff:ff:")
    assert outer.attrs["link_speed"] == "16.0 GT/s PCIe"
    inner, nic = outer.children
    assert [nic.attrs[key] for key in ("busid", "class", "device")] == ["0000:06:00.0", "0x020700", "0x101b"]
    assert [child.attrs["busid"] for child in inner.children] == ["0000:05:00.0"]
    assert any("0000:0f:00.0" in note for note in made.notes)


def test_distances_in_the_guest_are_those_of_the_host() -> None:
    host = Tree(gather([Input("h.xml", dump())]))
    guest = Tree(gather([Input("g.xml", parse(guest_file(dump(), mapping_of(MAP)).text.encode(), "g"))]))
    assert host.level("h/gpu0", "h/mlx5_0") == guest.level("g/gpu0", "g/0000:06:00.0") == "PXB"
    assert guest.level("g/gpu1", "g/0000:06:00.0") == host.level("h/gpu2", "h/mlx5_0") == "SYS"


def test_numa_nodes_can_be_put_together() -> None:
    root = parse(guest_file(dump(), mapping_of([*MAP, "numa3=numa0", "numa1=numa0"])).text.encode(), "g")
    assert [cpu.attrs["numaid"] for cpu in root.of("cpu")] == ["0"]
    assert len(root.of("cpu")[0].of("pci")) == 2


def test_affinity_stays_when_asked_for() -> None:
    assert "affinity" not in guest_file(dump(), mapping_of(MAP)).text
    assert "affinity=" in guest_file(dump(), mapping_of(MAP), keep_affinity=True).text


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_part_of_the_host_can_be_given_to_a_guest(data: st.DataObject) -> None:
    devices = sorted(
        element.attrs["busid"]
        for element in dump().walk()
        if element.tag == "pci" and (element.of("gpu") or element.of("nic"))
    )
    chosen = data.draw(st.lists(st.sampled_from(devices), min_size=1, unique=True))
    guests = data.draw(st.permutations([f"0000:{i:02x}:00.0" for i in range(1, len(chosen) + 1)]))
    made = guest_file(dump(), mapping_of([f"{host}={guest}" for host, guest in zip(chosen, guests, strict=True)]))
    root = parse(made.text.encode(), "g")
    leaves = [element.attrs["busid"] for element in root.walk() if element.tag == "pci" and not element.of("pci")]
    bridges = [element.attrs["busid"] for element in root.walk() if element.tag == "pci" and element.of("pci")]
    assert sorted(leaves) == sorted(guests)
    assert len(set(bridges)) == len(bridges)
    assert all(address.startswith("ffff:ff:") for address in bridges)


MISTAKES = {
    ("0000:99:00.0=0000:05:00.0",): "has no function 0000:99:00.0",
    ("0000:07:00.0=0000:05:00.0", "0000:0f:00.0=0000:05:00.0"): "is given to two functions",
    ("0000:07:00.0=0000:05:00.0", "0000:07:00.0=0000:06:00.0"): "is mapped twice",
    ("0000:07:00.0",): "maps nothing",
    ("gpu0=gpu1",): "maps nothing",
    (): "nothing to map",
    ("numa0=numa1",): "nothing to map",
}


@pytest.mark.parametrize("maps", MISTAKES, ids=MISTAKES.values())
def test_mistakes_in_the_map_are_told(maps: tuple[str, ...]) -> None:
    with pytest.raises(EpctlError) as told:
        guest_file(dump(), mapping_of(maps))
    assert MISTAKES[maps] in str(told.value)


def test_a_count_of_nvlinks_that_no_gpu_has_is_left_out_and_told() -> None:
    links = '<nvlink target="ffff:ff:ff.f" count="{}" tclass="0x068000"/>'
    raw = (
        '<system version="1"><cpu numaid="0">'
        f'<pci busid="0000:01:00.0" class="0x030200"><gpu dev="0" sm="90">{links.format(999999)}</gpu></pci>'
        f'<pci busid="0000:02:00.0" class="0x030200"><gpu dev="1" sm="90">{links.format(18)}</gpu></pci></cpu></system>'
    )
    graph = gather([Input("f.xml", parse(raw.encode(), "f.xml"))])
    assert [(edge.a, edge.num_links) for edge in graph.edges if edge.kind == "nvlink"] == [("f/gpu1", 18)]
    assert any("GPU 0 999999 NVLinks" in finding.text for finding in graph.findings)
