"""The commands for the machine and for authors of probes: doctor, probe, gate and helpers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.exceptions import TyperException

from stream.cli.options import Boundary, CarefulCommand, Catalog, Probes, ProbeTimeout, Workspace
from stream.cli.runner import echo, note, number, run, run_now

if TYPE_CHECKING:
    from stream.matrix.plan import MatrixRequest
    from stream.matrix.run import MatrixResult


def register_doctor(app: typer.Typer) -> None:
    """Add `stream doctor` to the command line."""
    app.command()(doctor)


def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object for each check."),
) -> None:
    """Report what works on this machine and what to install.

    Each check is ok, limited or missing, with what was found. Exit 1 if something is missing
    that `stream matrix` needs.
    """

    async def work() -> int:
        import msgspec

        from stream.doctor import checks

        found = await checks()
        for check in found:
            if as_json:
                echo(msgspec.json.encode(check))
            else:
                echo(f"{check.state:8} {check.name:14} {check.detail}")
        return 1 if any(check.needed and check.state == "missing" for check in found) else 0

    run(work)


class _ProbeHelperCommand(CarefulCommand):
    """A command that runs as a helper of the same name: its first word is the bin/ folder of the
    helper. Wrong use and unusable input exit with 1."""

    helper_folder: Path | None = None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the folder of the helper off the words."""
        _ProbeHelperCommand.helper_folder = Path(args[0]) if args else None
        try:
            return super().parse_args(ctx, args[1:])
        except TyperException as error:
            error.exit_code = 1
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command with the helper's exit codes."""
        from stream.errors import InputError, UsageError

        UsageError.exit_code = InputError.exit_code = 1
        return super().invoke(ctx)


def register(app: typer.Typer) -> None:
    """Add `stream probe`, `gate` and `helpers` to the command line."""
    app.command(cls=CarefulCommand)(probe)
    app.command(cls=CarefulCommand)(gate)
    app.command()(helpers)
    app.command("probe-exec", cls=_ProbeHelperCommand, hidden=True)(probe_exec)
    app.command("probe-contract-gate", cls=_ProbeHelperCommand, hidden=True)(gate)


def probe(
    name: str = typer.Argument(..., metavar="ID", help="A probe id, or a path to its script."),
    mode: str | None = typer.Option(
        None, metavar="M", help="Run mode. Default: the pattern's first."
    ),
    probes: Probes = None,
    catalog: Catalog = None,
    boundary: Boundary = None,
    workspace: Workspace = None,
    timeout: ProbeTimeout = 30.0,
) -> None:
    """Run one probe in one mode and print its record.

    Exit 0 if the record is the probe's own, 1 if the harness wrote it.

    \b
      stream probe fs_tmp_write
      stream probe ./probes/my_probe.sh --workspace ./project
    """

    async def work() -> int:
        from stream.matrix.plan import MatrixRequest

        request = MatrixRequest(
            probes=[name],
            modes=[mode] if mode else [],
            folder=probes or _folder_of(name),
            catalog=catalog,
            boundary=boundary,
            workspace=workspace,
        )
        result = await _run_one(request, timeout)
        return 1 if result.failed or result.strays else 0

    run(work)


def probe_exec(
    words: list[str] = typer.Argument(..., metavar="[MODE] PROBE", help="The probe."),
    mode: str | None = typer.Option(
        None, metavar="M", help="Run mode. Default: the pattern's first."
    ),
    probes: Path | None = typer.Option(
        None, metavar="DIR", help="A folder of probe scripts. Default: ../probes, or the bundled."
    ),
    catalog: Catalog = None,
    boundary: Boundary = None,
    workspace: Path | None = typer.Option(
        None,
        "--workspace",
        "--workspace-root",
        metavar="DIR",
        help="Where it runs. Default: FENCE_WORKSPACE_ROOT, the git repository, the folder.",
    ),
    timeout: ProbeTimeout = 30.0,
) -> None:
    """Run one probe in one mode and print its record, as the helper probe-exec does.

    Exit 0 if the record is the probe's own, 1 for wrong use, 3 if it took too long, and 2 if the
    harness wrote the record for another reason.
    """

    async def work() -> int:
        from stream.errors import UsageError
        from stream.matrix.plan import MatrixRequest

        if len(words) > 2 or (mode and len(words) == 2):
            raise UsageError("expected one probe, or a mode and a probe")
        name, given = words[-1], words[0] if len(words) == 2 else mode
        request = MatrixRequest(
            probes=[name],
            modes=[given] if given else [],
            folder=probes or _folder_of(name) or _helper_probes(name),
            catalog=catalog,
            boundary=boundary,
            workspace=workspace,
        )
        result = await _run_one(request, timeout)
        if any(failure.reason == "timed-out" for failure in result.failures):
            return 3
        return 2 if result.failed or result.strays else 0

    run(work)


