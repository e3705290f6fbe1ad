"""A small archive with everything in it, and ways to spoil it."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from stream.archive.chain import LayerFiles
from stream.archive.entries import Entry
from stream.archive.header import BLOCK, ZEROS, encode_header, padded
from stream.archive.verifying import verify
from stream.archive.writing import encode_manifest, write_archive
from stream.evidence.companion import make_companion
from stream.evidence.correlation import correlate
from stream.evidence.health import make_health
from stream.evidence.steps import kernel_steps, lost_between
from stream.evidence.surface import Surface
from stream.records.control import Gap
from stream.records.kernel import KernelDetail, KernelEvent, RawCapture
from stream.records.run import EVENTS_FILE, METADATA_FILE, RunMetadata
from stream.records.runner import (
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
    Marker,
    PolicyEvent,
    RunnerFinished,
    RunnerStarted,
    SdkEvent,
)
from tests.stages.runs import good_run

DATA = Path(__file__).parent.parent / "data" / "assay"
ARCHIVES = sorted((DATA / "archives").glob("*.tar.gz"))
RUN = "run_1"
encode = msgspec.json.Encoder().encode
Files = dict[str, bytes]


def ndjson(*records: object) -> bytes:
    return b"".join(encode(record) + b"\n" for record in records)


def opened(seq: int, path: str, run_id: str = RUN) -> KernelEvent:
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
        operation_flags=["create", "truncate"],
        status="success",
    )


def marker(
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


def layers() -> Files:
    kernel = [opened(0, "/work/a"), opened(1, "/work/b")]
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
            marker(0, "run_started", 0),
            marker(1, "tool_call_started", 0, "c1", 0),
            marker(2, "tool_call_completed", 3, "c1", 1),
            marker(3, "run_finished", 3),
        ),
    }


def artifacts() -> Files:
    """What the layers come to, as a recorder would say it."""
    return {**judged(layers(), CAPTURE), RUNNER_FILE: framed()}


CAPTURE = RawCapture(
    feed="ebpf",
    got=3,
    seen=3,
    scopes={"both": 3},
    cgroup="clean",
    uring="unused",
    ring_bytes=16 << 20,
)


def judged(files: Files, capture: RawCapture) -> Files:
    kernel = decoded(files[KERNEL_FILE], KernelEvent)
    beside_it: list[Any] = msgspec.json.Decoder(KernelDetail | Gap).decode_lines(files[DETAIL_FILE])
    details = [detail for detail in beside_it if isinstance(detail, KernelDetail)]
    sdk, policy = decoded(files[SDK_FILE], SdkEvent), decoded(files[POLICY_FILE], PolicyEvent)
    beside = {detail.seq: detail for detail in details}
    surface = Surface()
    for event in kernel:
        surface.add_kernel(event, beside.get(event.seq))
    for said in sdk:
        surface.add_sdk(said)
    for decision in policy:
        surface.add_policy(decision)
    lines = files[DETAIL_FILE].splitlines()
    correlation = correlate(
        RUN,
        markers=decoded(files[MARKERS_FILE], Marker),
        sdk=sdk,
        policy=policy,
        events=kernel_steps(files[KERNEL_FILE].splitlines(), lines),
        gaps=lost_between(lines, len(kernel)),
        has_kernel=True,
    )
    health = make_health(
        RUN,
        capture,
        monitor_events=len(kernel),
        has_connect=surface.has_connect,
        has_datagram=surface.has_datagram,
        policy_events=len(policy),
        sdk_events=len(sdk),
        sdk_tool_calls=sum(event.event_type == "tool_call_started" for event in sdk),
        unnamed=surface.unnamed.total(),
    )
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
        SURFACE_FILE: encode(surface.surface(RUN)),
        CORRELATION_FILE: encode(correlation.report),
        HEALTH_FILE: encode(health),
        COMPANION_FILE: encode(companion.whole()),
    }


T = TypeVar("T")


def decoded(data: bytes, kind: type[T]) -> list[T]:
    return msgspec.json.Decoder(kind).decode_lines(data)


def framed() -> bytes:
    return ndjson(
        RunnerStarted(
            run_id=RUN,
            seq=0,
            agent_shim="agent",
            command=["agent"],
            env_keys=[],
            window_elapsed_ms=0,
        ),
        RunnerFinished(
            run_id=RUN, seq=1, exit_code=0, signal=None, success=True, window_elapsed_ms=5
        ),
    )


def chain_of(folder: Path, files: Files) -> bytes:
    chained = LayerFiles(folder)
    for name, data in files.items():
        chained.append(name, data, data.count(b"\n"))
    chained.close()
    return (folder / CHAIN_FILE).read_bytes()


def small(folder: Path) -> Files:
    """Every file of a small archive but its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    files = layers()
    chain = chain_of(folder, files)
    return {**files, **artifacts(), CHAIN_FILE: chain, "artifacts/out.txt": b"hello\n"}


