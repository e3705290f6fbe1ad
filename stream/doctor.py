"""Check what works on this machine and what to install; each check names what it found."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from anyio import to_thread
from msgspec import Struct

from stream import __version__
from stream.boundary.descriptors import find_catalogs, find_descriptor
from stream.boundary.scripts import make_scratch_folder
from stream.errors import OutputError, StreamError
from stream.process.capture import capture
from stream.process.cgroup import current_cgroup, enter_cgroup
from stream.process.tree import Reaper

State = Literal["ok", "missing", "limited"]


class MachineCheck(Struct, frozen=True):
    """One thing that stream needs or can use."""

    name: str
    state: State
    detail: str
    needed: bool = False  #: `stream matrix` cannot work without it


#: program -> what needs it
TOOLS = {
    "perl": "probes that make system calls",
    "git": "the diff of a run",
    "python3": "json-extract and a toolchain probe",
    "cc": "a toolchain probe",
    "sudo": "the escalation probe",
    "logger": "the system log probe",
    "bwrap": "running a matrix in a sandbox",
    "strace": "a kernel feed without privileges",
}


async def check_machine() -> list[MachineCheck]:
    """Check what `stream` can do on this machine, one result for each part of it."""
    return [
        MachineCheck("stream", "ok", f"{__version__}, Python {platform.python_version()}"),
        MachineCheck("platform", "ok", " ".join(platform.uname()[i] for i in (0, 2, 4))),
        await _check_bash(),
        *_check_tools(),
        *_check_selection(),
        _check_scratch_folder(),
        _check_containment(),
        _check_cgroup(),
        *await to_thread.run_sync(_check_feeds),
        _check_privileges(),
    ]


async def _check_bash() -> MachineCheck:
    """Check that bash runs, which probe scripts need."""
    got = await capture(
        ["bash", "-c", 'echo "$BASH_VERSION"'],
        env=os.environ,
        cwd="/",
        timeout=5,
        stdout_limit=200,
        stderr_limit=200,
    )
    if got.exit_code != 0:
        reason = got.spawn_error or "it does not run"
        return MachineCheck("bash", "missing", f"{reason}: probes are bash scripts", needed=True)
    return MachineCheck("bash", "ok", got.stdout.head.decode(errors="replace").strip(), needed=True)


def _check_tools() -> Iterator[MachineCheck]:
    """Check which optional tools of this machine are on PATH."""
    for name, purpose in TOOLS.items():
        path = shutil.which(name)
        yield MachineCheck(
            name, "ok" if path else "missing", f"{path or 'not on PATH'}: for {purpose}"
        )


def _check_selection() -> Iterator[MachineCheck]:
    """Check that the catalog and the boundary descriptor in force can be read."""
    try:
        catalogs = find_catalogs(None)
        detail = f"{catalogs.first.key}, {len(catalogs.first.capabilities)} capabilities"
        yield MachineCheck("catalog", "ok", f"{detail}: {catalogs.first.path}", needed=True)
    except StreamError as error:
        yield MachineCheck("catalog", "missing", str(error), needed=True)
    try:
        descriptor = find_descriptor(None)
        yield MachineCheck("boundary", "ok", f"{descriptor.key}: {descriptor.path}", needed=True)
    except StreamError as error:
        yield MachineCheck("boundary", "missing", str(error), needed=True)


def _check_scratch_folder() -> MachineCheck:
    """Check whether probes can have a private TMPDIR on this machine."""
    try:
        root = make_scratch_folder(Path.cwd())
    except (OSError, OutputError) as error:
        return MachineCheck("scratch folder", "limited", f"{error}: probes have no private TMPDIR")
    root.rmdir()
    return MachineCheck("scratch folder", "ok", str(root.parent))


def _check_containment() -> MachineCheck:
    """Check whether orphans of a probe can be found and ended on this machine."""
    if Reaper.get().can_contain:
        return MachineCheck(
            "process trees", "ok", "subreaper: orphans of a probe are found and ended"
        )
    return MachineCheck(
        "process trees", "limited", "process groups only: a daemon of a probe survives"
    )


def _check_cgroup() -> MachineCheck:
    """Check whether an agent can get a cgroup of its own on this machine."""
    mounts = Path("/proc/self/mounts")
    points = [
        line.split()[1]
        for line in (mounts.read_text().splitlines() if mounts.exists() else ())
        if line.split()[2] == "cgroup2"
    ]
    if not points:
        return MachineCheck("cgroup v2", "missing", "not mounted")
    made = enter_cgroup()
    if made is not None:
        made.remove_group()
        return MachineCheck("cgroup v2", "ok", f"{points[0]}: each agent gets its own group")
    detail = f"{points[0]}: no group can be created in {current_cgroup()}: agents run without one"
    return MachineCheck("cgroup v2", "limited", detail)


def _check_feeds() -> list[MachineCheck]:
    """Try both kernel feeds with the defaults of a run."""
    from stream.sources.kernel.ebpf import RING, probe_ebpf
    from stream.sources.kernel.strace import probe_strace

    kernel = probe_ebpf().removeprefix("the kernel feed: ")
    tracer = probe_strace()
    loads = (
        f"it loads, with a ring of {RING >> 20} MiB: `stream observe --kernel auto` sees every"
        " call, and counts its losses"
    )
    traces = "it traces: `stream observe --kernel strace` sees the same, but slows the command down"
    return [
        MachineCheck("eBPF feed", "limited" if kernel else "ok", kernel or loads),
        MachineCheck("strace feed", "limited" if tracer else "ok", tracer or traces),
    ]


def _check_privileges() -> MachineCheck:
    """Report uid, capabilities, NoNewPrivs and seccomp of this process."""
    status = Path("/proc/self/status")
    if not status.exists():
        return MachineCheck("privileges", "ok", f"uid {os.geteuid()} on {sys.platform}")
    lines = status.read_text().splitlines()
    facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return MachineCheck(
        "privileges",
        "ok",
        f"uid {os.geteuid()}, effective capabilities {facts.get('CapEff', '?')},"
        f" NoNewPrivs {facts.get('NoNewPrivs', '?')}, Seccomp {facts.get('Seccomp', '?')}",
    )
