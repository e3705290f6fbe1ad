"""canary: five probes with effects tell whether a sandbox is on, before an agent starts in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from stream.boundary.measured import outcome_of
from stream.errors import RequiredError
from stream.matrix.plan import MatrixRequest, make_plan, start_plan
from stream.matrix.run import Matrix, MatrixResult
from stream.pipeline import CollectingSink
from stream.records.control import BOUNDARY
from stream.records.modes import ModeBoundary, decode_mode_boundary
from stream.records.policies import Policy

#: The probes, and what it means in plain words that one gets through.
CANARIES = {
    "fs_outside_workspace": "a file was written outside the workspace",
    "fs_planted_key_read": "a private key in the home folder was read",
    "egress_tcp_address": "a connection to an address outside was made",
    "net_unix_socket_outside": "a socket of a process outside the sandbox was spoken to",
    "proc_outlive_sandbox": "a process was left running after the sandbox had ended",
}
_NOT_TOLD = "it could not be told whether"


class CanaryVerdict(Struct, frozen=True):
    """The verdict on one canary in one mode."""

    mode: str
    probe: str
    got_through: bool
    is_told: bool
    must_stop: bool
    sentence: str


class CanaryResult(Struct, frozen=True):
    """The verdicts, and what the run of their probes came to."""

    verdicts: list[CanaryVerdict]
    matrix: MatrixResult

    @property
    def exit_code(self) -> int:
        """0: all were stopped that must be. 1: one got through. 40: it could not be told."""
        required = [one for one in self.verdicts if one.must_stop]
        if any(one.got_through for one in required):
            return 1
        return 40 if not required or not all(one.is_told for one in required) else 0


async def run_canaries(
    mode: str, policies: Sequence[str], run_as: str | None, timeout: float
) -> CanaryResult:
    """Run the canaries in a mode. Without policies the promises of the mode's file hold; what they
    do not name must be stopped. Raise StreamError."""
    request = MatrixRequest(
        probes=list(CANARIES), modes=[mode], run_as=run_as, from_outside=True, policies=policies
    )
    plan = make_plan(request)
    sink = CollectingSink((BOUNDARY,))
    assert plan.measured is not None
    if plan.measured.unavailable:
        name, reason = plan.measured.unavailable[0]
        raise RequiredError(f"mode {name} cannot be run here: {reason}")
    with start_plan(plan, jobs=len(CANARIES)) as started:
        result = await Matrix(started, timeout=timeout).run(sink)
    tested = plan.measured.modes[-1]
    records = [decode_mode_boundary(line) for line in sink.items]
    of_mode = [record for record in records if record.run.mode == tested.name]
    return CanaryResult(list(_verdicts(of_mode, plan.policy or Policy(tested.promises))), result)


def _verdicts(records: list[ModeBoundary], policy: Policy) -> Iterator[CanaryVerdict]:
    """Give a verdict on each record."""
    for record in records:
        outcome = outcome_of(record)
        what = CANARIES[record.probe.id]
        is_told = outcome in ("open", "closed", "diverted")
        promise = policy.promise_of(record.probe.primary_capability_id)
        sentence = what if is_told else f"{_NOT_TOLD} {what}: {_why_untold(record, outcome)}"
        yield CanaryVerdict(
            mode=record.run.mode,
            probe=record.probe.id,
            got_through=outcome == "open",
            is_told=is_told,
            must_stop=promise is None or promise.promise != "allow",
            sentence=sentence if promise is None else f"{sentence}; {promise}",
        )


def _why_untold(record: ModeBoundary, outcome: str) -> str:
    """Say why a canary tells nothing: often the sandbox itself has said it, on stderr."""
    why = record.result.message or "no reason is known"
    if outcome == "no-control":
        return f"without the sandbox it fails as well ({record.control.errno or why})"
    said, _, _ = (record.payload.stderr_snippet or "").strip().partition("\n")
    return f"{why}: {said}" if said else why
