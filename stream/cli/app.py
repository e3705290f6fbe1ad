"""The commands in their order, and the shared help. Heavy imports are inside the commands."""

from __future__ import annotations

import typer

from stream.cli import filters, lock, matrix, modes, observe, outcomes, runs
from stream.cli.archive import archive
from stream.cli.merge import merge
from stream.cli.options import CarefulCommand, make_command

app = typer.Typer(
    name="stream",
    help=(
        "Take evidence about sandboxes and coding-agent runs.\n\n"
        "stdout carries records, one JSON object a line; messages for people go to stderr."
        " Every command that takes `-` reads stdin and works in a pipe:\n\n"
        "\b\n"
        "  stream matrix | stream listen -\n"
        "  stream matrix -o boundary.ndjson && stream listen boundary.ndjson\n"
        "  stream matrix --raw | stream emit - | stream validate - > boundary.ndjson\n"
        "  stream observe -- claude -p 'add a test' && stream check runs/RUN\n"
        "  stream observe --kernel auto --archive run.tar.gz -- ./agent.sh\n"
        "  stream verify run.tar.gz\n\n"
        "\b\n"
        "Exit codes:\n"
        "  0    ok\n"
        "  1    a check failed: failed probes, findings, rejected lines\n"
        "  2    wrong use or unusable input; no complete output was written\n"
        "  40   what was required is not available, or could not be told\n"
        "  130  interrupted (129 by a hang-up, 143 by SIGTERM)\n"
        "  141  the reader of stdout went away\n\n"
        "`observe` exits with the exit code of the command that it records."
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(value: bool) -> None:
    if value:
        from stream import __version__

        typer.echo(f"stream {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False,
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
) -> None:
    pass


app.command(cls=matrix.MatrixCommand)(make_command(matrix.MatrixOptions, matrix.matrix))
modes.register(app)
lock.register(app)
app.command(cls=CarefulCommand)(merge)
observe.register(app)
app.command(cls=CarefulCommand)(filters.check)
app.command(cls=CarefulCommand)(archive)
runs.register(app)
app.command(cls=CarefulCommand)(matrix.probe)
app.command(cls=CarefulCommand)(matrix.gate)
app.command()(matrix.helpers)
app.command("probe-exec", cls=matrix.HelperCommand, hidden=True)(matrix.probe_exec)
app.command("probe-contract-gate", cls=matrix.HelperCommand, hidden=True)(matrix.gate)
app.command(cls=matrix.EmitCommand)(matrix.emit)
app.command("emit-record", cls=matrix.EmitRecordCommand, hidden=True)(matrix.emit_record)
app.command()(outcomes.listen)
app.command(cls=CarefulCommand)(outcomes.report)
app.command()(filters.validate)
app.command(cls=CarefulCommand)(filters.normalize)
app.command()(modes.doctor)
