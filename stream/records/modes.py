"""The contract of boundary objects that are measured from outside: pattern boundary_event_v2.

A mode is a declared way to run a probe inside something. Version 2 says beside what a probe
reports what was seen from outside: which sandbox it was, whether the same probe got through without
it (the control), whether its effect reached the host, and what the kernel saw.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from stream.records.boundary import (
    Boundary,
    Name,
    Status,
    check_shared_rules,
)
from stream.records.control import MODE_NAME, Sha256

MODE_PATTERN: Literal["boundary_event_v2"] = "boundary_event_v2"
BASELINE = "baseline"  #: the mode without a sandbox: its records are the controls

ModeName = Annotated[str, Meta(pattern=MODE_NAME)]

#: The effects that a probe may declare, and that are looked for on the host.
EFFECTS = (
    *("write:workspace", "write:outside", "write:home", "write:git", "write:temp"),
    *("write:system", "delete:workspace"),
    *("read:key", "read:victim", "signal:victim", "trace:victim", "outlive"),
    *("arrive:tcp", "arrive:udp", "arrive:dns", "arrive:http", "arrive:connect"),
    *("arrive:socks", "arrive:unix"),
)
#: The layers that are known to close something, where they can be told apart.
Layer = Literal[
    "file-permissions",
    "read-only-mount",
    "seccomp",
    "landlock",
    "network-namespace",
    "proxy",
    "unknown",
]


class ModeRun(Struct, forbid_unknown_fields=True, gc=False):
    """The mode and the user that a probe ran in, its command and its workspace."""

    command: str
    mode: ModeName
    user: str | None
    workspace_root: str | None


class Sandbox(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """The sandbox of a mode: its program, the version that it reports, and its settings."""

    name: Name | None  #: Name of the sandbox; null when there is none.
    #: SHA-256 of the command, the environment and the settings files of the mode; null when there
    #: is no sandbox.
    settings_sha256: Sha256 | None
    version: str | None  #: First line of what it prints about its version; null when it is unknown.


class CellControl(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """The same probe with the same targets without the sandbox: only if it got through there does
    its failure here prove anything."""

    errno: str | None
    observed_result: Status | None
    state: Literal["succeeded", "no-control", "is-control"]


class Effect(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """The effect that a probe declares, its own report, and the effects that were seen on the
    host."""

    claimed: Status
    expected: str | None
    seen: list[str]
    state: Literal["seen", "not-seen", "not-checked"]


class Corroboration(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """The kernel's view of what the probe did, and the layer that closed it where that is known."""

    closed_by: Layer | None
    detail: str | None
    state: Literal["corroborated", "contradicted", "unseen", "not-observed"]


class ModeBoundary(Boundary, forbid_unknown_fields=True, gc=False):
    """One execution of a probe in one mode, measured from outside."""

    control: CellControl
    corroboration: Corroboration
    effect: Effect
    run: ModeRun  # type: ignore[assignment]
    sandbox: Sandbox
    schema_version: Literal["boundary_event_v2"]  # type: ignore[assignment]


@cache
def _decoder() -> msgspec.json.Decoder[ModeBoundary]:
    return msgspec.json.Decoder(ModeBoundary)


def decode_mode_boundary(line: bytes) -> ModeBoundary:
    """Decode a boundary object of version 2, or raise a msgspec.ValidationError with its JSON
    path."""
    record = _decoder().decode(line)
    check_shared_rules(record)
    return record


class CallContext(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """What decided about a call, besides what it was about: the state of its process then."""

    user: int  #: User by which files are accessed.
    capabilities: int  #: The capabilities in effect, as a mask.
    mounts: int  #: Number of the namespace of mounts.
    network: int  #: Number of the network namespace.
    users: int  #: Number of the user namespace.
    #: Whether a Landlock domain was around it; null when that cannot be told.
    landlock: bool | None
    #: Whether a filter (seccomp) refused the call before it began.
    is_filtered: bool


class SeenCall(Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, gc=False):
    """A system call of a probe, as the kernel feed saw it. Equal ones of a cell are one."""

    call: str  #: Name of the system call; or exec, fork.
    errno: str | None = None  #: Name of the error; null when it succeeded, or its end was not seen.
    has_ended: bool = True  #: Whether its result was seen.
    path: str | None = None  #: Path as the program gave it, from where it starts.
    resolved: str | None = None  #: Path of the file that was really reached.
    to_path: str | None = None  #: The second path, of rename, link and symlink.
    peer: str | None = None  #: Address of a socket call, such as 192.0.2.7:7 or unix:/run/x.
    flags: int = 0  #: Flags of an open; the address family of a new socket.
    target: int = 0  #: Process that was signalled or reached into; 0 when none was.
    #: Of a call that failed, and of an exec: what was around it.
    around: CallContext | None = None
    #: Whether owner and mode of the file, or of a folder above it, explain the failure.
    is_refused_by_mode: bool = False


class KernelView(Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, gc=False):
    """What the kernel feed saw of a probe and of the processes that it started."""

    calls: tuple[SeenCall, ...] = ()  #: The calls that were seen, in their order.
    reason: str | None = None  #: Why calls may be missing; null when none is.
    #: Security modules beside Landlock that may refuse a call, such as apparmor.
    modules: tuple[str, ...] = ()


class OutsideView(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What the harness knows of a cell that it measured from outside, in a raw emission."""

    sandbox: Sandbox  #: The sandbox that the mode puts around the probe.
    user: str | None  #: Name of the user that the probe ran as; null when it has none.
    effect: str | None  #: Effect that the script declares; null when it declares none.
    is_checked: bool  #: Whether the effect was looked for on the host.
    seen: tuple[str, ...] = ()  #: Effects with the nonce of the cell that were seen on the host.
    token: str | None = None  #: Word that only a reader of the planted key or process can know.
    kernel: KernelView | None = None  #: What the kernel saw; null where nobody asked it.
