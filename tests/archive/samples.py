"""A small archive with everything in it, and ways to spoil it."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from stream.archive.chain import LAYERS, Tally
from stream.archive.gzip import LENGTH, SEALED, seal_comment
from stream.archive.manifest import run_id_of
from stream.archive.tar import (
    BLOCK,
    ZEROS,
    Checkpoint,
    encode_header,
    no_checkpoint,
    padded_to_blocks,
)
from stream.archive.writer import Entry, encode_manifest, entries_of_run, write_archive
from stream.evidence.derive import correlate_layers
from stream.evidence.health import LayerCounts, make_health
from stream.evidence.surface import Surface, make_companion
from stream.records.artifacts import (
    ARCHIVE_MANIFEST,
    CHAIN_FILE,
    COMPANION_FILE,
    CORRELATION_FILE,
    DETAIL_FILE,
    HEALTH_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    POLICY_FILE,
    RUNNER_FILE,
    SDK_FILE,
    SURFACE_FILE,
    ChainLink,
    Marker,
    PolicyEvent,
    RunnerFinished,
    RunnerStarted,
    SdkEvent,
)
from stream.records.control import Gap
from stream.records.kernel import KernelDetail, KernelEvent, RawCapture
from stream.records.run import (
    CHANGES_FILE,
    COMMANDS_FILE,
    DIFF_FILE,
    EVENTS_FILE,
    FS_CHANGE,
    MANIFEST_FILE,
    METADATA_FILE,
    STDERR_FILE,
    STDOUT_FILE,
    SUMMARY_FILE,
    Beginning,
    CommandRecord,
    FileState,
    FsChange,
    Manifest,
    ManifestFile,
    RunMetadata,
    RunSummary,
)
from stream.verify.session import verify
from tests.evidence.steps import attribution_events, lost_between
from tests.transformers.runs import good_run

DATA = Path(__file__).parent.parent / "data" / "assay"
ARCHIVES = sorted((DATA / "archives").glob("*.tar.gz"))
RUN = "run_1"
encode = msgspec.json.Encoder().encode
Files = dict[str, bytes]


def ndjson(*records: object) -> bytes:
    return b"".join(encode(record) + b"\n" for record in records)


def make_open_event(seq: int, path: str, run_id: str = RUN) -> KernelEvent:
    return KernelEvent(
        run_id=run_id,
        seq=seq,
        pid=100,
        event_type=1,
        kind="openat",
        value=path,
        flags=0o1101,
        mode=0o644,
        return_value=3,
        access_mode="write",
        operation_flags=("create", "truncate"),
        status="success",
    )


def make_marker(
    seq: int, name: Any, at: int, call: str | None = None, sdk_seq: int | None = None
) -> Marker:
    return Marker(
        run_id=RUN,
        seq=seq,
        name=name,
        at=at,
        clock="kernel",
        tool_call_id=call,
        sdk_seq=sdk_seq,
        pid=100 if call else None,
    )


def make_layers() -> Files:
    kernel = [make_open_event(0, "/work/a"), make_open_event(1, "/work/b")]
    kernel.append(
        KernelEvent(run_id=RUN, seq=2, pid=100, event_type=1001, kind="event_1001", value="/work/a")
    )
    call = {"source": "agent", "tool_call_id": "c1", "tool": "Write"}
    return {
        KERNEL_FILE: ndjson(*kernel),
        DETAIL_FILE: ndjson(
            KernelDetail(
                run_id=RUN, seq=2, pid=100, call="unlink", return_value=0, status="success"
            )
        ),
        POLICY_FILE: ndjson(
            PolicyEvent(
                run_id=RUN,
                seq=0,
                source_event_type="assay.tool.decision",
                source="gate",
                tool_call_id="c1",
                tool="Write",
                decision="allow",
            )
        ),
        SDK_FILE: ndjson(
            SdkEvent(run_id=RUN, seq=0, event_type="tool_call_started", **call),
            SdkEvent(run_id=RUN, seq=1, event_type="tool_call_completed", **call),
        ),
        MARKERS_FILE: ndjson(
            make_marker(0, "run_started", 0),
            make_marker(1, "tool_call_started", 0, "c1", 0),
            make_marker(2, "tool_call_completed", 3, "c1", 1),
            make_marker(3, "run_finished", 3),
        ),
    }


def make_artifacts() -> Files:
    """The artifacts that a recorder derives from the layers."""
    return {**derive_artifacts(make_layers(), CAPTURE), RUNNER_FILE: make_runner_layer()}


CAPTURE = RawCapture(
    feed="ebpf",
    got=3,
    seen=3,
    scopes={"both": 3},
    cgroup="clean",
    uring="unused",
    ring_bytes=16 << 20,
)


def derive_artifacts(files: Files, capture: RawCapture) -> Files:
    kernel = decode_lines(files[KERNEL_FILE], KernelEvent)
    beside_it: list[Any] = msgspec.json.Decoder(KernelDetail | Gap).decode_lines(files[DETAIL_FILE])
    details = [detail for detail in beside_it if isinstance(detail, KernelDetail)]
    sdk, policy = (
        decode_lines(files[SDK_FILE], SdkEvent),
        decode_lines(files[POLICY_FILE], PolicyEvent),
    )
    detail_of = {detail.seq: detail for detail in details}
    surface = Surface()
    for event in kernel:
        surface.add_kernel_event(event, detail_of.get(event.seq))
    for sdk_event in sdk:
        surface.add_sdk_event(sdk_event)
    for decision in policy:
        surface.add_policy_event(decision)
    lines = files[DETAIL_FILE].splitlines()
    correlation = correlate_layers(
        RUN,
        markers=decode_lines(files[MARKERS_FILE], Marker),
        sdk=sdk,
        policy=policy,
        events=attribution_events(files[KERNEL_FILE].splitlines(), lines),
        gaps=lost_between(lines, len(kernel)),
        has_kernel=True,
        capture=capture,
    )
    counts = LayerCounts(
        monitor_events=len(kernel),
        has_connect=surface.has_connect,
        has_datagram=surface.has_datagram,
        policy_events=len(policy),
        sdk_events=len(sdk),
        sdk_tool_calls=sum(event.event_type == "tool_call_started" for event in sdk),
    )
    health = make_health(RUN, capture, counts, unnamed=surface.unnamed.total())
    companion = make_companion(
        RUN,
        surface,
        capture=capture,
        filtered={},
        aside={},
        calls=correlation.calls,
        unbound=correlation.unbound,
    )
    return {
        SURFACE_FILE: encode(surface.surface_artifact(RUN)) + b"\n",
        CORRELATION_FILE: encode(correlation.report) + b"\n",
        HEALTH_FILE: encode(health) + b"\n",
        COMPANION_FILE: encode(companion.whole_record()) + b"\n",
    }


T = TypeVar("T")


def decode_lines(data: bytes, kind: type[T]) -> list[T]:
    return msgspec.json.Decoder(kind).decode_lines(data)


def make_runner_layer() -> bytes:
    return ndjson(
        RunnerStarted(
            run_id=RUN,
            seq=0,
            agent_shim="claude-code",
            command=["agent"],
            env_keys=[],
            window_elapsed_ms=0,
        ),
        RunnerFinished(
            run_id=RUN, seq=1, exit_code=0, signal=None, success=True, window_elapsed_ms=5
        ),
    )


def make_small_files(folder: Path) -> Files:
    """Every file of a small archive of a recorded run but its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    return make_run_files()


