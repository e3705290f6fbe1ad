"""Somebody else who watches a run: what a kernel feed must be asked and told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from stream.recorder.cgroup import Cgroup
from stream.recorder.commands import CommandLog, Commands
from stream.recorder.guard import Guard
from stream.recorder.invocation import Ending
from stream.recorder.messages import Order
from stream.recorder.outputs import Kept
from stream.records.run import RunSummary


class Witness(Protocol):
    """Nothing that it raises or loses costs the run: it says so in the end."""

    async def begin(
        self, guard: Guard, cgroup: Cgroup | None, order: Order, log: CommandLog | None
    ) -> Order:
        """Before the command's first instruction. The order, with what it needs of it."""

    def hear(self, block: bytes, arrived: int) -> None:
        """What the command wrote to its stdout, and when it came. In a thread."""

    @property
    def kept(self) -> Mapping[str, Kept]:
        """The files that it wrote, when it has finished."""

    @property
    def commands(self) -> Commands | None:
        """What it saw of the calls of wrapped programs, when it has finished. None: nothing."""

    async def finish(self, ending: Ending, summary: RunSummary) -> list[str]:
        """When nobody of the tree is left: puts down what it saw, and says what is missing."""
