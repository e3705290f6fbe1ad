"""stream doctor"""

from __future__ import annotations

import typer

from stream.cli.running import run, tell


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    as_json: bool = typer.Option(False, "--json", help="One JSON object for each check."),
) -> None:
    """Say what works on this machine and what to install.

    Each check is ok, limited or missing, with what was found. Exit 1 if something is missing
    that `stream matrix` cannot do without.
    """

    async def work() -> int:
        import msgspec

        from stream.doctor import checks

        found = await checks()
        for check in found:
            if as_json:
                tell(msgspec.json.encode(check))
            else:
                tell(f"{check.state:8} {check.name:14} {check.detail}")
        return 1 if any(check.needed and check.state == "missing" for check in found) else 0

    run(work)
