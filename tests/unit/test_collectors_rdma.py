"""The collectors `nodes` and `libraries`: they run alone, print one document, and read files without loading them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from epctl.core.standalone import elf
from epctl.probes.collectors import libraries, nodes
from epctl.probes.source import COLLECTORS, LiveSource
from tests.support.elf_file import ElfFile


@pytest.mark.parametrize("name", ["nodes", "libraries"])
def test_a_collector_runs_by_its_path_with_the_standard_library_alone(name: str, tmp_path: Path) -> None:
    script = COLLECTORS / f"{name}.py"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", str(script)],
        capture_output=True,
        cwd=tmp_path,
        check=True,
        timeout=30,
    )
    assert isinstance(json.loads(done.stdout), dict)
    assert done.stderr == b""


def test_the_documents_reach_a_source() -> None:
    document = LiveSource().document("libraries")
    assert isinstance(document, dict)
    assert set(document) == {"libraries", "providers"}
    assert set(document["libraries"]) == set(libraries.LIBRARIES)


def test_nodes_are_device_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/nvidia-caps").mkdir()
    (tmp_path / "dev/infiniband/uverbs0").symlink_to("/dev/null")
    (tmp_path / "dev/infiniband/uverbs1").symlink_to("/nowhere")
    (tmp_path / "dev/infiniband/notes.txt").write_text("plain file")
    (tmp_path / "dev/nvidia0").symlink_to("/dev/null")
    (tmp_path / "dev/sda").symlink_to("/dev/null")
    (tmp_path / "dev/gdrdrv").symlink_to("/dev/null")
    found = nodes.collect(str(tmp_path))
    assert found == {
        "/dev/gdrdrv": {"rw": True},
        "/dev/nvidia0": {"rw": True},
        "/dev/infiniband/uverbs0": {"rw": True},
        "/dev/infiniband/uverbs1": {"error": "ENOENT"},
    }


def test_a_folder_that_may_not_be_listed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("os.listdir", refuse)
    assert nodes.collect(str(tmp_path))["/dev/infiniband"] == {"error": "EACCES"}


def _write(path: Path, **content: Any) -> None:  # noqa: ANN401
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(ElfFile().build(**content))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A loader that knows two folders: one of LD_LIBRARY_PATH and a default one."""
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}/first::relative")
    monkeypatch.setattr(libraries, "DEFAULT_FOLDERS", (f"{tmp_path}/lib",))
    monkeypatch.setattr(libraries, "EXTRA_FOLDERS", ())
    monkeypatch.setattr(libraries, "_cache", dict)
    monkeypatch.setattr(libraries, "_elf", lambda: elf)
    return libraries


def test_libraries_by_the_order_of_the_loader(tree: ModuleType, tmp_path: Path) -> None:
    _write(tmp_path / "lib/libmlx5.so.1.24.44.0", soname="libmlx5.so.1", versions=("MLX5_1.0", "MLX5_1.24"))
    (tmp_path / "lib/libmlx5.so.1").symlink_to("libmlx5.so.1.24.44.0")
    _write(
        tmp_path / "lib/libibverbs.so.1",
        soname="libibverbs.so.1",
        versions=("IBVERBS_1.8",),
        exported=("ibv_reg_dmabuf_mr", "ibv_x"),
    )
    _write(tmp_path / "lib/libibverbs/libmlx5-rdmav34.so")
    _write(tmp_path / "lib/libibverbs/libbnxt_re-rdmav34.so")
    _write(tmp_path / "first/libefa.so.1", exported=("efadv_create_comp_cntr",))
    _write(tmp_path / "lib/libefa.so.1")
    (tmp_path / "lib/libfabric.so.1").write_text("not a library")
    found = tree.collect()
    mlx5 = found["libraries"]["libmlx5"]
    assert (mlx5["versions"], Path(mlx5["real_path"]).name) == (["MLX5_1.0", "MLX5_1.24"], "libmlx5.so.1.24.44.0")
    assert found["libraries"]["libibverbs"]["symbols"] == ["ibv_reg_dmabuf_mr"]
    assert found["libraries"]["libefa"]["path"] == f"{tmp_path}/first/libefa.so.1"
    assert found["libraries"]["libefa"]["symbols"] == ["efadv_create_comp_cntr"]
    assert found["libraries"]["libfabric"] == {
        "error": "unparsable",
        "detail": f"{tmp_path}/lib/libfabric.so.1: not an ELF file",
    }
    assert found["libraries"]["librdmacm"]["error"] == "not_found"
    assert sorted(found["providers"]) == ["bnxt_re", "mlx5"]


def test_a_library_of_the_other_word_size_is_passed_over(tree: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first/libefa.so.1").write_bytes(ElfFile(is_64=False).build())
    _write(tmp_path / "lib/libefa.so.1", versions=("EFA_1.3",))
    assert tree.collect()["libraries"]["libefa"]["versions"] == ["EFA_1.3"]
