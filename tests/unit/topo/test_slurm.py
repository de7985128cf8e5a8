"""Slurm's topology.conf and topology.yaml: read, refused, written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.commands.topo_input import input_of
from epctl.core.errors import EpctlError
from epctl.probes import load
from epctl.topo.from_slurm import part_of, topology_of
from epctl.topo.gather import Input, gather
from epctl.topo.slurm import Block, Switch, Topology, parse, text
from epctl.topo.tree import Tree

DATA = Path(__file__).parents[2] / "data" / "readers"

TREE = """
# the usual form
SwitchName=s0 Nodes=tux[0-3,12] LinkSpeed=400
switchname=s1 nodes=tux[4-5],login1  # any case
SwitchName=top Switches=s[0-1]
"""
BLOCKS = """
# block001=nvl-1-1
BlockName=block001 Nodes=n[01-18]
# block002=nvl-1-2
BlockName=block002 Nodes=n[19-36]
BlockSizes=18,36
"""
YAML = """
---
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - switch: top
        children: s[0-1]
      - switch: s0
        nodes: tux[0-3]
      - switch: s1
        nodes: tux[4-5]
"""
YAML_BLOCKS = """
- topology: racks
  block:
    block_sizes:
      - 18
      - 36
    blocks:
      - block: b1
        nodes: n[01-18]
      - block: b2
        nodes: n[19-36]
"""


def test_tree() -> None:
    assert parse(TREE, "f").switches == (
        Switch("s0", (), ("tux0", "tux1", "tux2", "tux3", "tux12"), "400"),
        Switch("s1", (), ("tux4", "tux5", "login1")),
        Switch("top", ("s0", "s1")),
    )


def test_blocks_with_the_names_that_topograph_writes_in_comments() -> None:
    found = parse(BLOCKS, "f")
    assert [(block.name, len(block.nodes), block.alias) for block in found.blocks] == [
        ("block001", 18, "nvl-1-1"),
        ("block002", 18, "nvl-1-2"),
    ]
    assert found.blocks[0].nodes[:2] == ("n01", "n02")
    assert found.block_sizes == (18, 36)


def test_yaml_says_the_same() -> None:
    assert parse(YAML, "f").switches == (
        Switch("top", ("s0", "s1")),
        Switch("s0", (), ("tux0", "tux1", "tux2", "tux3")),
        Switch("s1", (), ("tux4", "tux5")),
    )
    found = parse(YAML_BLOCKS, "f")
    assert ([block.name for block in found.blocks], found.block_sizes) == (["b1", "b2"], (18, 36))


BAD = {
    "SwitchName=a Switches=b\nSwitchName=b Switches=a": "make a circle",
    "SwitchName=a Switches=a": "make a circle",
    "SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2": "switch a is there twice",
    "SwitchName=t Switches=a\nSwitchName=u Switches=a\nSwitchName=a Nodes=n": "switch a has two parents",
    "SwitchName=t Switches=a,a\nSwitchName=a Nodes=n": "switch a has two parents",
    "SwitchName=t Switches=a": "switch a is nowhere described",
    "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1": "node n1 is there twice",
    "BlockName=a Nodes=n1,n1": "node n1 is there twice",
    "BlockName=a Nodes=n1\nBlockName=a Nodes=n2": "block a is there twice",
    "SwitchName=a Switches=b Nodes=n": "has switches and nodes",
    "SwitchName=a Colour=red": "not understood",
    "SwitchName=a Nodes=n[1-": "no host list",
    "SwitchName=a Nodes=n[9-1]": "9-1 is no range that counts up",
    "SwitchName=a Nodes=n[1-999999999]": "more than 200,000 hosts",
    "SwitchName=a Nodes=n[1-1000][1-1000]": "names more than 200,000",
    "BlockName=a Nodes=n1\nBlockSizes=x": "no list of numbers",
    "Nodes=n1 SwitchName=a SwitchName=b": "twice",
    "- topology: a\n  tree:\n    switches:\n      - switch: s\n        colour: red\n": "not understood",
    "- topology: a\n  flat: true\n- topology: b\n  flat: true\n": "several topologies",
    "\n".join(f"SwitchName=s{i} Switches=s{i + 1}" for i in range(100))
    + "\nSwitchName=s100 Nodes=n": "no tree of a network",
}


@pytest.mark.parametrize("bad", BAD, ids=BAD.values())
def test_bad_files_are_refused_in_words(bad: str) -> None:
    with pytest.raises(EpctlError) as told:
        parse(bad, "topology.conf")
    assert BAD[bad] in str(told.value)
    assert "topology.conf" in str(told.value)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    num_leaves = draw(st.integers(1, 5))
    leaves = tuple(
        Switch(f"leaf{i}", (), tuple(f"n{i}-{k:02d}" for k in range(draw(st.integers(1, 5)))))
        for i in range(num_leaves)
    )
    top = (
        (Switch("top", tuple(leaf.name for leaf in leaves), (), draw(st.sampled_from(["", "800"]))),)
        if num_leaves > 1
        else ()
    )
    hosts = [node for leaf in leaves for node in leaf.nodes]
    blocks = (Block("b1", tuple(hosts[:2]), draw(st.sampled_from(["", "rack-1"]))),) if draw(st.booleans()) else ()
    return Topology((*top, *leaves), blocks, (2, 4) if blocks else ())


@given(topologies())
def test_what_is_written_is_read_back(topology: Topology) -> None:
    found = parse(text(topology), "f")
    assert set(found.switches) == set(topology.switches)
    assert (found.blocks, found.block_sizes) == (topology.blocks, topology.block_sizes)


@given(topologies())
def test_a_topology_survives_the_graph(topology: Topology) -> None:
    back, notes = topology_of(Tree(gather([Input("f", topology)])))
    assert {switch.name: (set(switch.switches), set(switch.nodes)) for switch in back.switches} == {
        switch.name: (set(switch.switches), set(switch.nodes)) for switch in topology.switches
    }
    assert [set(block.nodes) for block in back.blocks] == [set(block.nodes) for block in topology.blocks]
    assert notes == []


def test_a_subnet_becomes_a_tree() -> None:
    topology, _ = topology_of(Tree(gather([input_of(DATA / "ibnetdiscover/ndr_two_tier_real.txt")])))
    by_name = {switch.name: switch for switch in topology.switches}
    assert set(by_name) == {"RK10-IBSPINE-09", "RK09-IBLEAF-04-02", "RK09-IBLEAF-04-04"}
    assert len(by_name["RK09-IBLEAF-04-04"].nodes) == 17
    parse(text(topology), "f")


def test_machines_without_a_known_switch_hang_below_one_that_is_made_up() -> None:
    topology, notes = topology_of(
        Tree(gather([Input("a", load.sample("hgx-h100-ib")), Input("b", load.sample("gb200-nvl"))]))
    )
    assert text(topology) == (
        "SwitchName=all Nodes=hgx-h100-31,nvl72-r2-t06\n# block001=7b7ed6a2c3f14d0e9a5c1d2e3f405162.32766\n"
        "BlockName=block001 Nodes=nvl72-r2-t06\nBlockSizes=1\n"
    )
    assert "made up" in notes[0]


def test_a_machine_of_a_snapshot_is_the_node_of_that_name() -> None:
    graph = gather(
        [Input("a", load.sample("hgx-h100-ib")), Input("f", parse("SwitchName=s Nodes=hgx-h100-31,other", "f"))]
    )
    assert [node.id for node in Tree(graph).hosts()] == ["hgx-h100-31", "other"]
    assert len(part_of(parse("SwitchName=s Nodes=n", "f"), "f").edges) == 1
