"""Cells, words and records to build tests from."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from stream.boundary.builder import BoundaryBuilder, Host
from stream.boundary.descriptors import find_catalogs, find_descriptor, make_descriptor
from stream.boundary.emit_flags import parse_emit_words
from stream.codec import BUNDLE, Lines, LineSplitter
from stream.pipeline import Transformer
from stream.records.control import Control
from stream.records.emission import FRAME_END, FRAME_START, RawEmission, Word
from tests.core.properties import feed, finish

DATA = Path(__file__).resolve().parent.parent / "data"
CAPABILITY = "cap_fs_write_outside_workspace"
SECONDARY = "cap_fs_write_temp"
AROUND = Host("Linux 6.12.0 x86_64", "/srv/project", None)
HERE = Path("my-boundary.json")

WORDS = (
    *("--run-mode", "baseline"),
    *("--probe-name", "fs_outside_workspace"),
    *("--probe-version", "1"),
    *("--category", "fs"),
    *("--verb", "write"),
    *("--target", "/var/tmp/x"),
    *("--status", "denied"),
    *("--primary-capability-id", CAPABILITY),
    *("--command", "printf %s x >>/var/tmp/x"),
)


def as_words(*texts: str | bytes) -> list[Word]:
    return [Word(t if isinstance(t, bytes) else t.encode()) for t in texts]


def without_flag(flag: str, words: Sequence[str] = WORDS) -> list[str]:
    place = words.index(flag)
    return [*words[:place], *words[place + 2 :]]


def frame(*texts: str | bytes, os: str = "Linux 6.12.0-inside x86_64") -> bytes:
    parts = [b"o" + os.encode(), *(b"w" + word.text for word in as_words(*texts))]
    return FRAME_START + b"".join(b"%d:%s," % (len(p), p) for p in parts) + FRAME_END + b"\n"


def cell(stdout: bytes = b"", **changes: Any) -> RawEmission:
    fields: dict[str, Any] = {
        "probe": "fs_outside_workspace",
        "mode": "baseline",
        "catalog": "linux_agent_v1",
        "boundary": "cfbo-v1",
        "capability": CAPABILITY,
        "workspace_root": "/srv/project",
        "sandbox_mode": None,
        "os": "Linux 6.12.0 x86_64",
        "stdout": stdout,
        "stdout_bytes": len(stdout),
        "stderr": b"",
        "stderr_bytes": 0,
        "exit_code": 0,
        "signal": None,
        "timed_out": None,
        "spawn_error": None,
        "stragglers": [],
    }
    return RawEmission(**{**fields, **changes})


@functools.cache
def make_builder() -> BoundaryBuilder:
    return BoundaryBuilder(find_catalogs(None), find_descriptor(None))


@functools.cache
def make_own_builder(**changes: str) -> BoundaryBuilder:
    """A pattern of the user's own: another version, a mode more, as JSON texts by JSON path."""
    schema = json.loads((BUNDLE / "schema" / "boundary_object_schema.json").read_text())
    schema["properties"]["schema_version"]["const"] = "boundary_event_v9"
    schema["properties"]["run"]["properties"]["mode"]["enum"] = ["baseline", "caged"]
    for place, text in changes.items():
        schema[place] = json.loads(text)
    document = {
        "schema_version": "boundary_schema_v1",
        "key": "mine-v2",
        "pattern_version": "boundary_event_v9",
        "schema": schema,
    }
    return BoundaryBuilder(find_catalogs(None), make_descriptor(document, HERE))


def record_of_flags(*more: str | bytes, words: Sequence[str] = WORDS) -> dict[str, Any]:
    """What the words make, with more of them at their end. Raises EmitError."""
    return decode_object(
        make_builder().record_from_flags(parse_emit_words(as_words(*words, *more)), AROUND).line
    )


def record(**sections: dict[str, Any]) -> dict[str, Any]:
    """A valid boundary object, with some sections changed."""
    value: dict[str, Any] = {
        "schema_version": "boundary_event_v1",
        "schema_key": "cfbo-v1",
        "capabilities_schema_version": "linux_agent_v1",
        "stack": {"os": "Linux 6.12.0 x86_64", "sandbox_mode": None},
        "probe": {
            "id": "fs_outside_workspace",
            "version": "1",
            "primary_capability_id": CAPABILITY,
            "secondary_capability_ids": [],
        },
        "run": {"mode": "baseline", "workspace_root": "/srv/project", "command": "true"},
        "operation": {"category": "fs", "verb": "write", "target": "/var/tmp/x", "args": {}},
        "result": {
            "observed_result": "denied",
            "raw_exit_code": 1,
            "errno": "EACCES",
            "message": None,
            "error_detail": None,
        },
        "payload": {"stdout_snippet": None, "stderr_snippet": "", "raw": {}},
        "capability_context": {
            "primary": {"id": CAPABILITY, "category": "filesystem", "layer": "os_sandbox"},
            "secondary": [],
        },
    }
    for name, changes in sections.items():
        value[name] = {**value[name], **changes}
    return value


def line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def lines(*items: bytes, source: str = "in.ndjson") -> Lines:
    return Lines(list(items), source, 1, 0)


def split_lines(data: bytes, cuts: Sequence[int], source: str = "in.ndjson") -> list[Lines]:
    """What a source makes of these bytes when they arrive cut at these places."""
    splitter = LineSplitter(source)
    places = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    chunks = [data[a:b] for a, b in itertools.pairwise(places)]
    batches = [batch for chunk in chunks if (batch := splitter.feed(chunk)) is not None]
    rest = splitter.finish()
    return [*batches, rest] if rest else batches


def run_transformer(
    transformer: Transformer, batches: Sequence[Sequence[Any]]
) -> tuple[list[bytes], list[Control]]:
    """(lines, control records) of the whole run; the counts are checked."""
    out = [item for batch in batches for item in feed(transformer, batch)]
    out += finish(transformer)
    taken = [item for batch in batches for item in batch if not isinstance(item, Control)]
    assert transformer.counts.received == len(taken)
    assert transformer.counts.balanced
    passed = [item for item in out if isinstance(item, bytes)]
    return passed, [item for item in out if not isinstance(item, bytes)]


def decode_object(data: bytes) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.json.decode(data)
    return value
