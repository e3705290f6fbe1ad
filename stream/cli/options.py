"""The options that several commands share, options as a class, and command lines that are refused
because a variable is unset."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

T = TypeVar("T")


def check_seconds(value: float | None) -> float | None:
    """Check the value of a --timeout."""
    if value is not None and not value >= 0.01:  # nan as well
        raise typer.BadParameter(f"{value:g} is not in the range x>=0.01")
    return value


Boundary = Annotated[
    str | None,
    typer.Option(
        metavar="P", help="Boundary descriptor. Default: BOUNDARY_PATH, then defaults.json."
    ),
]
KnownBoundary = Annotated[
    str | None,
    typer.Option(
        metavar="P",
        help="A boundary descriptor that records may name, besides the bundled one and the one"
        " that came with them. Default: BOUNDARY_PATH.",
    ),
]
Catalog = Annotated[
    str | None,
    typer.Option(
        metavar="P", help="Capability catalog. Default: CATALOG_PATH, then defaults.json."
    ),
]
Probes = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A folder of probe scripts. Default: the bundled ones."),
]
Workspace = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Where probes run. Default: FENCE_WORKSPACE_ROOT, else the git repository, else the"
        " current folder.",
    ),
]
ProbeTimeout = Annotated[
    float, typer.Option(metavar="S", callback=check_seconds, help="Seconds that a probe may take.")
]
Findings = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Write finding records to FILE. Default: stdout (with `-`: sentences on stderr).",
    ),
]
Reject = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Write a reject record of each rejected line to FILE."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace output files that exist.")]


class Options:
    """The options of a command, one annotated field each; `make_command` makes the function that
    typer reads."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def make_command(options: type[T], run: Callable[[T], None]) -> Callable[..., None]:
    """Make a function for typer: its parameters are the fields of `options`, its help the
    docstring of `run`, and it calls `run` with the options that were given."""

    def call(**values: Any) -> None:
        """Run the command with the options that were given."""
        run(options(**values))

    hints = get_type_hints(options, include_extras=True)
    call.__name__, call.__doc__, call.__annotations__ = run.__name__, run.__doc__, hints
    call.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=getattr(options, name, Parameter.empty),
                annotation=hint,
            )
            for name, hint in hints.items()
        ]
    )
    return call


class CarefulCommand(TyperCommand):
    """A command that refuses empty words: `--workspace "$unset"` must not mean the current folder,
    `--catalog ""` not the default, and `-- "$unset"` starts nothing."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an empty word among the command's own words and the first of the agent's."""
        words = args[: args.index("--") + 2] if "--" in args else args
        if "" in words:
            before = words[words.index("") - 1] if words.index("") else "the first word"
            raise typer.BadParameter(f"an empty word after {before}: is a variable unset?")
        return super().parse_args(ctx, args)


class ListsCommand(CarefulCommand):
    """A command some of whose options take several words: `--probe A B` means `--probe A --probe
    B`."""

    lists: tuple[str, ...] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each further word."""
        end = args.index("--") if "--" in args else len(args)
        spread: list[str] = []
        flag = ""
        for word in args[:end]:
            if word.startswith("-"):
                name = word.partition("=")[0]
                flag = name if name in self.lists else ""
            elif flag and spread[-1] != flag:
                spread.append(flag)
            spread.append(word)
        return super().parse_args(ctx, spread + args[end:])


def split_words(words: list[str], flag: str) -> list[str]:
    """Split the words of a list option at commas."""
    parts = [part for word in words for part in word.split(",") if part.strip()]
    if words and not parts:  # --probe "$unset" must not mean all of them
        raise typer.BadParameter(f"{flag} names nothing")
    return parts
