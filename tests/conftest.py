"""Fixtures that every test may use."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

from stream.boundary.scripts import linked_helpers
from stream.codec import BUNDLE
from tests.forking import end_forking
from tests.sweeping import is_sweep

# Interpreters that tests start find modules compiled, whatever the caller's environment is.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("sweep", deadline=None, derandomize=False, print_blob=True)
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
    has them next to the probes, and a checkout is lent them for as long as something runs."""
    with linked_helpers(BUNDLE):
        yield


@pytest.fixture(scope="session", autouse=True)
def forking() -> Iterator[None]:
    yield
    end_forking()


@pytest.fixture(autouse=True)
def shared_folders(request: pytest.FixtureRequest) -> Iterator[None]:
    """Codex puts placeholders into /tmp while its sandbox runs, `.git` among them: nobody then
    records the real agent, which looks for one above its workspace."""
    kind = fcntl.LOCK_EX if request.node.get_closest_marker("writes_tmp") else fcntl.LOCK_SH
    if kind == fcntl.LOCK_SH and "tests/e2e" not in request.node.path.as_posix():
        yield
        return
    lock = Path(tempfile.gettempdir(), f"stream-tests-{os.geteuid()}.lock")
    with lock.open("w") as file:
        fcntl.flock(file, kind)
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


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Use more workers than cores, since most tests wait for processes; none for a file or two."""
    if all("::" in word or word.endswith(".py") for word in config.args) and len(config.args) < 3:
        return 0
    return max(4, 2 * (os.cpu_count() or 1))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """In a sweep, Hypothesis draws from a seed of its own, which `--hypothesis-seed` repeats."""
    if config.option.markexpr == "sweep":
        settings.load_profile("sweep")
        if config.option.hypothesis_seed is None:
            config.option.hypothesis_seed = str(random.SystemRandom().getrandbits(32))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make every Hypothesis test part of a sweep."""
    if is_sweep():
        for item in items:
            if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj):
                item.add_marker(pytest.mark.sweep)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if is_sweep():
        again = f"-m sweep --hypothesis-seed={config.option.hypothesis_seed}"
        terminalreporter.write_line(f"to repeat this sweep: pytest {again}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In CI nothing may be skipped: what a test needs is installed there."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("STREAM_NO_SKIPS") and reporter and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
