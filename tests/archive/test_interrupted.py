"""An archive that is interrupted leaves nothing behind, and a run that is recorded stays."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from stream.records.artifacts import CHAIN_FILE, KERNEL_FILE, ChainLink
from stream.records.run import STDOUT_FILE
from stream.verify.session import verify
from tests.archive.samples import find_error_rules, write_run_folder
from tests.cli.command import Place
from tests.cli.conftest import place
from tests.feeds import needs_ebpf

__all__ = ["place"]
LONG, MUCH = 4 << 30, 1 << 27  #: bytes of a file with nothing in it: work, and no room on the disk


def wait_until_it_grows(process: subprocess.Popen[bytes], growing: Path, least: int) -> None:
    while True:
        with suppress(FileNotFoundError):  # not yet; or it was only tried whether it can be
            if growing.stat().st_size >= least:
                return
        assert process.poll() is None, process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("least", [0, 1000])
def test_stream_archive(place: Place, number: signal.Signals, least: int) -> None:
    """While it measures, and while it writes."""
    folder = write_run_folder(place.root / "run")
    os.truncate(folder / STDOUT_FILE, MUCH if least else LONG)
    target = place.root / "run.tar.gz"
    process = place.start("archive", folder, "-o", target)
    wait_until_it_grows(process, place.root / "run.tar.gz.partial", least)
    process.send_signal(number)
    done = place.finish(process)
    assert (done.code, done.err) == (128 + number, "stream: interrupted\n")
    assert sorted(path.name for path in place.root.iterdir()) == ["run", "tmp", "workspace"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stream_archive_of_a_pipe(place: Place, number: signal.Signals) -> None:
    target = place.root / "run.tar.gz"
    process = place.start("archive", "-", "-o", target, stdin=subprocess.PIPE)
    assert process.stdin
    layer = write_run_folder(place.root / "run") / "layers/kernel.ndjson"
    process.stdin.write(layer.read_bytes() * 1000)
    process.stdin.flush()
    process.send_signal(number)
    done = place.finish(process)
    assert done.code == 128 + number
    assert sorted(path.name for path in place.root.iterdir()) == ["run", "tmp", "workspace"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 3)])
def test_observe_with_an_archive(place: Place, number: signal.Signals, code: int) -> None:
    """The agent has ended, and nobody is left whom a signal could be meant for. The record stays,
    and so does the agent's own exit code."""
    target = place.root / "run.tar.gz"
    words = ("--archive", target, "--run-id", "run", "--workspace", "empty")
    agent = f"head -c {MUCH} /dev/zero; exit {code}"
    process = place.start("observe", *words, "--", "sh", "-c", agent, stdout=subprocess.DEVNULL)
    wait_until_it_grows(process, place.root / "run.tar.gz.partial", 1000)
    process.send_signal(number)
    done = place.finish(process)
    assert done.code == (code or 1)
    assert "stream: not archived: interrupted\n" in done.err
    assert f"stream archive runs/run -o {target}\n" in done.err
    assert "is passed on" not in done.err
    assert sorted(path.name for path in place.root.iterdir()) == ["tmp", "workspace"]
    assert place.stream("check", place.workspace / "runs/run").code == 0


def test_a_signal_to_the_agent_does_not_cost_the_archive(place: Place) -> None:
    target = place.root / "run.tar.gz"
    words = ("--archive", target, "--run-id", "run", "--workspace", "empty")
    agent = "trap 'exit 5' INT; echo ready; while :; do :; done"
    process = place.start("observe", *words, "--", "sh", "-c", agent)
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert place.finish(process).code == 5
    assert target.exists()


# Lines for more than one link of the chain, and then nothing.
_MANY = """
for my $number (1 .. 4000) { open(my $file, "<", "/nowhere/file$number") }
$| = 1;
print "opened\\n";
sleep 1000;
"""


@needs_ebpf
def test_a_recorder_that_was_killed(place: Place) -> None:
    """What its chain vouches for is as it was written, and verify reports how far that goes."""
    words = ("--kernel", "ebpf", "--run-id", "run", "--grace", "0", "--workspace", "empty")
    process = place.start("observe", *words, "--", "perl", "-e", _MANY)
    assert process.stdout
    assert process.stdout.readline() == b"opened\n"
    folder = place.workspace / "runs/run"
    chain = folder / CHAIN_FILE
    wait_until_it_grows(process, chain, 1)
    process.kill()
    place.finish(process)
    links = [msgspec.json.decode(line, type=ChainLink) for line in chain.read_bytes().splitlines()]
    last = [link for link in links if link.layer == KERNEL_FILE][-1]
    beginning = (folder / KERNEL_FILE).read_bytes()[: last.bytes]
    assert hashlib.sha256(beginning).hexdigest() == last.sha256
    (found,) = verify(folder).findings
    assert (found.rule, found.severity) == ("integrity.incomplete", "error")
    assert (
        f"the first {last.lines} lines of {KERNEL_FILE} are as they were written" in found.message
    )
    other = beginning.replace(b'/nowhere/file9"', b'/nowhere/file8"')
    assert other != beginning
    (folder / KERNEL_FILE).write_bytes(other)
    assert "integrity.chain" in find_error_rules(folder)
