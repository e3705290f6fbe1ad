"""Raw events that the evidence of a kernel feed is measured with."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stream.records.kernel import RawCapture, RawEvent


def write_raw(target: Path, count: int) -> None:
    """Opens as of a build: half by absolute path, a fifth of them a runtime's, a tenth fail."""
    encode = msgspec.json.Encoder().encode
    with target.open("wb") as file:
        for number in range(count):
            file.write(encode(_raw_open(number)) + b"\n")
        file.write(encode(RawCapture(feed="ebpf", got=count, seen=count)) + b"\n")


def _raw_open(number: int) -> RawEvent:
    folder = "/usr/lib/python3" if number % 5 == 0 else f"/srv/project/src/part{number % 40}"
    name, path = f"file-{number}.txt", f"{folder}/file-{number}.txt"
    is_missing = number % 10 == 3
    event = RawEvent(
        ts=10**12 + number * 1000,
        pid=4000 + number % 3,
        tid=4000 + number % 3,
        call="openat",
        ret=-2 if is_missing else 3 + number % 4,
        path=path if number % 2 else name,
        flags=0o2000000 if number % 3 else 0o2001101,
        mode=0 if number % 3 else 0o644,
    )
    event.base = None if number % 2 else folder
    event.resolved = None if is_missing else path
    return event
