"""The same command again, recorded for real: what differs is what it did, not what it was given."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Place
from tests.feeds import needs_ebpf, needs_strace
from tests.recorder.test_kernel import EBPF, STRACE

#: Serves itself once on a port, and names files as programs do.
WORK = """
import os, socket, sys, tempfile, uuid
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    with socket.create_connection(server.getsockname()):
        server.accept()[0].close()
for name in (f"{os.getpid()}.lock", f"{uuid.uuid4()}.log"):
    open(os.path.join(sys.argv[2], name), "w").close()
open(f"{uuid.uuid4()}.txt", "w").close()
os.rmdir(tempfile.mkdtemp(dir=sys.argv[2]))
"""


@pytest.mark.parametrize(
    "feed", [pytest.param(EBPF, marks=needs_ebpf), pytest.param(STRACE, marks=needs_strace)]
)
def test_what_a_run_was_given_is_no_difference(place: Place, feed: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    outside = place.root / "outside"
    outside.mkdir()

    def record_run(name: str) -> Path:
        words = (sys.executable, "-IS", "-c", WORK, port, str(outside))
        place.stream("observe", "-q", "--run-id", name, *feed, "--", *words)
        return place.workspace / "runs" / name

    def diff_with(base: str, head: str) -> dict[str, Any]:
        (record,) = place.stream("diff", place.workspace / "runs" / base, record_run(head)).records
        assert any(note.startswith("capability_diff_names: ") for note in record["notes"])
        sets: dict[str, Any] = record["surface"]
        return {name: sets[name] for name in ("filesystem_paths", "network_endpoints")}

    record_run("one")
    found = diff_with("one", "two")
    ends = {"added": [], "removed": [], "unchanged": ["127.0.0.1:(port)", f"127.0.0.1:{port}"]}
    assert found["network_endpoints"] == ends
    paths = found["filesystem_paths"]
    expected = [f"{outside}/{name}" for name in ("(pid).lock", "(uuid).log", "tmp(random)")]
    assert {*paths["unchanged"]} >= {*expected}
    for changes in (paths["added"], paths["removed"]):  # in the workspace, a name is the user's
        assert [path.startswith("(run)/workspace/") for path in changes] == [True]
