"""stream check"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from stream.cli.running import (
    BOUNDARY,
    FORCE,
    CarefulCommand,
    number,
    run_filter,
    run_now,
    say,
    tell,
    tell_unchecked,
)

if TYPE_CHECKING:
    from stream.checking import Answer
    from stream.sinks.ndjson import People, Records


class _Profile(StrEnum):
    poc = "poc"
    agents = "agents"


def register(app: typer.Typer) -> None:
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
    boundary: str | None = BOUNDARY,
    rules: bool = typer.Option(False, "--rules", help="Print the rules and exit."),
    findings: str | None = typer.Option(
        None, metavar="FILE", help="Where finding records go. Default: stdout (`-`: only stderr)."
    ),
    reject: str | None = typer.Option(
        None, metavar="FILE", help="Where a record of each line that is no JSON object goes."
    ),
    force: bool = FORCE,
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
        run_now(_tell_rules)
    if target is None:
        raise typer.BadParameter("a run folder, a file or `-` is missing")

    async def work() -> int:
        from stream.checking import run_check
        from stream.recognition import expect
        from stream.sinks.places import check_outputs

        expect(target, "run", "events")
        check_outputs([findings, reject], [target], force=force)
        sinks = _sinks(target == "-", findings, reject)
        answer = await run_check(
            target, None if profile is None else profile.value, boundary, *sinks
        )
        say(_summary(answer))
        as_filter = target == "-"
        is_unchecked = tell_unchecked("check", answer.unknown, answer.counts, as_filter=as_filter)
        return 1 if answer.errors or answer.counts.rejected or is_unchecked else 0

    run_filter([target], work)


def _sinks(is_filter: bool, findings: str | None, reject: str | None) -> list[Records | People]:
    from stream.records.control import Finding, Gap, Reject
    from stream.sinks.ndjson import People, Records

    sinks: list[Records | People] = [Records("-")] if is_filter else []
    if findings:
        sinks.append(Records(findings, Finding))
    else:
        if not is_filter and not sys.stdout.isatty():
            sinks.append(Records("-", Finding))
        sinks.append(People((Finding, Gap)))
    if reject:
        sinks.append(Records(reject, Reject))
    return sinks


def _summary(answer: Answer) -> str:
    what = f"{number(answer.events, 'event')} of {number(answer.runs, 'run')}"
    return f"check: {answer.counts}; {what}; {number(answer.findings, 'finding')}"


def _tell_rules() -> int:
    from stream.stages.rules import RULES

    width = max(map(len, RULES))
    for name, rule in RULES.items():
        note = "" if rule.severity == "error" else f" ({rule.severity})"
        tell(f"{name:{width}}  {rule.section:6}  {rule.sentence}{note}")
    return 0
