"""The installed `stream` as a process, and a place of its own to run it in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from tests.forking import run_forked

STREAM = str(Path(sys.executable).with_name("stream"))
HELPERS = Path(__file__).parents[2] / "stream" / "helpers"
LANDLOCK = (str(HELPERS / "landlock-run"),)  #: and its words
PATIENCE = 180.0  #: seconds; a limit that only a bug reaches
CAPABILITY = "cap_fs_write_temp"
SLEEP = "perl -e 'sleep 1000' \"$TMPDIR\"\n"  #: names the place it runs in

_OF_INTERPRETER = ("PYTHON", "LANG", "LC_")  #: variables that Python reads when it starts

EMIT = """emit() {
  "${BASH_SOURCE[0]%/*}/../bin/emit-record" --run-mode "$FENCE_RUN_MODE" --probe-version 1 \\
    --primary-capability-id "$primary_capability_id" --command : --category fs --verb write \\
    --target here --probe-name "$probe_name" --status success "$@"
}
"""


# In between stands a small process: a child starts with the peak memory of who forked it.
_LAUNCHER = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
open(sys.argv[1], "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: bytes
    err: str
    peak: int = 0  #: bytes resident, of the process itself

    @property
    def records(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def ids(self) -> list[str]:
        return [record["probe"]["id"] for record in self.records]


@dataclass
class Place:
    """A workspace, and a folder for temporary files that must be empty afterwards."""

    root: Path
    env: dict[str, str]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    error_texts: list[str] = field(default_factory=list)

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    def start(
        self,
        *args: str | Path,
        argv0: Sequence[str] = (STREAM,),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: IO[Any] | int | None = subprocess.DEVNULL,
        stdout: IO[Any] | int | None = subprocess.PIPE,
        stderr: IO[Any] | int | None = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*argv0, *map(str, args)],
            env={**self.env, **(env or {})},
            cwd=cwd or self.workspace,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
        self.started.append(process)
        return process

    def finish(self, process: subprocess.Popen[bytes], data: bytes | None = None) -> Done:
        out, err = process.communicate(data, timeout=PATIENCE)
        text = (err or b"").decode(errors="replace")
        self.error_texts.append(text)
        return Done(process.returncode, out or b"", text)

    def stream(
        self,
        *args: str | Path,
        data: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        **how: Any,
    ) -> Done:
        """Run a command to its end. It is a fork of an interpreter, unless a test gives how it is
        to be started: `start` and `finish` always start the installed program."""
        more = env or {}
        if not how and not any(name.startswith(_OF_INTERPRETER) for name in more):
            words, given = [*map(str, args)], {**self.env, **more}
            code, out, err = run_forked(words, given, cwd or self.workspace, data, PATIENCE)
            self.error_texts.append(text := err.decode(errors="replace"))
            return Done(code, out, text)
        if data is not None:
            how["stdin"] = subprocess.PIPE
        return self.finish(self.start(*args, env=env, cwd=cwd, **how), data)

    def run_measured(self, *args: str | Path, **how: Any) -> Done:
        """With its peak memory."""
        peak = self.root / "peak"
        launcher = (sys.executable, "-c", _LAUNCHER, str(peak), STREAM)
        done = self.stream(*args, argv0=launcher, **how)
        return replace(done, peak=int(peak.read_text()) << 10)

    def write_probes(self, *, tree: str = "tree", emit: str = "emit\n", **bodies: str) -> Path:
        """A folder of probes: for each id, what it does before it emits."""
        folder = self.root / tree / "probes"
        folder.mkdir(parents=True, exist_ok=True)
        for name, body in bodies.items():
            write_script(folder / f"{name}.sh", probe_text(name, body + emit))
        return folder

    def link_helpers(self, tree: str = "tree") -> None:
        """A bin of the tree's own, for where none can be lent."""
        (self.root / tree / "bin").symlink_to(HELPERS)

    def make_fifo(self, name: str) -> Path:
        path = self.root / name
        os.mkfifo(path)
        return path

    def find_left(self) -> list[str]:
        """Processes and files that should be gone."""
        return [*processes_naming(str(self.root)), *map(str, self.tmp.iterdir())]


def probe_text(name: str, body: str, capability: str = CAPABILITY) -> str:
    return (
        "#!/usr/bin/env bash\nset -euo pipefail\n"
        f'probe_name="{name}"\nprimary_capability_id="{capability}"\n{EMIT}{body}'
    )


def write_script(path: Path, text: str, mode: int = 0o755) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def processes_naming(marker: str) -> list[str]:
    """Processes that have this in their command line, or stand in a folder of this name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
            cwd = str((folder / "cwd").readlink())
        except OSError:
            continue
        if marker in command or marker in cwd:
            found.append(f"{folder.name}: {command}")
    return found
