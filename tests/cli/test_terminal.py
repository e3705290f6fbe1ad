"""On a terminal: progress and colour, which a pipe never gets; and Ctrl-C."""

from __future__ import annotations

import os
import pty
from pathlib import Path

from tests.cli.command import SLEEP, STREAM, Place


class Terminal:
    """stream on a terminal of its own, as the leader of its session."""

    def __init__(self, place: Place, *args: str | Path, stdout: int | None = None) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(place.workspace)
            if stdout is not None:
                os.dup2(stdout, 1)
            os.execve(STREAM, [STREAM, *map(str, args)], {**place.env, "TERM": "xterm"})

    def finish(self) -> tuple[int, str]:
        shown = b""
        while True:
            try:
                shown += os.read(self.fd, 1 << 16)
            except OSError:  # how the end of a terminal looks
                break
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), shown.decode()


def test_progress_on_a_terminal_only(place: Place) -> None:
    folder = place.write_probes(a="", b="")
    with (place.root / "out").open("wb") as out:
        code, shown = Terminal(place, "matrix", "--probes", folder, stdout=out.fileno()).finish()
    assert code == 0
    *progress, last = shown.split("\r\x1b[K")
    assert "cells, running " in "".join(progress)
    assert last == "2 cells = 2 records: 2 success\r\n"
    code, shown = Terminal(place, "matrix", "--probes", folder).finish()
    assert (code, "\x1b" in shown, shown.count("\n")) == (0, False, 4)
    assert shown.endswith("To read them: stream matrix | stream listen -\r\n")
    code, shown = Terminal(place, "matrix", "--probes", folder, "-o", "file").finish()
    assert (code, "cells, running " in shown) == (0, True)
    done = place.stream("matrix", "--probes", folder)
    assert done.err == "2 cells = 2 records: 2 success\n"


def test_colour_on_a_terminal_only(place: Place) -> None:
    folder = place.write_probes(a="")
    place.stream("matrix", "--probes", folder, "-o", "out")
    code, shown = Terminal(place, "listen", "out").finish()
    assert (code, "\x1b[32msuccess" in shown) == (0, True)
    assert b"\x1b" not in place.stream("listen", "out").out


def test_ctrl_c_on_a_terminal(place: Place) -> None:
    fifo = place.make_fifo("running")
    folder = place.write_probes(a=f'echo >"{fifo}"\n{SLEEP}')
    terminal = Terminal(place, "matrix", "--probes", folder)
    fifo.read_text()
    os.write(terminal.fd, b"\x03")
    code, shown = terminal.finish()
    *more, last = shown.replace("^C", "").splitlines()
    assert (code, last) == (130, "stream: interrupted")
    assert more in ([], ["stopped: 0 of 1 cells = 0 records"])
