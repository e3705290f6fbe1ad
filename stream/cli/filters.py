"""The commands that read records, from files or in a pipe: check, normalize, validate."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from stream.cli.options import Boundary, Findings, Force, KnownBoundary, Reject
from stream.cli.runner import (
    number,
    print_answer,
    print_note,
    report_unchecked,
    run_filter,
    run_now,
    run_to_exit,
)

if TYPE_CHECKING:
    from stream.sinks.ndjson import Ndjson, Text
    from stream.transformers.normalize import Normalize
    from stream.verify.check import CheckResult


class _Profile(StrEnum):
    poc = "poc"
    agents = "agents"


def check(
    target: str | None = typer.Argument(
        None,
        metavar="RUN|FILE|-",
        help="A run folder, an events.jsonl, or `-` to filter stdin to stdout.",
    ),
    profile: _Profile | None = typer.Option(
        None,
        metavar="poc|agents",
        help="`poc`: the contract to the letter. `agents`: any agent_id."
        " Default: the profile in metadata.json of the run, else poc.",
    ),
    boundary: KnownBoundary = None,
    rules: bool = typer.Option(False, "--rules", help="Print the rules and exit."),
    findings: Findings = None,
    reject: Reject = None,
    force: Force = False,
) -> None:
    """Check the events of an agent run against their contract.

    Given a run folder, it checks the events; that the artifacts are present, inside the folder,
    unchanged and listed; that each record of the kernel evidence keeps its contract; and that
    the diff applies. Given a file, its lines are the events of one run. Findings go to stdout
    as records, and to stderr as sentences.

    \b
      stream check runs/20260304T050607Z-add_tests
      stream check --profile agents events.jsonl
      stream check events.jsonl | jq -r '[.line, .rule, .message] | @tsv'

    Given `-`, it is a filter: every JSON object goes on to stdout unchanged, each run in the
    stream is checked separately, and lines of other contracts are checked as by validate.

    \b
      cat runs/*/events.jsonl | stream check - --findings broken.ndjson > events.ndjson

    A run that was cut off gives one finding, run.incomplete. Exit 1 if a finding is an error,
    a line was rejected, or stdin had no line of a known contract; 0 with warnings alone.
    """
    if rules:
        run_now(_print_event_rules)
    if target is None:
        raise typer.BadParameter("a run folder, a file or `-` is missing")

    async def work() -> int:
        """Check the events and return the exit code."""
        from stream.cli.inputs import expect_input
        from stream.files.targets import check_outputs
        from stream.verify.check import run_check

        expect_input(target, "run", "events")
        check_outputs([findings, reject], [target], force=force)
        sinks = _check_sinks(target == "-", findings, reject)
        answer = await run_check(
            target, None if profile is None else profile.value, boundary, *sinks
        )
        print_note(_check_summary(answer))
        as_filter = target == "-"
        is_unchecked = report_unchecked("check", answer.unknown, answer.counts, as_filter=as_filter)
        return 1 if answer.errors or answer.counts.rejected or is_unchecked else 0

    run_filter([target], work)


def _check_sinks(is_filter: bool, findings: str | None, reject: str | None) -> list[Ndjson | Text]:
    """Return the sinks of `stream check` for findings, gaps and rejected lines."""
    from stream.records.control import FINDINGS, GAPS, REJECTS
    from stream.sinks.ndjson import Ndjson, Text

    sinks: list[Ndjson | Text] = [Ndjson("-")] if is_filter else []
    if findings:
        sinks.append(Ndjson(findings, (FINDINGS,)))
    else:
        if not is_filter and not sys.stdout.isatty():
            sinks.append(Ndjson("-", (FINDINGS,)))
        sinks.append(Text((FINDINGS, GAPS)))
    if reject:
        sinks.append(Ndjson(reject, (REJECTS,)))
    return sinks


def _check_summary(answer: CheckResult) -> str:
    what = f"{number(answer.events, 'event')} of {number(answer.runs, 'run')}"
    return f"check: {answer.counts}; {what}; {number(answer.findings, 'finding')}"


def _print_event_rules() -> int:
    """Print the rules of decision events, as `stream check` lists them."""
    from stream.transformers.event_rules import event_rules

    width = max(map(len, event_rules()))
    for name, rule in event_rules().items():
        note = "" if rule.severity == "error" else f" ({rule.severity})"
        print_answer(f"{name:{width}}  {rule.section:6}  {rule.sentence}{note}")
    return 0


def normalize(
    source: str | None = typer.Argument(
        None, metavar="FILE|-", help="Raw telemetry of a kernel feed, or `-` to filter stdin."
    ),
    run_id: str = typer.Option("run", metavar="ID", help="The run_id of every line."),
    detail: str | None = typer.Option(
        None,
        metavar="FILE",
        help="Write the lines of kernel-ext.ndjson to FILE. `-`: to stdout, each after its event."
        " Default: they are dropped.",
    ),
    reject: Reject = None,
    force: Force = False,
    rules: bool = typer.Option(
        False, "--rules", help="Print the rules by which reads are filtered, and exit."
    ),
) -> None:
    """Make the kernel layer from the raw telemetry of a kernel feed.

    A feed writes everything that it sees (stream.raw_kernel.v1). For the layer, events are
    numbered, paths become absolute, and reads by which loaders and runtimes start, and those
    of /proc, /sys and /dev, are filtered, each counted by its rule. Only reads are filtered,
    and only by the path that was really reached: writes, denied calls, and paths that lead
    elsewhere through `..`, a link or /proc/self/root always stay. A read that found nothing is
    filtered only in the system's own folders (not by node_modules, python_packages,
    python_library, python_bootstrap and toolchain), because elsewhere a link on the way may
    have led anywhere.

    \b
      stream normalize raw.ndjson > kernel.ndjson
      stream normalize raw.ndjson --run-id run_001 --detail kernel-ext.ndjson > kernel.ndjson
      stream normalize --rules

    An event that has no kind in the layer's contract is `event_<id>` there. The lines of
    --detail, which have the same numbers, name these events, the arguments of programs, and
    the places of losses.

    Given a file, any record that is not from a feed is rejected. Given `-`, it is a filter:
    lines of other contracts go on to stdout unchanged, and so do gaps and the feed's counters.

    \b
      cat raw.ndjson policy.ndjson | stream normalize - --detail - > layers.ndjson

    Exit 1 if a line was rejected.
    """
    if rules:
        run_now(_print_filter_rules)
    if source is None:
        raise typer.BadParameter("a file or `-` is missing")

    async def work() -> int:
        """Make the kernel layer and return the exit code."""
        from stream.cli.inputs import expect_input
        from stream.files.targets import check_outputs
        from stream.pipeline import Pipeline
        from stream.records.run import check_run_id
        from stream.sources.ndjson import NdjsonSource, check_readable
        from stream.transformers.normalize import Normalize

        check_run_id(run_id, "--run-id")
        check_readable([source])
        expect_input(source, "telemetry")
        check_outputs([detail, reject], [source], force=force)
        is_filter = source == "-"
        stage = Normalize(run_id, is_alone=not is_filter, has_inline_details=detail == "-")
        sinks = _normalize_sinks(is_filter, detail, reject)
        await Pipeline((NdjsonSource(source),)).through(stage).into(*sinks)
        _report_normalized(stage)
        return 1 if stage.counts.rejected else 0

    run_to_exit(work)


def _normalize_sinks(is_filter: bool, detail: str | None, reject: str | None) -> list[Any]:
    """Return the sinks of `stream normalize` for the kernel layer, details and rejects."""
    from stream.records.control import CAPTURES, DETAILS, FINDINGS, GAPS, KERNEL, LINES, REJECTS
    from stream.sinks.ndjson import Ndjson, Text

    gaps = (GAPS,) if is_filter or detail == "-" else ()
    sinks: list[Any] = [Ndjson("-", (LINES, KERNEL, *gaps, *((CAPTURES,) if is_filter else ())))]
    if detail is not None and detail != "-":
        sinks.append(Ndjson(detail, (DETAILS, GAPS)))
    if reject:
        sinks.append(Ndjson(reject, (REJECTS,)))
    sinks.append(Text((FINDINGS, GAPS) if reject else (FINDINGS, GAPS, REJECTS)))
    return sinks


def _report_normalized(stage: Normalize) -> None:
    """Report what was made, and what the counters of the feed show as lost or unseen."""
    from stream.evidence.health import loss_notes_of

    what = f"{number(stage.events, 'kernel event')}, {number(stage.details, 'detail line')}"
    dropped = ", ".join(f"{count} {rule}" for rule, count in sorted(stage.dropped.items()))
    filtered = f"; filtered: {dropped}" if dropped else ""
    print_note(f"normalize: {stage.counts}; {what}{filtered}")
    capture = stage.capture
    if capture is None:
        if stage.events:
            print_note("normalize: the feed's counters are missing: its losses are unknown")
        return
    if capture.feed == "absent":
        print_note(f"normalize: there was no feed: {capture.reason or 'no reason is given'}")
        return
    if capture.dropped:
        print_note(f"normalize: the feed lost {number(capture.dropped, 'event')}")
    for loss in loss_notes_of(capture):
        print_note(f"normalize: the capture is incomplete: {loss}")
    if capture.uring == "hole":
        print_note("normalize: operations through io_uring were not seen")


def _print_filter_rules() -> int:
    """Print the rules by which `stream normalize` leaves out reads."""
    from stream.transformers.normalize import RULES

    width = max(len(rule.name) for rule in RULES)
    for rule in RULES:
        paths = (*rule.folders, *rule.files, *rule.names)
        patterns = [f"in folders like {rule.inside}"] if rule.inside else []
        if rule.some_inside:
            patterns.append(f"{rule.some} in folders like {rule.some_inside}")
        if rule.but:
            patterns.append(f"but for names like {rule.but}")
        where = f": {', '.join((*paths, *patterns))}"
        print_answer(f"{rule.name:{width}}  {rule.what}{where}")
    return 0


def validate(
    files: list[str] = typer.Argument(
        ..., metavar="FILE…|-", help="NDJSON or JSON files, or `-` to filter stdin to stdout."
    ),
    boundary: Boundary = None,
    catalog: str | None = typer.Option(
        None,
        metavar="P",
        help="A catalog that records may name. Default: CATALOG_PATH, and the bundled ones.",
    ),
    findings: Findings = None,
    reject: Reject = None,
    force: Force = False,
) -> None:
    """Check records, catalogs and descriptors by their contracts.

    Given files, findings go to stdout as records (on a terminal: as sentences). Given `-`, it
    is a filter: valid lines go on to stdout unchanged, lines of unknown contracts also pass and
    are counted, findings go to stderr or --findings. Exit 1 if there is a finding, or if stdin
    had no line of a known contract.

    \b
      stream validate boundary.ndjson catalogs/*.json
      stream matrix | stream validate - --findings bad.ndjson > good.ndjson
    """

    async def work() -> int:
        """Validate the records and return the exit code."""
        from stream.boundary.descriptors import (
            Boundaries,
            find_descriptor,
            known_catalogs,
            mode_descriptor,
        )
        from stream.cli.inputs import expect_input
        from stream.errors import UsageError
        from stream.files.targets import check_outputs
        from stream.sources.ndjson import check_readable
        from stream.verify.check import run_validate

        as_filter = "-" in files
        if as_filter and len(files) > 1:
            raise UsageError("`-` filters stdin and does not go with files")
        for name in files:
            expect_input(name, "boundary", "events", "telemetry", "record")
        check_outputs([findings, reject], files, force=force)
        check_readable(files)
        boundaries = Boundaries(
            (find_descriptor(boundary), mode_descriptor()), known_catalogs(catalog)
        )
        sinks = _check_sinks(as_filter, findings, reject)
        stage = await run_validate(files, boundaries, *sinks, as_filter=as_filter)
        good = ", ".join(f"{count} {name}" for name, count in sorted(stage.contracts.items()))
        summary = f"validate: {stage.counts}; {number(stage.findings, 'finding')}"
        print_note(summary + (f"; {good}" if good else ""))
        is_unchecked = report_unchecked(
            "validate", stage.unknown, stage.counts, as_filter=as_filter
        )
        return 1 if stage.findings or is_unchecked else 0

    run_filter(files, work)
