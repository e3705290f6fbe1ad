"""The contracts of a run folder: its documents, a line of its command log, and the record of one
path that is different after a run."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from stream.errors import InputError
from stream.records.control import FILE_MODE, RUN_ID, WORDS, NonNegative, Record, Sha256

RUN = "stream.run.v1"
RUN_SUMMARY = "stream.run_summary.v1"
MANIFEST = "stream.manifest.v1"

METADATA_FILE = "metadata.json"
EVENTS_FILE = "events.jsonl"
BOUNDARY_FILE = "boundary.ndjson"
DESCRIPTOR_FILE = "boundary-descriptor.json"  #: with its pattern, where the records need another
WORKSPACE = "workspace"
ARTIFACTS = "artifacts"
LAYERS = "layers"
STDOUT_FILE = "artifacts/claude_stdout.txt"
STDERR_FILE = "artifacts/claude_stderr.txt"
DIFF_FILE = "artifacts/fs_diff.patch"
CHANGES_FILE = "artifacts/fs_changes.jsonl"
COMMANDS_FILE = "artifacts/command_logs.jsonl"
SUMMARY_FILE = "artifacts/summary.json"
MANIFEST_FILE = "artifacts/manifest.json"

WorkspaceMode = Literal["copy", "empty", "here"]
#: `poc`: the contract to the letter. `agents`: any agent_id, for agents that are not Claude Code.
Profile = Literal["poc", "agents"]
AgentKnownBy = Literal["command", "declared"]
VersionKnownBy = Literal["files", "answer", "command", "declared", "unknown"]


_is_run_id = re.compile(RUN_ID).match
LONGEST_RUN_ID = 120  #: it becomes the name of a folder


def check_run_id(run_id: str, location: str) -> str:
    """Return the name of a run, or raise InputError where no layer and no archive could have it."""
    if not _is_run_id(run_id) or len(run_id) > LONGEST_RUN_ID:
        raise InputError(
            f"{location}: {run_id!r}: the name of a run has {WORDS[RUN_ID]} only,"
            f" and at most {LONGEST_RUN_ID} of them"
        )
    return run_id


class RunMetadata(Record, tag=RUN, kw_only=True):
    """The settings of a run: they are written before anything else, and never change."""

    run_id: str
    session_id: str
    profile: Profile
    started: str
    stream_version: str
    system: str
    agent_id: str
    agent_version: str
    agent_known_by: AgentKnownBy = "command"
    version_known_by: VersionKnownBy = "unknown"
    argv: list[str]  #: by the capture mode
    environment: str
    capture_mode: str
    workspace_mode: WorkspaceMode
    workspace: str  #: where the agent works: absolute, or relative to the run folder
    source: str | None  #: what the workspace was copied from
    constraints: list[str]
    parameters: dict[str, Any] = {}


class ManifestFile(Struct, forbid_unknown_fields=True):
    """A file of a run, with its size and digest."""

    path: str  #: relative to the run folder
    bytes: int
    sha256: str


class Beginning(Struct, forbid_unknown_fields=True):
    """The beginning of a file that goes on."""

    bytes: int
    sha256: str


class Manifest(Record, tag=MANIFEST, kw_only=True):
    """The manifest of a run: it names every file but the workspace and itself."""

    run_id: str
    events: Beginning  #: all of them but the last, which refers to this
    files: list[ManifestFile]


class RunSummary(Record, tag=RUN_SUMMARY, kw_only=True):
    """The course of a run: observed, but for what begins with `declared`. Null: not known."""

    run_id: str
    exit_code: int = 0
    signal: str | None = None
    not_started: str = ""  #: why the command never ran
    duration_ms: int = 0
    containment: str = "unknown"
    timed_out: bool = False
    signals_passed_on: list[str] = []
    outlived: list[str] = []  #: processes that were there when the command had ended
    stopped: list[str] = []  #: processes that had to be ended
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    changed_paths: int | None = None
    changed_after_exit: bool | None = None  #: something, when the command had ended
    changed_inside_git: int | None = None
    commands: int | None = None
    boundary_objects: int | None = None  #: of the probes beside the agent; null: there were none
    kernel_layer: str | None = None  #: complete, partial_ringbuf_drops or absent; null: not asked
    kernel_events: int | None = None
    kernel_lost: int | None = None  #: events that a feed saw and could not deliver
    cgroup_correlation: str | None = None
    tool_calls: int | None = None  #: that were told and have a place in the correlation
    correlation: str | None = None  #: of the tool calls: clean, partial or failed
    #: Lines of stdout that may tell of calls in a form that is not known, by the type that they
    #: say. Null: nobody looked for any.
    unknown_form: dict[str, int] | None = None
    declared_denials: int | None = None  #: refused calls of tools
    declared_denied_tools: list[str] = []
    declared_error: bool | None = None
    alignment: str = "unknown"
    quality: str = "unknown"
    policy: str = "unknown"
    redacted: dict[str, int] | None = (
        None  #: different secrets, by kind; null: nothing was looked for
    )
    incomplete: list[str] = []  #: what was lost of the record, and why
    #: What lay in the run folder that the recorder had not put there. Unset: nothing did.
    foreign_files: list[str] | UnsetType = UNSET


def count_processes(names: list[str]) -> int:
    """Count a list whose last item may say how many more there are."""
    more = re.fullmatch("([0-9]+) more", names[-1]) if names else None
    return len(names) if more is None else len(names) - 1 + int(more[1])


COMMAND = "stream.command.v1"


class CommandRecord(Record, tag=COMMAND, kw_only=True):
    """One line of the command log: a wrapper on the PATH was called."""

    time: str
    monotonic_ns: int
    pid: int
    parent: int
    name: str
    program: str  #: what the wrapper became
    cwd: str
    argv: list[str]  #: by the capture mode: in full, without secrets, or one digest
    argv_base64: list[str] | UnsetType = UNSET  #: where a word is not UTF-8
    category: str
    after_exit: bool  #: the agent itself had ended


Kind = Literal["file", "dir", "symlink", "fifo", "socket", "device"]
FS_CHANGE: Literal["stream.fs_change.v1"] = "stream.fs_change.v1"

#: why a change is not in the patch
Reason = Literal[
    "inside-git",
    "refused-name",
    "long-path",
    "folder",
    "mode-bits",
    "special-file",
    "too-large",
    "unreadable",
    "in-the-way",
    "redacted",
]


class FileState(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A file, link or folder of the workspace, before or after the run."""

    kind: Kind  #: What it is.
    mode: Annotated[str, Meta(pattern=FILE_MODE)]  #: Its permissions, in octal.
    #: Length of its content, or of the target of a link; null where it has none, or it is not
    #: known.
    bytes: NonNegative | None
    #: Digest of its content, or of the target of a link; null where it has none, or it is not
    #: known.
    sha256: Sha256 | None
    #: Where a link leads; what is not UTF-8 in it is shown as U+FFFD. Absent for everything else.
    target: str | UnsetType = UNSET
    target_base64: str | UnsetType = UNSET  #: The exact bytes; absent where `target` is them.


class FsChange(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One line of fs_changes.jsonl: a path that is different after a run."""

    # No tag: that could be absent.
    schema: Literal["stream.fs_change.v1"]  #: Names this kind of record.
    path: str  #: Relative to the workspace; what is not UTF-8 in it is shown as U+FFFD.
    path_base64: str | UnsetType = UNSET  #: The exact bytes; absent where `path` is them.
    change: Literal["added", "removed", "changed"]  #: What happened to it.
    before: FileState | None  #: Its state when the run began; null where it was not there.
    after: FileState | None  #: Its state when the run had ended; null where it is not there.
    in_patch: bool  #: Whether fs_diff.patch brings it about.
    not_in_patch: Reason | None  #: Why it does not; null where it does.
    #: Whether it was written after the agent itself had ended; null where that cannot be known.
    after_exit: bool | None


encode_change = msgspec.json.Encoder().encode
decode_change = msgspec.json.Decoder(FsChange).decode
