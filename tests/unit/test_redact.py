"""After redaction nothing identifies the site, and the relations between values are what they were."""

from __future__ import annotations

import ipaddress
import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.core.check import registered
from epctl.core.doctor import examine
from epctl.core.snapshot import Origin
from epctl.probes import load, take
from epctl.probes.redact import redact
from epctl.probes.redactor import Redactor
from epctl.probes.source import Output, RecordedSource, Recording

HOST, USER = "gpu-prod-0417", "m.mustermann"


def node() -> Recording:
    return Recording(
        commands={
            ("ibstat",): Output(
                f"CA 'mlx5_0'\n Node GUID: 0x946dae0300aabbcc\n {HOST}.corp.example.com\n".encode(),
                b"/home/m.mustermann/x",
            )
        },
        files={
            "/proc/sys/kernel/hostname": f"{HOST}\n".encode(),
            "/sys/class/infiniband/mlx5_0/node_guid": b"946d:ae03:00aa:bbcc\n",
            "/sys/class/infiniband/mlx5_0/ports/1/gids/3": b"0000:0000:0000:0000:0000:ffff:c0a8:0307\n",
            f"/home/{USER}/.nccl.conf": b"NCCL_SOCKET_IFNAME=eth0\n",
            "/x/config": bytes(range(256)),
        },
        folders={"/home": (USER,)},
        targets={"/dev/disk": "/dev/disk/by-uuid/1f2e3d4c-0001-4000-8000-333344445555"},
        documents={
            "environment": {"MASTER_ADDR": "192.168.3.7", "USER": USER, "HOSTNAME": HOST},
            "nvml": {
                "gpus": [{"serial": {"v": "1650000000001"}, "uuid": {"v": "GPU-1f2e3d4c-0001-4000-8000-333344445555"}}]
            },
            "process": {"hostname": HOST},
        },
    )


SECRETS = (
    "gpu-prod-0417",
    "corp.example",
    "mustermann",
    "946dae0300aabbcc",
    "946d:ae03",
    "c0a8:0307",
    "192.168.3.7",
    "1650000000001",
    "333344445555",
)


def test_nothing_that_identifies_the_site_is_left() -> None:
    text = repr(redact(node()))
    for secret in SECRETS:
        assert secret not in text, secret


def test_the_same_value_has_the_same_stand_in_in_every_form() -> None:
    made = redact(node())
    output = made.commands["ibstat",]
    assert isinstance(output, Output)
    guid = made.files["/sys/class/infiniband/mlx5_0/node_guid"]
    assert guid == b"0000:0000:0000:0001\n"
    assert b"0x0000000000000001" in output.stdout
    assert made.documents["environment"]["MASTER_ADDR"] == "10.100.1.1"
    assert made.files["/sys/class/infiniband/mlx5_0/ports/1/gids/3"] == b"0000:0000:0000:0000:0000:ffff:0a64:0101\n"
    assert made.documents["environment"]["HOSTNAME"] == made.documents["process"]["hostname"] == "host-1"
    assert "/home/user-1/.nccl.conf" in made.files


def test_binary_files_stay_as_they_are() -> None:
    assert redact(node()).files["/x/config"] == bytes(range(256))


def test_values_with_a_meaning_of_their_own_stay() -> None:
    kept = (
        "0000:18:00.0 580.159.04 2.32.3+cuda13.0 28.43.2566 0.0.0.0 127.0.0.1 ::1 00:00:00:00:00:00 0x0000000000000000 0x000000803fffffff "
        "0000:0000:0000:0000 MLNX_OFED_LINUX-24.10-2.1.8.0 12:30:11 PCI:0000:18:00 26.562 GB/s mlx5_bond_0 MT_0000000838"
    )
    assert Redactor((HOST,), (USER,)).text(kept) == kept


def test_link_local_and_mapped_gids_keep_their_kind() -> None:
    redactor = Redactor()
    assert redactor.text("fe80:0000:0000:0000:946d:ae03:00aa:bbcc").startswith("fe80:0000:0000:0000:")
    assert redactor.text("0000:0000:0000:0000:0000:ffff:0a01:0203").startswith("0000:0000:0000:0000:0000:ffff:")


@given(
    st.lists(
        st.tuples(*[st.integers(1, 223)] + [st.integers(0, 255)] * 2, st.integers(1, 254)), min_size=2, max_size=20
    )
)
def test_addresses_share_a_subnet_after_redaction_exactly_when_they_did_before(
    addresses: list[tuple[int, int, int, int]],
) -> None:
    redactor = Redactor()
    usable = [entry for entry in addresses if entry[0] != 127 and entry[:2] != (169, 254)]
    made = [redactor.text(".".join(map(str, entry))) for entry in usable]
    for a, one in zip(usable, made, strict=True):
        for b, other in zip(usable, made, strict=True):
            assert (a == b) == (one == other)
            assert (a[:3] == b[:3]) == (one.rpartition(".")[0] == other.rpartition(".")[0])


