"""The contract gate: probe scripts against the author's contract, by reading and by running.

The run is judged by the `emit` stage itself, so gate and matrix cannot disagree; on top of
that come the rules that a record alone cannot show. Probes run one at a time, so that what
one leaves behind is its own.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from stream.boundary.builder import BoundaryBuilder
from stream.boundary.cells import Cell, MatrixPlan
from stream.boundary.flags import REPEATABLE, parse_words
from stream.boundary.scripts import SHEBANG, TEMPORARY, Script, staged, utf8
from stream.errors import EmitError, OutputError, os_reason
from stream.files.trees import remove_tree
from stream.matrix.plan import MatrixRequest, make_plan
from stream.pipeline import Batch, Out, Pipeline, Sink, Write
from stream.process.capture import capture
from stream.process.tree import Reaper
from stream.records.boundary import FRAME_START, FrameError, RawEmission, split_frames
from stream.records.control import EMISSIONS, FINDINGS, Finding
from stream.sources.probes import ProbeSource
from stream.transformers.emit import Emit

DENIALS = ("EACCES", "EPERM", "EROFS")
STRICT = b"set -euo pipefail"
SYNTAX_TIMEOUT = 5.0


class GateResult(Struct):
    probes: int
    findings: int


class _Collected(Struct):
    """A sink that keeps what it gets: a gate looks at a folder of scripts, not at a stream."""

    kinds = (EMISSIONS,)

    items: list[RawEmission] = field(default_factory=list)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        async def write(batch: Batch[RawEmission]) -> None:
            self.items += batch.items

        yield write


class _FindingSource(Struct):
    found: Sequence[Finding]

    async def run(self, out: Out, /) -> None:
        if self.found:
            await out.send(Batch(FINDINGS, self.found))


async def run_gate(
    names: Sequence[str],
    folder: Path | None,
    catalog: str | None,
    boundary: str | None,
    workspace: Path | None,
    *sinks: Sink,
    static: bool,
    timeout: float,
) -> GateResult:
    with _workspace(workspace) as (place, watched):
        request = MatrixRequest(
            probes=names, folder=folder, catalog=catalog, boundary=boundary, workspace=place
        )
        plan = make_plan(request)
        findings: list[Finding] = []
        runnable: list[Cell] = []
        findings += map(_no_probe, plan.no_probes)
        for cell in plan.cells:
            if not cell.script.is_probe:
                findings.append(_no_probe(cell.script))
                continue
            found = list(_read(cell.script, plan))
            if not any(finding.rule == "gate.readable" for finding in found):
                found += await _parse(cell.script)
            findings += found
            if not any(finding.rule in _FATAL for finding in found):
                runnable.append(cell)
        if not static:
            findings += await _run(replace(plan, cells=tuple(runnable)), timeout, watched)
    findings.sort(key=lambda finding: str(finding.source))
    await Pipeline((_FindingSource(findings),)).into(*sinks)
    return GateResult(len(plan.cells) + len(plan.no_probes), len(findings))


def _finding(script: Script, rule: str, message: str, line: int | None = None) -> Finding:
    return Finding(
        rule=f"gate.{rule}",
        severity="error",
        message=utf8(message),
        source=utf8(script.path),
        line=msgspec.UNSET if line is None else line,
    )


def _no_probe(script: Script) -> Finding:
    message = "it neither calls emit-record nor declares a capability: it is no probe, and not run"
    return _finding(script, "no-probe", message)


#: after which a run would say nothing new
_FATAL = {"gate.readable", "gate.executable", "gate.syntax"}


def _read(script: Script, plan: MatrixPlan) -> Iterator[Finding]:
    """The static rules."""
    if not script.path.is_file() or not os.access(script.path, os.R_OK):
        yield _finding(script, "readable", "the script is not a file that can be read")
        return
    text = script.path.read_bytes()
    lines = text.splitlines()
    if not os.access(script.path, os.X_OK):
        yield _finding(script, "executable", "the script is not executable (chmod +x)")
    if text.split(b"\n", 1)[0] != SHEBANG:
        yield _finding(script, "shebang", f"the first line is not {SHEBANG.decode()}", 1)
    first = next((n for n, line in enumerate(lines) if _is_command(line)), None)
    if first is None or lines[first].strip() != STRICT:
        at = 1 if first is None else first + 1
        yield _finding(script, "strict-mode", f"the first command is not {STRICT.decode()}", at)
    yield from _declarations(script, lines, plan)


def _declarations(script: Script, lines: Sequence[bytes], plan: MatrixPlan) -> Iterator[Finding]:
    """What the script says about itself, for those who do not run it."""
    at = _line_of(lines, b"probe_name=")
    if script.name is None:
        yield _finding(script, "probe-name", 'probe_name="…" is not assigned as a literal', at)
    elif script.name != script.id:
        message = f"probe_name is {script.name} but the file is {script.id}.sh"
        yield _finding(script, "probe-name", message, at)
    at = _hard_coded_mode(b"\n".join(lines))
    if at is not None:
        message = '--run-mode is written out: pass on "$FENCE_RUN_MODE"'
        yield _finding(script, "run-mode", message, at)
    at = _line_of(lines, b"primary_capability_id=")
    if script.capability is None:
        message = 'primary_capability_id="…" is not assigned as a literal'
        yield _finding(script, "capability", message, at)
    elif plan.catalogs.knowing(script.capability) is None:
        catalogs = ", ".join(catalog.key for catalog in plan.catalogs.known)
        message = f"capability {script.capability} is not in {catalogs}"
        yield _finding(script, "capability", message, at)


_RUN_MODE = re.compile(
    rb"""^(?![ \t]*\#)[^\n]*? (?P<mark>["']?)--run-mode(?P=mark) (?:\s|\\\n)+
    (?: \$?'(?P<literal>[^'\n]+)' | "(?P<quoted>[^"\n]+)"
      | (?P<plain>\$\([^)\n]*\) | [^\s"';&|)]+) )""",
    re.MULTILINE | re.VERBOSE,
)

