"""`python -m tests.kernel.guard`: plays the guard. A line of a folder and a program's words starts
one there, waits for its tree, and answers how it ended. The end of the input is the guard's end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from stream.process.cgroup import enter_cgroup
from stream.process.table import become_subreaper


def run_program(folder: str, *argv: str) -> int:
    null = subprocess.DEVNULL
    stdout = int(os.environ.get("STDOUT_OF_PROGRAM", null))
    try:
        program = subprocess.Popen(
            argv,
            cwd=folder,
            start_new_session=True,
            stdin=null,
            stdout=stdout,
            preexec_fn=act_before_exec if "PREPARES" in os.environ else None,
        )
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


def act_before_exec() -> None:
    """In the child, before it executes anything."""
    Path("/etc/passwd").read_bytes()
    if os.fork() == 0:
        os._exit(0)
    os.wait()


def main() -> None:
    become_subreaper()
    cgroup = enter_cgroup()
    print(json.dumps(str(cgroup.path) if cgroup else None), flush=True)
    for line in sys.stdin:
        Path("/etc/passwd").read_bytes()  # what it does itself is no part of a run
        print(run_program(*json.loads(line)), flush=True)
    if cgroup:
        cgroup.remove_group()


if __name__ == "__main__":
    main()
