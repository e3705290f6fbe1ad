"""stream emit, listen, validate: the commands that stand in a pipe."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperCommand

from stream.cli.running import FORCE, number, run, run_filter, run_now, say, tell, tell_unchecked

_REJECT = typer.Option(
    None, metavar="FILE", help="Where reject records go. Default: sentences on stderr."
)
_BOUNDARY = typer.Option(
    None, metavar="P", help="Boundary descriptor. Default: BOUNDARY_PATH, then defaults.json."
)
_CATALOG = typer.Option(
    None, metavar="P", help="Capability catalog. Default: CATALOG_PATH, then defaults.json."
)


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


class _HelperCommand(TyperCommand):
    """As the helper calls it: nothing is a flag of ours, no stdin is read, no help is shown."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.params = {"words": args}
        return []


def register(app: typer.Typer) -> None:
    app.command(cls=_WordsCommand)(emit)
    app.command("emit-record", cls=_HelperCommand, hidden=True)(emit_record)
    app.command()(listen)
    app.command()(validate)


def emit(
    words: list[str] = typer.Argument(
        [], metavar="- | FLAGS…", help="`-`, or emit-record's words."
    ),
    reject: str | None = _REJECT,
    catalog: str | None = _CATALOG,
    boundary: str | None = _BOUNDARY,
    force: bool = FORCE,
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
        from stream.catalog import find_catalogs
        from stream.pattern import find_descriptor
        from stream.pipeline import Pipeline
        from stream.records.control import Finding, Gap, Reject
        from stream.sinks.ndjson import People, Records
        from stream.sinks.places import check_outputs
        from stream.sources.ndjson import NdjsonSource
        from stream.stages.emit import Emit
        from stream.stages.record import Recorder

        check_outputs([reject], force=force)
        stage = Emit(Recorder(find_catalogs(catalog), find_descriptor(boundary)))
        control = (Finding, Gap, Reject)
        aside = Records(reject, control) if reject else People(control)
        source = NdjsonSource("-")
        await Pipeline[Any]((source,)).through(lambda: stage).into(Records("-"), aside)
        for failure in stage.failures[:20]:
            say(f"stream: {failure.probe} ({failure.mode}): {failure.sentence}")
        say(f"emit: {stage.counts}")
        return 1 if stage.failed or stage.counts.rejected else 0

    run(work)


def _emit_one(words: list[str]) -> int:
    from stream.emitting import emit_words

    tell(emit_words(words))
    return 0


def listen(
    files: list[str] = typer.Argument(
        ..., metavar="FILE…|-", help="NDJSON files, or `-` for stdin."
    ),
    as_json: bool = typer.Option(False, "--json", help="Only the summary, as one JSON object."),
    boundary: str | None = _BOUNDARY,
    reject: str | None = _REJECT,
    force: bool = FORCE,
) -> None:
    """Read boundary objects aloud, with a summary.

    Each record is shown as it comes, the summary at the end. A bad line is reported with its
    place and does not stop the others. Exit 1 if there was one.

    \b
      stream matrix | stream listen -
      stream listen monday.ndjson tuesday.ndjson --json
    """

    async def work() -> int:
        from stream.pattern import find_descriptor
        from stream.pipeline import Chain, Pipeline
        from stream.recognition import expect
        from stream.records.control import Finding, Gap, Reject
        from stream.sinks.ndjson import People, Records
        from stream.sinks.places import check_outputs
        from stream.sources.ndjson import NdjsonSource, check_readable
        from stream.stages.listen import Listen

        check_readable(files)
        for name in files:
            expect(name, "boundary")
        check_outputs([reject], files, force=force)
        descriptor = find_descriptor(boundary)
        stage = Listen(descriptor, as_json=as_json, colour=sys.stdout.isatty())
        control = (Finding, Gap, Reject)
        aside = Records(reject, control) if reject else People(control)
        sources = Chain([NdjsonSource(name) for name in files])
        await Pipeline[Any]((sources,)).through(lambda: stage).into(Records("-"), aside)
        if stage.counts.rejected:
            say(f"listen: {stage.counts}")
        return 1 if stage.counts.rejected else 0

    run_filter(files, work)


def validate(
    files: list[str] = typer.Argument(
        ..., metavar="FILE…|-", help="NDJSON or JSON files, or `-` to filter stdin to stdout."
    ),
    boundary: str | None = _BOUNDARY,
    catalog: str | None = typer.Option(
        None, metavar="P", help="A catalog that records may name. Default: CATALOG_PATH, bundled."
    ),
    findings: str | None = typer.Option(
        None, metavar="FILE", help="Where finding records go. Default: stdout (`-`: only stderr)."
    ),
    reject: str | None = typer.Option(
        None, metavar="FILE", help="Where a record of each rejected line goes."
    ),
    force: bool = FORCE,
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
        from stream.catalog import known_catalogs
        from stream.errors import UsageError
        from stream.pattern import Boundaries, find_descriptor
        from stream.recognition import expect
        from stream.records.control import Finding, Gap, Reject
        from stream.sinks.ndjson import People, Records
        from stream.sinks.places import check_outputs
        from stream.sources.ndjson import check_readable
        from stream.stages.validate import UNKNOWN
        from stream.validate import run_validate

        as_filter = "-" in files
        if as_filter and len(files) > 1:
            raise UsageError("`-` filters stdin: it does not go with files")
        for name in files:
            expect(name, "boundary", "events", "telemetry", "record")
        check_outputs([findings, reject], files, force=force)
        check_readable(files)
        boundaries = Boundaries((find_descriptor(boundary),), known_catalogs(catalog))
        sinks: list[Records | People] = []
        if as_filter:
            sinks.append(Records("-"))
        if findings:
            sinks.append(Records(findings, Finding))
        elif not as_filter and not sys.stdout.isatty():
            sinks.append(Records("-", Finding))
        if not findings:
            sinks.append(People((Finding, Gap)))
        if reject:
            sinks.append(Records(reject, Reject))
        stage = await run_validate(files, boundaries, *sinks, as_filter=as_filter)
        good = ", ".join(f"{count} {name}" for name, count in sorted(stage.contracts.items()))
        said = f"validate: {stage.counts}; {number(stage.findings, 'finding')}"
        say(said + (f"; {good}" if good else ""))
        unknown = stage.contracts[UNKNOWN]
        is_unchecked = tell_unchecked("validate", unknown, stage.counts, as_filter=as_filter)
        return 1 if stage.findings or is_unchecked else 0

    run_filter(files, work)
