"""The contract gate: check probe scripts against the author's contract by reading and running them.

A run is checked by the `emit` transformer itself, so gate and matrix agree; further rules check
what a record alone cannot show. Probes run one at a time, so that leftovers have one cause.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stream.boundary.builder import BoundaryBuilder
from stream.boundary.emit_flags import REPEATABLE, parse_emit_words
from stream.boundary.scripts import (
    NEEDS,
    SHEBANG,
    TEMPORARY,
    Cell,
    MatrixPlan,
    Script,
    stage_probes,
    utf8,
)
from stream.errors import EmitError, OutputError, reporting
from stream.files.trees import remove_tree
from stream.matrix.plan import MatrixRequest, make_plan
from stream.pipeline import Batch, CollectingSink, Out, Pipeline, Sink
from stream.process.capture import capture
from stream.process.tree import Reaper
from stream.records.control import EMISSIONS, FINDINGS, Finding
from stream.records.emission import FRAME_START, FrameError, RawEmission, split_frames
from stream.records.modes import EFFECTS
from stream.sources.probes import ProbeSource
from stream.transformers.emit import Emit

DENIALS = ("EACCES", "EPERM", "EROFS")
STRICT = b"set -euo pipefail"
#: Rules after which a run would find nothing new.
_FATAL = {"gate.no-probe", "gate.readable", "gate.executable", "gate.syntax"}


class GateResult(Struct):
    """How many scripts were checked, and how many findings there are."""

    probes: int
    findings: int


async def run_gate(
    request: MatrixRequest, *sinks: Sink, static: bool, timeout: float
) -> GateResult:
    """Check the scripts of the request and write the findings to the sinks. `static`: run nothing.

    Without a workspace in the request, probes run in a scratch repository, where everything that
    they leave behind is found."""
    with _gate_workspace(request.workspace) as (workspace, watched):
        plan = make_plan(replace(request, workspace=workspace, with_needs=True))
        findings = [_no_probe_finding(script) for script in plan.no_probes]
        runnable: list[Cell] = []
        for cell in plan.cells:
            found = await _check_script(cell.script, plan)
            findings += found
            if not any(finding.rule in _FATAL for finding in found):
                runnable.append(cell)
        if not static:
            findings += await _run_findings(replace(plan, cells=tuple(runnable)), timeout, watched)
    findings.sort(key=lambda finding: str(finding.source))
    await Pipeline((_FindingSource(findings),)).into(*sinks)
    return GateResult(len(plan.cells) + len(plan.no_probes), len(findings))


class _FindingSource(Struct):
    found: Sequence[Finding]

    async def run(self, out: Out, /) -> None:
        """Send the findings, if there are any."""
        if self.found:
            await out.send(Batch(FINDINGS, self.found))


def _gate_finding(script: Script, rule: str, message: str, line: int | None = None) -> Finding:
    """Make a finding of `stream gate` about a probe script."""
    return Finding(
        rule=f"gate.{rule}",
        severity="error",
        message=utf8(message),
        source=utf8(script.path),
        line=msgspec.UNSET if line is None else line,
    )


# --- what the script shows ----------------------------------------------------------------------


async def _check_script(script: Script, plan: MatrixPlan) -> list[Finding]:
    """Return what is wrong with a script, as far as reading it shows."""
    if not script.is_probe:
        return [_no_probe_finding(script)]
    if not script.path.is_file() or not os.access(script.path, os.R_OK):
        return [_gate_finding(script, "readable", "the script is not a file that can be read")]
    text = script.path.read_bytes()
    found = [*_script_form_findings(script, text), *_declaration_findings(script, text, plan)]
    return [*found, *await _syntax_findings(script)]


def _no_probe_finding(script: Script) -> Finding:
    message = "not a probe, and not run: it neither calls emit-record nor declares a capability"
    return _gate_finding(script, "no-probe", message)


def _script_form_findings(script: Script, text: bytes) -> Iterator[Finding]:
    """Check that a probe script is executable and begins with shebang and strict mode."""
    if not os.access(script.path, os.X_OK):
        yield _gate_finding(script, "executable", "the script is not executable (chmod +x)")
    if text.split(b"\n", 1)[0] != SHEBANG:
        yield _gate_finding(script, "shebang", f"the first line is not {SHEBANG.decode()}", 1)
    lines = enumerate(map(bytes.strip, text.splitlines()), 1)
    commands = ((at, line) for at, line in lines if line and not line.startswith(b"#"))
    at, first = next(commands, (1, b""))
    if first != STRICT:
        yield _gate_finding(
            script, "strict-mode", f"the first command is not {STRICT.decode()}", at
        )


def _declaration_findings(script: Script, text: bytes, plan: MatrixPlan) -> Iterator[Finding]:
    """Check what the script declares about itself for readers that do not run it."""
    lines = text.splitlines()
    at = _line_of(lines, b"probe_name=")
    if script.name is None:
        yield _gate_finding(script, "probe-name", 'probe_name="…" is not assigned as a literal', at)
    elif script.name != script.id:
        message = f"probe_name is {script.name} but the file is {script.id}.sh"
        yield _gate_finding(script, "probe-name", message, at)
    at = _constant_run_mode(text)
    if at is not None:
        message = '--run-mode is written out: pass "$FENCE_RUN_MODE"'
        yield _gate_finding(script, "run-mode", message, at)
    at = _line_of(lines, b"primary_capability_id=")
    if script.capability is None:
        message = 'primary_capability_id="…" is not assigned as a literal'
        yield _gate_finding(script, "capability", message, at)
    elif plan.catalogs.find_catalog(script.capability) is None:
        catalogs = ", ".join(catalog.key for catalog in plan.catalogs.known)
        message = f"capability {script.capability} is not in {catalogs}"
        yield _gate_finding(script, "capability", message, at)
    for rule, word, words in (("needs", script.needs, NEEDS), ("effect", script.effect, EFFECTS)):
        at = _line_of(lines, f"{rule}=".encode())
        if at is not None and word not in words:
            what = f"is {word}, which is" if word else "is not assigned as a literal:"
            message = f"{rule} {what} none of {', '.join(words)}"
            yield _gate_finding(script, rule, message, at)


_RUN_MODE = re.compile(
    rb"""^(?![ \t]*\#)[^\n]*? (?P<mark>["']?)--run-mode(?P=mark) (?:\s|\\\n)+
    (?: \$?'(?P<literal>[^'\n]+)' | "(?P<quoted>[^"\n]+)"
      | (?P<plain>\$\([^)\n]*\) | [^\s"';&|)]+) )""",
    re.MULTILINE | re.VERBOSE,
)

