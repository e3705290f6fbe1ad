"""Writing and verifying an archive, against `tar | gzip -6` and against bytes a second."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
from msgspec.structs import replace

from stream.evidence.derive import derive_artifacts
from stream.records.artifacts import DETAIL_FILE, KERNEL_FILE, MARKERS_FILE, POLICY_FILE, SDK_FILE
from stream.records.kernel import KernelEvent, RawCapture
from stream.records.run import SUMMARY_FILE
from stream.verify.replay import LayerReplay
from tests.archive.samples import (
    RUN,
    SUMMARY,
    encode_document,
    read_files,
    update_digests,
    write_files,
    write_run_folder,
)

EVENTS = 1_000_000
_BATCH = 10_000


def fill_run(place: str) -> None:
    """A run with a long kernel layer, as one that opens many files has it."""
    folder = Path(place)
    write_run_folder(folder)
    for name in (DETAIL_FILE, MARKERS_FILE, SDK_FILE, POLICY_FILE):
        (folder / name).write_bytes(b"")
    chance, replay = random.Random(1), LayerReplay()
    encode_lines = msgspec.json.Encoder().encode_lines
    with (folder / KERNEL_FILE).open("wb") as file:
        for first in range(0, EVENTS, _BATCH):
            events = [_open_event(seq, chance) for seq in range(first, first + _BATCH)]
            file.write(encode_lines(events))
            replay.add_records(KERNEL_FILE, events)
    replay.finish()
    capture = RawCapture(
        feed="ebpf",
        got=EVENTS,
        seen=EVENTS,
        scopes={"both": EVENTS},
        cgroup="clean",
        uring="unused",
        ring_bytes=16 << 20,
    )
    derived = derive_artifacts(RUN, replay.layer_content(), capture, filtered={}, aside={})
    for name, made in derived.documents().items():
        (folder / name).write_bytes(b"".join(made.encoded_record()))
    replay.close()
    summary = replace(SUMMARY, kernel_events=EVENTS, tool_calls=0, correlation="partial")
    write_files(
        folder, update_digests({**read_files(folder), SUMMARY_FILE: encode_document(summary)})
    )


def _open_event(seq: int, chance: random.Random) -> KernelEvent:
    place = f"src/module{chance.randrange(3000)}/file{chance.randrange(100)}.py"
    return KernelEvent(
        run_id=RUN,
        seq=seq,
        pid=1000 + seq // 50 % 40,
        event_type=1,
        kind="openat",
        value=f"/home/user/project/{place}",
        flags=0o2000000,
        mode=0,
        return_value=3 + seq % 5,
        access_mode="read",
        status="success",
    )
