"""Which feed a run gets: found out while other things are prepared, with all the run asks for."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from stream.sources.kernel import Choice, probe_feeds
from stream.sources.kernel.ebpf import PAGE, RING
from tests.cli.command import Place, write_script
from tests.feeds import needs_ebpf, needs_strace
from tests.recorder.runs import observe

ODD = 3 * PAGE  # no power of two: a ring that no kernel gives


def replace_strace(place: Place, script: str) -> dict[str, str]:
    """An environment in which strace is this."""
    folder = place.root / "bin"
    folder.mkdir()
    write_script(folder / "strace", f"#!/bin/sh\n{script}\n")
    return {"PATH": f"{folder}:{place.env['PATH']}"}


def test_a_feed_that_is_slow_to_open_does_not_hold_up_the_probes(place: Place) -> None:
    """The strace here waits until a probe's record is written."""
    record = place.workspace / "runs/run/boundary.ndjson"
    env = replace_strace(place, f"until [ -s {record} ]; do sleep 0.01; done; exit 1")
    probes = place.write_probes(one="")
    words = ("--kernel", "strace", "--matrix", "--probes", probes, "--run-id", "run")
    run = observe(place, *words, "--", "true", env=env)
    assert run.done.code == 0
    assert "the kernel is not watched: strace does not work here" in run.done.err
    assert len(record.read_bytes().splitlines()) == 1


@needs_ebpf
@pytest.mark.parametrize("choice", ["ebpf", "auto"])
def test_a_ring_that_the_kernel_does_not_give(tmp_path: Path, choice: Choice) -> None:
    """What is asked is what a run would ask: a small ring shows nothing about a large one."""
    assert probe_feeds(choice, ring_bytes=RING, folder=tmp_path) == ""
    refused = r"the kernel feed: kernel \S+ refuses it: invalid argument"
    reason = probe_feeds(choice, ring_bytes=ODD, folder=tmp_path / "none")
    assert re.match(refused, reason)
    assert ("strace" in reason) == (choice == "auto")


@needs_strace
def test_a_folder_that_has_no_room_for_the_fifo(tmp_path: Path) -> None:
    assert probe_feeds("strace", ring_bytes=RING, folder=tmp_path) == ""
    assert list(tmp_path.iterdir()) == []
    reason = probe_feeds("strace", ring_bytes=RING, folder=tmp_path / "none")
    assert re.fullmatch(rf"{tmp_path}/none/strace-\w+\.fifo: no such file or directory", reason)


def test_a_strace_that_cannot_report_writes(place: Place) -> None:
    """A run asks for them, to place what the agent prints: then there is no feed, which is
    reported before anything is started."""
    real = shutil.which("strace")
    if not real:
        pytest.skip("needs strace")
    script = f'for word; do case $word in *writev*) exit 1;; esac; done; exec {real} "$@"'
    env = replace_strace(place, script)
    words = ("--kernel", "strace", "--require", "kernel", "--run-id", "run")
    done = place.stream("observe", *words, "--", "true", env=env)
    assert done.code == 40
    assert done.err == "stream: --require kernel: strace does not work here: it said nothing\n"
    assert not (place.workspace / "runs/run").exists()
    found = {check["name"]: check for check in place.stream("doctor", "--json", env=env).records}
    assert found["strace feed"]["state"] == "limited"


@needs_ebpf
def test_doctor_reports_what_it_tried(place: Place) -> None:
    found = {check["name"]: check for check in place.stream("doctor", "--json").records}
    assert found["eBPF feed"]["detail"].startswith("it loads, with a ring of 16 MiB: ")
