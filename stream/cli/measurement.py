"""What commands share that measure modes themselves: their options, the plan, and the records."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import typer

from stream.cli.matrix import MatrixOptions, affordable_jobs, default_jobs, report_matrix
from stream.cli.options import ListsCommand, Options, Probes, ProbeTimeout, split_words
from stream.cli.runner import MatrixProgress, print_note

if TYPE_CHECKING:
    from stream.boundary.contradictions import PromiseCheck
    from stream.boundary.scripts import MatrixPlan
    from stream.records.modes import ModeBoundary


class MeasureCommand(ListsCommand):
    """A command that measures modes, some of whose options take several words."""

    lists = ("--mode", "--probe", "--cap")


class MeasureOptions(Options):
    """Holds the options that say what is measured."""

    mode: list[str] = typer.Option(
        [],
        metavar="M…",
        help="Measure these modes (see `stream modes`). Default: those of the lockfile, or all"
        " that can be run here.",
    )
    probe: list[str] = typer.Option(
        [], metavar="ID…", help="Measure with these probes. Default: all."
    )
    cap: list[str] = MatrixOptions.cap
    probes: Probes = None
    run_as: str | None = MatrixOptions.run_as
    repeat: int = typer.Option(
        1, metavar="N", min=1, max=1000, help="Run every cell N times, to find those that flap."
    )
    policy: list[str] = MatrixOptions.policy
    jobs: int | None = MatrixOptions.jobs
    timeout: ProbeTimeout = 30.0

    @cached_property
    def promises(self) -> PromiseCheck:
        """Return what judges records by the policies that are named, if there are any."""
        from stream.boundary.contradictions import PromiseCheck
        from stream.boundary.descriptors import find_catalogs
        from stream.boundary.policies import read_policies
        from stream.boundary.policy_rules import places_in_slots
        from stream.process.users import find_user

        places = places_in_slots(find_user(self.run_as).home)
        capabilities = find_catalogs(None).capability_ids()
        return PromiseCheck(read_policies(self.policy, places, capabilities))

    def report_promises(self) -> int:
        """Report on stderr what contradicts a policy. Return 1 if something that it denies got
        through."""
        from stream.records.control import sentence_for_people

        findings = self.promises.findings() if self.policy else []
        for finding in findings:
            print_note(sentence_for_people(finding))
        if self.policy:
            print_note(f"stream: policy: {self.promises.summary}")
        return 1 if any(finding.severity == "error" for finding in findings) else 0


def modes_to_lock() -> list[str]:
    """Return the names of all modes that can be run here, without the baseline."""
    from stream.boundary.modes import find_modes
    from stream.records.modes import BASELINE

    return [
        mode.name
        for mode in find_modes()
        if not (mode.name == BASELINE or mode.document.untested or mode.reason_unavailable)
    ]


def plan_modes(options: MeasureOptions, modes: list[str], locked: Iterable[str] = ()) -> MatrixPlan:
    """Plan the matrix that measures modes: with the probes that are named, or else with those that
    are locked, as far as they are still there, or else with all."""
    from stream.boundary.scripts import BUNDLED, find_scripts
    from stream.matrix.plan import MatrixRequest, make_plan

    probes = split_words(options.probe, "--probe")
    capabilities = split_words(options.cap, "--cap")
    if not probes and not capabilities and (wanted := set(locked)):
        found = find_scripts(options.probes or BUNDLED)
        probes = [script.id for script in found if script.id in wanted]
    return make_plan(
        MatrixRequest(
            probes=probes,
            capabilities=capabilities,
            modes=modes,
            folder=options.probes,
            repeat=options.repeat,
            run_as=options.run_as,
            from_outside=True,
        )
    )


async def measured_records(options: MeasureOptions, plan: MatrixPlan) -> list[ModeBoundary]:
    """Run a matrix, and return its records. Without any mode to measure, there are none."""
    from stream.matrix.plan import start_plan
    from stream.matrix.run import Matrix
    from stream.pipeline import CollectingSink
    from stream.records.control import BOUNDARY
    from stream.records.modes import decode_mode_boundary

    if plan.measured is not None and len(plan.measured.modes) < 2:  # the baseline alone
        return []
    sink, progress = CollectingSink((BOUNDARY,)), MatrixProgress(plan.cell_count, is_shown=True)
    with start_plan(plan, min(options.jobs or default_jobs(), affordable_jobs())) as started:
        try:
            result = await Matrix(started, timeout=options.timeout, on_done=progress).run(sink)
        finally:
            progress.clear_line()
    report_matrix(result, raw=False, quiet=True)
    return [decode_mode_boundary(line) for line in sink.items]
