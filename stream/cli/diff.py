"""stream diff"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from stream.cli.options import CarefulCommand, split_words
from stream.cli.runner import echo, note, number, run_now

if TYPE_CHECKING:
    from stream.compare.layers import LayerComparison
    from stream.records.artifacts import CapabilityDiff
    from stream.records.boundary import BoundaryDiff, CellSide

_SHOWN = 240  #: characters of a line


def register(app: typer.Typer) -> None:
    app.command(cls=CarefulCommand)(diff)


def diff(
    base: str = typer.Argument(metavar="A", help="What was: an archive, a run or a matrix."),
    head: str = typer.Argument(metavar="B", help="What is: the same."),
    json: bool = typer.Option(False, "--json", help="One record, on a terminal as well."),
    fail_on: list[str] = typer.Option(
        [],
        metavar="WORDS",
        help="Exit 1 where there is such a difference: added- or removed- with paths, endpoints,"
        " execs, tools or decisions; changed-policy; partial; unbound; any. Of two matrices:"
        " opened, closed, unmeasured, measured, any.",
    ),
    ignore: list[str] = typer.Option(
        [],
        metavar="GLOB",
        help="Leave such paths and programs out. A * is any text, a / in it too.",
    ),
    baseline: list[str] = typer.Option(
        [],
        metavar="A",
        help="Another run of the kind of A: what flaps among them is no difference.",
    ),
    canonical: bool = typer.Option(
        False, "--canonical", help="Compare the layers line by line, with labels for processes."
    ),
) -> None:
    """Say what differs between two runs, or between two matrices.

    Of two runs it says what one reached that the other did not: files, endpoints, programs, tools,
    decisions, and the decisions about calls that both have. Each of A and B is an archive, a run
    folder, or a folder with the three artifacts as loose files. On a terminal it prints a table,
    else one record, assay.runner.capability_diff.v0.

    It does not verify: an archive has to be whole, and the evidence as the manifest of the archive
    or of the run lists it, but what it says is taken as it is. Run stream verify on both first.
    Only an archive of the contract's own files alone is verified, as nothing else bears it out.

    \b
      stream diff before.tar.gz after.tar.gz
      stream diff runs/RUN1 runs/RUN2 | jq .surface.filesystem_paths.added
      stream diff main.tar.gz branch.tar.gz --fail-on added-paths,added-endpoints

    Two files of boundary objects are compared cell by cell: what opened, what closed, what can no
    longer be measured and what can be now. A cell that is missing, an error, or ended in several
    ways is one that was not measured. The record is stream.boundary_diff.v1.

    \b
      stream diff monday.ndjson tuesday.ndjson --fail-on opened,unmeasured

    The status says how far the comparison of two runs holds, and the notes say why: clean;
    partial:health where a capture is not complete, or could not name what was reached;
    partial:correlation where calls and events were not told apart; partial:unbound where values
    belong to no call; failed where evidence is missing or broken, and nothing was compared;
    stderr says why.

    What is another in the names of each run is compared without it, and counted in a note: the
    number of a process of the run (pid) or of what it has open (fd), a UUID, a ULID, a time, a
    hash, a random ending, an inode, a port of the run's own, and its folder, as a path or written
    as one word (run). Such a name has to be one that the run itself gave, took away or changed:
    what it only read, and what lies in its workspace, is compared as it is, but for a temporary
    file there with a process of the run in its name. An ending that may be a word has to be one
    of a file made for its owner alone, as mkdtemp does, in both runs.

    --ignore leaves out what somebody knows to be of no interest, and --baseline what differs
    among runs of the same kind anyway: values that some of A and its baselines have, and not all.
    A baseline that was not seen completely lacks nothing for certain. Both are counted in a note.

    \b
      stream diff main.tar.gz branch.tar.gz --ignore '*/.cache/*' --fail-on added-paths
      stream diff main1.tar.gz branch.tar.gz --baseline main2.tar.gz --baseline main3.tar.gz

    With --canonical the layers themselves are compared. Process numbers become p1, p2, … in the
    order in which they are met, run_id becomes run, the way to the run's own folder (run), all
    else must be the same. It prints the first line of each layer that is not, and what the
    health of a side says was not seen: where something was not, equal lines prove nothing. Of a
    damaged archive nothing is compared.

    \b
      stream diff --canonical runs/RUN1 runs/RUN2

    What lies in a run's own folder is compared without the way there, as (run)/workspace/… ,
    where its events say which folder that was. A program by whose name another file ran counts
    as removed and added, where both sides know the files: with eBPF. strace does not know them,
    a note says so, and nothing is called identical; added-execs and removed-execs go by the
    names then.

    --fail-on holds for what nobody can know, too: added- by the health of B, removed- by that
    of A. Where its kernel layer is not complete, events were lost or have no name, or its control
    group is partial, that is paths, endpoints and execs; where io_uring went unseen, paths and
    endpoints; where its network coverage is unknown, endpoints. strace has the process tree only,
    and no control group to compare it with: that alone is no blindness, but partial. So is a tool
    call that nobody decided about, where others were decided. For each word that holds, stderr
    says why.

    \b
      partial   the status is not clean, whatever the reason
      unbound   a side did anything that is bound to no call: what an agent does between its
                calls leaves no call in doubt, and a comparison clean
      any       each of the other words, and calls that only one side has

    Exit 0, also where they differ; 1 where --fail-on says so, where the status is failed, or
    where --canonical found a difference, a damaged archive or a side of which not all was seen;
    2 where A or B is no evidence.
    """
    words = split_words(fail_on, "--fail-on")
    as_record = json or not sys.stdout.isatty()

    def work() -> int:
        if _are_matrices(base, head):
            if canonical or ignore or baseline:
                raise typer.BadParameter(
                    "--canonical, --ignore and --baseline are of two runs, not of matrices"
                )
            return _compare_matrices(base, head, words, as_record=as_record)
        _check_words(words)
        if canonical:
            if json or words or ignore or baseline:
                raise typer.BadParameter(
                    "--canonical goes with neither --json nor --fail-on, --ignore nor --baseline"
                )
            return _compare_layers(base, head)
        return _compare([base, head, *baseline], ignore, words, as_record=as_record)

    run_now(work)


def _are_matrices(base: str, head: str) -> bool:
    """Whether they are to be read as boundary objects: where one side holds them. Raise UsageError
    where the other plainly holds something else."""
    from stream.contracts import kind_of
    from stream.errors import UsageError

    kinds = [kind_of(base), kind_of(head)]
    if "boundary" not in kinds:
        return False
    for path, kind in zip((base, head), kinds, strict=True):
        if kind not in ("boundary", None):
            raise UsageError(f"{path}: no file of boundary objects, as the other side is")
    return True


def _check_words(words: list[str]) -> None:
    from stream.compare.diff import WORDS

    _refuse_others(words, WORDS, "of runs")


def _refuse_others(words: list[str], known: tuple[str, ...], what: str) -> None:
    for word in words:
        if word not in known:
            raise typer.BadParameter(f"--fail-on {word}: {what} it is one of {', '.join(known)}")


def _compare_matrices(base: str, head: str, words: list[str], *, as_record: bool) -> int:
    import msgspec

    from stream.compare.matrices import WORDS, diff_matrices, reason

    _refuse_others(words, WORDS, "of matrices")
    found = diff_matrices(base, head)
    if as_record:
        echo(msgspec.json.encode(found))
    else:
        from stream.errors import visible

        echo("\n".join(map(visible, _cells(found))))
    reasons = {word: why for word in dict.fromkeys(words) if (why := reason(word, found))}
    for word, why in reasons.items():
        note(f"stream: --fail-on {word}: {why}")
    return 1 if reasons else 0


def _cells(found: BoundaryDiff) -> Iterator[str]:
    for what, changes in (
        ("opened", found.opened),
        ("closed", found.closed),
        ("can no longer be measured", found.unmeasured),
        ("can be measured now", found.measured),
    ):
        yield f"{what}: {len(changes)}"
        for one in changes:
            outcomes = f"{_ended(one.base)} -> {_ended(one.head)}"
            yield f"  {one.probe} ({one.mode})  {outcomes}  {one.capability}"
    yield f"unchanged, or measured on neither side: {found.unchanged}"
    yield from (f"note: {note}" for note in found.notes)


def _ended(side: CellSide) -> str:
    return f"{side.outcome} {side.errno}" if side.errno else side.outcome


def _compare(paths: list[str], ignore: list[str], words: list[str], *, as_record: bool) -> int:
    """`paths`: of A, of B, and of A's baselines."""
    import msgspec

    from stream.compare.diff import diff
    from stream.compare.evidence import read_evidence

    base, head, *baseline = sides = [*map(read_evidence, paths)]
    found = diff(base, head, baseline=baseline, ignore=ignore)
    if as_record:
        echo(msgspec.json.encode(found))
    else:
        from stream.errors import visible

        echo("\n".join(map(visible, _table(found, paths))))
    failures = [*_failures(words, found, [side.problems for side in sides])]
    for failure in failures:
        note(f"stream: {failure}")
    return 1 if failures else 0