def make_stream_files() -> Files:
    """The same of one that was put together of a stream."""
    return {**make_layers(), **make_artifacts()}


def make_run_files() -> Files:
    change = {"kind": "file", "mode": "0644", "bytes": 1, "sha256": sha256(b"b")}
    return update_digests(
        {
            **make_stream_files(),
            CHAIN_FILE: b"",
            METADATA_FILE: encode_document(METADATA),
            STDOUT_FILE: b"hello\n",
            STDERR_FILE: b"",
            DIFF_FILE: b"",
            CHANGES_FILE: ndjson(
                FsChange(
                    schema=FS_CHANGE,
                    path="b",
                    change="added",
                    before=None,
                    after=FileState(**change),  # type: ignore[arg-type]
                    in_patch=True,
                    not_in_patch=None,
                    after_exit=False,
                )
            ),
            COMMANDS_FILE: ndjson(COMMAND),
            SUMMARY_FILE: encode_document(SUMMARY),
            MANIFEST_FILE: b"",
            EVENTS_FILE: ndjson(*make_event_log()),
        }
    )


def make_event_log() -> list[dict[str, Any]]:
    """The nine events of the run, as the recorder writes them."""
    facts = msgspec.to_builtins(SUMMARY)
    process = {"pid": 100} | {name: facts[name] for name in ENDING}
    artifacts: dict[str, list[dict[str, Any]]] = {
        "run_started": [describe_file("metadata", METADATA_FILE)],
        "workspace_prepared": [describe_facts("workspace", mode="empty", source=None)],
        "agent_invoked": [
            describe_facts(
                "process",
                argv=METADATA.argv,
                agent_known_by=METADATA.agent_known_by,
                version_known_by=METADATA.version_known_by,
            )
        ],
        "agent_completed": [describe_facts("process", **process)],
        "artifacts_captured": [
            describe_file("stdout_log", STDOUT_FILE, non_normative=True, total=6),
            describe_file("stderr_log", STDERR_FILE, non_normative=True, total=0),
            describe_facts("process", **process),
        ],
        "fs_diff_captured": [
            describe_file(
                "diff", DIFF_FILE, changed_count=1, inside_git=0, has_after_exit=False, **GIT_DIFF
            ),
            describe_file("changes", CHANGES_FILE),
        ],
        "commands_observed": [
            describe_file(
                "command_log", COMMANDS_FILE, observed_count=1, lost_calls=0, **CATEGORIES
            )
        ],
        "run_finished": [
            describe_file("summary", SUMMARY_FILE),
            describe_file("manifest", MANIFEST_FILE),
        ],
    }
    events = good_run()
    for event in events:
        event["session"]["run_id"] = RUN
        event["request"]["constraints"] = []
        event["agent_action"]["artifacts"] = artifacts.get(event["event_type"], [])
    return events


