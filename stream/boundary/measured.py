"""Complete the report of a probe with what was seen from outside, and say what a cell came to.

Whether an operation got through is decided by its effect on the host, not by the probe's report: a
sandbox may let a write succeed on files that it throws away. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from stream.boundary.corroborated import NOT_OBSERVED, NOT_RUN, corroborate
from stream.boundary.emit_flags import clip_text
from stream.boundary.layers import LayerEvidence
from stream.errors import shorten_text
from stream.records.boundary import Boundary, Result, Status
from stream.records.modes import (
    MODE_PATTERN,
    CallContext,
    CellControl,
    Corroboration,
    Effect,
    KernelView,
    ModeBoundary,
    ModeRun,
    OutsideView,
    decode_mode_boundary,
)

NO_CONTROL = CellControl(None, None, "no-control")
IS_CONTROL = CellControl(None, None, "is-control")

#: `open`: it got through. `closed`: it did not, and without the sandbox it does. `diverted`: the
#: probe was told yes, and nothing of it reached the host. `no-control`: it fails without the
#: sandbox as well. `untold`: the probe could not try.
Outcome = Literal["open", "partial", "diverted", "closed", "no-control", "untold"]
OUTCOMES: tuple[Outcome, ...] = ("open", "partial", "diverted", "closed", "no-control", "untold")


class Measured(Struct, frozen=True):
    """The outside view of a cell and its control."""

    outside: OutsideView
    control: CellControl
    control_around: CallContext | None = None  #: what was around the control, where it was seen


def complete_record(record: Boundary, measured: Measured, key: str) -> ModeBoundary:
    """Complete a probe's report: by the effects that were seen, its result becomes `partial` where
    it claims what did not happen, or denies what did."""
    outside = measured.outside
    seen = sorted({*outside.seen, *_proved_reads(record, outside)})
    claimed = record.result.observed_result
    state: Literal["seen", "not-seen", "not-checked"] = "not-checked"
    if outside.effect is not None and outside.is_checked:
        state = "seen" if outside.effect in seen else "not-seen"
    run = record.run
    return ModeBoundary(
        capabilities_schema_version=record.capabilities_schema_version,
        capability_context=record.capability_context,
        control=measured.control,
        corroboration=_corroboration(record, claimed, measured),
        effect=Effect(claimed, outside.effect, seen, state),
        operation=record.operation,
        payload=record.payload,
        probe=record.probe,
        result=_observed_result(record.result, state),
        run=ModeRun(run.command, run.mode, outside.user, run.workspace_root),
        sandbox=outside.sandbox,
        schema_key=key,
        schema_version=MODE_PATTERN,
        stack=record.stack,
    )


def _corroboration(record: Boundary, claimed: Status, measured: Measured) -> Corroboration:
    view, state = measured.outside.kernel, measured.control.state
    around = measured.control_around
    if view is not None and state == "is-control":
        around = around_probe(view)
    modules = () if view is None else view.modules
    return corroborate(record, claimed, view, LayerEvidence(around, state == "succeeded", modules))


def around_probe(view: KernelView | None) -> CallContext | None:
    """Return what was around a probe when it was executed, where that was seen."""
    calls = () if view is None else view.calls
    return next((call.around for call in calls if call.call == "exec"), None)


def complete_object(value: dict[str, Any], measured: Measured, key: str) -> ModeBoundary:
    """Complete a record that a probe wrote itself as JSON. Raise one of DECODE_ERRORS."""
    run = value.get("run")
    whole = {
        **value,
        "control": measured.control,
        "corroboration": NOT_OBSERVED,
        "effect": Effect("error", None, [], "not-checked"),
        "run": {**run, "user": measured.outside.user} if isinstance(run, dict) else run,
        "sandbox": measured.outside.sandbox,
        "schema_key": key,
        "schema_version": MODE_PATTERN,
    }
    return complete_record(decode_mode_boundary(msgspec.json.encode(whole)), measured, key)


def _proved_reads(record: Boundary, outside: OutsideView) -> Iterable[str]:
    """Find the read that a record proves: it names the token that only a reader can know."""
    effect = outside.effect or ""
    is_proved = outside.token is not None and record.payload.raw.get("token") == outside.token
    return (effect,) if effect.startswith("read:") and is_proved else ()


def _observed_result(result: Result, state: str) -> Result:
    """Return the result with both facts where the report and the effect contradict each other."""
    claimed: Status = result.observed_result
    if claimed == "success" and state == "not-seen":
        sentence = "the probe reports success, but on the host its effect is not to be seen"
    elif claimed in ("denied", "error") and state == "seen":
        sentence = f"the probe reports {claimed}, but its effect was seen on the host"
    else:
        return result
    return Result(
        errno=result.errno,
        error_detail=result.error_detail,
        message=clip_text(f"{sentence}: {result.message}" if result.message else sentence),
        observed_result="partial",
        raw_exit_code=result.raw_exit_code,
    )


def got_through(record: ModeBoundary) -> bool:
    """Tell whether the operation of a record was carried out and reached the host."""
    if record.effect.state == "not-checked":
        return record.effect.claimed == "success"
    return record.effect.state == "seen"


def control_of(record: ModeBoundary) -> CellControl:
    """Return what a record of the baseline is as the control of other cells."""
    result = record.result
    state: Literal["succeeded", "no-control"] = "succeeded" if got_through(record) else "no-control"
    return CellControl(result.errno, result.observed_result, state)


def outcome_of(record: ModeBoundary) -> Outcome:
    """Return what a cell came to, by effect, control and report."""
    effect = record.effect
    if got_through(record):
        return "open"
    if effect.state == "not-seen" and effect.claimed == "success":
        return "diverted"
    if record.control.state == "no-control":
        return "no-control"
    if effect.claimed == "denied":
        return "closed"
    if effect.state == "not-seen" and record.control.state == "succeeded":
        return "closed" if _was_tried(record) else "untold"
    if effect.claimed == "partial":
        return "partial"
    # The probe failed with an errno: unlike without the sandbox.
    is_closed = record.result.errno is not None and record.control.state == "succeeded"
    return "closed" if is_closed and _was_tried(record) else "untold"


def untold_reason(record: Boundary, outcome: str) -> str:
    """Return why a record tells nothing of its sandbox."""
    if isinstance(record, ModeBoundary) and outcome == "no-control":
        errno = record.control.errno
        return "without the sandbox it fails as well" + (f" ({errno})" if errno else "")
    said = record.result.message or "it does not say why"
    return f"the probe could not try: {shorten_text(said, 200)}"


def _was_tried(record: ModeBoundary) -> bool:
    """Tell whether a probe carried its attempt out: what it ran was found and could be run."""
    code = record.result.raw_exit_code
    return code not in NOT_RUN and "harness" not in record.payload.raw