def entries(files: Files) -> list[Entry]:
    return [Entry.of_bytes(name, data) for name, data in files.items()]


def written(target: Path, files: Files, run_id: str = RUN) -> Path:
    write_archive(target, entries(files), run_id, force=True)
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


def tar_of(*items: tuple[str, bytes]) -> bytes:
    """In whatever order, twice or not: nothing is checked."""
    return b"".join(tar_entry(*item) for item in items) + 2 * ZEROS


def tar_entry(name: str, data: bytes) -> bytes:
    return encode_header(name.encode(), len(data)) + padded(data)


def items_of(tar: bytes) -> list[tuple[str, bytes]]:
    found = []
    at = 0
    while tar[at : at + BLOCK] != ZEROS:
        name = tar[at : at + 100].partition(b"\0")[0].decode()
        size = int(tar[at + 124 : at + 135], 8)
        at += BLOCK
        found.append((name, tar[at : at + size]))
        at += size + -size % BLOCK
    return found


def packed(tar: bytes) -> bytes:
    """In the gzip header of the writer."""
    data = bytearray(gzip.compress(tar, 1, mtime=0))
    data[8:10] = b"\0\x03"
    return bytes(data)


def tar_in(archive: Path) -> bytes:
    return gzip.decompress(archive.read_bytes())


def rules(target: Path) -> set[str]:
    """Of the findings that are errors."""
    return {found.rule for found in verify(target).findings if found.severity == "error"}


def manifest_of(files: Files, run_id: str = RUN) -> bytes:
    return encode_manifest(entries(files), run_id)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


Spoil = Callable[[Sequence[tuple[str, bytes]]], Sequence[tuple[str, bytes]]]
MANIFEST = ARCHIVE_MANIFEST


def run_folder(folder: Path) -> Path:
    """Of a run that was recorded to its end, as far as an archive goes."""
    for name, data in small(folder).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    (folder / METADATA_FILE).write_bytes(encode(METADATA))
    with (folder / EVENTS_FILE).open("wb") as file:
        for event in good_run():
            event["session"]["run_id"] = RUN
            for item in event["agent_action"]["artifacts"]:
                if item["content_ref"]:
                    data = b"" if item["content_ref"].endswith("l") else b"what it was\n"
                    (folder / item["content_ref"]).write_bytes(data)
                    item["hash"] = f"sha256:{sha256(data)}"
            file.write(encode(event) + b"\n")
    return folder


METADATA = RunMetadata(
    run_id=RUN,
    session_id="unknown",
    profile="agents",
    started="2026-03-04T05:06:07Z",
    stream_version="1",
    system="Linux",
    agent_id="claude-code",
    agent_version="unknown",
    argv=["claude"],
    environment="local",
    capture_mode="full",
    workspace_mode="empty",
    workspace="workspace",
    source=None,
    constraints=[],
)
