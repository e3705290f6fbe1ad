"""The programs that are watched, and a folder for what they do."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from stream.sources.kernel.ebpf import probe_ebpf

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without shared libraries: what they do is what their source does."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "programs"
    with folder.with_suffix(".lock").open("w") as lock:  # one worker builds for all of them
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "built").exists():
            folder.mkdir(exist_ok=True)
            for source in PROGRAMS.glob("*.c"):
                command = ["gcc", "-O1", "-Wall", "-Werror", "-static", "-pthread", "-o"]
                subprocess.run([*command, folder / source.stem, source], check=True)
            (folder / "built").touch()
    return folder


@pytest.fixture(scope="session")
def calls(programs: Path) -> Path:
    return programs / "calls"


@pytest.fixture(scope="session")
def kernel_feed() -> None:
    """Where there is nothing that forbids it, it must work."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if not Path("/sys/kernel/btf/vmlinux").exists():
        pytest.skip("needs a kernel with BTF")
    assert probe_ebpf() == ""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "given").write_text("0123456789")
    (tmp_path / "link").symlink_to("sub")
    return tmp_path
