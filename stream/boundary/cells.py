"""The cells of a matrix: each probe in each mode, and how one of them is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import overload

from msgspec import Struct
from msgspec.structs import replace

from stream.boundary.catalogs import Catalogs
from stream.boundary.descriptors import Descriptor
from stream.boundary.scripts import TEMPORARY, Script, Staging
from stream.process.tree import Tree, start


class Cell(Struct, frozen=True):
    """One probe in one mode."""

    index: int
    script: Script
    mode: str
    catalog: str
    env: Mapping[str, str]


class MatrixPlan(Struct, frozen=True):
    """A valid request: every cell is known, nothing has started."""

    folder: Path
    catalogs: Catalogs
    descriptor: Descriptor
    workspace: Path
    sandbox_mode: str | None
    cells: Sequence[Cell]
    left_out: tuple[Script, ...] = ()  #: bundled ones that belong to another catalog
    no_probes: tuple[Script, ...] = ()  #: they lie there, but nothing says that they measure

    @property
    def scripts(self) -> list[Script]:
        """The scripts that run, each once."""
        cells = self.cells.kinds if isinstance(self.cells, Cells) else self.cells
        return list({cell.script.id: cell.script for cell in cells}.values())


class Cells(Sequence[Cell]):
    """A few kinds of cells, each repeated; none is made before its turn."""

    def __init__(self, kinds: Sequence[Cell], repeat: int) -> None:
        self.kinds = kinds
        self.repeat = repeat

    def __len__(self) -> int:
        return len(self.kinds) * self.repeat

    @overload
    def __getitem__(self, index: int) -> Cell: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Cell]: ...
    def __getitem__(self, index: int | slice) -> Cell | Sequence[Cell]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        if index >= len(self):
            raise IndexError(index)
        return replace(self.kinds[index // self.repeat], index=index)


class Stop:
    """Asks a run to end early, with what it has. It may be asked before it has begun."""

    def __init__(self) -> None:
        self.is_asked = False
        self.on_ask: Callable[[], None] = lambda: None

    def ask(self) -> None:
        """Ask the run to end."""
        self.is_asked = True
        self.on_ask()


def launch(cell: Cell, plan: MatrixPlan, staging: Staging, slot: int) -> Tree:
    """Start a cell. Raise SpawnError."""
    # Where there can be none, a probe that needs one must see why.
    tmpdir = staging.tmpdir(slot) or cell.env.get("TMPDIR", TEMPORARY[0])
    return start(
        staging.command(cell.script),
        env={**cell.env, "TMPDIR": str(tmpdir)},
        cwd=str(plan.workspace),
    )
