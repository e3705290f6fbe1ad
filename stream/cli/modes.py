"""The commands about what can be measured here: modes lists the sandboxes, canary tells whether one
of them is on, and doctor what works on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stream.cli.options import CarefulCommand, ProbeTimeout
from stream.cli.runner import print_answer, print_note, run_now, run_to_exit

if TYPE_CHECKING:
    from stream.matrix.canary import CanaryResult


def modes(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object for each mode."),
) -> None:
    """List the modes: the sandboxes that probes can be started in.

    A mode is a file of catalogs/modes: how a probe is started, what that needs, and what it
    promises. Those that cannot be run here are listed with what is missing. To add one, write
    such a file and name its path: `stream matrix --mode ./mine.toml`.
    """

    def show() -> int:
        """Print the modes and return the exit code."""
        import msgspec

        from stream.boundary.modes import find_modes
        from stream.errors import printable

        found = find_modes()
        width = max(len(mode.name) for mode in found)
        for mode in found:
            reason, title = mode.reason_unavailable, mode.document.title
            untested = " (untested)" if mode.document.untested else ""
            if as_json:
                line = {
                    "mode": mode.name,
                    "title": title,
                    "state": "missing" if reason else "ok",
                    "reason": reason,
                    "untested": mode.document.untested,
                    "install": mode.document.install or None,
                    "path": str(mode.path),
                }
                print_answer(msgspec.json.encode(line))
                continue
            state = "missing" if reason else "ok"
            print_answer(printable(f"{state:8} {mode.name:{width}}  {title}{untested}"))
            if reason:
                print_answer(printable(f"{'':8} {'':{width}}  {reason}"))
        return 0

    run_now(show)


def canary(
    mode: str = typer.Option(
        ..., metavar="M", help="The mode to test: a name of `stream modes`, or a mode's file."
    ),
    run_as: str | None = typer.Option(
        None, "--as", metavar="USER", help="Run as this user. Default: under sudo, who called it."
    ),
    policy: list[str] = typer.Option(
        [],
        metavar="FILE",
        help="What FILE promises to deny must be stopped: a policy, or the settings of Claude"
        " Code, srt or Codex. Default: the mode's file.",
    ),
    timeout: ProbeTimeout = 10.0,
) -> None:
    """Tell whether a sandbox is on.

    Five probes with effects run in it: one writes outside the workspace, one reads a planted
    key, one connects to an address outside, one speaks to a socket outside, and one leaves a
    process behind. Whether they got through is looked up outside of the sandbox.

    \b
      stream canary --mode codex-workspace-write && codex exec "fix the build"

    Exit 0 if all were stopped that must be, 1 if one got through, 40 if it could not be told.
    What a mode must stop is what its file, or --policy, promises to deny or does not name.
    """

    async def work() -> int:
        """Run the canaries and return the exit code."""
        from stream.matrix.canary import run_canaries

        result = await run_canaries(mode, policy, run_as, timeout)
        return _report_canaries(result, Path(mode).stem if "/" in mode else mode)

    run_to_exit(work)


def _report_canaries(result: CanaryResult, mode: str) -> int:
    """Print what got through and what could not be told, and return the exit code."""
    if result.matrix.no_internet:
        print_note(f"stream: the network was not measured: {result.matrix.no_internet}")
    for one in result.verdicts:
        if one.got_through and one.must_stop:
            print_note(f"stream: {mode}: GOT THROUGH: {one.sentence} ({one.probe})")
    for one in result.verdicts:
        if not one.is_told and one.must_stop:
            print_note(f"stream: {mode}: {one.sentence} ({one.probe})")
    required = [one for one in result.verdicts if one.must_stop]
    stopped = sum(one.is_told and not one.got_through for one in required)
    allowed = [one.probe for one in result.verdicts if not one.must_stop and one.got_through]
    also = f"; let through as it promises: {', '.join(allowed)}" if allowed else ""
    print_note(f"stream: {mode}: {stopped} of {len(required)} canaries stopped{also}")
    return result.exit_code


def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object for each check."),
) -> None:
    """Report what works on this machine and what to install.

    Each check is ok, limited or missing, with what was found. Exit 1 if something is missing
    that `stream matrix` needs.
    """

    async def work() -> int:
        """Print what this machine can do and return the exit code."""
        import msgspec

        from stream.doctor import check_machine

        found = await check_machine()
        for check in found:
            if as_json:
                print_answer(msgspec.json.encode(check))
            else:
                print_answer(f"{check.state:8} {check.name:14} {check.detail}")
        return 1 if any(check.needed and check.state == "missing" for check in found) else 0

    run_to_exit(work)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(modes)
    app.command(cls=CarefulCommand)(canary)
