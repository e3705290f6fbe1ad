"""`python -m tests.kernel.guard`: plays the guard. A line of argv starts a program; its tree is
waited for; a line of what became of it is the answer. The end of the input is its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from stream.proctable import become_subreaper
from stream.recorder.cgroup import enter_cgroup


def run(argv: list[str]) -> int:
    try:
        null = subprocess.DEVNULL
        program = subprocess.Popen(argv, start_new_session=True, stdin=null, stdout=null)
    except OSError as error:
        return -(error.errno or 0)
    code = 0
    while True:
        try:
            pid, status = os.wait()  # orphans of the program come to us
        except ChildProcessError:
            program.returncode = code
            return code
        if pid == program.pid:
            code = os.waitstatus_to_exitcode(status)


def main() -> None:
    become_subreaper()
    cgroup = enter_cgroup()
    print(json.dumps(str(cgroup.path) if cgroup else None), flush=True)
    for line in sys.stdin:
        Path("/etc/passwd").read_bytes()  # what it does itself is no part of a run
        print(run(json.loads(line)), flush=True)
    if cgroup:
        cgroup.remove()


if __name__ == "__main__":
    main()
