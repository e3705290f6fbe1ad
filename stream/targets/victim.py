"""A process outside of every sandbox, for probes that signal, trace or read another process."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping

from anyio import fail_after, wait_readable

from stream.errors import SpawnError
from stream.process.tree import Files, Reaper, Tree, start_tree
from stream.process.users import User

PATIENCE = 2.0  #: seconds for an answer: it was killed or stopped where none comes

# It counts the signals that it gets, and answers each line with the counts. perl handles signals
# between two operations: those that came before a line are counted in the answer to it.
_PROGRAM = """
$| = 1;
# Any process of the user may trace it, also where Yama allows that to ancestors only.
my $prctl = {"x86_64", 157, "aarch64", 167}->{(POSIX::uname())[4]};
syscall($prctl, 0x59616d61, -1, 0, 0) if $prctl;
my ($signalled, $traced) = (0, 0);
$SIG{USR1} = sub { $signalled++ };
$SIG{USR2} = sub { $traced++ };
print "ready\\n";
while (1) {
  my $line = <STDIN>;
  if (!defined $line) { next if $!{EINTR}; last }
  print "$signalled $traced\\n";
}
"""


class Victim:
    """The process, which reports the signals that reached it."""

    def __init__(self, user: User, token: str, env: Mapping[str, str]) -> None:
        self._user, self._token, self._env = user, token, env
        self._tree: Tree | None = None
        self._stdin = -1
        self._counts = (0, 0)

    @property
    def pid(self) -> int | None:
        """The number of the process; None where there is none."""
        return None if self._tree is None else self._tree.leader.pid

    async def start(self) -> None:
        """Start the process. Where perl is missing there is none."""
        perl = shutil.which("perl")
        if perl is None:
            return
        read, self._stdin = os.pipe()
        try:
            self._tree = start_tree(
                [*self._user.switch, perl, "-MErrno", "-MPOSIX=", "-e", _PROGRAM],
                env={**self._env, "STREAM_TOKEN": self._token},
                cwd="/",
                files=Files(stdin=read),
            )
        except SpawnError:
            os.close(self._stdin)
            return
        finally:
            os.close(read)
        self._counts = (0, 0)
        if await self._read_line() != b"ready":
            self.end()

    async def effects(self) -> set[str]:
        """Find what was done to it since it was asked before. One that does not answer is made
        anew."""
        if self._tree is None:
            return set()
        try:
            os.write(self._stdin, b"\n")
            answer = await self._read_line()
            signalled, traced = map(int, answer.split())
        except (OSError, ValueError):
            self.end()
            await self.start()
            return {"signal:victim"}
        before, self._counts = self._counts, (signalled, traced)
        return {
            name
            for name, now, then in zip(
                ("signal:victim", "trace:victim"), self._counts, before, strict=True
            )
            if now != then
        }

    async def _read_line(self) -> bytes:
        assert self._tree is not None
        data = b""
        try:
            with fail_after(PATIENCE):
                while not data.endswith(b"\n"):
                    await wait_readable(self._tree.pipes[0])
                    more = os.read(self._tree.pipes[0], 4096)
                    if not more:
                        break
                    data += more
        except TimeoutError:
            return b""
        return data.strip()

    def end(self) -> None:
        """End the process."""
        if self._tree is not None:
            tree, self._tree = self._tree, None
            os.close(self._stdin)
            if not tree.is_over:
                tree.signal_group(signal.SIGKILL)
            Reaper.get().end_all_trees([tree])