GIT_DIFF = {"method": "git_diff", "changed_paths": ["b"]}
CATEGORIES = {"categories_seen": ["vcs"]}


def describe_file(kind: str, name: str, **metadata: Any) -> dict[str, Any]:
    return {**describe_facts(kind, **metadata), "id": name.rpartition("/")[2], "content_ref": name}


def describe_facts(kind: str, **metadata: Any) -> dict[str, Any]:
    item = {"type": kind, "id": kind, "summary": kind, "content_ref": None, "hash": "unknown"}
    return {**item, "metadata": metadata}


def update_digests(files: Files) -> Files:
    """The same with every digest that there is of any of them made anew."""
    if CHAIN_FILE in files:
        files = {**files, CHAIN_FILE: ndjson(*iter_links(files))}
    return update_manifest(files)


def update_manifest(files: Files) -> Files:
    """The same without the chain."""
    files = dict(files)
    if EVENTS_FILE not in files or MANIFEST_FILE not in files:
        return files
    *lines, last = files[EVENTS_FILE].splitlines()
    beginning = b"".join(update_hashes(line, files) for line in lines)
    # One that lists none cannot be read, and is left so that it is found.
    with suppress(msgspec.MsgspecError):
        manifest = msgspec.json.decode(files[MANIFEST_FILE] or encode(EMPTY), type=Manifest)
        manifest.events = Beginning(len(beginning), sha256(beginning))
        manifest.files = [
            ManifestFile(name, len(data), sha256(data))
            for name, data in sorted(files.items())
            if name not in (EVENTS_FILE, MANIFEST_FILE)
        ]
        files[MANIFEST_FILE] = encode_document(manifest)
    files[EVENTS_FILE] = beginning + update_hashes(last, files)
    return files


def update_hashes(line: bytes, files: Files) -> bytes:
    event = msgspec.json.decode(line)
    for item in event["agent_action"]["artifacts"]:
        data = files.get(item["content_ref"])
        if data is not None:
            item["hash"] = f"sha256:{sha256(data)}"
            item["metadata"] = {**item["metadata"], "bytes": len(data)}
    return encode(event) + b"\n"


def iter_links(files: Files) -> Iterator[ChainLink]:
    for name in sorted({*LAYERS, RUNNER_FILE} & {*files}):
        tally = Tally(name)
        tally.feed(files[name])
        yield from tally.links
        if tally.link() not in tally.links:
            yield tally.link()


def encode_document(record: object) -> bytes:
    """As the recorder writes it for people."""
    return msgspec.json.format(encode(record)) + b"\n"


