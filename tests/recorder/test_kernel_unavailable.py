"""Where the kernel feed is not available, or ends early: the reason is reported, the run intact."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import STREAM, Place
from tests.cli.test_ordinary_user import Run as Stream
from tests.cli.test_ordinary_user import open_place, run
from tests.feeds import FEEDS, needs_ebpf, needs_strace
from tests.kernel.test_strace import NO_PTRACE, write_program
from tests.recorder.runs import Run, observe, read_records
from tests.recorder.test_kernel import read_artifact, read_health, read_kernel_layer
from tests.recorder.test_kernel_attacks import find_error_rules, read_document

__all__ = ["open_place", "run"]
UNPRIVILEGED = "not permitted: it takes root, or CAP_BPF and CAP_PERFMON"
FORBIDDEN = "not permitted: a user namespace, a filter or a lockdown forbids bpf(2) here"
NO_BTF = "/sys/kernel/btf/vmlinux: missing: this kernel does not describe itself (BTF)"
HIDE_BTF = 'mount -t tmpfs none /sys/kernel/btf && exec "$@"'
SLOW = "stream: strace watches, which is slow, and takes sudo and ping away\n"
SCRIPT = ("sh", "-c", "echo text; : >made; exit 3")


@pytest.fixture
def runs(open_place: Place) -> Path:
    folder = open_place.root / "runs"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def check_absent(place: Place, run: Run, reason: str) -> None:
    """All but the kernel's side is there, and that is reported as missing."""
    assert run.done.code == 3
    assert (run.stdout, sorted(run.changes)) == (b"text\n", ["made"])
    assert f"stream: the kernel is not watched: {reason}\n" in run.done.err
    found = read_document(run, "observation-health.json")
    assert (found["kernel_layer"], found["cgroup_correlation"]) == ("absent", "failed")
    assert "kernel evidence" not in run.done.err
    assert found["network_protocol_coverage"] == "unknown"
    (note,) = (note for note in found["notes"] if note.startswith("stream_kernel_absent: "))
    assert reason in note
    assert read_document(run, "correlation-report.json")["status"] == "failed"
    assert (run.folder / "layers/kernel.ndjson").read_bytes() == b""
    assert not find_error_rules(place, run)


@needs_strace
def test_an_ordinary_user(open_place: Place, run: Stream, runs: Path) -> None:
    words = ("--runs", runs, "--workspace", "empty", "--run-id")
    absent = run("observe", "--kernel", "ebpf", *words, "ebpf", "--", *SCRIPT)
    check_absent(open_place, Run(runs / "ebpf", absent), UNPRIVILEGED)
    auto = Run(runs / "auto", run("observe", "--kernel", "auto", *words, "auto", "--", *SCRIPT))
    assert auto.done.code == 3
    assert SLOW in auto.done.err
    assert read_health(auto)["kernel_layer"] == "complete"
    assert f"{auto.folder}/workspace/made" in [line["value"] for line in read_kernel_layer(auto)]
    assert not find_error_rules(open_place, auto)
    required = run("observe", "--kernel", "ebpf", "--require", "kernel", *words, "no", "--", "ls")
    assert required.code == 40
    assert f"stream: --require kernel: the kernel feed: {UNPRIVILEGED}\n" == required.err
    assert not (runs / "no").exists()


def drop_capabilities(*capabilities: str) -> tuple[str, ...]:
    less = ",".join(f"-{name}" for name in capabilities)
    return ("setpriv", "--bounding-set", less, "--inh-caps", less, STREAM)


@needs_ebpf
@pytest.mark.parametrize(
    ("argv0", "reason"),
    [
        (drop_capabilities("sys_admin", "bpf"), UNPRIVILEGED),
        (drop_capabilities("sys_admin", "perfmon"), UNPRIVILEGED),
        (("unshare", "--user", "--map-root-user", STREAM), FORBIDDEN),
        (("unshare", "--mount", "sh", "-c", HIDE_BTF, "sh", STREAM), NO_BTF),
    ],
    ids=("no_bpf", "no_perfmon", "user_namespace", "no_btf"),
)
def test_where_not_even_root_can_have_it(place: Place, argv0: Sequence[str], reason: str) -> None:
    run = observe(place, "--kernel", "ebpf", "--workspace", "empty", "--", *SCRIPT, argv0=argv0)
    check_absent(place, run, reason)


@needs_ebpf
def test_a_filter_of_system_calls(place: Place) -> None:
    forbid = str(write_program(NO_PTRACE.replace("SYS_ptrace", "SYS_bpf"), place.root))
    words = ("--workspace", "empty", "--", *SCRIPT)
    run = observe(place, "--kernel", "ebpf", *words, argv0=(forbid, STREAM))
    check_absent(place, run, FORBIDDEN)


