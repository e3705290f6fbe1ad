"""One cell for each way in which a probe can end: what the golden records are made of."""

from __future__ import annotations

from stream.records.emission import FRAME_START, RawEmission
from tests.transformers.samples import (
    CAPABILITY,
    SECONDARY,
    WORDS,
    cell,
    frame,
    line,
    record,
    without_flag,
)

OWN = frame(*WORDS)
PLAIN = line(record())
FULL = frame(
    *WORDS,
    *("--secondary-capability-id", SECONDARY),
    *("--raw-exit-code", "1"),
    *("--message", "Permission denied"),
    *("--payload-stdout", ""),
    *("--payload-stderr", "bash: /var/tmp/x: Permission denied é\x1b[31m"),
    *("--payload-raw-field", "note", "text"),
    *("--operation-arg", "write_mode", "append"),
)

GOOD: dict[str, RawEmission] = {
    "frame": cell(OWN),
    "full": cell(FULL, sandbox_mode="workspace-write"),
    "plain": cell(PLAIN),
    "cut": cell(
        frame(*WORDS, "--payload-raw-field", "a", "x" * 9000, "--operation-arg", "b", "y" * 9000)
    ),
    "no-declared-capability": cell(OWN, capability=None),
}

#: by the reason that the record has to give
BAD: dict[str, list[RawEmission]] = {
    "spawn-failed": [
        cell(spawn_error="no such file or directory", exit_code=None),
        cell(spawn_error="exec format error", exit_code=None, capability=None),
    ],
    "timed-out": [
        cell(timed_out=0.5, exit_code=None, signal="SIGTERM"),
        cell(OWN, timed_out=30.0, exit_code=0),
    ],
    "killed": [cell(OWN, exit_code=None, signal="SIGSEGV")],
    "exit-status": [
        cell(OWN, exit_code=3, stderr=b"oops \xff\x1b[2J", stderr_bytes=9),
        cell(OWN, exit_code=None),
    ],
    "no-record": [cell(b""), cell(b" \n\n")],
    "noise": [
        cell(b"hello\n"),
        cell(b"hello\n" + OWN),
        cell(PLAIN + b"\ntrailing"),
        cell(b"[]"),
        cell(b"42"),
        cell(b'{"x":"\xff"}'),
        cell(b'{"x":"\\ud800"}'),
        cell(b"\x00"),
    ],
    "several-records": [
        cell(OWN + OWN),
        cell(PLAIN + b"\n" + PLAIN),
        cell(OWN + PLAIN),
    ],
    "flooded": [cell(b"y\n" * 3000, stdout_bytes=10**9), cell(OWN, stdout_bytes=10**9)],
    "left-processes": [
        cell(OWN, stragglers=["sleep (pid 7)"]),
        cell(OWN, stragglers=[f"{'x' * 200}{n}" for n in range(5000)]),
    ],
    "bad-emission": [
        cell(frame(*without_flag("--status"))),
        cell(frame(*WORDS, "--nope")),
        cell(frame(*WORDS, "--secondary-capability-id", "cap_x")),
        cell(frame(*WORDS, "--payload-raw", "[]")),
        cell(frame(*WORDS, "--payload-raw", '{"a":' + "[" * 900 + '"y"' + "]" * 900 + "}")),
        cell(frame(*WORDS, "--nope" * 9000)),
        cell(FRAME_START + b"damaged"),
        cell(OWN[:-5]),
    ],
    "invalid-record": [
        cell(b"{}"),
        cell(b'{"schema_version":5}'),
        cell(line(record(run={"mode": "caged"}))),
        cell(PLAIN[:-1] + b',"more":1}'),
        cell(PLAIN.replace(b'"EACCES"', b'"EACCES","errno":null')),
        cell(b'{"x":' + b"[" * 900 + b"]" * 900 + b"}"),
        cell(PLAIN.replace(b'"raw": {}', b'"raw": {"a":' + b"[" * 90 + b"]" * 90 + b"}")),
    ],
    "wrong-cell": [
        cell(frame(*WORDS, "--probe-name", "other")),
        cell(frame(*WORDS, "--primary-capability-id", SECONDARY)),
        cell(frame(*WORDS, "--run-mode", "caged")),
        cell(line(record(probe={"id": "other"}))),
        cell(line(record(probe={"primary_capability_id": "cap_x"})), capability=None),
        cell(line(record(probe={"secondary_capability_ids": ["cap_x"]}))),
        cell(line(record() | {"schema_key": "other"})),
        cell(line(record() | {"capabilities_schema_version": "macOS_codex_v1"})),
        cell(line(record(stack={"sandbox_mode": "read-only"}))),
        cell(line(record(run={"workspace_root": "/srv/other"}))),
        cell(
            line(
                record(
                    capability_context={
                        "primary": {"id": CAPABILITY, "category": "network", "layer": "os_sandbox"}
                    }
                )
            )
        ),
        cell(line(record(probe={"secondary_capability_ids": [SECONDARY]}))),
    ],
}
