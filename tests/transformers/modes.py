"""Records that are measured from outside, one for each outcome, to build tests from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stream.boundary.measured import Outcome
from stream.records.modes import BASELINE
from tests.transformers.samples import record

SETTINGS = "5e" * 32
#: What a record has to say so that it comes to an outcome: observed result, errno, control,
#: claimed result, and state of the effect.
_SAYING: dict[Outcome, tuple[str, str | None, str, str, str]] = {
    "open": ("success", None, "succeeded", "success", "seen"),
    "partial": ("partial", None, "succeeded", "partial", "not-checked"),
    "diverted": ("partial", None, "succeeded", "success", "not-seen"),
    "closed": ("denied", "EROFS", "succeeded", "denied", "not-seen"),
    "no-control": ("denied", "EACCES", "no-control", "denied", "not-seen"),
    "untold": ("error", None, "succeeded", "error", "not-checked"),
}


def mode_record(
    outcome: Outcome = "closed",
    mode: str = "bwrap-ro",
    probe: str = "fs_outside_workspace",
    capability: str = "cap_fs_write_outside_workspace",
    category: str = "filesystem",
    **sections: dict[str, Any],
) -> dict[str, Any]:
    """A valid record of a mode that comes to an outcome, with some sections changed."""
    result, errno, control, claimed, state = _SAYING[outcome]
    is_control = mode == BASELINE
    value = record(
        probe={"id": probe, "primary_capability_id": capability},
        run={"mode": mode, "user": "nobody"},
        result={"observed_result": result, "errno": errno},
        capability_context={
            "primary": {"id": capability, "category": category, "layer": "os_sandbox"}
        },
    )
    value |= {
        "schema_version": "boundary_event_v2",
        "schema_key": "cfbo-v2",
        "sandbox": {
            "name": None if is_control else "bubblewrap",
            "version": None if is_control else "bubblewrap 0.8.0",
            "settings_sha256": None if is_control else SETTINGS,
        },
        "control": {
            "state": "is-control" if is_control else control,
            "observed_result": None
            if is_control
            else "success" * (control == "succeeded") or "denied",
            "errno": None if is_control or control == "succeeded" else "EACCES",
        },
        "effect": {
            "expected": "write:outside",
            "claimed": claimed,
            "seen": ["write:outside"] if state == "seen" else [],
            "state": state,
        },
        "corroboration": {"state": "not-observed", "closed_by": None, "detail": None},
    }
    for name, changes in sections.items():
        value[name] = {**value[name], **changes}
    return value


def mode_lines(cells: Sequence[tuple[Outcome, str, str, str]]) -> Iterator[bytes]:
    """A line for each outcome, mode, capability and probe."""
    for outcome, mode, capability, probe in cells:
        yield msgspec.json.encode(mode_record(outcome, mode, probe, capability))