_SAID = re.compile(rb"\$\((?=(?:echo|printf)\b)")  #: a command that gives its own words back


def _hard_coded_mode(text: bytes) -> int | None:
    """The line where --run-mode gets what depends on nothing, also by way of one variable."""
    for match in _RUN_MODE.finditer(text):
        values = [match["quoted"] or match["plain"] or b""]
        name = re.fullmatch(rb"\$\{?(\w+)\}?", values[0])
        if name:  # FENCE_RUN_MODE has none, unless the script overwrites it
            values = re.findall(rb"^(?![ \t]*#)[^\n]*\b%s=([^\n]*)" % name[1], text, re.MULTILINE)
        values = [_SAID.sub(b"", value) for value in values]
        if match["literal"] or (values and not any(b"$" in value for value in values)):
            return text.count(b"\n", 0, match.start()) + 1
    return None


def _is_command(line: bytes) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith(b"#")


def _line_of(lines: Sequence[bytes], start: bytes) -> int | None:
    return next((n for n, line in enumerate(lines, 1) if line.startswith(start)), None)


async def _parse(script: Script) -> list[Finding]:
    """bash's own opinion of the syntax."""
    got = await capture(
        ["bash", "-n", str(script.path.absolute())],
        env={**os.environ, "LC_ALL": "C"},
        cwd="/",
        timeout=SYNTAX_TIMEOUT,
        stdout_limit=0,
        stderr_limit=1000,
    )
    if got.exit_code == 0:
        return []
    said = got.stderr.head.decode(errors="replace").strip() or got.spawn_error or "no answer"
    reason = said.splitlines()[0].removeprefix(f"{script.path.absolute()}: ")
    at = re.match(r"line (\d+): ", reason)
    message = f"bash cannot parse it: {reason[at.end() if at else 0 :]}"
    return [_finding(script, "syntax", message, int(at[1]) if at else None)]


def _stray(name: str) -> Finding:
    message = f"one of the probes left a process behind: {name}"
    return Finding(rule="gate.left-processes", severity="error", message=message)


async def _run(plan: MatrixPlan, timeout: float, watched: Path | None) -> list[Finding]:
    """The dynamic rules."""
    recorder = BoundaryBuilder(plan.catalogs, plan.descriptor)
    collected = _Collected()
    left: list[list[str]] = []
    before = _listing(watched)
    known = {path for cell in plan.cells for path in _shared(cell.script)}
    home = {"HOME": str(watched / "home")} if watched else {}

    def after(done: int, started: Cell | None) -> None:
        if started is None:
            shared = _shared(plan.cells[done - 1].script) - known
            left.append(sorted(_listing(watched) ^ before) + sorted(map(str, shared)))
            known.update(shared)
            if watched and left[-1]:  # the next probe finds what this one found
                _furnish(watched)

    with (
        staged(plan.folder, plan.workspace) as staging,
        _scratch() as logs,
    ):
        cells = tuple(
            replace(cell, index=n, env={**cell.env, **home, "STREAM_EMIT_LOG": f"{logs}/{n}"})
            for n, cell in enumerate(plan.cells)
        )
        source = ProbeSource(
            plan=replace(plan, cells=cells),
            staging=staging,
            jobs=1,
            timeout=timeout,
            on_done=after,
        )
        try:
            await Pipeline((source,)).into(collected)
        finally:
            strays = Reaper.get().end_strays()
        calls = [_count_calls(Path(logs, str(n))) for n in range(len(cells))]
    findings = [_stray(name) for name in strays]
    for cell, emission, changed, called in zip(cells, collected.items, left, calls, strict=True):
        emit = Emit(recorder)
        for rule, message in _judge(emit, emission):
            findings.append(_finding(cell.script, rule, message))
        # What the record tells already is not told twice.
        quiet = not emit.failed and staging.counts_calls
        if (called == 0 and quiet) or (called > 1 and not _several(emission)):
            message = f"emit-record was called {called} times instead of once"
            findings.append(_finding(cell.script, "emit-calls", message))
        if changed:
            message = f"it leaves things behind, or changed: {', '.join(changed[:5])}"
            findings.append(_finding(cell.script, "leftovers", message))
    return findings


