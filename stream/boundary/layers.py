"""Which layer refused a system call, where that can be proved; else `unknown`. Pure.

A rule needs what was around the call, and mostly the control: the same probe, in the same matrix,
without the sandbox. What is the same around both did not make the difference.
"""

from __future__ import annotations

import re

from msgspec import Struct

from stream.records.boundary import Boundary
from stream.records.modes import CallContext, Layer, SeenCall

_DAC_OVERRIDE, _DAC_READ_SEARCH = 1 << 1, 1 << 2
#: How a packet fails that finds no way, or nobody at the other end.
_NO_WAY = ("ENETUNREACH", "EHOSTUNREACH", "ENETDOWN", "EADDRNOTAVAIL", "ECONNREFUSED")
#: Where Landlock gives EPERM: https://docs.kernel.org/userspace-api/landlock.html
_LANDLOCK_EPERM = ("kill", "tkill", "tgkill", "ptrace", "process_vm_readv", "mount")
_REFUSAL = re.compile(r"refused \S+ by (\S+)")


class LayerEvidence(Struct, frozen=True):
    """What the calls of a cell are compared with to tell the layers apart."""

    control: CallContext | None  #: around the probe without the sandbox
    has_control: bool  #: it got through there
    modules: tuple[str, ...]  #: further security modules that may refuse a call


def closing_layer(call: SeenCall, evidence: LayerEvidence) -> Layer:
    """Return the layer that made a call fail."""
    control = evidence.control
    around = call.around
    if around is None:
        return "unknown"
    if around.is_filtered:
        # It ended, and never began: only a filter does that where nobody traces the process.
        return "seccomp"
    if call.errno == "EROFS":
        # What the kernel says of nothing else than a mount or a file system that is read-only.
        return "read-only-mount"
    if control is None:
        return "unknown"
    if _is_refused_by_mode(call, around, control):
        return "file-permissions"
    if not evidence.has_control:
        return "unknown"
    if call.errno in _NO_WAY and call.peer is not None and around.network != control.network:
        # Without the sandbox the same address answers: there is no way to it in this namespace.
        return "network-namespace"
    if not evidence.modules and _is_landlock(call, around, control):
        return "landlock"
    return "unknown"


def _is_refused_by_mode(call: SeenCall, around: CallContext, control: CallContext) -> bool:
    """Tell whether owner and mode of a file refused it: the kernel asks them before any security
    module, unless a capability overrides them. Among other mounts it may be another file."""
    may_override = around.capabilities & (_DAC_OVERRIDE | _DAC_READ_SEARCH)
    is_same_file = around.mounts == control.mounts and around.users == control.users
    no_landlock = around.landlock is False
    return (
        call.errno == "EACCES"
        and call.is_refused_by_mode
        and not may_override
        and is_same_file
        and no_landlock
    )


def _is_landlock(call: SeenCall, around: CallContext, control: CallContext) -> bool:
    """Tell whether a Landlock domain refused it: the control got through as the same user, with
    the same capabilities, among the same mounts, and without a domain."""
    is_its_error = call.errno == "EACCES" or (
        call.errno == "EPERM" and call.call in _LANDLOCK_EPERM
    )
    same = (around.user, around.mounts, around.users) == (
        *(control.user, control.mounts, control.users),
    )
    has_capabilities = around.capabilities & control.capabilities == control.capabilities
    return bool(
        is_its_error and around.landlock and control.landlock is False and same and has_capabilities
    )


def refusing_proxy(record: Boundary, calls: list[SeenCall]) -> str | None:
    """Return the proxy that answered in the target's place and refused, to which the kernel saw a
    connection; None where there is none."""
    snippet = record.payload.stdout_snippet or ""
    found = _REFUSAL.match(snippet) if record.payload.raw.get("reach") == "refused" else None
    if found is None or found[1] in record.operation.target:
        return None
    host, _, port = found[1].rpartition(":")
    names = {host} if host != "localhost" else {"127.0.0.1", "[::1]"}
    for call in calls:
        if call.call == "connect" and call.errno in (None, "EINPROGRESS"):
            address, _, at = (call.peer or "").rpartition(":")
            if address in names and at == port:
                return found[1]
    return None
