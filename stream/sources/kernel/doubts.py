"""What a run did that its feed cannot follow: then it says so, and is never complete.

Each is an event as well. But what comes of it is done by others, or by the kernel itself, and no
call of the run shows it.
"""

from __future__ import annotations

from stream.records.kernel import RawEvent

_POWERS = {
    "bpf": "the run used bpf(2), by which a program in the kernel can do what no call shows",
    "init_module": "the run loaded a kernel module",
    "finit_module": "the run loaded a kernel module",
    "fanotify_init": "the run used fanotify, which opens files that no call names",
}
#: A call that its listener lets go on is seen by no tracer.
ANSWERED = (
    "a program of the run answered system calls of others (seccomp), which strace is not told"
)
DOUBTED = frozenset((*_POWERS, "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd"))


class Doubts:
    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def take(self, event: RawEvent) -> None:
        """An event of one of the calls in DOUBTED."""
        if event.ret is None or event.ret < 0:
            return
        if event.call in _POWERS:
            self.add(_POWERS[event.call])
        elif "outside" in event.marks:
            self.add(f"the run reached by {event.call} into a process that is none of its own")

    def add(self, reason: str) -> None:
        self._found[reason] = None

    @property
    def reasons(self) -> list[str]:
        return [*self._found]