@given(st.text(alphabet="0123456789abcdef:.-/ x\nGPU", max_size=300))
def test_redaction_takes_any_text_and_a_second_pass_has_nothing_more_to_hide(text: str) -> None:
    once = Redactor().text(text)
    assert re.sub(r"[^\n]", "", once) == re.sub(r"[^\n]", "", text)


def one(path: str, content: str) -> str:
    found = redact(Recording(files={path: content.encode()})).files[path]
    assert isinstance(found, bytes)
    return found.decode()


def test_hexadecimal_addresses_of_proc_net_are_replaced_like_dotted_ones() -> None:
    route = "Iface\tDestination\tGateway\teth0\neth0\t00000000\t0103A8C0\t0003\n"
    made = redact(Recording(files={"/proc/net/route": route.encode(), "/x": b"192.168.3.1\n"}))
    assert made.files["/x"] == b"10.100.1.1\n"
    assert made.files["/proc/net/route"] == b"Iface\tDestination\tGateway\teth0\neth0\t00000000\t0101640A\t0003\n"
    inet6 = one(
        "/proc/net/if_inet6",
        "fe80000000000000946dae0300aabbcc 02 40 20 80 eth0\n00000000000000000000000000000001 01 80 10 80 lo\n",
    )
    assert (
        inet6 == "fe800000000000000000000000000001 02 40 20 80 eth0\n00000000000000000000000000000001 01 80 10 80 lo\n"
    )


def test_boot_parameters_and_log_lines_that_no_check_reads_are_left_out() -> None:
    assert one("/proc/cmdline", "root=/dev/sda1 iommu=pt secret.token=abc pci=noacs\n") == "iommu=pt pci=noacs\n"
    log = "[    0.000000] Command line: secret\n[    5.1] NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.\n"
    found = redact(Recording(commands={("dmesg",): Output(log.encode())})).commands["dmesg",]
    assert isinstance(found, Output)
    assert b"secret" not in found.stdout
    assert b"Xid (PCI:0000:18:00): 79" in found.stdout
    assert found.stdout.startswith(b"[    0.000000] (lines")
    assert "builder" not in one("/proc/version", "Linux version 6.8 (builder@farm) (gcc) #1\n")


def test_a_host_name_of_two_letters_is_replaced_where_it_stands_alone() -> None:
    made = redact(Recording(files={"/etc/hostname": b"vm\n"}, documents={"process": {"hostname": "vm"}}))
    assert made.files["/etc/hostname"] == b"host-1\n"
    assert made.documents["process"] == {"hostname": "host-1"}


def test_of_vital_product_data_only_the_mark_of_the_nvswitch_bridge_stays() -> None:
    place = "/sys/class/infiniband/{}/device/vpd"
    data = b"\x82\x04\x00card\x90\x20\x00SN\x0cMT2423600ABC"
    made = redact(Recording(files={place.format("mlx5_0"): data + b"SMDL=SW_MNG\x78", place.format("mlx5_1"): data}))
    assert made.files == {place.format("mlx5_0"): b"SW_MNG", place.format("mlx5_1"): b""}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_JOB_USER", "alicew"),
        ("SLURM_JOB_ACCOUNT", "acmeproj"),
        ("MASTER_ADDR", "head-03.acme.internal"),
        ("SLURMD_NODENAME", "rack42-n17"),
    ],
)
def test_names_that_stand_only_in_variables_are_known_everywhere(name: str, value: str) -> None:
    recording = Recording(documents={"environment": {"variables": {name: value}, "withheld": [], "home": "/root"}})
    recording.commands["x",] = Output(f"see {value} or {value.upper()} here".encode())
    made = redact(recording)
    assert value not in repr(made).lower()
    variables: dict[str, Any] = made.documents["environment"]["variables"]
    output = made.commands["x",]
    assert isinstance(output, Output)
    assert output.stdout.decode() == f"see {variables[name]} or {variables[name]} here"


@pytest.mark.parametrize(
    "text",
    [
        '{"dst":"2a02:26f7:c9c8:4000::/64","gateway":"2a02:26f7:c9c8::"}',
        "at 2a02:26f7:c9c8::7.",
        "::ffff:cb00:714d",
        "::ffff:203.0.113.77",
        "switchguid=0xfc6a1c0300d8357c(fc6a1c0300d8357c)",
        '[1]\t"H-b4e9b803005e47d2"[1](b4e9b803005e47d2)',
        "guid b4e9b803005e47d2, 0XB4E9B803005E47D2",
        "Device Serial Number a0-88-c2-03-00-ab-12-c4",
        "a0-88-c2-ab-12-c4",
        "alice.w@acme.example",
        "ip-10-17-4-99.ec2.internal",
        "https://bob:hunter2@git.acme.org/x",
        "s3://acme-models/x",
        "i-0abc1234def567890",
        "ghp_hunter2hunter2hunter2 hf_hunter2hunter2hunter2",
        "AKIAHUNTER2HUNTER2 Authorization: Bearer hunter2hunter2",
    ],
)
def test_identifiers_are_known_by_their_form(text: str) -> None:
    done = Redactor().text(text).lower()
    for secret in ("26f7", "cb00", "113.77", "fc6a1c03", "b4e9b803", "a0-88", "acme", "10-17", "hunter2", "0abc1234"):
        assert secret not in done, done


