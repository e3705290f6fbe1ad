"""Run a plan: every cell goes through the pipeline into the sinks. And make one record from the
words of `stream emit FLAGS…`, as emit-record does outside the harness."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from stream.boundary.builder import BoundaryBuilder, Host
from stream.boundary.descriptors import find_catalogs, find_descriptor
from stream.boundary.emit_flags import FILES, PAIRS, parse_emit_words
from stream.boundary.scripts import Cell, Stop, utf8
from stream.errors import EmitError, StreamError
from stream.matrix.plan import StartedPlan, declared_sandbox_mode, workspace_root
from stream.matrix.watching import check_kernel as check_kernel
from stream.matrix.watching import watch_calls
from stream.pipeline import Pipeline, Sink
from stream.process.machine import system_name
from stream.process.tree import Reaper
from stream.records.emission import FILE_MOST, Word
from stream.sources.probes import ProbeSource
from stream.transformers.emit import Emit, EncodeRaw, ProbeFailure
from stream.transformers.judge import Judge

if TYPE_CHECKING:
    from stream.records.policies import Contradiction
    from stream.targets.measuring import Leftover


class MatrixResult(Struct):
    """The result of a matrix."""

    cells: int
    recorded: int  #: fewer than cells only if it was stopped
    results: dict[str, int]
    failed: int
    failures: list[ProbeFailure]  #: the first of them
    strays: list[str] = field(default_factory=list)
    without_tmpdir: bool = False  #: no folder was writable
    leftovers: list[Leftover] = field(default_factory=list)  #: files that cells in modes left
    left_outside: list[str] = field(default_factory=list)  #: mounts and control groups they left
    no_internet: str | None = None  #: why cells in modes had no stand-in Internet
    contradictions: list[Contradiction] = field(default_factory=list)  #: of the plan's policy
    judged: str = ""  #: how many cells agree with it
    disputed: list[ProbeFailure] = field(default_factory=list)  #: what the kernel contradicts
    unwatched: str | None = None  #: why there was no kernel feed, where one was asked for


class Matrix:
    """The source and the transformer of a matrix, for any pipeline, and their result."""

    def __init__(
        self,
        plan: StartedPlan,
        *,
        timeout: float,
        as_completed: bool = False,
        stop: Stop | None = None,
        on_done: Callable[[int, Cell | None], None] = lambda done, cell: None,
        is_watched: bool = False,
    ) -> None:
        self._plan = plan
        self._is_watched = is_watched
        self._unwatched: str | None = None
        self.emit = Emit(BoundaryBuilder(plan.plan.catalogs, plan.plan.descriptor))
        policy, descriptor = plan.plan.policy, plan.plan.descriptor
        self.judge = None if policy is None else Judge(policy, descriptor)
        self.source = ProbeSource(
            plan=plan.plan,
            staging=plan.staging,
            started=plan.started,
            jobs=plan.jobs,
            timeout=timeout,
            as_completed=as_completed,
            stop=stop or Stop(),
            on_done=on_done,
        )

    async def run(self, *sinks: Sink, raw: bool = False) -> MatrixResult:
        """Run every cell of the plan; each gives exactly one record in each sink."""
        async with AsyncExitStack() as stack:
            measured = self._plan.plan.measured
            if measured is not None:
                from stream.targets.measuring import open_targets

                self.source.targets = await stack.enter_async_context(
                    open_targets(measured, self._plan.staging, self._plan.jobs)
                )
                if self._is_watched:
                    calls, self._unwatched = await watch_calls(stack)
                    self.source.targets.calls = calls
            try:
                pipeline = Pipeline((self.source,)).through(EncodeRaw() if raw else self.emit)
                if self.judge is not None:
                    pipeline = pipeline.through(self.judge)
                report = await pipeline.into(*sinks)
            finally:
                strays = Reaper.get().end_strays()
        return self.matrix_result(report.transformers[0][1].passed, strays)

    def matrix_result(self, recorded: int, strays: list[str]) -> MatrixResult:
        """Return the result, once the pipeline has ended."""
        targets = self.source.targets
        return MatrixResult(
            cells=self._plan.plan.cell_count,
            recorded=recorded,
            results=dict(self.emit.results),
            failed=self.emit.failed,
            failures=self.emit.failures,
            strays=strays,
            without_tmpdir=self._plan.staging.root is None,
            leftovers=[] if targets is None else targets.leftovers,
            left_outside=[] if targets is None else targets.left_outside,
            no_internet=None if targets is None else targets.no_internet,
            contradictions=[] if self.judge is None else self.judge.check.contradictions(),
            judged="" if self.judge is None else self.judge.check.summary,
            disputed=self.emit.disputed,
            unwatched=self._unwatched,
        )


def emit_words(words: Sequence[str]) -> bytes:
    """Return the record that the words of emit-record describe, or raise EmitError."""
    try:
        said = parse_emit_words(list(_with_file_contents(words)))
        catalogs = find_catalogs(said.text_of_flag("--catalog"))
        descriptor = find_descriptor(said.text_of_flag("--boundary"))
        around = Host(system_name(), utf8(workspace_root()), declared_sandbox_mode())
        return BoundaryBuilder(catalogs, descriptor).record_from_flags(said, around).line
    except StreamError as error:  # emit-record has one exit code for every error
        raise EmitError(str(error)) from None


def _with_file_contents(words: Sequence[str]) -> Iterator[Word]:
    """Yield the words of emit-record, those that name files with the contents of the files."""
    flag, values = "", 0
    for word in words:
        text = os.fsencode(word)
        yield Word(text, _read_flag_file(word)) if values and flag in FILES else Word(text)
        if values:
            values -= 1
        else:
            flag, values = word, 2 if word in PAIRS else 1


def _read_flag_file(path: str) -> bytes | None:
    """Read as much of a file as helpers/emit-record sends, without NULs as there."""
    try:
        with Path(path).open("rb") as file:
            return file.read(FILE_MOST).replace(b"\0", b"")
    except (OSError, ValueError):
        return None
