"""The kernel feed of a matrix: whether there can be one, and what stands in its place if not."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Literal

from stream.errors import FeedError, RequiredError, UsageError

if TYPE_CHECKING:
    from stream.boundary.scripts import MatrixPlan
    from stream.targets.measuring import CallWatch


def check_kernel(
    plan: MatrixPlan, choice: Literal["off", "auto", "ebpf", "strace"] | None, *, is_required: bool
) -> None:
    """Raise StreamError if what the kernel sees of cells cannot be had as it was asked for."""
    if choice == "off":
        raise UsageError("--require kernel and --kernel off do not go together")
    if plan.measured is None:
        raise UsageError("--kernel needs --mode with a sandbox: other records have no room for it")
    if choice == "strace":
        raise UsageError(
            "--kernel strace: under a tracer no probe can be traced and gVisor does not start, so"
            " that it would change what is measured: take ebpf"
        )
    if is_required:
        from stream.sources.kernel.ebpf import probe_ebpf

        if reason := probe_ebpf():
            raise RequiredError(f"--require kernel: {reason}")


async def watch_calls(stack: AsyncExitStack) -> tuple[CallWatch, str | None]:
    """Open a kernel feed for the cells of a matrix, until the stack is left. Where there can be
    none, return why as well: each cell says it."""
    from stream.sources.kernel.cells import Unwatched, watch_cells

    try:
        return await stack.enter_async_context(watch_cells()), None
    except FeedError as error:
        reason = str(error).removeprefix("the kernel feed: ")
        return Unwatched(f"the kernel is not watched: {reason}"), reason
