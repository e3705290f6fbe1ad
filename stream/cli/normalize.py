"""stream normalize"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from stream.cli.running import FORCE, CarefulCommand, number, run, run_now, say, tell

if TYPE_CHECKING:
    from stream.stages.normalize import Normalize


def register(app: typer.Typer) -> None:
    app.command(cls=CarefulCommand)(normalize)


def normalize(
    source: str | None = typer.Argument(
        None, metavar="FILE|-", help="Raw events of a kernel feed, or `-` to filter stdin."
    ),
    run_id: str = typer.Option("run", metavar="ID", help="The run that every line names."),
    detail: str | None = typer.Option(
        None,
        metavar="FILE",
        help="Where the lines of kernel-ext.ndjson go. `-`: to stdout, each behind its event."
        " Default: nowhere.",
    ),
    reject: str | None = typer.Option(
        None, metavar="FILE", help="Where reject records go. Default: sentences on stderr."
    ),
    force: bool = FORCE,
    rules: bool = typer.Option(
        False, "--rules", help="Print by which rules reads are left out, and exit."
    ),
) -> None:
    """Make the kernel layer out of what a kernel feed saw.

    A feed says all that it sees (stream.raw_kernel.v1). The layer says what an agent did: its
    events get their numbers, its paths become absolute, and reads by which loaders, runtimes
    and /proc, /sys and /dev are looked into are left out, each counted by its rule. Only reads
    are, and only by the path that was really reached: what writes, what was denied, and what
    goes through `..`, a link or /proc/self/root to somewhere else always stays. A read that
    found nothing is left out in the system's own folders alone (not by node_modules,
    python_packages, python_library, python_bootstrap and toolchain): elsewhere a link on the
    way may have led anywhere.

    \b
      stream normalize raw.ndjson > kernel.ndjson
      stream normalize raw.ndjson --run-id run_001 --detail kernel-ext.ndjson > kernel.ndjson
      stream normalize --rules

    Events that the layer's contract has no kind for are `event_<id>` in it. What they are, the
    arguments of programs, and where something was lost is said by the lines of --detail, which
    have the same numbers.

    Given a file, anything else than records of a feed is rejected. Given `-`, it is a filter:
    lines of other contracts go on to stdout unchanged, and so do gaps and the feed's books.

    \b
      cat raw.ndjson policy.ndjson | stream normalize - --detail - > layers.ndjson

    Exit 1 if a line was rejected.
    """
    if rules:
        run_now(_tell_rules)
    if source is None:
        raise typer.BadParameter("a file or `-` is missing")

    async def work() -> int:
        from stream.pipeline import Pipeline
        from stream.recognition import expect
        from stream.records.run import check_run_id
        from stream.sinks.places import check_outputs
        from stream.sources.ndjson import NdjsonSource, check_readable
        from stream.stages.normalize import Normalize

        check_run_id(run_id, "--run-id")
        check_readable([source])
        expect(source, "telemetry")
        check_outputs([detail, reject], [source], force=force)
        stage = Normalize(run_id, is_alone=source != "-")
        sinks = _sinks(source == "-", detail, reject)
        await Pipeline[Any]((NdjsonSource(source),)).through(lambda: stage).into(*sinks)
        say(_summary(stage))
        _say_losses(stage)
        return 1 if stage.counts.rejected else 0

    run(work)


def _sinks(is_filter: bool, detail: str | None, reject: str | None) -> list[Any]:
    from stream.records.control import Finding, Gap, Reject
    from stream.records.kernel import RawCapture
    from stream.sinks.ndjson import People, Records
    from stream.stages.normalize import DetailLine

    beside: tuple[type, ...] = (Gap, RawCapture) if is_filter else ()
    if detail == "-":
        main = Records("-", (bytes, Gap, *beside))
    else:
        main = Records("-", (bytes, *beside), but=(DetailLine,))
    sinks: list[Any] = [main]
    if detail is not None and detail != "-":
        sinks.append(Records(detail, (DetailLine, Gap)))
    if reject:
        sinks.append(Records(reject, Reject))
    sinks.append(People((Finding, Gap) if reject else (Finding, Gap, Reject)))
    return sinks


def _summary(stage: Normalize) -> str:
    what = f"{number(stage.events, 'kernel event')}, {number(stage.details, 'detail line')}"
    dropped = ", ".join(f"{count} {rule}" for rule, count in sorted(stage.dropped.items()))
    return f"normalize: {stage.counts}; {what}" + (f"; left out: {dropped}" if dropped else "")


def _say_losses(stage: Normalize) -> None:
    """What the feed's books say of it, where that is not good."""
    from stream.evidence.health import losses_of

    capture = stage.capture
    if capture is None:
        if stage.events:
            say("normalize: the feed's books are missing: how much it lost is not known")
        return
    if capture.feed == "absent":
        say(f"normalize: there was no feed: {capture.reason or 'it is not said why'}")
        return
    if capture.dropped:
        say(f"normalize: the feed lost {number(capture.dropped, 'event')}")
    for loss in losses_of(capture):
        say(f"normalize: not everything was seen: {loss}")
    if capture.uring == "hole":
        say("normalize: what went by way of io_uring was not seen")


def _tell_rules() -> int:
    from stream.stages.noise import RULES

    width = max(len(rule.name) for rule in RULES)
    for rule in RULES:
        places = (*rule.folders, *rule.files, *rule.names)
        patterns = [f"in folders like {rule.inside}"] if rule.inside else []
        if rule.some_inside:
            patterns.append(f"{rule.some} in folders like {rule.some_inside}")
        if rule.but:
            patterns.append(f"but for names like {rule.but}")
        where = f": {', '.join((*places, *patterns))}"
        tell(f"{rule.name:{width}}  {rule.what}{where}")
    return 0