_ECHOED = re.compile(rb"\$\((?=(?:echo|printf)\b)")  #: a command that prints its own words


def _constant_run_mode(text: bytes) -> int | None:
    """Return the line where --run-mode gets a constant, directly or through one variable."""
    for match in _RUN_MODE.finditer(text):
        values = [match["quoted"] or match["plain"] or b""]
        name = re.fullmatch(rb"\$\{?(\w+)\}?", values[0])
        if name:  # FENCE_RUN_MODE has none, unless the script overwrites it
            values = re.findall(rb"^(?![ \t]*#)[^\n]*\b%s=([^\n]*)" % name[1], text, re.MULTILINE)
        values = [_ECHOED.sub(b"", value) for value in values]
        if match["literal"] or (values and not any(b"$" in value for value in values)):
            return text.count(b"\n", 0, match.start()) + 1
    return None


def _line_of(lines: Sequence[bytes], start: bytes) -> int | None:
    return next((n for n, line in enumerate(lines, 1) if line.startswith(start)), None)


async def _syntax_findings(script: Script) -> list[Finding]:
    """Let bash check the syntax of a probe script."""
    path = script.path.absolute()
    got = await capture(
        ["bash", "-n", str(path)],
        env={**os.environ, "LC_ALL": "C"},
        cwd="/",
        timeout=5.0,
        stdout_limit=0,
        stderr_limit=1000,
    )
    if got.exit_code == 0:
        return []
    output = got.stderr.head.decode(errors="replace").strip() or got.spawn_error or "no answer"
    reason = output.splitlines()[0].removeprefix(f"{path}: ")
    at = re.match(r"line (\d+): ", reason)
    message = f"bash cannot parse it: {reason[at.end() if at else 0 :]}"
    return [_gate_finding(script, "syntax", message, int(at[1]) if at else None)]


# --- what a run shows ---------------------------------------------------------------------------


async def _run_findings(plan: MatrixPlan, timeout: float, watched: Path | None) -> list[Finding]:
    """Run every probe once and return what the runs show."""
    collected = CollectingSink((EMISSIONS,))
    leftovers = _Leftovers([cell.script for cell in plan.cells], watched)
    home = {"HOME": str(watched / "home")} if watched else {}

    def after(done: int, started: Cell | None) -> None:
        """Look for leftovers when a cell has ended."""
        if started is None:
            leftovers.check_leftovers(plan.cells[done - 1].script)

    with stage_probes(plan.folder, plan.workspace) as staging, _scratch_folder() as logs:
        cells = tuple(
            replace(cell, env={**cell.env, **home, "STREAM_EMIT_LOG": f"{logs}/{n}"})
            for n, cell in enumerate(plan.cells)
        )
        source = ProbeSource(
            plan=replace(plan, cells=cells), staging=staging, jobs=1, timeout=timeout, on_done=after
        )
        try:
            await Pipeline((source,)).into(collected)
        finally:
            strays = Reaper.get().end_strays()
        counts = [_count_emit_calls(Path(logs, str(n))) for n in range(len(cells))]
    findings = [_stray_finding(name) for name in strays]
    builder = BoundaryBuilder(plan.catalogs, plan.descriptor)
    runs = zip(cells, collected.items, leftovers.found, counts, strict=True)
    for cell, emission, left, calls in runs:
        emit = Emit(builder)
        rules = [*_record_faults(emit, emission), *_flag_faults(emission)]
        # A failure that the record reports is not reported twice.
        is_counted = not emit.failed and staging.counts_calls
        if (calls == 0 and is_counted) or (calls > 1 and not _has_several_records(emission)):
            rules.append(("emit-calls", f"emit-record was called {calls} times instead of once"))
        if left:
            what = ", ".join(left[:5])
            rules.append(("leftovers", f"it left something behind, or changed it: {what}"))
        findings += [_gate_finding(cell.script, rule, message) for rule, message in rules]
    return findings


