"""stream verify"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stream.cli.running import BOUNDARY, CarefulCommand, number, run, run_now, say, tell

if TYPE_CHECKING:
    from stream.archive.book import Book
    from stream.archive.limits import Limits
    from stream.sinks.ndjson import People, Records

_SIZE = re.compile(r"([0-9]+)([kKMGT]?)(?:i?B)?")
_UNITS = {"": 0, "k": 10, "K": 10, "M": 20, "G": 30, "T": 40}


def register(app: typer.Typer) -> None:
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
    boundary: str | None = BOUNDARY,
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
        from stream.archive.limits import Limits
        from stream.recognition import expect
        from stream.verifying import run_verify

        expect(where, "archive", "run")
        # A thread that inflates and one that decodes: neither waits long for the other.
        sys.setswitchinterval(0.0005)
        limits: Limits = Limits(**sizes, **counts)
        book = await run_verify(where, limits, boundary, *_sinks(as_json))
        say(_closing(book))
        return 1 if book.errors else 0

    run(work)


def _sinks(as_json: bool) -> list[Records | People]:
    from stream.records.control import Finding
    from stream.sinks.ndjson import People, Records

    people = People((Finding,))
    return [Records("-", Finding), people] if as_json or not sys.stdout.isatty() else [people]


def _closing(book: Book) -> str:
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
    from stream.archive.rules import RULES, WARNINGS

    width = max(map(len, RULES))
    for name, sentence in RULES.items():
        note = " (warning)" if name in WARNINGS else ""
        tell(f"{name:{width}}  {sentence}{note}")
    return 0