def _failures(words: list[str], found: CapabilityDiff, problems: list[list[str]]) -> Iterator[str]:
    """Why the exit code is 1, for people: a line each."""
    from stream.compare.diff import reason

    if found.status == "failed":
        names = ["A", "B", *("--baseline" for _ in problems[2:])]
        for name, side in zip(names, problems, strict=True):
            yield from (f"diff: failed: {name}: {problem}" for problem in side)
        return
    for word in dict.fromkeys(words):
        if why := reason(word, found):
            yield f"--fail-on {word}: {why}"


def _table(found: CapabilityDiff, paths: list[str]) -> Iterator[str]:
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
    from stream.compare.layers import CanonicalLayers, compare
    from stream.errors import visible

    sides = CanonicalLayers(base), CanonicalLayers(head)
    damages = [(name, side.damage) for name, side in zip("AB", sides, strict=True) if side.damage]
    for name, damage in damages:
        note(f"stream: diff: failed: {name}: {damage}")
    if damages:
        return 1
    holds = True
    for name, side in zip("AB", sides, strict=True):
        for doubt in side.doubts:
            holds = False
            echo(f"{name}: not all of it was seen: {visible(doubt)}")
    for found in compare(*sides):
        holds = holds and found.parting is None
        for line in _report(found):
            echo(line)
    return 0 if holds else 1


def _report(found: LayerComparison) -> Iterator[str]:
    if found.parting is None:
        yield f"{found.layer}: {number(found.lines, 'line')}, the same"
        return
    yield f"{found.layer}:{found.parting.line}: differs"
    yield f"  A {_line(found.parting.base)}"
    yield f"  B {_line(found.parting.head)}"


def _line(line: bytes | None) -> str:
    from stream.errors import visible

    if line is None:
        return "(no such line)"
    text = visible(line.decode(errors="backslashreplace"))
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
