"""The events of one run, in their order, each written down before what it announces goes on.

Time comes from one clock that never steps back; the wall is looked at once, for the offset.

What one agent run was told to be, and the folder that it is written into."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from stream import __version__
from stream.errors import OutputError, UsageError, encodable, os_reason, reporting
from stream.files.append import RecordedFile, create_private_file
from stream.observe.agents import Agent, Version, find_agent_version, launched_commands
from stream.observe.scenario import NUMBERS, UNKNOWN, Scenario
from stream.process.machine import Clock, system_name, utc_timestamp
from stream.process.messages import Prepare, Start
from stream.process.wrapper_scripts import Wrappers
from stream.records.artifacts import EVIDENCE_FILES, HOME
from stream.records.decision import (
    SCHEMA_VERSION,
    ActionType,
    AgentAction,
    Alignment,
    Artifact,
    CaptureMode,
    Checked,
    Constraint,
    DecisionEvent,
    Environment,
    Evaluation,
    EventName,
    ModelOutput,
    ModelParameters,
    ModelUsage,
    OutputRaw,
    PromptProvenance,
    Request,
    Session,
    encode_event,
)
from stream.records.run import (
    ARTIFACTS,
    EVENTS_FILE,
    MANIFEST_FILE,
    WORKSPACE,
    Beginning,
    Manifest,
    ManifestFile,
    RunMetadata,
    WorkspaceMode,
    check_run_id,
)
from stream.redaction.policy import CapturePolicy, Redactor, sha256_digest
from stream.sources.agent import CEILINGS

#: whose span an event is in; None is the root
_PARENT: dict[EventName, EventName | None] = {
    "run_started": None,
    "workspace_prepared": "run_started",
    "agent_invoked": "run_started",
    "agent_completed": "agent_invoked",
    "artifacts_captured": "agent_completed",
    "fs_diff_captured": "agent_completed",
    "commands_observed": "fs_diff_captured",
    "commands_observation_unavailable": "fs_diff_captured",
    "evaluation_performed": "commands_observed",
    "run_finished": "run_started",
}


def not_evaluated() -> Evaluation:
    """Return the evaluation that an event of the run has before there is one."""
    return Evaluation(
        Alignment("unknown", None, [], []),
        Checked("unknown", [], None),
        Checked("unknown", [], None),
    )


class EventTrace(Struct):
    """The events of one run: numbered, timed and written as they happen."""

    session: Session
    request: Request
    provenance: PromptProvenance
    clock: Clock
    write: Callable[[bytes], object]
    censor: Callable[[Any], Any] = lambda value: value
    trace_id: str = field(default_factory=lambda: os.urandom(16).hex())
    spans: dict[EventName, str] = field(default_factory=dict)

    def now(self) -> str:
        """The time by the clock of the run, as events have it."""
        return self.clock.timestamp(time.monotonic_ns())

    def add_event(
        self,
        name: EventName,
        action: ActionType,
        summary: str,
        artifacts: Sequence[Artifact] = (),
        *,
        output_raw: OutputRaw | None = None,
        evaluation: Evaluation | None = None,
    ) -> bytes:
        """Write an event of the run, linked to its parent event, and return its line."""
        parent = _PARENT[name]
        if parent is not None and parent not in self.spans:  # the seventh has two forms
            parent = "commands_observation_unavailable"
        span = self.spans[name] = os.urandom(8).hex()
        event = DecisionEvent(
            schema_version=SCHEMA_VERSION,
            event_type=name,
            event_id=os.urandom(16).hex(),
            timestamp=self.now(),
            trace_id=self.trace_id,
            span_id=span,
            parent_span_id=None if parent is None else self.spans[parent],
            observability_mode="black_box",
            session=self.session,
            request=self.request,
            prompt_provenance=self.provenance,
            model_output=ModelOutput(None, output_raw, None, [], ModelUsage()),
            agent_action=AgentAction(action, f"[{name}] {summary}", list(artifacts), []),
            evaluation=evaluation or not_evaluated(),
        )
        line = self._encode_censored_event(event)
        self.write(line)
        return line

    def _encode_censored_event(self, event: DecisionEvent) -> bytes:
        """Encode an event of the run, without the secrets in its text."""
        value = msgspec.to_builtins(event)
        for key in ("request", "agent_action", "evaluation"):
            value[key] = self.censor(value[key])
        for artifact in value["agent_action"]["artifacts"]:
            if artifact["content_ref"] is None:  # of what is written, without its secrets
                artifact["hash"] = sha256_digest(encode_event(artifact["metadata"]))
        return encode_event(value)


def file_artifact(
    kind: str, path: str, kept: RecordedFile, summary: str, **metadata: Any
) -> Artifact:
    """Describe a file of the run folder for an event."""
    metadata["bytes"] = kept.bytes
    if kept.lost:
        metadata |= {"lost_bytes": kept.lost, "lost_because": kept.why}
    return Artifact(kind, path.rpartition("/")[2], summary, path, kept.hash, metadata)


def value_artifact(kind: str, summary: str, facts: dict[str, Any]) -> Artifact:
    """Facts that are in the event itself, which gives them their digest."""
    return Artifact(kind, kind, summary, None, "", facts)


class RunSettings(Struct, kw_only=True):
    """What one run is to record, of which command, and where."""

    run_id: str
    folder: Path  #: absolute
    argv: list[bytes]
    executable: str | None  #: None: there is no such command
    agent: Agent
    agent_program: str | None = None  #: what can be looked at for its version
    scenario: Scenario
    capture_policy: CapturePolicy
    environment: Environment
    workspace_mode: WorkspaceMode
    workspace: Path  #: absolute
    source: Path | None
    leave_out: list[Path]
    wrap: Sequence[str]  #: empty: no wrappers
    grace: float
    timeout: float | None

    @property
    def wrappers_folder(self) -> Path:
        """The folder of the wrappers, by the path that a kernel has for it, so that its files are
        known when they are used."""
        return Path(os.path.realpath(self.folder)) / HOME

    def prepare_request(self) -> Prepare:
        """Say what the guard is to prepare."""
        path = os.environ.get("PATH", os.defpath)
        return Prepare(os.fsencode(self.wrappers_folder), list(self.wrap), os.fsencode(path))

    async def find_agent_version(self) -> Version:
        """Find out in which version the agent will be started."""
        program = None
        if self.agent_program is not None:  # it is looked for before there is a workspace
            folder = self.workspace if self.workspace_mode == "here" else self.source or self.folder
            program = Path(folder, self.agent_program)
        return await find_agent_version(self.agent, program)

    def foreign_files(self, recorded: Collection[str], *, has_evidence: bool) -> list[str]:
        """Name what lies in the run folder, and is none of these files nor evidence: somebody else
        put it there."""
        files = {*recorded, EVENTS_FILE, HOME, *(EVIDENCE_FILES if has_evidence else ())}
        if self.workspace_mode != "here":
            files.add(WORKSPACE)
        folders = {name.rpartition("/")[0] for name in files} - {""}
        found = []
        for folder in ("", *sorted(folders)):
            try:
                inside = sorted(one.name for one in (self.folder / folder).iterdir())
            except OSError:  # that it is no folder any more is said of what was in it
                continue
            names = [f"{folder}/{name}" if folder else name for name in inside]
            found += [name for name in names if name not in files and name not in folders]
        return [encodable(name) for name in found]

    @property
    def is_verbose(self) -> bool:
        """Return whether the agent was asked to be verbose."""
        words = [os.fsdecode(word) for word in self.argv]
        return any("--verbose" in launch.words[1:] for launch in launched_commands(words))

    def run_metadata(self, version: Version, clock: Clock) -> RunMetadata:
        """Describe the run for metadata.json."""
        see = self.capture_policy.redact_value
        return RunMetadata(
            run_id=self.run_id,
            session_id=see(self.scenario.id),
            profile=self.agent.profile,
            started=utc_timestamp(clock.wall),
            stream_version=__version__,
            system=system_name(),
            agent_id=see(self.agent.id),
            agent_version=see(version.text),
            agent_known_by=self.agent.known_by,
            version_known_by=version.known_by,
            argv=self.capture_policy.redact_words(self.argv),
            environment=self.environment,
            capture_mode=self.capture_policy.mode,
            workspace_mode=self.workspace_mode,
            workspace=WORKSPACE if self.workspace_mode != "here" else see(str(self.workspace)),
            source=None if self.source is None else see(str(self.source)),
            constraints=[see(one.id) for one in self.scenario.constraints],
            parameters={see(key): see(value) for key, value in self.scenario.parameters.items()},
        )

    def process_facts(self, version: Version, start: str) -> dict[str, Any]:
        """Describe the agent's process before there is one."""
        return {
            "cwd": str(self.workspace),
            "argv": self.capture_policy.redact_words(self.argv),
            "agent_known_by": self.agent.known_by,
            "version_known_by": version.known_by,
            "start": start,
            "stdin": "/dev/null" if os.isatty(0) else "inherited",
            "wrappers": "on" if self.wrap else "off",
        }

    def start_trace(
        self, version: Version, clock: Clock, write: Callable[[bytes], object]
    ) -> EventTrace:
        """Start the trace of the run, whose lines go to `write`."""
        scenario, see = self.scenario, self.capture_policy.redact_value
        context = {
            key: value
            for key, value in scenario.parameters.items()
            if key in ("language", "test_framework", "package_manager")
        }
        numbers = {key: scenario.parameters[key] for key in NUMBERS if key in scenario.parameters}
        if self.capture_policy.mode == "hashed" and scenario.request != UNKNOWN:
            context["user_request_hash"] = sha256_digest(
                scenario.request.encode(errors="surrogateescape")
            )
        return EventTrace(
            Session(
                see(scenario.id),
                self.run_id,
                see(self.agent.id),
                see(version.text),
                self.environment,
            ),
            Request(
                os.urandom(16).hex(),
                self.capture_policy.redact_request(scenario.request),
                [Constraint(see(one.id), one.type, see(one.rule)) for one in scenario.constraints],
                context,
            ),
            PromptProvenance(
                self.agent.provider,
                UNKNOWN,
                self.capture_policy.mode,
                None,
                "unknown",
                ModelParameters(**numbers),
            ),
            clock=clock,
            write=write,
            censor=self.capture_policy.redact_value,
        )