async def _run_one(request: MatrixRequest, timeout: float) -> MatrixResult:
    from stream.matrix.plan import make_plan, start_plan
    from stream.matrix.run import run_matrix
    from stream.sinks.ndjson import Ndjson

    with start_plan(make_plan(request), jobs=1) as started:
        result = await run_matrix(started, Ndjson("-"), timeout=timeout)
    for failure in result.failures:
        note(f"stream: {failure.probe} ({failure.mode}): {failure.sentence}")
    return result


def gate(
    names: list[str] = typer.Argument(
        None,
        metavar="[ID|PATH…]",
        help="Probe ids, paths to scripts, or one folder. Default: the whole folder.",
    ),
    static: bool = typer.Option(False, "--static", help="Only read the scripts, run nothing."),
    probes: Probes = None,
    catalog: Catalog = None,
    boundary: Boundary = None,
    workspace: Path | None = typer.Option(
        None,
        metavar="DIR",
        help="Where probes run. Default: a scratch repository, checked for leftovers.",
    ),
    timeout: ProbeTimeout = 10.0,
) -> None:
    """Check probe scripts against the author's contract.

    The contract is probes/AGENTS.md. Each script is read, then run once, and every word that
    it passes to emit-record is checked. Findings go to stdout as records, and to stderr as
    sentences. Exit 1 if there is a finding. A script runs from its own folder; files that it
    creates there are not noticed.

    \b
      stream gate fs_tmp_write
      stream gate ./probes/my_probe.sh
      stream gate --static ./probes
    """

    async def work() -> int:
        from stream.matrix.gate import run_gate
        from stream.matrix.plan import MatrixRequest
        from stream.records.control import FINDINGS
        from stream.sinks.ndjson import Ndjson, Text

        sinks: list[Any] = [Text((FINDINGS,))]
        if not sys.stdout.isatty():
            sinks.append(Ndjson("-", (FINDINGS,)))
        checked = findings = 0
        for folder, named in _by_folder(names or [], probes).items():
            request = MatrixRequest(
                probes=named,
                folder=folder,
                catalog=catalog,
                boundary=boundary,
                workspace=workspace,
            )
            result = await run_gate(request, *sinks, static=static, timeout=timeout)
            checked += result.probes
            findings += result.findings
        note(f"gate: {number(checked, 'probe')}, {number(findings, 'finding')}")
        return 1 if findings else 0

    run(work)


def helpers() -> None:
    """Print the folder of the helpers that probes call.

    A probe looks for them in ../bin, relative to its script. `stream` provides them; to run a
    probe without it, link them there:

    \b
      ln -s "$(stream helpers)" bin
    """

    def show() -> int:
        from stream.boundary.scripts import HELPERS

        echo(str(HELPERS))
        return 0

    run_now(show)


def _by_folder(names: list[str], probes: Path | None) -> dict[Path | None, list[str]]:
    """Group the names by folder. An empty list means all probes of the folder."""
    found: dict[Path | None, list[str]] = {} if names else {probes or _helper_probes(): []}
    for name in names:
        folder = probes or _folder_of(name) or _helper_probes(name)
        if probes is None and Path(name).is_dir():
            found[folder] = []
        elif found.get(folder, [""]):  # an empty list already means all of them
            found.setdefault(folder, []).append(name)
    return found


def _folder_of(name: str) -> Path | None:
    """Return the folder of a script that is named by a path."""
    from stream.errors import InputError

    path = Path(name)
    if path.is_dir():
        return path
    if "/" not in name and not (path.suffix == ".sh" and path.exists()):
        return None
    script = path if path.suffix == ".sh" else path.with_name(f"{path.name}.sh")
    if not os.path.lexists(script):
        reason = "its name does not end in .sh" if os.path.lexists(path) else "no such file"
        raise InputError(f"{name}: {reason}")
    return path.parent


def _helper_probes(name: str = "") -> Path | None:
    """Return the probes/ next to the bin/ that a helper was called in, if it has that probe."""
    if _ProbeHelperCommand.helper_folder is None:
        return None
    # By name alone: bin may be a link.
    folder = Path(os.path.abspath(_ProbeHelperCommand.helper_folder / os.pardir / "probes"))  # noqa: PTH100
    script = folder / (name if name.endswith(".sh") else f"{name}.sh")
    return folder if (script.is_file() if name else folder.is_dir()) else None