def _judge(emit: Emit, emission: RawEmission) -> Iterator[tuple[str, str]]:
    """(rule, message) for all that one run shows."""
    ((line,),) = (made.items for made in emit.feed(Batch(EMISSIONS, (emission,))))
    if emit.failed:
        yield emit.failures[0].reason, emit.failures[0].sentence
    else:
        assert isinstance(line, bytes)
        record = msgspec.json.decode(line)
        result = record["result"]
        if result["observed_result"] == "denied" and result["errno"] not in DENIALS:
            yield "denial", f"denied with errno {result['errno']}, which is not one of a denial"
        for part, where, mark in _CUTS:
            cut = record[part][where].get(mark)
            if cut:
                yield "size", f"{part}.{where} is {cut['bytes']} bytes, which was cut to 4 KB"
    try:
        frames, _ = split_frames(emission.stdout)
        given = parse_words(frames[0].words).given if frames else {}
    except (FrameError, EmitError):  # said above
        return
    for flag, count in given.items():
        if count > 1 and flag not in REPEATABLE:
            yield "repeated-flag", f"{flag} is given {count} times"


def _several(emission: RawEmission) -> bool:
    return emission.stdout.count(FRAME_START) > 1


_CUTS = (("payload", "raw", "payload_cut"), ("operation", "args", "args_cut"))


def _count_calls(log: Path) -> int:
    try:
        return len(log.read_bytes().splitlines())
    except OSError:
        return 0


def _listing(folder: Path | None) -> set[str]:
    """What there is, with sizes: a probe that cleans up leaves it as it was."""
    if folder is None:
        return set()
    found: set[str] = set()
    todo = [folder]
    while todo:
        with suppress(OSError):
            for path in todo.pop().iterdir():
                status, name = path.lstat(), path.relative_to(folder)
                if stat.S_ISDIR(status.st_mode):
                    found.add(f"{name}/ (mode {stat.S_IMODE(status.st_mode):o})")
                    todo.append(path)
                else:
                    mode = stat.S_IMODE(status.st_mode)
                    found.add(f"{name} ({status.st_size} bytes, mode {mode:o})")
    return found


def _shared(script: Script) -> set[Path]:
    """In the folders that all programs share: what bears the name of the probe, or of probes at
    all and of no process that still runs. Other runs have such files as well: one that is gone when
    its process has been asked for was of one that came to its end meanwhile."""
    names = [path for folder in TEMPORARY for path in Path(folder).glob("*")]
    found = [
        path
        for path in names
        if ("_" in script.id and script.id in path.name)
        or ("stream-probe" in path.name and not any(map(_runs, re.findall(r"\d+", path.name))))
    ]
    return {path for path in found if os.path.lexists(path)}


def _runs(number: str) -> bool:
    return Path("/proc", number).exists()


@contextmanager
def _workspace(given: Path | None) -> Iterator[tuple[Path, Path | None]]:
    """(where probes run, the folder to watch): the user's own, or a scratch repository beside
    a scratch home."""
    if given is not None:
        yield given, None
        return
    with _scratch() as scratch:
        root = Path(scratch).resolve()
        _furnish(root)
        yield root / "workspace", root


@contextmanager
def _scratch() -> Iterator[str]:
    try:
        folder = tempfile.mkdtemp(prefix="stream-gate-")
    except OSError as error:
        raise OutputError(f"no place for temporary files: {os_reason(error)}") from None
    try:
        yield folder
    finally:
        with suppress(OutputError):
            remove_tree(Path(folder))


def _furnish(root: Path) -> None:
    for path in root.iterdir():
        if path.is_dir() and not path.is_symlink():
            with suppress(OutputError):
                remove_tree(path)
        else:
            path.unlink()
    workspace, home = root / "workspace", root / "home"
    (workspace / ".git" / "hooks").mkdir(parents=True)
    (workspace / ".git" / "config").write_text("[core]\n\tbare = false\n")
    (workspace / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (workspace / "README.md").write_text("A workspace to run probes in.\n")
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    (home / ".bashrc").write_text("# A home to run probes in.\n")
