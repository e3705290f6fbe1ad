"""The kernel feed that an ordinary user can have: the command runs under strace.

It promises that nothing is lost while strace lives: a program waits until its call has been
written down. What that costs and changes:

- A call takes many times as long. A reader that is slow makes it longer, and nothing else.
- With a seccomp filter (used wherever it works: three times as fast) the command gets the
  NoNewPrivs attribute, so that sudo and ping fail. Without one, they fail under a tracer that is
  not root's.
- Should strace be killed, the command lives on; but with the filter, the calls that strace would
  have seen fail for it from then on, with ENOSYS: ptrace offers no better end.
- Where somebody watches what it says, each of its writes is seen: a program that does nothing
  but write small blocks takes up to a hundred times as long, and one without a tracer can say
  nothing any more.
- Operations of an io_uring are not seen. Its making is.
- Of a program that is executed, the name that was given is known, and not the file.
- Whoever is the same user can see strace, and end it or write in its place: this is evidence
  about programs that do not know that they are watched, or do not mind.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from errno import ENOSYS
from pathlib import Path
from typing import Literal

import msgspec
from anyio import Event, wait_readable

from stream.errors import FeedError, os_reason
from stream.pipeline import Batch, Out
from stream.process.machine import kernel_now
from stream.process.messages import Start
from stream.records.control import TELEMETRY, Gap
from stream.records.kernel import RawCapture, RawEvent, path_text
from stream.sources.kernel.calls import WatchedFile
from stream.sources.kernel.strace_lines import StraceParser
from stream.sources.kernel.strace_syntax import BY_NUMBER, TRACED, TRACED_WRITES, UNREAD

Record = RawEvent | Gap | RawCapture

FILTER = "--seccomp-bpf"
OPTIONS = (
    "-DD",  # the command stays our own child; in a process group of its own, signals pass strace by
    "-f",
    "--quiet=attach,personality",
    "--signal=!SIGCHLD,SIGURG,SIGWINCH,SIGCONT",  # of the others it says whom they killed
    "-y",
    "-xx",
    "-X",
    "raw",
    "-s",
    "4096",
    "-a",
    "1",
    "--decode-pids=pidns",
    "--absolute-timestamps=format:unix,precision:ns",
    "--relative-timestamps=ns",
)
PATIENCE = 5.0  #: seconds that strace has for a command that does nothing
CHUNK = 1 << 18
ROOM = 1 << 20  #: what may wait in the fifo, where the system allows that much
SILENT = "strace wrote nothing"


class StraceFeed:
    """The source of a run's calls, as strace prints them."""

    name: Literal["strace"] = "strace"
    burden = "strace watches, which is slow, and takes sudo and ping away"

    def __init__(self, words: list[str], fifo: Path, fd: int, watch: Sequence[WatchedFile]) -> None:
        self._words = words
        self._unwatched = _calls_unknown_to_strace(words[0])
        self._watch = watch
        self._fifo = fifo
        self._fd = fd
        self._cwd = "/"
        self._opened = kernel_now()
        self._over: Event | None = None
        self._is_over = self._is_closed = self._is_discarding = False

    @classmethod
    def open(cls, *, folder: Path, watch: Sequence[WatchedFile] = ()) -> StraceFeed:
        """Find a strace that works here. To watch files costs: each of the command's writes is a
        stop then. Raises FeedError."""
        words = _find_strace(has_writes=bool(watch))
        fifo, fd = _make_fifo(folder)
        _widen_fifo(fd)
        return cls(words, fifo, fd, watch)

    def wrap(self, order: Start) -> Start:
        """Put strace before the command."""
        self._cwd = path_text(os.path.realpath(order.cwd))
        words = [os.fsencode(word) for word in (*self._words, "-o", str(self._fifo))]
        env, restored, name = _keep_program_name(order)
        words += [*restored, b"--", name, *order.argv[1:]]
        return msgspec.structs.replace(order, tracer=words, env=env)

    async def run(self, out: Out, /) -> None:
        """Deliver events until strace has ended."""
        self._over = Event()
        if self._is_over:
            self._over.set()
        lines = StraceParser(self._monotonic_of, self._cwd, watch=self._watch)
        is_read = False
        try:
            while data := await self._read_fifo():
                self._unlink_fifo()
                if items := lines.feed(data):
                    await out.send(Batch(TELEMETRY, items))
            is_read = True
        finally:
            if not is_read:
                self._discard_rest_of_fifo()
        unknown = _unknown_loss(lines)
        rest: list[Record] = [*lines.finish()]
        if unknown:
            rest.append(Gap(source=self.name, lost=0, reason=unknown))
        if rest:
            await out.send(Batch(TELEMETRY, rest))
        await self._over.wait()
        await out.send(Batch(TELEMETRY, [_strace_capture(lines, unknown, self._unwatched)]))

    def end(self) -> None:
        """Note that the process tree has ended."""
        if self._is_over:
            return
        self._is_over = True
        if self._over is not None:
            self._over.set()
        with suppress(OSError):  # who opens and closes it makes an end, if nobody else has it open
            os.close(os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))

    def close(self) -> None:
        """Close the fifo and remove it; it can be closed again."""
        if not self._is_closed:
            self._is_closed = True
            if self._is_over:
                self._unlink_fifo()
            else:  # strace is still there, or will be
                self._discard_rest_of_fifo()
            os.close(self._fd)

    async def _read_fifo(self) -> bytes:
        """Return the next bytes that strace has written to the fifo."""
        while True:
            await wait_readable(self._fd)
            with suppress(BlockingIOError):
                return os.read(self._fd, CHUNK)

    def _unlink_fifo(self) -> None:
        """Remove the fifo's name: the command has no business with it."""
        with suppress(OSError):
            self._fifo.unlink()

    def _monotonic_of(self, wall: int) -> int:
        _, now, ahead = min(_compare_clocks() for _ in range(5))  # the quickest
        return min(max(wall - ahead, self._opened), now)

    def _discard_rest_of_fifo(self) -> None:
        """Throw away what strace writes from now on, so that the command goes on unread."""
        from threading import Thread

        if self._is_discarding:
            return
        self._is_discarding = True
        fd = os.dup(self._fd)
        try:
            Thread(target=self._discard_fifo, args=(fd,), daemon=True).start()
        except (MemoryError, RuntimeError):  # then strace finds nobody to write to, and ends
            os.close(fd)

    def _discard_fifo(self, fd: int) -> None:
        """Read what strace still writes to the fifo, and throw it away, until strace has ended."""
        from select import POLLIN, poll

        waiting = poll()
        waiting.register(fd, POLLIN)
        try:
            while not self._is_over:
                with suppress(BlockingIOError):
                    if waiting.poll(250):
                        if not os.read(fd, CHUNK):
                            return
                        self._unlink_fifo()
        finally:
            self._unlink_fifo()
            os.close(fd)


