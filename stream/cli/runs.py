"""The commands about runs and what they recorded: verify, diff and apply."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stream.cli.options import CarefulCommand, KnownBoundary, Options, make_command, split_words
from stream.cli.runner import number, print_answer, print_note, run_now, run_to_exit

if TYPE_CHECKING:
    from stream.archive.reader import Limits
    from stream.compare.diff import LayerComparison
    from stream.records.artifacts import CapabilityDiff
    from stream.records.boundary import BoundaryDiff, CellSide
    from stream.sinks.ndjson import Ndjson, Text
    from stream.verify.report import VerifyReport
    from stream.workspace.apply import ApplyPlan

_SHOWN_CONFLICTS = 20
_SHOWN_LINE = 240  #: characters
_SIZE = re.compile(r"([0-9]+)([kKMGT]?)(?:i?B)?")
_UNITS = {"": 0, "k": 10, "K": 10, "M": 20, "G": 30, "T": 40}


def register(app: typer.Typer) -> None:
    """Add `stream verify`, `stream diff` and `stream apply` to the command line."""
    app.command(cls=CarefulCommand)(make_command(VerifyOptions, verify))
    app.command(cls=CarefulCommand)(make_command(DiffOptions, diff))
    app.command()(apply)


class VerifyOptions(Options):
    """Holds the options of `stream verify`."""

    # Not checked by typer: opening it gives the same message as in the other commands.
    target: Path | None = typer.Argument(
        None, metavar="ARCHIVE|RUN", readable=False, help="An archive, or the folder of a run."
    )
    as_json: bool = typer.Option(
        False, "--json", help="Print findings as records, also on a terminal."
    )
    boundary: KnownBoundary = None
    rules: bool = typer.Option(False, "--rules", help="Print the rules and exit.")
    max_archive: str = typer.Option("2G", metavar="SIZE", help="The largest file.")
    max_decoded: str = typer.Option(
        "8G", metavar="SIZE", help="The largest size after decompression."
    )
    max_ratio: int = typer.Option(
        0, metavar="N", min=0, help="Decompress to at most N times its size. 0: any."
    )
    max_entries: int = typer.Option(10_000, metavar="N", min=1, help="The most files.")
    max_lines: int = typer.Option(50_000_000, metavar="N", min=1, help="The most lines.")
    max_line: str = typer.Option("8M", metavar="SIZE", help="The longest line.")
    max_document: str = typer.Option("64M", metavar="SIZE", help="The largest JSON artifact.")
    max_depth: int = typer.Option(64, metavar="N", min=1, help="The deepest nesting.")

    def archive_limits(self) -> Limits:
        """Return the limits for reading an archive."""
        from stream.archive.reader import Limits

        return Limits(
            archive=_parse_size(self.max_archive, "--max-archive"),
            decoded=_parse_size(self.max_decoded, "--max-decoded"),
            line=_parse_size(self.max_line, "--max-line"),
            document=_parse_size(self.max_document, "--max-document"),
            ratio=self.max_ratio,
            entries=self.max_entries,
            lines=self.max_lines,
            depth=self.max_depth,
        )


def verify(options: VerifyOptions) -> None:
    """Verify an archive, or the folder of a run.

    Nothing is trusted: it checks digests, order and form of an archive, the schema and number
    of every line, that everything belongs to one run, and that the artifacts follow from the
    layers. An archive that another program repacked is a warning; its content is verified.
    Findings go to stdout as records, and to stderr as sentences.

    \b
      stream verify run.tar.gz
      stream verify runs/20260304T050607Z-add_tests
      stream verify run.tar.gz --json | jq -r '[.rule, .source, .message] | @tsv'

    For a run that was cut off, one more finding says how far its hash chain covers it. The
    limits protect against hostile archives; a larger archive is not wrong.
    Exit 1 if a finding is an error, 2 if the file is not an archive.
    """
    if options.rules:
        run_now(_print_verify_rules)
    if options.target is None:
        raise typer.BadParameter("an archive or the folder of a run is missing")
    target, limits = options.target, options.archive_limits()

    async def work() -> int:
        """Verify the target and return the exit code."""
        from stream.cli.inputs import expect_input
        from stream.verify.check import run_verify

        expect_input(target, "archive", "run")
        # A thread that inflates and one that decodes: neither waits long for the other.
        sys.setswitchinterval(0.0005)
        report = await run_verify(
            target, limits, options.boundary, *_finding_sinks(options.as_json)
        )
        print_note(_verify_summary(report))
        return 1 if report.errors else 0

    run_to_exit(work)


def _finding_sinks(as_json: bool) -> list[Ndjson | Text]:
    """Return the sinks of `stream verify`: findings as records, and as text for people."""
    from stream.records.control import FINDINGS
    from stream.sinks.ndjson import Ndjson, Text

    people = Text((FINDINGS,))
    return [Ndjson("-", (FINDINGS,)), people] if as_json or not sys.stdout.isatty() else [people]


def _verify_summary(report: VerifyReport) -> str:
    """Return the answer, and how much was read for it."""
    read = sum(tally.bytes for tally in report.tallies.values())
    what = f"{number(len(report.tallies), 'file')}, {number(report.lines, 'line')}, {read} bytes"
    answer = "not verified" if report.errors else "verified"
    hidden = report.total - len(report.findings)
    more = f" ({hidden} more of the same kinds)" if hidden else ""
    return f"verify: {answer}: {what}; {number(report.total, 'finding')}{more}"


def _parse_size(text: str, flag: str) -> int:
    """Parse the value of a size option, such as 500M. Raise BadParameter for any other text."""
    found = _SIZE.fullmatch(text)
    if not found or not int(found[1]):
        raise typer.BadParameter(f"{text!r} is not a size such as 500M or 8G", param_hint=flag)
    return int(found[1]) << _UNITS[found[2]]


def _print_verify_rules() -> int:
    """Print the rules by which `stream verify` checks a run or an archive."""
    from stream.verify.report import RULES, WARNINGS

    width = max(map(len, RULES))
    for name, sentence in RULES.items():
        suffix = " (warning)" if name in WARNINGS else ""
        print_answer(f"{name:{width}}  {sentence}{suffix}")
    return 0


class DiffOptions(Options):
    """Holds the options of `stream diff`."""

    base: str = typer.Argument(..., metavar="A", help="Before: an archive, run or matrix.")
    head: str = typer.Argument(..., metavar="B", help="After: the same kind.")
    json: bool = typer.Option(False, "--json", help="Print a record, also on a terminal.")
    fail_on: list[str] = typer.Option(
        [],
        metavar="WORDS",
        help="Exit 1 on such a difference: added- or removed- with paths, endpoints, execs,"
        " tools or decisions; changed-policy; partial; unbound; any. For two matrices: opened,"
        " closed, unmeasured, measured, any.",
    )
    ignore: list[str] = typer.Option(
        [],
        metavar="GLOB",
        help="Ignore paths and programs that match. A * matches any text, also a /.",
    )
    baseline: list[str] = typer.Option(
        [],
        metavar="A",
        help="Another run of the same kind as A: ignore what varies among these runs.",
    )
    canonical: bool = typer.Option(
        False, "--canonical", help="Compare the layers line by line, with labels for processes."
    )


def diff(options: DiffOptions) -> None:
    """Compare two runs, or two matrices.

    Of two runs it lists what only one of them reached: files, endpoints, programs, tools,
    decisions, and calls that were decided differently. Each of A and B is an archive, a run
    folder, or a folder that holds the three artifacts. On a terminal it prints a table,
    otherwise one record, assay.runner.capability_diff.v0.

    \b
      stream diff before.tar.gz after.tar.gz
      stream diff runs/RUN1 runs/RUN2 | jq .surface.filesystem_paths.added
      stream diff main.tar.gz branch.tar.gz --fail-on added-paths,added-endpoints
      stream diff main.tar.gz branch.tar.gz --ignore '*/.cache/*' --baseline main2.tar.gz

    It checks that the evidence is what the manifest lists, but not that it is true: run
    `stream verify` on both sides first.

    Two files of boundary objects are compared cell by cell: opened, closed, unmeasured (no
    longer measured) and measured (measured only now). The record is stream.boundary_diff.v1.

    \b
      stream diff monday.ndjson tuesday.ndjson --fail-on opened,unmeasured

    Status of a comparison of runs; its notes give the reasons:

    \b
      clean                complete evidence on both sides
      partial:health       a capture is incomplete, or could not name what was reached
      partial:correlation  calls and events could not be matched with certainty
      partial:unbound      some values belong to no call
      failed               evidence is missing or broken; nothing was compared

    Parts of names that change in every run (process and descriptor numbers, UUIDs, times,
    hashes, random endings, inodes, ports, the run's folder) are replaced before names are
    compared, in names that the run itself created, removed or changed. Names in the workspace,
    and those that were only read, are compared as they are. A note counts what was replaced,
    ignored, or varies among the baselines.

    --fail-on also fails where the answer cannot be known: added- if the capture of B is
    incomplete, removed- if that of A is. stderr gives the reason for each word. `partial`
    means any status but clean, `unbound` that something belongs to no call, `any` each of the
    other words, and calls on one side only.

    --canonical prints the first line of each layer that differs. Process numbers become
    p1, p2, …, run_id becomes run, the run's folder (run). It also prints what the capture of
    a side missed, because equal lines then prove nothing.

    Exit 0 also if they differ; 1 if --fail-on applies, the status is failed, or --canonical
    found a difference, a damaged archive or an incomplete capture; 2 if A or B is no evidence.
    """
    words = split_words(options.fail_on, "--fail-on")
    run_now(lambda: _diff_sides(options, words))


def _diff_sides(options: DiffOptions, words: list[str]) -> int:
    """Compare two matrices, two runs or their layers, as the options of `stream diff` ask for."""
    base, head = options.base, options.head
    as_record = options.json or not sys.stdout.isatty()
    for_runs = options.ignore or options.baseline
    if _are_matrices(base, head):
        if options.canonical or for_runs:
            raise typer.BadParameter(
                "--canonical, --ignore and --baseline are for runs, not for matrices"
            )
        return _compare_matrices(base, head, words, as_record=as_record)
    from stream.compare.diff import WORDS

    _check_known_words(words, WORDS, "runs")
    if options.canonical:
        if options.json or words or for_runs:
            raise typer.BadParameter(
                "--canonical does not go with --json, --fail-on, --ignore or --baseline"
            )
        return _compare_layers(base, head)
    return _compare_runs(
        [base, head, *options.baseline], options.ignore, words, as_record=as_record
    )


def _are_matrices(base: str, head: str) -> bool:
    """Return whether a side holds boundary objects. Raise UsageError where the other side holds
    something else."""
    from stream.cli.inputs import kind_of_input
    from stream.errors import UsageError

    kinds = [kind_of_input(base), kind_of_input(head)]
    if "boundary" not in kinds:
        return False
    for path, kind in zip((base, head), kinds, strict=True):
        if kind not in ("boundary", None):
            raise UsageError(f"{path}: not a file of boundary objects, but the other side is")
    return True


def _check_known_words(words: list[str], known: tuple[str, ...], what: str) -> None:
    for word in words:
        if word not in known:
            raise typer.BadParameter(f"--fail-on {word}: for {what}, use one of {', '.join(known)}")


def _compare_matrices(base: str, head: str, words: list[str], *, as_record: bool) -> int:
    """Compare two matrices, print the changed cells and return the exit code."""
    from stream.compare.diff import CELL_WORDS, diff_matrices, fail_on_cell_reason

    _check_known_words(words, CELL_WORDS, "matrices")
    found = diff_matrices(base, head)
    _print_difference(found, _matrix_diff_lines(found), as_record=as_record)
    reasons = {
        word: why for word in dict.fromkeys(words) if (why := fail_on_cell_reason(word, found))
    }
    for word, why in reasons.items():
        print_note(f"stream: --fail-on {word}: {why}")
    return 1 if reasons else 0


def _print_difference(
    found: BoundaryDiff | CapabilityDiff, lines: Iterator[str], *, as_record: bool
) -> None:
    """Print what two sides differ in as a record, or in lines for people."""
    if as_record:
        import msgspec

        print_answer(msgspec.json.encode(found))
    else:
        from stream.errors import printable

        print_answer("\n".join(map(printable, lines)))


def _matrix_diff_lines(found: BoundaryDiff) -> Iterator[str]:
    """Yield the difference of two matrices as lines for people."""
    for what, changes in (
        ("opened", found.opened),
        ("closed", found.closed),
        ("can no longer be measured", found.unmeasured),
        ("can be measured now", found.measured),
    ):
        yield f"{what}: {len(changes)}"
        for one in changes:
            outcomes = f"{_outcome_words(one.base)} -> {_outcome_words(one.head)}"
            yield f"  {one.probe} ({one.mode})  {outcomes}  {one.capability}"
    yield f"unchanged, or measured on neither side: {found.unchanged}"
    yield from (f"note: {note}" for note in found.notes)


def _outcome_words(side: CellSide) -> str:
    return f"{side.outcome} {side.errno}" if side.errno else side.outcome


def _compare_runs(paths: list[str], ignore: list[str], words: list[str], *, as_record: bool) -> int:
    """Compare the runs at `paths`: A, B, and the baselines of A."""
    from stream.compare.diff import diff_runs
    from stream.compare.sides import read_evidence

    base, head, *baseline = sides = [*map(read_evidence, paths)]
    found = diff_runs(base, head, baseline=baseline, ignore=ignore)
    _print_difference(found, _run_diff_lines(found, paths), as_record=as_record)
    failures = [*_fail_on_reasons(words, found, [side.problems for side in sides])]
    for failure in failures:
        print_note(f"stream: {failure}")
    return 1 if failures else 0


def _fail_on_reasons(
    words: list[str], found: CapabilityDiff, problems: list[list[str]]
) -> Iterator[str]:
    """Yield each reason for exit code 1, one line each."""
    from stream.compare.diff import fail_on_reason

    if found.status == "failed":
        names = ["A", "B", *("--baseline" for _ in problems[2:])]
        for name, side in zip(names, problems, strict=True):
            yield from (f"diff: failed: {name}: {problem}" for problem in side)
        return
    for word in dict.fromkeys(words):
        if why := fail_on_reason(word, found):
            yield f"--fail-on {word}: {why}"


def _run_diff_lines(found: CapabilityDiff, paths: list[str]) -> Iterator[str]:
    """Yield the capability diff of two runs as lines for people."""
    for side, run_id, path in zip(
        ("base", "head"), (found.base_run_id, found.head_run_id), paths[:2], strict=True
    ):
        yield f"{side}    {run_id or '(unknown)'}  {path}"
    yield f"status  {found.status}"
    for line in found.notes:
        yield f"        {line}"
    for name, changes in (*found.surface.items(), ("tool_calls", found.binding_ids)):
        counts = f"+{len(changes.added)} -{len(changes.removed)} ={len(changes.unchanged)}"
        yield f"{name:18}{counts}"
        yield from (f"  + {value}" for value in changes.added)
        yield from (f"  - {value}" for value in changes.removed)
    for change in found.policy_outcomes["changed"]:
        yield f"policy: {change['tool_call_id']}: {change['base']} -> {change['head']}"
    for ambiguity in found.ambiguities:
        yield f"ambiguity: {ambiguity}"


def _compare_layers(base: str, head: str) -> int:
    """Compare the canonical layers of two runs, print each and return the exit code."""
    from stream.compare.diff import CanonicalLayers, compare_layers
    from stream.errors import printable

    sides = CanonicalLayers(base), CanonicalLayers(head)
    damages = [(name, side.damage) for name, side in zip("AB", sides, strict=True) if side.damage]
    for name, damage in damages:
        print_note(f"stream: diff: failed: {name}: {damage}")
    if damages:
        return 1
    holds = True
    for name, side in zip("AB", sides, strict=True):
        for doubt in side.doubts:
            holds = False
            print_answer(f"{name}: its capture is incomplete: {printable(doubt)}")
    for found in compare_layers(*sides):
        holds = holds and found.difference is None
        for line in _layer_diff_lines(found):
            print_answer(line)
    return 0 if holds else 1


def _layer_diff_lines(found: LayerComparison) -> Iterator[str]:
    """Yield where one layer of two runs differs first, as lines for people."""
    if found.difference is None:
        yield f"{found.layer}: {number(found.lines, 'line')}, the same"
        return
    yield f"{found.layer}:{found.difference.line}: differs"
    yield f"  A {_printable_layer_line(found.difference.base)}"
    yield f"  B {_printable_layer_line(found.difference.head)}"


def _printable_layer_line(line: bytes | None) -> str:
    """Return a line of a layer as printable text, cut to what a terminal shows."""
    from stream.errors import printable

    if line is None:
        return "(no such line)"
    text = printable(line.decode(errors="backslashreplace"))
    return text if len(text) <= _SHOWN_LINE else text[:_SHOWN_LINE] + "…"


def apply(
    run: Path = typer.Argument(..., metavar="RUN", help="The folder of a run."),
    to: Path | None = typer.Option(
        None, metavar="DIR", help="Another folder than the one that the workspace was copied from."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the changes, and change nothing."),
) -> None:
    """Apply a run's changes to the folder its workspace came from.

    All or nothing: every path must be as it was when the run began, or already as the run left
    it, and unchanged in the workspace since. If any is not, each is named, nothing is changed,
    and the exit code is 1. Files are replaced one by one, each in one step, and never written
    in place: other hard links of a file keep the old content. `.gitattributes` has no effect on
    line endings. A run that was captured redacted or hashed cannot be applied.

    Changes inside .git are never applied. To take over commits of the agent:

    \b
      git fetch RUN/workspace

    \b
      stream apply runs/RUN --dry-run
      stream apply runs/RUN
      stream apply runs/RUN --to ../another-checkout
    """
    run_now(lambda: _apply_changes(run, to, dry_run))


def _apply_changes(run: Path, to: Path | None, dry_run: bool) -> int:
    """Apply the changes of a run to its source folder, or print them, and return the exit code."""
    from stream.cli.inputs import expect_input
    from stream.verify.run_folder import RunFolder
    from stream.workspace.apply import apply_plan, path_of_change, plan_changes

    expect_input(run, "run")
    folder = RunFolder(run)
    plan = plan_changes(run, folder.recorded_metadata(), folder.recorded_changes(), to)
    if plan is None:
        print_note("apply: nothing to do: the agent worked in the folder itself")
        return 0
    if plan.inside_git:
        changes = number(plan.inside_git, "change")
        print_note(
            f"apply: {changes} inside .git left out; for commits: git fetch {plan.workspace}"
        )
    if plan.conflicts:
        _report_conflicts(run, plan)
        return 1
    if dry_run:
        for change in plan.todo:
            print_note(f"{change.change:8} {os.fsdecode(path_of_change(change))}")
    else:
        apply_plan(plan)
    verb = "would be applied" if dry_run else "applied"
    done = f", {plan.done} there already" if plan.done else ""
    print_note(f"apply: {number(len(plan.todo), 'change')} {verb} to {plan.target}{done}")
    return 0


def _report_conflicts(run: Path, plan: ApplyPlan) -> None:
    """Report on stderr which changes of a run conflict with the folder they would go to."""
    from stream.records.run import DIFF_FILE

    for conflict in plan.conflicts[:_SHOWN_CONFLICTS]:
        print_note(f"stream: {plan.target / os.fsdecode(conflict.path)}: {conflict.reason}")
    more = len(plan.conflicts) - _SHOWN_CONFLICTS
    if more > 0:
        print_note(f"stream: and {more} more")
    print_note(f"apply: by hand: the files are in {plan.workspace}, the patch in {run / DIFF_FILE}")
    print_note(f"apply: {number(len(plan.conflicts), 'conflict')}, nothing was changed")
