"""stream check

stream normalize

stream emit, listen, validate: the commands that stand in a pipe."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from stream.cli.options import (
    Boundary,
    CarefulCommand,
    Catalog,
    Findings,
    Force,
    KnownBoundary,
    Reject,
)
from stream.cli.runner import echo, note, number, run, run_filter, run_now, tell_unchecked

if TYPE_CHECKING:
    from stream.sinks.ndjson import Ndjson, Text
    from stream.transformers.normalize import Normalize
    from stream.verify.streams import CheckResult


class _Profile(StrEnum):
    poc = "poc"
    agents = "agents"


def register_check(app: typer.Typer) -> None:
    app.command(cls=CarefulCommand)(check)


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
        " Default: what metadata.json of the run says, else poc.",
    ),
    boundary: KnownBoundary = None,
    rules: bool = typer.Option(False, "--rules", help="Print the rules and exit."),
    findings: Findings = None,
    reject: Reject = None,
    force: Force = False,
) -> None:
    """Hold the events of an agent run against their contract.

    Given a run folder, its events are checked, and that its artifacts are there, inside the
    folder, unchanged and listed, that each record of its kernel evidence keeps its contract, and
    that its diff applies. Given a file, its lines are the
    events of one run. Findings go to stdout as records, and to stderr as sentences.

    \b
      stream check runs/20260304T050607Z-add_tests
      stream check --profile agents events.jsonl
      stream check events.jsonl | jq -r '[.line, .rule, .message] | @tsv'

    Given `-`, it is a filter: every JSON object goes on to stdout unchanged, each run among
    them is checked for itself, and lines of other contracts are held to those, as by validate.

    \b
      cat runs/*/events.jsonl | stream check - --findings broken.ndjson > events.ndjson

    A run that was cut off is one finding, run.incomplete. Exit 1 if there is a finding that
    is an error, or a rejected line, or if nothing came by `-`, or nothing of a contract that
    stream knows; warnings alone are exit 0.
    """
    if rules:
        run_now(_tell_event_rules)
    if target is None:
        raise typer.BadParameter("a run folder, a file or `-` is missing")

    async def work() -> int:
        from stream.contracts import expect
        from stream.files.targets import check_outputs
        from stream.verify.streams import run_check

        expect(target, "run", "events")
        check_outputs([findings, reject], [target], force=force)
        sinks = _check_sinks(target == "-", findings, reject)
        answer = await run_check(
            target, None if profile is None else profile.value, boundary, *sinks
        )
        note(_check_summary(answer))
        as_filter = target == "-"
        is_unchecked = tell_unchecked("check", answer.unknown, answer.counts, as_filter=as_filter)
        return 1 if answer.errors or answer.counts.rejected or is_unchecked else 0

    run_filter([target], work)


def _check_sinks(is_filter: bool, findings: str | None, reject: str | None) -> list[Ndjson | Text]:
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


def _tell_event_rules() -> int:
    from stream.transformers.event_rules import RULES

    width = max(map(len, RULES))
    for name, rule in RULES.items():
        note = "" if rule.severity == "error" else f" ({rule.severity})"
        echo(f"{name:{width}}  {rule.section:6}  {rule.sentence}{note}")
    return 0


def register_normalize(app: typer.Typer) -> None:
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
    reject: Reject = None,
    force: Force = False,
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
        run_now(_tell_filter_rules)
    if source is None:
        raise typer.BadParameter("a file or `-` is missing")

    async def work() -> int:
        from stream.contracts import expect
        from stream.files.targets import check_outputs
        from stream.pipeline import Pipeline
        from stream.records.run import check_run_id
        from stream.sources.ndjson import NdjsonSource, check_readable
        from stream.transformers.normalize import Normalize

        check_run_id(run_id, "--run-id")
        check_readable([source])
        expect(source, "telemetry")
        check_outputs([detail, reject], [source], force=force)
        stage = Normalize(run_id, is_alone=source != "-")
        sinks = _normalize_sinks(source == "-", detail, reject)
        await Pipeline((NdjsonSource(source),)).through(stage).into(*sinks)
        note(_normalize_summary(stage))
        _say_losses(stage)
        return 1 if stage.counts.rejected else 0

    run(work)


def _normalize_sinks(is_filter: bool, detail: str | None, reject: str | None) -> list[Any]:
    from stream.records.control import (
        CAPTURES,
        DETAILS,
        FINDINGS,
        GAPS,
        KERNEL,
        LINES,
        REJECTS,
    )
    from stream.sinks.ndjson import Ndjson, Text

    details = (DETAILS, GAPS)
    kinds = [LINES, KERNEL, *(details if detail == "-" else ())]
    sinks: list[Any] = [Ndjson("-", {*kinds, *((GAPS, CAPTURES) if is_filter else ())})]
    if detail is not None and detail != "-":
        sinks.append(Ndjson(detail, details))
    if reject:
        sinks.append(Ndjson(reject, (REJECTS,)))
    sinks.append(Text((FINDINGS, GAPS) if reject else (FINDINGS, GAPS, REJECTS)))
    return sinks


def _normalize_summary(stage: Normalize) -> str:
    what = f"{number(stage.events, 'kernel event')}, {number(stage.details, 'detail line')}"
    dropped = ", ".join(f"{count} {rule}" for rule, count in sorted(stage.dropped.items()))
    return f"normalize: {stage.counts}; {what}" + (f"; left out: {dropped}" if dropped else "")


def _say_losses(stage: Normalize) -> None:
    """What the feed's books say of it, where that is not good."""
    from stream.evidence.health import losses_of

    capture = stage.capture
    if capture is None:
        if stage.events:
            note("normalize: the feed's books are missing: how much it lost is not known")
        return
    if capture.feed == "absent":
        note(f"normalize: there was no feed: {capture.reason or 'it is not said why'}")
        return
    if capture.dropped:
        note(f"normalize: the feed lost {number(capture.dropped, 'event')}")
    for loss in losses_of(capture):
        note(f"normalize: not everything was seen: {loss}")
    if capture.uring == "hole":
        note("normalize: what went by way of io_uring was not seen")


def _tell_filter_rules() -> int:
    from stream.transformers.filters import RULES

    width = max(len(rule.name) for rule in RULES)
    for rule in RULES:
        places = (*rule.folders, *rule.files, *rule.names)
        patterns = [f"in folders like {rule.inside}"] if rule.inside else []
        if rule.some_inside:
            patterns.append(f"{rule.some} in folders like {rule.some_inside}")
        if rule.but:
            patterns.append(f"but for names like {rule.but}")
        where = f": {', '.join((*places, *patterns))}"
        echo(f"{rule.name:{width}}  {rule.what}{where}")
    return 0


#: of `emit -`: how many words each takes, itself counted
_OF_THE_STREAM = {"--reject": 2, "--catalog": 2, "--boundary": 2, "--force": 1}


class _WordsCommand(TyperCommand):
    """emit-record's words are its own: the next word is always the value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = 0
        while args[first : first + 1] and args[first] in _OF_THE_STREAM:
            first += _OF_THE_STREAM[args[first]]
        if args[first : first + 1] in (["-"], ["--help"], ["-h"]):
            return super().parse_args(ctx, args)
        nothing = {"reject": None, "catalog": None, "boundary": None, "force": False}
        ctx.params = {"words": args, **nothing}
        return []


class _EmitRecordCommand(TyperCommand):
    """As the helper calls it: nothing is a flag of ours, no stdin is read, no help is shown."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.params = {"words": args}
        return []


def register_records(app: typer.Typer) -> None:
    app.command(cls=_WordsCommand)(emit)
    app.command("emit-record", cls=_EmitRecordCommand, hidden=True)(emit_record)
    app.command()(listen)
    app.command()(validate)


def emit(
    words: list[str] = typer.Argument(
        [], metavar="- | FLAGS…", help="`-`, or emit-record's words."
    ),
    reject: Reject = None,
    catalog: Catalog = None,
    boundary: Boundary = None,
    force: Force = False,
) -> None:
    """Make boundary objects, from a pipe or from flags.

    With `-`, raw emissions (from `stream matrix --raw`) come from stdin, and one object for
    each goes to stdout; any other record passes through unchanged. Exit 1 if a probe failed
    or a line was rejected.

    \b
      stream matrix --raw | stream emit - > boundary.ndjson

    With flags it does what emit-record does: one object, or one sentence and exit 1.

    \b
      stream emit --run-mode baseline --probe-name P --probe-version 1 \\
        --primary-capability-id ID --command C --category fs --verb write \\
        --target T --status success|denied|partial|error

    \b
    Further flags; each takes the next word as its value, whatever it looks like:
      --secondary-capability-id ID   (repeatable)
      --errno E  --message M  --error-detail D  --raw-exit-code N
      --payload-stdout TEXT          --payload-stdout-file F
      --payload-stderr TEXT          --payload-stderr-file F
      --payload-raw JSON             --payload-raw-file F
      --payload-raw-field K V        --payload-raw-field-json K JSON
      --payload-raw-list K "a,b"     --payload-raw-null K
      --payload-file F               (a whole payload object)
      --operation-args JSON          --operation-args-file F
      --operation-arg K V            --operation-arg-json K JSON
      --operation-arg-list K "a,b"   --operation-arg-null K
    """
    if words[:1] == ["-"]:
        if len(words) > 1:
            raise typer.BadParameter(f"`-` reads stdin: it does not go with {words[1]}")
        _emit_stream(reject, catalog, boundary, force)
    if not words:
        raise typer.BadParameter("`-` is missing, or emit-record's words")
    run_now(lambda: _emit_one(words))


def emit_record(words: list[str] = typer.Argument([])) -> None:
    """What the helper of this name does outside the harness."""
    run_now(lambda: _emit_one(words))


def _emit_stream(
    reject: str | None, catalog: str | None, boundary: str | None, force: bool
) -> None:
    async def work() -> int:
        from stream.boundary.builder import BoundaryBuilder
        from stream.boundary.catalogs import find_catalogs
        from stream.boundary.descriptors import find_descriptor
        from stream.files.targets import check_outputs
        from stream.pipeline import Pipeline
        from stream.records.control import FINDINGS, GAPS, REJECTS
        from stream.sinks.ndjson import Ndjson, Text
        from stream.sources.ndjson import NdjsonSource
        from stream.transformers.emit import Emit

        check_outputs([reject], force=force)
        stage = Emit(BoundaryBuilder(find_catalogs(catalog), find_descriptor(boundary)))
        control = (FINDINGS, GAPS, REJECTS)
        aside = Ndjson(reject, control) if reject else Text(control)
        source = NdjsonSource("-")
        await Pipeline((source,)).through(stage).into(Ndjson("-"), aside)
        for failure in stage.failures[:20]:
            note(f"stream: {failure.probe} ({failure.mode}): {failure.sentence}")
        note(f"emit: {stage.counts}")
        return 1 if stage.failed or stage.counts.rejected else 0

    run(work)


def _emit_one(words: list[str]) -> int:
    from stream.matrix.run import emit_words

    echo(emit_words(words))
    return 0


def listen(
    files: list[str] = typer.Argument(
        ..., metavar="FILE…|-", help="NDJSON files, or `-` for stdin."
    ),
    as_json: bool = typer.Option(False, "--json", help="Only the summary, as one JSON object."),
    boundary: Boundary = None,
    reject: Reject = None,
    force: Force = False,
) -> None:
    """Read boundary objects aloud, with a summary.

    Each record is shown as it comes, the summary at the end. A bad line is reported with its
    place and does not stop the others. Exit 1 if there was one.

    \b
      stream matrix | stream listen -
      stream listen monday.ndjson tuesday.ndjson --json
    """

    async def work() -> int:
        from stream.boundary.descriptors import find_descriptor
        from stream.contracts import expect
        from stream.files.targets import check_outputs
        from stream.pipeline import Chain, Pipeline
        from stream.records.control import FINDINGS, GAPS, REJECTS
        from stream.sinks.ndjson import Ndjson, Text
        from stream.sources.ndjson import NdjsonSource, check_readable
        from stream.transformers.listen import Listen

        check_readable(files)
        for name in files:
            expect(name, "boundary")
        check_outputs([reject], files, force=force)
        descriptor = find_descriptor(boundary)
        stage = Listen(descriptor, as_json=as_json, colour=sys.stdout.isatty())
        control = (FINDINGS, GAPS, REJECTS)
        aside = Ndjson(reject, control) if reject else Text(control)
        sources = Chain([NdjsonSource(name) for name in files])
        await Pipeline((sources,)).through(stage).into(Ndjson("-"), aside)
        if stage.counts.rejected:
            note(f"listen: {stage.counts}")
        return 1 if stage.counts.rejected else 0

    run_filter(files, work)


def validate(
    files: list[str] = typer.Argument(
        ..., metavar="FILE…|-", help="NDJSON or JSON files, or `-` to filter stdin to stdout."
    ),
    boundary: Boundary = None,
    catalog: str | None = typer.Option(
        None, metavar="P", help="A catalog that records may name. Default: CATALOG_PATH, bundled."
    ),
    findings: Findings = None,
    reject: Reject = None,
    force: Force = False,
) -> None:
    """Hold records, catalogs and descriptors against their contracts.

    Given files, findings go to stdout as records (on a terminal: as sentences). Given `-`, it
    is a filter: good lines go on to stdout unchanged, lines of contracts that stream does not
    know pass as well and are counted, findings go to stderr or --findings. Exit 1 if there is a
    finding, or if nothing came by `-`, or nothing of a contract that stream knows.

    \b
      stream validate boundary.ndjson catalogs/*.json
      stream matrix | stream validate - --findings bad.ndjson > good.ndjson
    """

    async def work() -> int:
        from stream.boundary.catalogs import known_catalogs
        from stream.boundary.descriptors import Boundaries, find_descriptor
        from stream.contracts import expect
        from stream.errors import UsageError
        from stream.files.targets import check_outputs
        from stream.records.control import FINDINGS, GAPS, REJECTS
        from stream.sinks.ndjson import Ndjson, Text
        from stream.sources.ndjson import check_readable
        from stream.transformers.validate import UNKNOWN
        from stream.verify.streams import run_validate

        as_filter = "-" in files
        if as_filter and len(files) > 1:
            raise UsageError("`-` filters stdin: it does not go with files")
        for name in files:
            expect(name, "boundary", "events", "telemetry", "record")
        check_outputs([findings, reject], files, force=force)
        check_readable(files)
        boundaries = Boundaries((find_descriptor(boundary),), known_catalogs(catalog))
        sinks: list[Ndjson | Text] = []
        if as_filter:
            sinks.append(Ndjson("-"))
        if findings:
            sinks.append(Ndjson(findings, (FINDINGS,)))
        elif not as_filter and not sys.stdout.isatty():
            sinks.append(Ndjson("-", (FINDINGS,)))
        if not findings:
            sinks.append(Text((FINDINGS, GAPS)))
        if reject:
            sinks.append(Ndjson(reject, (REJECTS,)))
        stage = await run_validate(files, boundaries, *sinks, as_filter=as_filter)
        good = ", ".join(f"{count} {name}" for name, count in sorted(stage.contracts.items()))
        said = f"validate: {stage.counts}; {number(stage.findings, 'finding')}"
        note(said + (f"; {good}" if good else ""))
        unknown = stage.contracts[UNKNOWN]
        is_unchecked = tell_unchecked("validate", unknown, stage.counts, as_filter=as_filter)
        return 1 if stage.findings or is_unchecked else 0

    run_filter(files, work)