def make_entries(files: Files) -> list[Entry]:
    return [Entry.of_bytes(name, data) for name, data in files.items()]


def write_files_as_archive(target: Path, files: Files, run_id: str = RUN) -> Path:
    write_archive(target, make_entries(files), run_id, force=True)
    return target


class Rewritten:
    """A file that is written anew many thousand times: opening it takes as long as verifying it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb", buffering=0)

    def put(self, data: bytes) -> Path:
        os.pwrite(self._file.fileno(), data, 0)
        self._file.truncate(len(data))
        return self._path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def build_tar(*items: tuple[str, bytes]) -> bytes:
    """In whatever order, twice or not: nothing is checked."""
    return b"".join(tar_entry(*item) for item in items) + 2 * ZEROS


def tar_entry(name: str, data: bytes) -> bytes:
    return encode_header(name.encode(), len(data)) + padded_to_blocks(data)


def read_tar_items(tar: bytes) -> list[tuple[str, bytes]]:
    found = []
    at = 0
    while tar[at : at + BLOCK] != ZEROS:
        name = tar[at : at + 100].partition(b"\0")[0].decode()
        size = int(tar[at + 124 : at + 135], 8)
        at += BLOCK
        found.append((name, tar[at : at + size]))
        at += size + -size % BLOCK
    return found


def compress_tar(tar: bytes) -> bytes:
    """In the gzip header of the writer, which names what follows it."""
    data = gzip.compress(tar, 1, mtime=0)[LENGTH:]
    return SEALED + seal_comment(sha256(data)) + data


def read_tar(archive: Path) -> bytes:
    return gzip.decompress(archive.read_bytes())


def find_error_rules(target: Path) -> set[str]:
    """Of the findings that are errors."""
    return {found.rule for found in verify(target).findings if found.severity == "error"}


def build_manifest(files: Files, run_id: str = RUN) -> bytes:
    return encode_manifest(make_entries(files), run_id)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


Spoil = Callable[[Sequence[tuple[str, bytes]]], Sequence[tuple[str, bytes]]]
MANIFEST = ARCHIVE_MANIFEST


def write_run_folder(folder: Path) -> Path:
    """Of a run that was recorded to its end, as far as an archive goes."""
    return write_files(folder, make_run_files())


def pack_run(folder: Path, target: Path, checkpoint: Checkpoint = no_checkpoint) -> None:
    """Pack the folder of a run as it is, whole or not."""
    write_archive(target, entries_of_run(folder, {}), run_id_of(folder), checkpoint=checkpoint)


def write_files(folder: Path, files: Files) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def read_files(folder: Path) -> Files:
    """What `put` puts there."""
    places = (place for place in folder.rglob("*") if place.is_file())
    return {str(place.relative_to(folder)): place.read_bytes() for place in places}


METADATA = RunMetadata(
    run_id=RUN,
    session_id="add_tests",
    profile="agents",
    started="2026-03-04T05:06:07Z",
    stream_version="1",
    system="Linux",
    agent_id="claude-code",
    agent_version="2.1.326",
    version_known_by="files",
    argv=["agent"],
    environment="local",
    capture_mode="full",
    workspace_mode="empty",
    workspace="workspace",
    source=None,
    constraints=[],
)

ENDING = (
    *("exit_code", "signal", "not_started", "duration_ms", "containment", "timed_out"),
    *("signals_passed_on", "outlived", "stopped"),
)
SUMMARY = RunSummary(
    run_id=RUN,
    duration_ms=5,
    containment="cgroup",
    stdout_bytes=6,
    changed_paths=1,
    changed_after_exit=False,
    changed_inside_git=0,
    commands=1,
    kernel_layer="complete",
    kernel_events=3,
    kernel_lost=0,
    cgroup_correlation="clean",
    tool_calls=1,
    correlation="clean",
    declared_denials=0,
    declared_error=False,
    alignment="warn",
    quality="pass",
    policy="pass",
)
COMMAND = CommandRecord(
    time="2026-03-04T05:06:07.000000Z",
    monotonic_ns=1,
    pid=101,
    parent=100,
    name="git",
    program="/usr/bin/git",
    cwd="/work",
    argv=["git", "status"],
    category="vcs",
    after_exit=False,
)
EMPTY = Manifest(run_id=RUN, events=Beginning(0, ""), files=[])
