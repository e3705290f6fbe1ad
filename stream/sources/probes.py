"""The source of a matrix: it runs the cells concurrently, and delivers one emission for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from anyio import CancelScope, Condition, Event, create_task_group, to_thread
from msgspec import Struct, field
from msgspec.structs import replace

from stream.boundary.scripts import Cell, MatrixPlan, Staging, Stop, launch_cell, remove_empty, utf8
from stream.errors import OutputError, SpawnError, os_reason
from stream.files.trees import remove_tree
from stream.pipeline import Batch, Out
from stream.process.capture import Captured, follow_program, not_started
from stream.process.machine import system_name
from stream.process.tree import Tree
from stream.records.control import EMISSIONS
from stream.records.emission import RawEmission

if TYPE_CHECKING:
    from stream.targets.measuring import Targets

STDOUT_LIMIT = 4 << 20  #: bytes; a frame is far smaller
STDERR_LIMIT = 4096
AHEAD = 256  #: cells that may be done before the oldest one that is not
HELD = 32 << 20  #: bytes of what they wrote, above which only the oldest one goes on


class ProbeSource(Struct):
    """Delivers in cell order, or as cells finish. A slow reader slows the probes.

    Asked to stop, it ends the probes that run, and delivers those that had finished.
    """

    plan: MatrixPlan
    staging: Staging
    jobs: int
    timeout: float
    as_completed: bool = False
    started: dict[int, Tree] = field(default_factory=dict)  #: by slot: its first cell runs
    stop: Stop = field(default_factory=Stop)
    on_done: Callable[[int, Cell | None], None] = lambda done, cell: None
    targets: Targets | None = None  #: of probes in modes
    _measuring: set[CancelScope] = field(default_factory=set)
    _controls_left: int = 0  #: cells of the baseline that have not ended
    _controls_done: Event = field(default_factory=Event)

    async def run(self, out: Out, /) -> None:
        """Run every cell and send its emission."""
        queue = self.plan.planned_cells()
        self._controls_left = self._control_count
        line = _DeliveryQueue(out, self.as_completed, self.on_done)
        self.stop.on_ask = self._interrupt
        async with create_task_group() as workers:
            for slot in range(min(self.jobs, self.plan.cell_count)):
                workers.start_soon(self._run_cells, slot, next(queue), queue, line)
        await line.deliver_rest()

    def _interrupt(self) -> None:
        for scope in self._measuring:
            scope.cancel()

    async def _run_cells(
        self, slot: int, first: Cell, queue: Iterator[Cell], line: _DeliveryQueue
    ) -> None:
        """Run one cell of the matrix after the other, and deliver the emission of each."""
        for cell in chain((first,), queue):
            if self.stop.is_asked:
                return
            with CancelScope() as scope:
                self._measuring.add(scope)
                try:
                    await line.wait_for_turn(cell)
                    if cell.index >= self._control_count:
                        await self._controls_done.wait()
                    emission = await self._run_cell(cell, slot)
                finally:
                    self._measuring.remove(scope)
            if scope.cancelled_caught:
                return
            await line.deliver_emission(cell, emission)
            self._controls_left -= 1
            if self._controls_left == 0:
                self._controls_done.set()

    @property
    def _control_count(self) -> int:
        """The number of cells of the baseline, which come first: the others are read beside
        them."""
        modes = 1 if self.targets is None else len(self.targets.modes)
        return self.plan.cell_count // modes

    async def _run_cell(self, cell: Cell, slot: int) -> RawEmission:
        """Run the probe of a cell, and make its emission."""
        if self.targets is None:
            return self._make_emission(cell, await self._measure_cell(cell, slot), self.timeout)
        timeout = self.timeout + self.targets.modes[cell.mode].document.start_seconds
        measured = await self.targets.measure(cell, slot, timeout)
        return replace(
            self._make_emission(cell, measured.captured, timeout),
            workspace_root=measured.workspace,
            sandbox_mode=measured.sandbox_mode,
            harness=measured.harness,
            outside=measured.outside,
        )

    async def _measure_cell(self, cell: Cell, slot: int) -> Captured:
        """Run the probe of a cell in an empty TMPDIR, and capture its output and its end."""
        tree = self.started.pop(slot, None)
        try:
            if tree is None:
                tmpdir = self.staging.tmpdir(slot)
                if tmpdir is not None:
                    if not remove_empty(tmpdir):
                        with suppress(OutputError):
                            await to_thread.run_sync(remove_tree, tmpdir)
                    tmpdir.mkdir(mode=0o700)
                tree = launch_cell(cell, self.plan, self.staging, slot)
        except SpawnError as error:
            return not_started(str(error))
        except OSError as error:  # a full disk, or an earlier probe that removed the folder
            return not_started(f"no TMPDIR for it: {os_reason(error)}")
        return await follow_program(
            tree, timeout=self.timeout, stdout_limit=STDOUT_LIMIT, stderr_limit=STDERR_LIMIT
        )

    def _make_emission(self, cell: Cell, got: Captured, timeout: float) -> RawEmission:
        """Make the raw emission of a cell from what was captured of its probe."""
        return RawEmission(
            probe=cell.script.id,
            mode=cell.mode,
            catalog=cell.catalog,
            boundary=self.plan.descriptor.key,
            capability=cell.script.capability,
            workspace_root=utf8(self.plan.workspace),
            sandbox_mode=self.plan.sandbox_mode,
            os=system_name(),
            stdout=bytes(got.stdout.head),
            stdout_bytes=got.stdout.total,
            stderr=bytes(got.stderr.head),
            stderr_bytes=got.stderr.total,
            exit_code=got.exit_code,
            signal=got.signal,
            timed_out=timeout if got.timed_out else None,
            spawn_error=got.spawn_error,
            stragglers=got.stragglers,
            harness=tuple(map(utf8, self.staging.ours)),
        )


class _DeliveryQueue(Struct):
    """Puts what workers deliver into the order that was asked for. Holds a bounded number."""

    out: Out
    as_completed: bool
    on_done: Callable[[int, Cell | None], None]
    done: int = 0
    _next: int = 0
    _held: dict[int, RawEmission] = field(default_factory=dict)
    _size: int = 0
    _moved: Condition = field(default_factory=Condition)

    async def wait_for_turn(self, cell: Cell) -> None:
        """Wait until the cell is not too far ahead of the oldest unfinished one."""
        self.on_done(self.done, cell)
        if self.as_completed or not self._is_ahead(cell):
            return
        async with self._moved:
            while self._is_ahead(cell):
                await self._moved.wait()

    def _is_ahead(self, cell: Cell) -> bool:
        too_much = self._size > HELD and cell.index != self._next
        return too_much or cell.index >= self._next + AHEAD

    async def deliver_emission(self, cell: Cell, emission: RawEmission) -> None:
        """Send an emission, and all that waited for it."""
        self.done += 1
        self.on_done(self.done, None)
        if self.as_completed:
            await self.out.send(Batch(EMISSIONS, (emission,)))
            return
        self._held[cell.index] = emission
        self._size += len(emission.stdout)
        async with self._moved:  # one sender at a time keeps the order
            ready: list[RawEmission] = []
            while self._next in self._held:
                ready.append(self._held.pop(self._next))
                self._size -= len(ready[-1].stdout)
                self._next += 1
            if ready:
                await self.out.send(Batch(EMISSIONS, ready))
                self._moved.notify_all()

    async def deliver_rest(self) -> None:
        """Send what waits for cells that were never finished: nothing, unless it was stopped."""
        if self._held:
            rest = [self._held[index] for index in sorted(self._held)]
            await self.out.send(Batch(EMISSIONS, rest))
