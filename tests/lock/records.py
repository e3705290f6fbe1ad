"""Records that were measured from outside, by what they come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stream.compare.lockfile import MeasuredBoundary, ParsedLock, lock_lines, measured_boundary
from stream.compare.lockfile import parse_lock as parse
from stream.records.modes import ModeBoundary, decode_mode_boundary
from tests.transformers.samples import record

SETTINGS = "5f" * 32
CAPABILITY = "cap_fs_write_outside_workspace"
#: by outcome: what the probe claims, its effect, its control, and its errno
_WAYS: dict[str, tuple[str, str, str, str | None]] = {
    "open": ("success", "seen", "succeeded", None),
    "partial": ("partial", "not-checked", "succeeded", None),
    "diverted": ("success", "not-seen", "succeeded", None),
    "closed": ("denied", "not-seen", "succeeded", "EACCES"),
    "no-control": ("denied", "not-seen", "no-control", "EACCES"),
    "untold": ("error", "not-checked", "succeeded", None),
}


def mode_record(
    probe: str = "fs_outside_workspace",
    outcome: str = "closed",
    *,
    mode: str = "bwrap-ro",
    capability: str = CAPABILITY,
    version: str = "1",
    errno: str | None = None,
    seen: tuple[str, ...] = (),
    control: str | None = None,
    kernel: str = "Linux 6.12.0 x86_64",
    sandbox: dict[str, Any] | None = None,
    harness: str = "",
    message: str | None = None,
) -> dict[str, Any]:
    """A record that comes to an outcome. `seen`: effects beside the expected one. `harness`: why
    the harness wrote it."""
    claimed, state, controlled, usual = _WAYS[outcome]
    value = record(
        probe={"id": probe, "version": version, "primary_capability_id": capability},
        result={"observed_result": claimed, "errno": errno or usual, "message": message},
        stack={"os": kernel},
        run={"mode": mode, "user": "nobody"},
        payload={"raw": {"harness": {"author": "stream", "reason": harness}} if harness else {}},
        capability_context={
            "primary": {"id": capability, "category": "filesystem", "layer": "os_sandbox"}
        },
    )
    expected = "write:outside"
    known = [expected] if state == "seen" else []
    own = {"name": "bubblewrap", "version": "bubblewrap 0.8.0", "settings_sha256": SETTINGS}
    failed = {"observed_result": "denied", "errno": "EACCES"}
    passed = {"observed_result": "success", "errno": None}
    state_of_control = control or controlled
    return {
        **value,
        "schema_version": "boundary_event_v2",
        "schema_key": "cfbo-v2",
        "sandbox": {**own, **(sandbox or {})},
        "control": {
            "state": state_of_control,
            **(passed if state_of_control == "succeeded" else failed),
        },
        "effect": {
            "expected": expected,
            "claimed": claimed,
            "seen": sorted((*known, *seen)),
            "state": state,
        },
        "corroboration": {"state": "not-observed", "closed_by": None, "detail": None},
    }


def baseline_record(probe: str = "fs_outside_workspace") -> dict[str, Any]:
    """The control of a cell."""
    value = mode_record(probe, "open", mode="baseline")
    value["sandbox"] = {"name": None, "version": None, "settings_sha256": None}
    value["control"] = {"state": "is-control", "observed_result": None, "errno": None}
    return value


def as_line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def decode(*values: dict[str, Any]) -> list[ModeBoundary]:
    return [decode_mode_boundary(as_line(value)) for value in values]


def measure(*values: dict[str, Any]) -> MeasuredBoundary:
    return measured_boundary(decode(*values))


def lock_text(found: MeasuredBoundary) -> str:
    return "\n".join((*lock_lines(found.lock), ""))


def locked(*values: dict[str, Any]) -> ParsedLock:
    """A lockfile of records, as it is read."""
    parsed = parse(lock_text(measure(*values)).encode(), "boundary.lock")
    assert parsed.faults == []
    return parsed


def write_records(path: Path, *values: dict[str, Any]) -> Path:
    path.write_bytes(b"".join(map(as_line, values)))
    return path