def write_document(path: Path, document: Any) -> RecordedFile:
    """Write a document of the run folder in JSON. Raise OutputError."""
    data = msgspec.json.format(msgspec.json.encode(document)) + b"\n"
    with reporting(path, OutputError), create_private_file(path) as file:
        file.write(data)
    return RecordedFile(sha256_digest(data).removeprefix("sha256:"), len(data), len(data))


def write_manifest(
    folder: Path, run_id: str, events: Beginning, kept: Mapping[str, RecordedFile]
) -> RecordedFile:
    """List what the recorder wrote, as it was written, and nothing else. Raise OutputError."""
    files = [ManifestFile(name, one.bytes, one.sha256) for name, one in sorted(kept.items())]
    manifest = Manifest(run_id=run_id, events=events, files=files)
    return write_document(folder / MANIFEST_FILE, manifest)


def capture_policy(mode: CaptureMode) -> CapturePolicy:
    """Return the policy of a capture mode. The environment's own secrets are looked for as well."""
    return CapturePolicy(mode, None if mode == "full" else Redactor(os.environ))


def new_run_id() -> str:
    """Make a run id of the time and a few random digits."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + os.urandom(3).hex()


def make_run_folder(runs: Path, run_id: str) -> Path:
    """Make the folder of a run, which nobody else may look into. Raise StreamError where it is
    there already."""
    check_run_id(run_id, "--run-id")
    folder = Path(os.path.abspath(runs)) / run_id  # noqa: PTH100  # it need not be there yet
    try:
        if not folder.parent.exists():
            folder.parent.mkdir(parents=True)
            # A record is nobody's source: not by accident in a commit either.
            (folder.parent / ".gitignore").write_text("*\n")
        folder.mkdir(mode=0o700)
        (folder / ARTIFACTS).mkdir(mode=0o700)
    except FileExistsError:
        raise UsageError(f"{folder}: this run exists already; choose another --run-id") from None
    except OSError as error:
        raise OutputError(f"{folder}: {os_reason(error)}") from None
    return folder


def check_source_folder(source: Path) -> Path:
    """Return the folder that an agent works on, or on a copy of. Raise InputError."""
    with reporting(source), os.scandir(source):
        return source.resolve()


def runs_beside(folder: Path) -> list[Path]:
    """List the run folders beside this one, which are no part of what an agent works on; or the
    folder of them, where nothing else lies in it."""
    beside = [found for found in folder.parent.iterdir() if found.name != ".gitignore"]
    runs = [found for found in beside if found == folder or _is_run_folder(found)]
    return [folder.parent] if len(runs) == len(beside) else runs


def _is_run_folder(folder: Path) -> bool:
    """Tell whether a folder is the folder of a run: it has an event file."""
    try:
        return (folder / EVENTS_FILE).exists()
    except PermissionError:  # somebody else's, whatever it is
        return False


def leads_out_of_folder(name: str) -> bool:
    """Return whether a relative path leaves the folder that it starts from: in a copy of it
    something else is there."""
    return os.path.normpath(name).split("/")[0] == ".."


def find_program(name: str, source: Path | None) -> str | None:
    """Return what a shell in the workspace would start, executable or not; what is not there, or
    leads out of it, as a shell here would. `source`: what is or will be in the workspace."""
    if "/" in name:
        if source is not None and not leads_out_of_folder(name) and os.path.lexists(source / name):
            return name
        return os.path.abspath(name)  # noqa: PTH100
    return shutil.which(name) or shutil.which(name, os.F_OK)


def make_start_order(recording: RunSettings, wrappers: Wrappers | None) -> Start:
    """Say what the guard is to start, and in which environment."""
    env = dict(os.environb)
    if wrappers is not None:
        env[b"PATH"] = os.fsencode(wrappers.path_with_wrappers(os.fsdecode(env.get(b"PATH", b""))))
    if recording.workspace_mode != "here":
        # What lies above is the user's own: git must not find a repository there.
        ceilings = [os.fsencode(recording.folder), *env.get(CEILINGS, b"").split(b":")]
        env[CEILINGS] = b":".join(filter(None, ceilings))
    cwd = os.fsencode(recording.workspace)
    return Start(
        argv=recording.argv,
        executable=os.fsencode(recording.executable or os.fsdecode(recording.argv[0])),
        env={**env, b"PWD": cwd},
        cwd=cwd,
        grace=recording.grace,
        timeout=recording.timeout,
    )
