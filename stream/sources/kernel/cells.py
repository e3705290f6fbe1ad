"""Give the calls that a kernel feed sees to the cells of a matrix that made them.

One feed follows all that this process starts, because to load one takes longer than a cell. Whose a
call is, is known from the process that its cell began with and from the forks that followed. Only
what a probe does itself belongs to its cell: a sandbox that is set up, or a proxy of it, makes
calls of its own. Where a cell cannot be told from another one, it is not observed.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from posixpath import join, normpath
from typing import Any

from anyio import create_task_group, to_thread
from anyio.abc import ObjectSendStream
from msgspec import Struct, field
from msgspec.structs import replace

from stream.boundary.scripts import HELPERS
from stream.errors import SpawnError
from stream.pipeline import Batch, LenientSource
from stream.process.capture import follow_program
from stream.process.tree import start_tree
from stream.records.kernel import RawEvent, errno_name, path_bytes
from stream.records.modes import CallContext, KernelView, SeenCall
from stream.sources.kernel.decode import CallerState, ExplainedEvent
from stream.sources.kernel.ebpf import EbpfFeed
from stream.sources.kernel.permissions import is_refused_by_mode
from stream.sources.kernel.security import domain_places, refusing_modules

MOST_CALLS = 4096  #: different ones of a cell that are kept: a probe makes some dozens
NEVER_RAN = (
    "none of its processes executed the probe on this kernel: the sandbox runs programs by itself,"
    " or a daemon starts them"
)
LOST = "the kernel feed lost events while it ran"
MIXED_UP = "a process of another cell had the same number"
TOO_MANY = f"it made more than {MOST_CALLS} different calls"
PATIENCE = 5.0  #: seconds for a program that is restricted by Landlock, and does nothing
_LANDLOCK_RUN = str(HELPERS / "landlock-run")
_MOST_TRIALS = 5
_BY_FILTER = 2  # the mode of seccomp


class CellTrace(Struct):
    """The calls of a cell that were seen so far."""

    script: str
    reporter: str  #: path of the helper that writes its record
    losses: int  #: of the feed, before the cell began
    doubt: str | None = None  #: why its calls may be others'
    has_run: bool = False  #: a process of it has executed the probe
    inside: set[int] = field(default_factory=set)  #: the probe's processes
    calls: dict[tuple[SeenCall, CallerState | None], None] = field(default_factory=dict)


class CellFeed(ObjectSendStream[Batch[Any]]):
    """The kernel feed of a matrix, and the cells that run."""

    def __init__(self, feed: EbpfFeed) -> None:
        self._feed = feed
        self._owners: dict[int, CellTrace] = {}  # by process
        self._failure: str | None = None
        self._modules = refusing_modules()
        self._domain_place: int | None = None

    async def run(self) -> None:
        """Follow what runs until the feed is ended. Where it fails, cells are not observed."""
        await LenientSource(self._feed, self._note_failure).run(self)

    async def aclose(self) -> None:
        """Free what the feed holds."""
        self._feed.close()

    async def find_landlock(self) -> None:
        """Find where the kernel keeps the Landlock domain of a process, by programs that get one
        and are executed in it. Words beyond those of the security modules may be anything: what
        is found must be found again."""
        found: set[int] = set()
        for number in range(_MOST_TRIALS):
            places = await self._try_landlock()
            found = found & places if number else places
            if len(found) <= 1 and number:
                break
        self._domain_place = found.pop() if len(found) == 1 else None

    async def _try_landlock(self) -> set[int]:
        """Return where the domain of a process may stand; nothing if it gets none."""
        trace = self.expect(_LANDLOCK_RUN)
        try:
            tree = start_tree([_LANDLOCK_RUN, "--", "true"], env=dict(os.environ), cwd="/")
        except SpawnError:
            return set()
        self.begin(trace, tree.leader.pid)
        await follow_program(tree, timeout=PATIENCE, stdout_limit=0, stderr_limit=0)
        await self.end(trace)
        states = [state for call, state in trace.calls if call.call == "exec" and state]
        return domain_places(states[0].security, states[-1].security) if states else set()

    def expect(self, script: str) -> CellTrace:
        """Prepare for a cell that is about to be started: what is lost from now on counts."""
        reporter = normpath(join(script, "../../bin/emit-record"))
        losses = 0 if self._failure else self._feed.count_losses()
        return CellTrace(script, reporter, losses)

    def begin(self, expected: CellTrace, pid: int) -> None:
        """Take the process that a cell was started with, before anything else is awaited."""
        self._give_process(pid, expected)

    async def end(self, begun: CellTrace) -> KernelView:
        """Return what was seen of a cell, whose processes have ended."""
        if self._failure is None:
            await self._feed.catch_up(self)
        self._owners = {pid: one for pid, one in self._owners.items() if one is not begun}
        reason = self._failure or begun.doubt
        if reason is None and self._feed.count_losses() != begun.losses:
            reason = LOST
        if reason is None and not begun.has_run:
            reason = NEVER_RAN
        calls = tuple(self._explain(call, state) for call, state in begun.calls)
        return KernelView(calls, reason, self._modules)

    async def send(self, item: Batch[Any]) -> None:
        """Take events, without waiting: `catch_up` asks for that."""
        for event in item.items:
            if isinstance(event, RawEvent):
                self._take_event(event)

    def _take_event(self, event: RawEvent) -> None:
        trace = self._owners.get(event.pid)
        if trace is None:  # of a process that is no cell's
            return
        if event.call == "exec":
            self._take_exec(event, trace)
        is_inside = event.pid in trace.inside
        if event.call == "fork":
            self._give_process(event.child, trace)
            if is_inside:
                trace.inside.add(event.child)
        elif event.call == "exit":
            del self._owners[event.pid]
            trace.inside.discard(event.pid)
            return
        if is_inside and len(trace.calls) < MOST_CALLS:
            around = event.around if isinstance(event, ExplainedEvent) else None
            trace.calls[_seen_call(event), around] = None
        elif is_inside:
            trace.doubt = TOO_MANY

    def _take_exec(self, event: RawEvent, trace: CellTrace) -> None:
        """Note that a process becomes the probe, or the helper that reports what the probe found:
        what that reads is not what the probe does."""
        if trace.script in (event.path, *(event.argv or ())[1:2]):
            trace.has_run = True
            trace.inside.add(event.pid)
        elif normpath(event.path or "") == trace.reporter:
            trace.inside.discard(event.pid)

    def _give_process(self, pid: int, trace: CellTrace) -> None:
        """Give a process to a cell. If another one still has that number, the end of the process
        before has not been seen: what it did and what this one does cannot be told apart."""
        before = self._owners.get(pid, trace)
        if before is not trace:
            before.doubt = trace.doubt = MIXED_UP
        self._owners[pid] = trace

    def _explain(self, call: SeenCall, state: CallerState | None) -> SeenCall:
        """Add to a call what was around it."""
        if state is None:
            return call
        place = self._domain_place
        around = CallContext(
            user=state.user,
            capabilities=state.capabilities,
            mounts=state.mounts,
            network=state.network,
            users=state.users,
            landlock=None if place is None else state.security[place] != 0,
            is_filtered=state.is_refused_early and state.seccomp == _BY_FILTER,
        )
        refused = call.errno == "EACCES" and is_refused_by_mode(call, state.user)
        return replace(call, around=around, is_refused_by_mode=refused)

    def _note_failure(self, reason: str) -> None:
        self._failure = f"the kernel feed failed: {reason}"


class Unwatched(Struct, frozen=True):
    """Stands for a feed where there is none: each cell says why."""

    reason: str

    def expect(self, script: str) -> None:
        """Prepare for nothing."""

    def begin(self, expected: None, pid: int) -> None:
        """Follow nothing."""

    async def end(self, begun: None) -> KernelView:
        """Return why nothing was seen."""
        return KernelView(reason=self.reason)


@asynccontextmanager
async def watch_cells() -> AsyncIterator[CellFeed]:
    """Follow with eBPF what this process starts from now on. Raise FeedError."""
    # In a thread: the kernel checks programs for a while.
    feed = await to_thread.run_sync(
        lambda: EbpfFeed.open(guard=os.getpid(), cgroup=None, looks_closer=True)
    )
    async with CellFeed(feed) as cells, create_task_group() as tasks:
        tasks.start_soon(cells.run)
        try:
            await cells.find_landlock()
            yield cells
        finally:
            feed.end()


def _seen_call(event: RawEvent) -> SeenCall:
    """Reduce an event to what a record is compared with."""
    result = 0 if event.call == "fork" else event.ret
    return SeenCall(
        call=event.call,
        errno=None if result is None or result >= 0 else errno_name(-result),
        has_ended=result is not None,
        path=_whole_path(event.base, event.path),
        resolved=_plain_text(event.resolved),
        to_path=_whole_path(event.to_base, event.to_path),
        peer=_plain_text(event.peer),
        flags=event.flags,
        target=event.target,
    )


def _whole_path(base: str | None, path: str | None) -> str | None:
    """Return a path from where it starts, without detours, as a probe would name it."""
    if not path:
        return _plain_text(base)
    # What begins with /proc/self/fd/N has a base as well: a probe names it by that.
    whole = path if base is None or path.startswith("/") else join(base, path)
    return _plain_text(normpath(whole) if whole.startswith("/") else whole)


def _plain_text(path: str | None) -> str | None:
    return None if path is None else path_bytes(path).decode(errors="replace")
