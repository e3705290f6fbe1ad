"""A matrix in parts: what `--make-plan`, `--plan` and `--shard` of `stream matrix` do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from stream.boundary.scripts import MatrixPlan
    from stream.matrix.plan import MatrixRequest
    from stream.matrix.shards import Shard as Shard


class ShardChoice(Protocol):
    """The options of a matrix that several machines share."""

    probe: list[str]
    cap: list[str]
    mode: list[str]
    repeat: int
    raw: bool
    shard: str | None
    host: str | None
    output: str
    force: bool


async def write_plan(options: ShardChoice, request: MatrixRequest) -> int:
    """Write the plan of a matrix for several machines, and return the exit code."""
    import msgspec
    from msgspec.structs import replace

    from stream.files.targets import check_outputs
    from stream.matrix.plan import make_plan
    from stream.matrix.shards import plan_document
    from stream.pipeline import Batch
    from stream.records.control import LINES
    from stream.sinks.ndjson import Ndjson

    plan = make_plan(replace(request, from_outside=True))
    check_modes(plan, "--make-plan")
    check_outputs([options.output], force=options.force)
    document = plan_document(plan, options.host)
    async with Ndjson(options.output).open() as write:
        await write(Batch(LINES, [msgspec.json.encode(document)]))
    return 0


def shard_of_options(options: ShardChoice, plan: Path) -> Shard:
    """Return the shard of a plan that the options name. Raise StreamError."""
    from stream.errors import UsageError
    from stream.matrix.shards import make_shard, read_plan

    chosen = options.probe or options.cap or options.mode or options.repeat != 1
    if chosen or options.raw:
        raise UsageError("--plan says what is run: not --probe, --cap, --mode, --repeat or --raw")
    return make_shard(read_plan(plan), options.shard or "1/1", options.host)


def check_modes(plan: MatrixPlan, flag: str) -> None:
    """Raise RequiredError if a mode that was asked for cannot be run here."""
    from stream.errors import RequiredError

    if plan.measured is not None and plan.measured.unavailable:
        names = ", ".join(name for name, _ in plan.measured.unavailable)
        raise RequiredError(f"{flag}: cannot be run here: {names}")