def _stray_finding(name: str) -> Finding:
    message = f"one of the probes left a process behind: {name}"
    return Finding(rule="gate.left-processes", severity="error", message=message)


def _record_faults(emit: Emit, emission: RawEmission) -> Iterator[tuple[str, str]]:
    """Yield (rule, message) for what is wrong with the record of one run."""
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


def _flag_faults(emission: RawEmission) -> Iterator[tuple[str, str]]:
    """Yield (rule, message) for each flag that is given too often."""
    try:
        frames, _ = split_frames(emission.stdout)
        given = parse_emit_words(frames[0].words).given if frames else {}
    except (FrameError, EmitError):  # the record reports it
        return
    for flag, count in given.items():
        if count > 1 and flag not in REPEATABLE:
            yield "repeated-flag", f"{flag} is given {count} times"


def _has_several_records(emission: RawEmission) -> bool:
    return emission.stdout.count(FRAME_START) > 1


_CUTS = (("payload", "raw", "payload_cut"), ("operation", "args", "args_cut"))


def _count_emit_calls(log: Path) -> int:
    """Count how often a probe called emit-record, by the lines of the log."""
    try:
        return len(log.read_bytes().splitlines())
    except OSError:
        return 0


# --- what probes leave behind -------------------------------------------------------------------


class _Leftovers:
    """Find what each probe leaves behind in the watched folder, and in the temporary folders that
    all programs share."""

    def __init__(self, scripts: Sequence[Script], watched: Path | None) -> None:
        self.found: list[list[str]] = []  #: for each probe, in their order
        self._watched = watched
        self._before = _folder_listing(watched)
        self._known = {path for script in scripts for path in _shared_leftovers(script)}

    def check_leftovers(self, script: Script) -> None:
        """Look for leftovers of a probe that has ended, and clean the folder for the next one."""
        shared = _shared_leftovers(script) - self._known
        self._known |= shared
        left = sorted(_folder_listing(self._watched) ^ self._before) + sorted(map(str, shared))
        self.found.append(left)
        if self._watched and left:
            _furnish_scratch(self._watched)


def _folder_listing(folder: Path | None) -> set[str]:
    """Return every path below a folder, with size and mode."""
    if folder is None:
        return set()
    found: set[str] = set()
    todo = [folder]
    while todo:
        with suppress(OSError):
            for path in todo.pop().iterdir():
                status, name = path.lstat(), path.relative_to(folder)
                mode = f"mode {stat.S_IMODE(status.st_mode):o}"
                if stat.S_ISDIR(status.st_mode):
                    found.add(f"{name}/ ({mode})")
                    todo.append(path)
                else:
                    found.add(f"{name} ({status.st_size} bytes, {mode})")
    return found


def _shared_leftovers(script: Script) -> set[Path]:
    """Return files in shared temporary folders that have the probe's name, or a name of probes
    without the number of a running process. A file that is gone by the end of the check belonged
    to another run that has just ended."""
    found = []
    for path in (path for folder in TEMPORARY for path in Path(folder).glob("*")):
        is_named = "_" in script.id and script.id in path.name
        if "stream-probe" in path.name:
            is_named |= not any(map(_is_running, re.findall(r"\d+", path.name)))
        if is_named:
            found.append(path)
    return {path for path in found if os.path.lexists(path)}


def _is_running(number: str) -> bool:
    return Path("/proc", number).exists()


@contextmanager
def _gate_workspace(given: Path | None) -> Iterator[tuple[Path, Path | None]]:
    """Yield (where probes run, the folder to watch): the given one, which is not watched, or a
    scratch repository with a scratch home."""
    if given is not None:
        yield given, None
        return
    with _scratch_folder() as scratch:
        root = Path(scratch).resolve()
        _furnish_scratch(root)
        yield root / "workspace", root


@contextmanager
def _scratch_folder() -> Iterator[str]:
    """Make a folder in which the gate runs probes, and remove it afterwards."""
    with reporting("no place for temporary files", OutputError):
        folder = tempfile.mkdtemp(prefix="stream-gate-")
    try:
        yield folder
    finally:
        with suppress(OutputError):
            remove_tree(Path(folder))


def _furnish_scratch(root: Path) -> None:
    """Empty a scratch folder and put a repository and a home into it."""
    for path in root.iterdir():
        with suppress(OutputError):
            remove_tree(path)
    workspace, home = root / "workspace", root / "home"
    (workspace / ".git" / "hooks").mkdir(parents=True)
    (workspace / ".git" / "config").write_text("[core]\n\tbare = false\n")
    (workspace / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (workspace / "README.md").write_text("A workspace to run probes in.\n")
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    (home / ".bashrc").write_text("# A home to run probes in.\n")