@pytest.mark.parametrize(
    "text",
    [
        "nvidia-cublas 13.0.2.14",
        '{"name": "nvidia-cudnn-cu13", "version": "9.13.0.50"}',
        "Driver Version: 10.20.30.40",
        "libcudnn.so.9.13.0.50",
        "user@1000.service https://github.com/NVIDIA/nccl",
        "c10::cuda std::add :: 12:30:11",
    ],
)
def test_versions_and_words_are_not_taken_for_identifiers(text: str) -> None:
    assert Redactor().text(text) == text
    found = {"name": "nvidia-cublas", "version": "13.0.0.19", "driver": {"version": {"v": "10.20.30.40"}}}
    assert Redactor().tree(found) == found


def test_one_address_has_one_stand_in_in_both_notations() -> None:
    made = Redactor()
    full = made.text("2a02:26f7:c9c8:4000:0000:0000:0000:0001")
    short = made.text("2a02:26f7:c9c8:4000::1")
    assert ipaddress.ip_address(full) == ipaddress.ip_address(short)
    assert ipaddress.ip_address(short) in ipaddress.ip_network(made.text("2a02:26f7:c9c8:4000::") + "/64")


def test_stand_ins_of_many_subnets_do_not_meet() -> None:
    made = Redactor()
    nets = [f"{a}.{b}.{c}.7" for a in (11, 12) for b in range(256) for c in range(100)]
    assert len({made.text(net) for net in nets}) == len(nets)


def _statuses(recording: Recording) -> dict[str, str]:
    node = take(RecordedSource(recording), Origin("recorded", "x"), taken_at="x")
    return {found.id: found.status for found in examine(node, registered().values()).findings}


@pytest.mark.parametrize(
    "name", ["dev", "sys", "proc", "cuda", "nccl", "pci", "mlx5", "python", "gpu", "active", "port"]
)
def test_a_name_that_is_a_word_of_the_system_changes_no_verdict(name: str) -> None:
    recording = load.bundle_at(None, "hgx-h100-ib").recording
    recording.documents["environment"] = {**recording.documents["environment"], "home": f"/home/{name}"}
    recording.documents["process"] = {**recording.documents["process"], "hostname": name}
    recording.files[f"/home/{name}/.nccl.conf"] = b"NCCL_DEBUG=WARN\n"
    made = redact(recording)
    assert f"/home/{name}" not in repr(made)
    assert made.documents["process"]["hostname"] == "host-1"
    assert set(made.documents["nodes"]) == set(recording.documents["nodes"])
    assert _statuses(made) == _statuses(recording)


@pytest.mark.parametrize("sample", load.samples())
def test_redaction_of_a_sample_changes_no_verdict(sample: str) -> None:
    recording = load.bundle_at(None, sample).recording
    assert _statuses(redact(recording)) == _statuses(recording)


def test_names_of_other_nodes_are_taken_from_the_tools_that_list_them() -> None:
    texts = {
        "nvidia-imex-ctl": "Node #0 - 10.1.1.1 - READY - Hostname: qz7-t00\n",
        "ibnetdiscover": 'Ca 1 "H-1234567890123456" # "qz8-n01 mlx5_0"\n'
        '[1](1234567890123456) # "MF0;qz9-leaf:MQM8700/U1" lid 4\n',
    }
    made = redact(Recording(commands={(tool,): Output(text.encode()) for tool, text in texts.items()}))
    for secret in ("qz7", "qz8", "qz9", "1234567890123456"):
        assert secret not in repr(made)


@pytest.mark.parametrize(
    "recording",
    [
        Recording(commands={(): Output(b"x")}),
        Recording(documents={"x": json.loads("[" * 700 + "]" * 700)}),
    ],
)
def test_an_odd_bundle_is_redacted_all_the_same(recording: Recording) -> None:
    redact(recording)


def test_the_cost_does_not_grow_with_the_number_of_names() -> None:
    begin = time.process_time()
    made = redact(Recording(files={"/x": b"\n".join(b"/home/person%d" % i for i in range(20_000))}))
    assert b"person" not in repr(made).encode()
    assert time.process_time() - begin < 20
