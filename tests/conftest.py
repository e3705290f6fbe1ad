"""Fixtures that every test may use."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from stream.boundary.scripts import helpers_in
from stream.documents import BUNDLE

settings.register_profile("default", deadline=None, derandomize=True)
settings.load_profile("default")

# Under nohup a hangup is ignored, in a shell's background an interrupt, and by whatever we start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_ASYNCIO = pytest.param(("asyncio", {"debug": True}), id="asyncio")
_TRIO = pytest.param(("trio", {}), id="trio")


@pytest.fixture(params=[_ASYNCIO, _TRIO])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="session", autouse=True)
def helpers_of_the_checkout() -> Iterator[None]:
    """The bundled probes have their helpers, also in sandboxes that can write nothing: a wheel
    has them beside the probes, and a checkout is lent them for as long as something runs."""
    with helpers_in(BUNDLE):
        yield


@pytest.fixture
def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def small_disk(tmp_path: Path, needs_root: None) -> Iterator[Callable[[str], Path]]:
    """Makes one with room for so much."""
    disk = tmp_path / "disk"

    def make(size: str) -> Path:
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], check=True)
        return disk

    yield make
    if disk.is_mount():
        subprocess.run(["umount", disk], check=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In CI nothing may be skipped: what a test needs is installed there."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("STREAM_NO_SKIPS") and reporter and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
