"""Whoever sends too much costs the recorder no more memory than it has set aside for that."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.cli.command import Place
from tests.recorder.runs import only_run

MOST = 150 << 20  #: bytes resident

#: Sends a body of so many bytes over each of as many connections as its arguments name.
_SENDS = """
import os, socket, sys
url = os.environ["OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"].removeprefix("http://")
address, _, place = url.partition("/")
host, port = address.split(":")
place = place if sys.argv[1] == "known" else "v1/logs"
size = int(sys.argv[2])
head = f"POST /{place} HTTP/1.1\\r\\nhost: x\\r\\ncontent-length: {size}\\r\\n\\r\\n".encode()
body = b'{"resourceLogs":[' + b"{}," * ((size - 40) // 3) + b"{}]}"
data = head + body.ljust(size)
held = []
for _ in range(int(sys.argv[3])):
    connection = socket.create_connection((host, int(port)))
    held.append(connection)
    connection.settimeout(5)
    try:
        connection.sendall(data[:-1])
    except OSError:
        pass
for connection in held:
    try:
        connection.sendall(data[-1:])
        connection.recv(1 << 16)
    except OSError:
        pass
"""

#: Asks for so many calls, as Claude Code does.
_ASKS = """
import json, sys
print(json.dumps({"type": "system", "subtype": "init", "session_id": "s"}))
for n in range(int(sys.argv[1])):
    use = {"type": "tool_use", "id": f"toolu_{n:020}", "name": "Bash"}
    use["input"] = {"command": f"echo {n} " + "x" * 200}
    message = {"role": "assistant", "content": [use]}
    print(json.dumps({"type": "assistant", "session_id": "s", "message": message}))
"""


def measure_flood(
    place: Place, script: str, *words: str, options: tuple[str, ...] = ()
) -> tuple[str, int]:
    path = place.root / "flood.py"
    path.write_text(script)
    agent = ("--", sys.executable, str(path), *words)
    how = ("--kernel", "auto", "--workspace", "empty", *options)
    done = place.run_measured("observe", *how, *agent, stdout=-3)
    assert done.code == 0, done.err
    return done.err, done.peak


def read_otel_ambiguities(place: Place) -> list[str]:
    folder: Path = only_run(place, place.stream("--version")).folder
    report = json.loads((folder / "correlation-report.json").read_bytes())
    return [one for one in report["ambiguities"] if "otel" in one]


def test_an_unknown_sender_at_the_telemetry_port(place: Place) -> None:
    err, peak = measure_flood(
        place, _SENDS, "unknown", str(8 << 20), "12", options=("--sdk", "otel")
    )
    assert peak < MOST, (peak >> 20, err)
    assert read_otel_ambiguities(place) == []


def test_an_agent_that_sends_too_much_telemetry(place: Place) -> None:
    err, peak = measure_flood(place, _SENDS, "known", str(1 << 20), "12", options=("--sdk", "otel"))
    assert peak < MOST, (peak >> 20, err)


def test_bodies_that_are_too_long(place: Place) -> None:
    err, peak = measure_flood(place, _SENDS, "known", str(8 << 20), "12", options=("--sdk", "otel"))
    assert peak < MOST, (peak >> 20, err)
    assert read_otel_ambiguities(place) != []


def test_an_agent_that_asks_for_more_calls_than_there_can_be(place: Place) -> None:
    err, peak = measure_flood(place, _ASKS, "40000")
    assert "25000 events of the SDK layer" in err
    assert peak < MOST, (peak >> 20, err)
