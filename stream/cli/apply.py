"""stream apply"""

from __future__ import annotations

from pathlib import Path

import typer

from stream.cli.running import number, run_now, say

_SHOWN = 20  #: conflicts


def register(app: typer.Typer) -> None:
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

    from stream.recognition import expect
    from stream.records.run import DIFF_FILE
    from stream.workspace.applying import apply_plan, plan_changes
    from stream.workspace.claims import path_of

    expect(run, "run")
    plan = plan_changes(run, to)
    if plan is None:
        say("apply: nothing to do: the agent worked in the folder itself")
        return 0
    if plan.inside_git:
        changes = number(plan.inside_git, "change")
        say(f"apply: {changes} inside .git left out; for commits: git fetch {plan.workspace}")
    if plan.conflicts:
        for conflict in plan.conflicts[:_SHOWN]:
            say(f"stream: {plan.target / os.fsdecode(conflict.path)}: {conflict.reason}")
        more = len(plan.conflicts) - _SHOWN
        if more > 0:
            say(f"stream: and {more} more")
        say(f"apply: by hand: the files are in {plan.workspace}, the patch in {run / DIFF_FILE}")
        say(f"apply: {number(len(plan.conflicts), 'conflict')}, nothing was changed")
        return 1
    if dry_run:
        for change in plan.todo:
            say(f"{change.change:8} {os.fsdecode(path_of(change))}")
    else:
        apply_plan(plan)
    done = "would be applied" if dry_run else "applied"
    said = f"apply: {number(len(plan.todo), 'change')} {done} to {plan.target}"
    say(f"{said}, {plan.done} there already" if plan.done else said)
    return 0