def probe_strace(folder: Path | None = None) -> str:
    """Return why strace cannot be a feed here, with all that a run asks of it; nothing if it can.
    `folder` is where its fifo would be."""
    try:
        _find_strace(has_writes=True)
        if folder is not None:
            fifo, fd = _make_fifo(folder)
            fifo.unlink()
            os.close(fd)
    except FeedError as error:
        return str(error)
    return ""


def _make_fifo(folder: Path) -> tuple[Path, int]:
    """Make a fifo, and open the end that is read from. Raises FeedError."""
    fifo = folder / f"strace-{os.urandom(4).hex()}.fifo"
    try:
        os.mkfifo(fifo, 0o600)
        return fifo, os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise FeedError(f"{fifo}: {os_reason(error)}") from None


def _keep_program_name(order: Start) -> tuple[dict[bytes, bytes], list[bytes], bytes]:
    """Keep the name that a program is called by where it is not its path: strace finds the program
    by a PATH of one folder, and gives the program the PATH that it had."""
    folder, _, name = order.executable.rpartition(b"/")
    if name != order.argv[0] or not folder or b":" in folder:
        return order.env, [], order.executable
    path = order.env.get(b"PATH")
    restored = b"PATH" if path is None else b"PATH=" + path
    return {**order.env, b"PATH": folder}, [b"-E", restored], name


def _unknown_loss(lines: StraceParser) -> str:
    if not lines.has_begun:
        return SILENT
    return "strace ended before the processes that it followed" if lines.tasks.living else ""


