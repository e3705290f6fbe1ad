"""Runs the cells of a matrix concurrently; one raw emission for every cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anyio import Condition, create_task_group, to_thread
from anyio.abc import ObjectSendStream

from stream.errors import os_reason
from stream.pipeline import Batch
from stream.probes import TEMPORARY, Script, Staging, is_fresh, renew, utf8
from stream.process import Captured, Tail, capture
from stream.records.emission import RawEmission

STDOUT_LIMIT = 4 << 20  #: bytes; a frame is far smaller
STDERR_LIMIT = 4096
AHEAD = 256  #: cells that may be done before the oldest one that is not


@dataclass(frozen=True)
class Cell:
    """One probe in one mode."""

    index: int
    script: Script
    mode: str
    catalog: str
    env: Mapping[str, str]


@dataclass
class ProbeSource:
    """Delivers in cell order, or as cells finish. A slow reader slows the probes."""

    cells: Sequence[Cell]
    staging: Staging
    workspace: Path
    sandbox_mode: str | None
    boundary: str
    os: str
    jobs: int
    timeout: float
    as_completed: bool
    on_done: Callable[[int, Cell | None], None] = lambda done, cell: None

    async def run(self, out: ObjectSendStream[Batch[RawEmission]], /) -> None:
        queue = iter(self.cells)
        line = _Line(out, self.as_completed, self.on_done)
        async with create_task_group() as workers:
            for slot in range(min(self.jobs, len(self.cells))):
                workers.start_soon(self._work, slot, queue, line)

    async def _work(self, slot: int, queue: Iterator[Cell], line: _Line) -> None:
        for cell in queue:
            await line.turn(cell)
            await line.deliver(cell, await self._measure(cell, slot))

    async def _measure(self, cell: Cell, slot: int) -> RawEmission:
        tmpdir = self.staging.tmpdir(slot)
        try:
            if tmpdir is not None and not is_fresh(tmpdir):
                await to_thread.run_sync(renew, tmpdir)
        except OSError as error:  # a full disk, or an earlier probe that removed the folder
            reason = f"no TMPDIR for it: {os_reason(error)}"
            return self._emission(cell, Captured(Tail(0), Tail(0), spawn_error=reason))
        got = await capture(
            self.staging.command(cell.script),
            # Where there can be none, a probe that needs one must see why.
            env={**cell.env, "TMPDIR": str(tmpdir or cell.env.get("TMPDIR", TEMPORARY[0]))},
            cwd=str(self.workspace),
            timeout=self.timeout,
            stdout_limit=STDOUT_LIMIT,
            stderr_limit=STDERR_LIMIT,
        )
        return self._emission(cell, got)

    def _emission(self, cell: Cell, got: Captured) -> RawEmission:
        return RawEmission(
            probe=cell.script.id,
            mode=cell.mode,
            catalog=cell.catalog,
            boundary=self.boundary,
            capability=cell.script.capability,
            workspace_root=utf8(self.workspace),
            sandbox_mode=self.sandbox_mode,
            os=self.os,
            stdout=bytes(got.stdout.head),
            stdout_bytes=got.stdout.total,
            stderr=bytes(got.stderr.head),
            stderr_bytes=got.stderr.total,
            exit_code=got.exit_code,
            signal=got.signal,
            timed_out=self.timeout if got.timed_out else None,
            spawn_error=got.spawn_error,
            stragglers=got.stragglers,
        )


@dataclass
class _Line:
    """Puts what workers deliver into the order that was asked for. Holds a bounded number."""

    out: ObjectSendStream[Batch[RawEmission]]
    as_completed: bool
    on_done: Callable[[int, Cell | None], None]
    done: int = 0
    _next: int = 0
    _held: dict[int, RawEmission] = field(default_factory=dict)
    _moved: Condition = field(default_factory=Condition)

    async def turn(self, cell: Cell) -> None:
        """Until the cell is not too far ahead of the oldest unfinished one."""
        self.on_done(self.done, cell)
        if self.as_completed:
            return
        async with self._moved:
            while cell.index >= self._next + AHEAD:
                await self._moved.wait()

    async def deliver(self, cell: Cell, emission: RawEmission) -> None:
        self.done += 1
        self.on_done(self.done, None)
        if self.as_completed:
            await self.out.send((emission,))
            return
        self._held[cell.index] = emission
        async with self._moved:  # one sender at a time keeps the order
            ready: list[RawEmission] = []
            while self._next in self._held:
                ready.append(self._held.pop(self._next))
                self._next += 1
            if ready:
                await self.out.send(ready)
                self._moved.notify_all()
