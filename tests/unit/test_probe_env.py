"""Environment: only variables that matter, no secrets, and NCCL's files as NCCL reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.core.snapshot.gpu import Setting
from epctl.probes.collectors.environment import is_secret, is_wanted
from epctl.probes.env import env, parse_conf
from epctl.probes.source import COLLECTORS, RecordingSource
from tests.support.damage import damaged_source
from tests.support.fake_source import FakeSource
from tests.support.probing import odd_document, reason, survives

DOCUMENT = {
    "variables": {"NCCL_DEBUG": "INFO", "EP_DISABLE_GIN": "1", "HOME": "/root"},
    "withheld": [],
    "home": "/root",
}


def test_variables_are_filtered_again_on_replay() -> None:
    hostile = {"variables": {**DOCUMENT["variables"], "VLLM_API_KEY": "x1", "PATH": "/bin"}, "home": "/root"}  # type: ignore[dict-item]
    area = env(FakeSource(documents={"environment": hostile}))
    assert area.variables == (Setting("EP_DISABLE_GIN", "1"), Setting("NCCL_DEBUG", "INFO"))


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("VLLM_API_KEY", "abc", True),
        ("SLURM_JWT", "ey", True),
        ("NVIDIA_NGC_TOKEN", "1234567", True),
        ("SGLANG_AUTH_PASSWORD", "1", True),
        ("NCCL_IB_PKEY", "0x8001", False),
        ("NCCL_IB_PKEY_INDEX", "1", False),
        ("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", "256", False),
        ("VLLM_SECRET_TOKENS", "256", True),
        ("NCCL_IB_HCA", "mlx5", False),
    ],
)
def test_secrets(name: str, value: str, secret: bool) -> None:
    assert is_wanted(name)
    assert is_secret(name, value) is secret


def test_conf_is_read_as_nccl_reads_it() -> None:
    raw = b"# NCCL_A=0\nNCCL_IB_DISABLE=1\r\nNCCL_DEBUG = INFO\nnonsense\n #NCCL_B=1\nNCCL_ALGO=Ring=x\nNCCL_IB_DISABLE=0\n"
    settings, notes = parse_conf(raw, "/etc/nccl.conf")
    assert settings == (Setting("NCCL_IB_DISABLE", "1"), Setting("NCCL_ALGO", "Ring=x"))
    assert len(notes) == 1
    assert "'NCCL_DEBUG'" in notes[0]


def test_the_users_file_wins() -> None:
    files = {"/etc/nccl.conf": "NCCL_DEBUG=WARN\nNCCL_NET=IB\n", "/root/.nccl.conf": "NCCL_DEBUG=INFO\n"}
    area = env(FakeSource(files, documents={"environment": DOCUMENT}))
    assert area.nccl_conf == (Setting("NCCL_DEBUG", "INFO"), Setting("NCCL_NET", "IB"))
    assert area.nccl_conf_files == ("/root/.nccl.conf", "/etc/nccl.conf")


def test_nccl_conf_file_takes_the_place_of_the_users_file() -> None:
    files = {"/opt/n.conf": "NCCL_P2P_LEVEL=NVL\n", "/root/.nccl.conf": "NCCL_DEBUG=INFO\n"}
    document = {"variables": {"NCCL_CONF_FILE": "/opt/n.conf"}, "home": "/root"}
    area = env(FakeSource(files, documents={"environment": document}))
    assert area.nccl_conf == (Setting("NCCL_P2P_LEVEL", "NVL"),)


def test_no_files_are_an_empty_list_and_no_collector_is_absent() -> None:
    assert env(FakeSource(documents={"environment": DOCUMENT})).nccl_conf == ()
    assert reason(env(FakeSource()).variables) == "tool_missing"


def test_collector_tells_no_secret() -> None:
    told = {**os.environ, "NCCL_DEBUG": "INFO", "NCCL_SECRET_KEY": "s3cret", "OTHER": "1", "EP_X": "\udcff"}
    script = COLLECTORS / "environment.py"
    out = subprocess.run([sys.executable, str(script)], env=told, capture_output=True, check=True).stdout
    document = json.loads(out)
    assert document["variables"]["NCCL_DEBUG"] == "INFO"
    assert "NCCL_SECRET_KEY" in document["withheld"]
    assert b"s3cret" not in out
    assert "OTHER" not in document["variables"]


@given(st.data())
def test_any_damage_gives_an_area(data: st.DataObject) -> None:
    whole = FakeSource(
        {"/etc/nccl.conf": "NCCL_DEBUG=WARN\n", "/root/.nccl.conf": "A=1\n"},
        documents={"environment": odd_document(DOCUMENT, data)},
    )
    survives(env=env(damaged_source(whole, data)))


@pytest.mark.parametrize(
    "content",
    [
        b"root:$6$salt$hash=:19000:0:99999:7:::\n",
        b"PASSPHRASE=hunter2\nNCCL_TOKEN=hunter2\n# NCCL_OLD=hunter2\nhunter2\n",
        b"VLLM_API_KEY = hunter2\n",
    ],
)
def test_a_bundle_keeps_of_any_file_only_settings_that_are_no_secret(content: bytes) -> None:
    document = {"variables": {"NCCL_CONF_FILE": "/etc/any"}, "withheld": [], "home": "/root"}
    inner = FakeSource(
        files={"/etc/any": content + b"NCCL_DEBUG=WARN\nNCCL_BUFFSIZE = 1\n"}, documents={"environment": document}
    )
    source = RecordingSource(inner)
    area = env(source)
    assert source.recording.files["/etc/any"] == b"NCCL_DEBUG=WARN\nNCCL_BUFFSIZE = 1\n"
    assert area.nccl_conf == (Setting("NCCL_DEBUG", "WARN"),)
    assert "hunter2" not in repr(area)
    assert "hash" not in repr(area)
