"""stream apply

stream archive

stream verify"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stream.cli.options import CarefulCommand, Force, KnownBoundary
from stream.cli.runner import echo, note, number, run, run_now

if TYPE_CHECKING:
    from stream.archive.reader import Limits
    from stream.observe.archiving import Archived
    from stream.sinks.ndjson import Ndjson, Text
    from stream.verify.report import VerifyReport

_SHOWN_CONFLICTS = 20  #: conflicts


def register_apply(app: typer.Typer) -> None:
    app.command()(apply)


def apply(
    run: Path = typer.Argument(..., metavar="RUN", help="The folder of a run."),
    to: Path | None = typer.Option(
        None, metavar="DIR", help="Another folder than the one that the workspace was copied from."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would be done."),
) -> None:
    """Take a run's changes over to where its workspace came from.

    All or nothing: every path must be there as it was when the run began, or already as the
    run left it, and in the workspace as the run left it. Where one is not, each is named,
    nothing is changed, and the exit code is 1. Files are replaced one by one, each at once,
    and never written into: what such a file is called elsewhere keeps what it had. What
    `.gitattributes` says about line ends plays no part. A run that was captured redacted or
    hashed cannot be compared, and is refused.

    Changes inside .git are never taken over. Commits of the agent come with

    \b
      git fetch RUN/workspace

    \b
      stream apply runs/RUN --dry-run
      stream apply runs/RUN
      stream apply runs/RUN --to ../another-checkout
    """
    run_now(lambda: _apply(run, to, dry_run))


def _apply(run: Path, to: Path | None, dry_run: bool) -> int:
    import os

    from stream.contracts import expect
    from stream.records.run import DIFF_FILE
    from stream.workspace.apply import apply_plan, path_of, plan_changes

    expect(run, "run")
    plan = plan_changes(run, to)
    if plan is None:
        note("apply: nothing to do: the agent worked in the folder itself")
        return 0
    if plan.inside_git:
        changes = number(plan.inside_git, "change")
        note(f"apply: {changes} inside .git left out; for commits: git fetch {plan.workspace}")
    if plan.conflicts:
        for conflict in plan.conflicts[:_SHOWN_CONFLICTS]:
            note(f"stream: {plan.target / os.fsdecode(conflict.path)}: {conflict.reason}")
        more = len(plan.conflicts) - _SHOWN_CONFLICTS
        if more > 0:
            note(f"stream: and {more} more")
        note(f"apply: by hand: the files are in {plan.workspace}, the patch in {run / DIFF_FILE}")
        note(f"apply: {number(len(plan.conflicts), 'conflict')}, nothing was changed")
        return 1
    if dry_run:
        for change in plan.todo:
            note(f"{change.change:8} {os.fsdecode(path_of(change))}")
    else:
        apply_plan(plan)
    done = "would be applied" if dry_run else "applied"
    said = f"apply: {number(len(plan.todo), 'change')} {done} to {plan.target}"
    note(f"{said}, {plan.done} there already" if plan.done else said)
    return 0


def register_archive(app: typer.Typer) -> None:
    app.command(cls=CarefulCommand)(archive)


def archive(
    source: str = typer.Argument(
        ..., metavar="RUN|-", help="The folder of a run, or `-`: records from stdin."
    ),
    target: Path = typer.Option(..., "-o", "--output", metavar="F", help="The archive: F.tar.gz."),
    run_id: str | None = typer.Option(
        None, metavar="ID", help="With `-`: the run. Default: the one that all records name."
    ),
    boundary: KnownBoundary = None,
    force: Force = False,
    reject: str | None = typer.Option(
        None, metavar="FILE", help="With `-`: where a record of each rejected line goes."
    ),
) -> None:
    """Put the evidence of a run into one file.

    The same evidence gives the same tar, on any machine and at any time. The workspace stays
    out of it. It has its name only when it is whole.

    \b
      stream archive runs/20260304T050607Z-add_tests -o run.tar.gz
      stream verify run.tar.gz

    Given `-`, each line goes to where its contract belongs: events of the kernel, of the agent,
    of a policy, DecisionEvents, boundary objects, artifacts. Lines keep their bytes. A line
    that belongs nowhere, or breaks its contract, is rejected. Where that, or anything else that
    the feed's books count, is missing, nothing is called complete. What would not verify is not
    written: stderr says why, and the exit code is 2.

    \b
      stream normalize - --detail - < raw.ndjson | stream archive - -o run.tar.gz

    Exit 1 if a line was rejected.
    """

    if str(target) == "-":
        raise typer.BadParameter("-o -: an archive goes to a file")

    async def work() -> int:
        from stream.contracts import expect
        from stream.errors import UsageError
        from stream.files.targets import check_outputs
        from stream.observe.archiving import archive_folder, archive_stream

        if source == "-":
            check_outputs([str(target), reject], force=force)
            sink = _rejects(reject)
            done = await archive_stream(target, sink, run_id=run_id, boundary=boundary, force=force)
        else:
            for flag, value in (("--run-id", run_id), ("--reject", reject)):
                if value is not None:
                    raise UsageError(f"{flag}: it goes with `-` only")
            expect(source, "run")
            done = await archive_folder(Path(source), target, force=force)
        for what in done.losses:
            note(f"archive: the record is incomplete: {what}")
        note(_archive_closing(done, target))
        return 1 if done.counts and done.counts.rejected else 0

    run(work)


def _rejects(target: str | None) -> Ndjson | Text:
    from stream.records.control import Reject
    from stream.sinks.ndjson import Ndjson, Text

    return Ndjson(target, Reject) if target else Text((Reject,))


def _archive_closing(done: Archived, target: Path) -> str:
    written = done.written
    what = f"{number(written.entries, 'file')}, {written.decoded} bytes in {written.bytes}"
    lines = f"; {done.counts}" if done.counts else ""
    return f"archive: {target}: {what}{lines}"


_SIZE = re.compile(r"([0-9]+)([kKMGT]?)(?:i?B)?")
_UNITS = {"": 0, "k": 10, "K": 10, "M": 20, "G": 30, "T": 40}


def register_verify(app: typer.Typer) -> None:
    app.command(cls=CarefulCommand)(verify)


def verify(
    target: Path | None = typer.Argument(
        None,
        metavar="ARCHIVE|RUN",
        readable=False,  # whoever opens it says so, as the other commands do
        help="An archive, or the folder of a run.",
    ),
    as_json: bool = typer.Option(
        False, "--json", help="Findings to stdout as records, also on a terminal."
    ),
    boundary: KnownBoundary = None,
    rules: bool = typer.Option(False, "--rules", help="Print the rules and exit."),
    max_archive: str = typer.Option("2G", metavar="SIZE", help="The largest file."),
    max_decoded: str = typer.Option("8G", metavar="SIZE", help="The most that it may decode to."),
    max_ratio: int = typer.Option(
        0, metavar="N", min=0, help="To at most N times its own size. 0: any."
    ),
    max_entries: int = typer.Option(10_000, metavar="N", min=1, help="The most files."),
    max_lines: int = typer.Option(50_000_000, metavar="N", min=1, help="The most lines."),
    max_line: str = typer.Option("8M", metavar="SIZE", help="The longest line."),
    max_document: str = typer.Option("64M", metavar="SIZE", help="The largest JSON artifact."),
    max_depth: int = typer.Option(64, metavar="N", min=1, help="The deepest nesting."),
) -> None:
    """Verify an archive, or the folder of a run.

    Nothing is trusted: digests, order and form of an archive, the schema and the number of
    every line, that everything is of one run, and that the artifacts say what the layers imply.
    An archive that another program packed again is a warning, and its content is verified.
    Findings go to stdout as records, and to stderr as sentences.

    \b
      stream verify run.tar.gz
      stream verify runs/20260304T050607Z-add_tests
      stream verify run.tar.gz --json | jq -r '[.rule, .source, .message] | @tsv'

    A run that was cut off is one finding more, which says what of it its hash chain vouches
    for. The limits are for archives of strangers: a larger one is not wrong.
    Exit 1 if there is a finding that is an error, 2 if the file is no archive at all.
    """
    if rules:
        run_now(_tell_rules)
    if target is None:
        raise typer.BadParameter("an archive or the folder of a run is missing")
    where = target
    sizes = {
        "archive": _size(max_archive, "--max-archive"),
        "decoded": _size(max_decoded, "--max-decoded"),
        "line": _size(max_line, "--max-line"),
        "document": _size(max_document, "--max-document"),
    }
    counts = {
        "ratio": max_ratio,
        "entries": max_entries,
        "lines": max_lines,
        "depth": max_depth,
    }

    async def work() -> int:
        from stream.archive.reader import Limits
        from stream.contracts import expect
        from stream.verify.session import run_verify

        expect(where, "archive", "run")
        # A thread that inflates and one that decodes: neither waits long for the other.
        sys.setswitchinterval(0.0005)
        limits: Limits = Limits(**sizes, **counts)
        book = await run_verify(where, limits, boundary, *_sinks(as_json))
        note(_verify_closing(book))
        return 1 if book.errors else 0

    run(work)


def _sinks(as_json: bool) -> list[Ndjson | Text]:
    from stream.records.control import Finding
    from stream.sinks.ndjson import Ndjson, Text

    people = Text((Finding,))
    return [Ndjson("-", Finding), people] if as_json or not sys.stdout.isatty() else [people]


def _verify_closing(book: VerifyReport) -> str:
    """With what the answer rests on."""
    read = sum(tally.bytes for tally in book.tallies.values())
    what = f"{number(len(book.tallies), 'file')}, {number(book.lines, 'line')}, {read} bytes"
    answer = "not verified" if book.errors else "verified"
    hidden = book.total - len(book.findings)
    more = f" ({hidden} more of the same kinds)" if hidden else ""
    return f"verify: {answer}: {what}; {number(book.total, 'finding')}{more}"


def _size(text: str, flag: str) -> int:
    found = _SIZE.fullmatch(text)
    if not found or not int(found[1]):
        raise typer.BadParameter(f"{text!r} is no size: 500M, 8G", param_hint=flag)
    return int(found[1]) << _UNITS[found[2]]


def _tell_rules() -> int:
    from stream.verify.report import RULES, WARNINGS

    width = max(map(len, RULES))
    for name, sentence in RULES.items():
        note = " (warning)" if name in WARNINGS else ""
        echo(f"{name:{width}}  {sentence}{note}")
    return 0