def _strace_capture(lines: StraceParser, unknown: str, unwatched: list[str]) -> RawCapture:
    """Make the last record of the strace feed, of the counts of its parser."""
    counts = lines.counts
    reasons = [unknown] if unknown else []
    got = counts.events + counts.extra_events
    return RawCapture(
        feed="strace",
        got=got,
        dropped=counts.lost,
        seen=got + counts.lost,
        unparsed=counts.unparsed,
        lost_forks=lines.tasks.unannounced,
        unknown_loss="; ".join([*reasons, *lines.doubts.reasons]),
        unwatched=unwatched,
        scopes={"tree": got} if got else {},
        cgroup="failed",
        cgroup_reasons=["strace sees the process tree only"],
        uring="hole" if lines.has_uring else "unknown" if unknown else "unused",
    )


def _compare_clocks() -> tuple[int, int, int]:
    """Return how long the look took, the monotonic clock, and how far ahead the wall clock is."""
    before, wall, after = kernel_now(), time.time_ns(), kernel_now()
    return after - before, after, wall - (before + after) // 2


def _widen_fifo(fd: int) -> None:
    """Let the fifo that strace writes to hold more."""
    import fcntl

    with suppress(OSError):  # some users may not have so much
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, ROOM)


def _find_strace(*, has_writes: bool = False) -> list[str]:
    """Return how strace is called here. Raises FeedError."""
    program = shutil.which("strace")
    if program is None:
        raise FeedError("strace is not installed")
    calls = (*TRACED, *TRACED_WRITES) if has_writes else TRACED
    known = ",".join(f"?{call}" for call in calls)  # ?: also those that it does not know
    words = [program, *OPTIONS, f"--trace={known}", *([UNREAD] if has_writes else [])]
    for filtered in ([*words, FILTER], words):
        trouble = _try_strace(filtered)
        if not trouble:
            return filtered
    raise FeedError(trouble)


def _calls_unknown_to_strace(program: str) -> list[str]:
    """Return calls that this kernel has, and that this strace, being older, does not know. With its
    filter it may not see them."""
    from ctypes import CDLL, get_errno

    libc = CDLL(None, use_errno=True)
    found = []
    for text, name in BY_NUMBER.items():
        libc.syscall(int(text.removeprefix("syscall_"), 16), -1, None, 0, None, None, 0)
        if get_errno() != ENOSYS and not _strace_knows_call(program, name):
            found.append(name)
    return found


def _strace_knows_call(program: str, call: str) -> bool:
    """Return whether this strace can trace a call of that name."""
    import subprocess

    words = [program, f"--trace={call}", "-V"]
    return not subprocess.run(words, capture_output=True, check=False).returncode


def _try_strace(words: list[str]) -> str:
    """Try strace on a command that does nothing: strace itself, which prints its version. Return
    what is wrong."""
    import subprocess

    record = os.memfd_create("strace")
    try:
        done = subprocess.run(
            [*words, "-o", f"/proc/self/fd/{record}", "--", words[0], "-V"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            pass_fds=[record],
            check=False,
        )
        text = os.pread(record, CHUNK, 0)
    except subprocess.TimeoutExpired:
        return f"strace did not come back in {PATIENCE:.0f} s"
    except OSError as error:
        return f"{words[0]}: {os_reason(error)}"
    finally:
        os.close(record)
    messages = done.stderr.decode(errors="replace").strip().splitlines()
    # Where it may not follow, a strace that has detached itself lets the command run alone.
    if done.returncode or not text or any("seccomp" in line for line in messages):
        return _explain_strace_failure(messages)
    return _check_strace_output(text)


def _explain_strace_failure(messages: list[str]) -> str:
    """Say by its messages why strace failed to trace a command here."""
    words = messages[0] if messages else "it said nothing"
    for line in messages:
        if "ptrace" in line.lower():
            return f"ptrace is forbidden here: {line}"
    if any("option" in line or "invalid" in line for line in messages):
        return f"this strace is too old: {words}"
    return f"strace does not work here: {words}"


def _check_strace_output(text: bytes) -> str:
    """Say why what this strace writes is no use to the feed; nothing if it can be read."""
    lines = StraceParser(lambda wall: wall, "/")
    records = [*lines.feed(text), *lines.finish()]
    calls = [record for record in records if isinstance(record, RawEvent)]
    opened = [call for call in calls if call.resolved is not None]
    if lines.counts.unparsed or lines.tasks.living or not calls:
        return "this strace writes in a way that cannot be read"
    if not opened and any(call.call.startswith("open") and call.ret != -2 for call in calls):
        return "strace cannot tell which files are opened: /proc is not to be read"
    return ""