def test_neither_of_them(place: Place) -> None:
    """The reasons of both are given."""
    programs = place.root / "bin"
    programs.mkdir()
    for name in ("sh", "git", "bash"):
        found = shutil.which(name)
        assert found
        (programs / name).symlink_to(found)
    argv0 = (STREAM,) if os.geteuid() else drop_capabilities("sys_admin", "bpf", "perfmon")
    how: dict[str, Any] = {"argv0": argv0, "env": {"PATH": f"{programs}"}}
    how["argv0"] = (shutil.which(argv0[0]) or argv0[0], *argv0[1:])
    both = f"{UNPRIVILEGED}; strace is not installed"
    run = observe(place, "--kernel", "auto", "--workspace", "empty", "--", *SCRIPT, **how)
    check_absent(place, run, both)
    required = place.stream("observe", "--require", "kernel", "--run-id", "no", "--", "sh", **how)
    assert required.code == 40
    assert f"stream: --require kernel: the kernel feed: {both}\n" == required.err
    assert not (place.workspace / "runs/no").exists()


DAEMON = "(setsid sh -c 'until [ -e over ]; do :; done; : >late' &); : >over; exit 3"


@pytest.mark.parametrize("feed", FEEDS)
def test_no_control_groups_of_version_2(place: Place, needs_root: None, feed: str) -> None:
    """The tree is all that there is, and it is enough."""
    unmount = 'umount -al -t cgroup2 && exec "$@"'
    argv0 = ("unshare", "-m", "sh", "-c", unmount, "sh", STREAM)
    words = ("--kernel", feed, "--workspace", "empty", "--", "sh", "-c", DAEMON)
    run = observe(place, *words, argv0=argv0)
    assert run.done.code == 3, run.done.err
    assert run.summary["containment"] == "subreaper"
    found = read_health(run)
    assert (found["kernel_layer"], found["cgroup_correlation"]) == ("complete", "failed")
    reason = {
        "ebpf": "no control group of version 2",
        "strace": "strace sees the process tree only",
    }
    assert f"stream_cgroup_failed: {reason[feed]}" in found["notes"]
    assert [*read_artifact(run, "companion.json")["capture"]["scopes"]] == ["tree"]
    assert f"{run.folder}/workspace/late" in [line["value"] for line in read_kernel_layer(run)]
    assert not find_error_rules(place, run)


BREAKS = """
recorder=$(cut -d' ' -f4 /proc/$PPID/stat)
declare() {
  printf '{"schema":"%s","run_id":"%s","seq":0,"source":"test","tool":"t",%s}\\n' \\
    "$ASSAY_RUNNER_SDK_EVENT_SCHEMA" "$ASSAY_RUNNER_RUN_ID" \\
    "\\"event_type\\":\\"tool_call_$2\\",\\"tool_call_id\\":\\"$1\\"" \\
    >>"$ASSAY_RUNNER_SDK_EVENT_LOG"
}
declare call started
: >before
until grep -q /before ../layers/kernel.ndjson; do :; done
strace -qq -o /dev/null -p $recorder -e trace=bpf -e inject=bpf:error=EIO &
while ls -l /proc/$recorder/fd | grep -q anon_inode:bpf; do :; done
kill $!
wait $!
: >after
declare call completed
exit 3
"""


@needs_ebpf
@needs_strace
def test_the_feed_breaks_in_the_middle(place: Place) -> None:
    """What it saw is kept; that there is more, and nobody knows how much, is reported."""
    words = ("--kernel", "ebpf", "--workspace", "empty", "--", "sh", "-c", BREAKS)
    run = observe(place, *words, check=False)
    assert run.done.code == 3, run.done.err
    assert sorted(run.changes) == ["after", "before"]
    assert "incomplete: the kernel layer: input/output error" in run.done.err
    found = read_health(run)
    assert (found["kernel_layer"], found["ringbuf_drops"]) == ("partial_ringbuf_drops", 0)
    assert found["network_protocol_coverage"] == "unknown"
    reason = "the feed ended before its counters were read"
    assert f"stream_kernel_unknown_loss: {reason}" in found["notes"]
    seen = [line["value"] for line in read_kernel_layer(run)]
    assert f"{run.folder}/workspace/before" in seen
    assert f"{run.folder}/workspace/after" not in seen
    last = read_records(run.folder / "layers/kernel-ext.ndjson")[-1]
    assert last == {"schema": "stream.gap.v1", "source": "ebpf", "lost": 0, "reason": reason}
    report = read_artifact(run, "correlation-report.json")
    assert report["status"] == "partial"
    assert "kernel_events_lost_in_window:call" in report["ambiguities"]
    assert not find_error_rules(place, run)
