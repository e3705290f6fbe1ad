"""The channels in which an agent tells of its tool calls, beside its stdout, while a run lasts.

The event log that the environment names is always read. Claude Code's hooks and OpenTelemetry are
read where they were asked for. What is written there is in the clear: only this user can read it,
and the guard of the run removes it, whatever becomes of the recorder. A decision log belongs to
somebody else: only what is added to it during the run is read.

A hook first reads its whole input, and then appends it to a log as one line, under a lock. Whatever
happens to the hook, the agent's call goes on. A hook that is ended in the middle of its line costs
that line and no other; one that does not come to its line leaves a mark that it was there.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import socket
import stat
import zlib
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from io import FileIO
from pathlib import Path

import h11
from anyio import (
    CancelScope,
    Event,
    create_task_group,
    current_time,
    move_on_after,
    sleep,
    to_thread,
    wait_readable,
    wait_writable,
)
from anyio.abc import TaskGroup
from msgspec import Struct

from stream.errors import number, os_reason
from stream.evidence.claude_formats import Sdk
from stream.files.append import open_new
from stream.pipeline import Batch, Out
from stream.process.machine import kernel_now
from stream.records.channels import HOOKS, LOG, OTEL, POLICY, ChannelBlock, DroppedInput
from stream.records.control import CHANNELS

MOST = 16  #: connections at a time that have named our place
MOST_UNKNOWN = 128  #: and of those that have not: they have little time for it; others wait
MOST_HEAD = 64 << 10  #: bytes of a request's head
MOST_BODY = 1 << 20  #: bytes of a request's body, packed and unpacked
MOST_WAITING = 64 << 20  #: bytes of bodies that have not been taken
LAST = 2.0  #: seconds for what has been sent and not been read when the run is over
_LINGER = 1.0  #: seconds for whoever is still sending what was refused
_PATIENCE = 2.0  #: seconds that somebody who has not named our place may take to name it
_PAUSE = 0.05


class TelemetryCollector:
    """Receive what an OpenTelemetry exporter sends: each body becomes one line in `waiting`."""

    def __init__(self) -> None:
        self.waiting: list[ChannelBlock] = []
        self.waiting_bytes = 0
        self._target = b"/%b/v1/logs" % os.urandom(16).hex().encode()
        self._socket: socket.socket | None = None
        self._accepting = CancelScope()
        self._count = self._unknown = 0
        self._refused = self._torn = self._turned_away = 0

    def open(self) -> dict[bytes, bytes]:
        """Open the socket, and return what the agent's environment must say. Raise OSError."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            listener.bind(("127.0.0.1", 0))
            listener.listen(socket.SOMAXCONN)
        except OSError:
            listener.close()
            raise
        self._socket = listener
        port = listener.getsockname()[1]
        return {
            b"CLAUDE_CODE_ENABLE_TELEMETRY": b"1",
            b"OTEL_LOGS_EXPORTER": b"otlp",
            # Of logs only: where the agent's user sends anything else is none of our business.
            b"OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": b"http/json",
            b"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": b"http://127.0.0.1:%d%b" % (port, self._target),
            b"OTEL_LOGS_EXPORT_INTERVAL": b"100",
            b"OTEL_LOG_TOOL_DETAILS": b"1",
        }

    async def run(self) -> None:
        """Receive telemetry until `end`, and to the last of what has been sent by then."""
        assert self._socket is not None
        try:
            async with create_task_group() as connections:
                with self._accepting:
                    while True:
                        await wait_readable(self._socket)
                        if not self._accept_connections(self._socket, connections):
                            await sleep(_PAUSE)  # too many are open, or there are no descriptors
                self._accept_connections(self._socket, connections, is_last=True)
                connections.cancel_scope.deadline = current_time() + LAST
        finally:
            self.close()

    def take_blocks(self) -> list[ChannelBlock]:
        """Return the telemetry that has come since the last call."""
        taken, self.waiting, self.waiting_bytes = self.waiting, [], 0
        return taken

    def end(self) -> None:
        """Take no further request of telemetry."""
        self._accepting.cancel()

    def close(self) -> None:
        """Close the socket of the telemetry receiver."""
        if self._socket is not None:
            self._socket.close()

    def unused_telemetry(self) -> Iterator[DroppedInput]:
        """Yield the telemetry that came and could not be used."""
        for why, count, what in (
            ("refused", self._refused, "could not be understood"),
            ("torn", self._torn, "broke off"),
            ("turned_away", self._turned_away, "came while too many others were open"),
        ):
            if count:
                sentence = f"{number(count, 'request')} of OpenTelemetry {what}"
                yield DroppedInput("otel", why, count, sentence)

    def _accept_connections(
        self, listener: socket.socket, connections: TaskGroup, *, is_last: bool = False
    ) -> bool:
        """Accept all connections that wait; return False where not all of them could be."""
        while True:
            if self._unknown >= MOST_UNKNOWN and not is_last:
                return False
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return True
            except ConnectionError:
                continue  # it went away while it waited
            except OSError:
                return False
            if self._unknown >= MOST_UNKNOWN:
                self._turned_away += 1  # it may have been the agent
                connection.close()
                continue
            connection.setblocking(False)
            self._unknown += 1
            connections.start_soon(self._serve_connection, connection)

    async def _serve_connection(self, connection: socket.socket) -> None:
        """Answer the telemetry requests of one connection, one after the other."""
        # What is read and not used yet is this much at most, however it was sent.
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)
        with suppress(OSError, h11.ProtocolError), connection:  # it went away, or does so now
            request = None
            try:
                with move_on_after(_PATIENCE):
                    request = await self._read_request_head(connection, http)
            finally:
                self._unknown -= 1
            if request is None:
                return
            if self._count >= MOST or self.waiting_bytes > MOST_WAITING:
                self._turned_away += 1
                await _refuse_request(connection, http, 503)
                return
            self._count += 1
            try:
                while request is not None:
                    await self._receive_telemetry(connection, http, request)
                    http.start_next_cycle()
                    request = await self._read_request_head(connection, http)
            finally:
                self._count -= 1

    async def _read_request_head(
        self, connection: socket.socket, http: h11.Connection
    ) -> h11.Request | None:
        """The head of a request for our place. Whoever asks for anything else is answered before
        the rest is read, and costs the run nothing: it is nobody of whom the record speaks."""
        try:
            request = await _next_http_event(connection, http)
        except h11.RemoteProtocolError as error:
            await _refuse_request(connection, http, error.error_status_hint)
            return None
        if not isinstance(request, h11.Request):
            return None
        if (request.method, request.target) != (b"POST", self._target):
            await _refuse_request(connection, http, 404)
            return None
        return request

    async def _receive_telemetry(
        self, connection: socket.socket, http: h11.Connection, request: h11.Request
    ) -> None:
        """Receive the body of a telemetry request, keep it as a block of the run, and answer."""
        try:
            body = await _receive_body(connection, http, request)
        except _RefusedError as refused:
            self._refused += 1
            await _refuse_request(connection, http, refused.status)
            raise
        except BaseException:
            self._torn += 1
            raise
        # A newline can only stand between the words of a JSON text.
        line = body.replace(b"\n", b" ") + b"\n"
        self.waiting.append(ChannelBlock(OTEL, line, kernel_now()))
        self.waiting_bytes += len(line)
        await _answer_request(connection, http, 200)


class _RefusedError(h11.ProtocolError):
    """A request for our place that cannot be used."""

    def __init__(self, status: int) -> None:
        super().__init__("refused", status)
        self.status = status


async def _next_http_event(connection: socket.socket, http: h11.Connection) -> h11.Event:
    """Return what comes next. Raise h11.RemoteProtocolError where that is no HTTP."""
    while (event := http.next_event()) is h11.NEED_DATA:
        if http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await _send_http(connection, http.send(go_on))
        http.receive_data(await _receive_http(connection))
    return event  # type: ignore[return-value]


async def _receive_body(
    connection: socket.socket, http: h11.Connection, request: h11.Request
) -> bytes:
    """Raise _RefusedError where there is too much of it, or it cannot be read."""
    fields = dict(request.headers)
    if len(length := fields.get(b"content-length", b"0")) > 10 or int(length) > MOST_BODY:
        raise _RefusedError(413)
    body = bytearray()
    try:
        while isinstance(event := await _next_http_event(connection, http), h11.Data):
            body += event.data
            if len(body) > MOST_BODY:
                raise _RefusedError(413)
    except h11.RemoteProtocolError as error:
        if http.trailing_data[1]:
            raise  # it broke off
        raise _RefusedError(error.error_status_hint) from None
    return _unpack_body(bytes(body), fields.get(b"content-encoding", b"identity").lower())


def _unpack_body(body: bytes, coding: bytes) -> bytes:
    """Unpack the body of a telemetry request; refuse one that is too large or broken."""
    if coding == b"identity":
        return body
    if coding != b"gzip":
        raise _RefusedError(415)
    unpacking = zlib.decompressobj(wbits=31)
    try:
        data = unpacking.decompress(body, MOST_BODY + 1)
    except zlib.error:
        raise _RefusedError(400) from None
    if len(data) > MOST_BODY:
        raise _RefusedError(413)
    if not unpacking.eof or unpacking.unused_data:
        raise _RefusedError(400)
    return data


async def _refuse_request(connection: socket.socket, http: h11.Connection, status: int) -> None:
    """Answer an HTTP request by an error, and close its connection in order."""
    if http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
        await _answer_request(connection, http, status, (b"connection", b"close"))
    # Closed at once, what it still sends would cost it our answer.
    connection.shutdown(socket.SHUT_WR)
    with move_on_after(_LINGER):
        while await _receive_http(connection):
            pass


async def _answer_request(
    connection: socket.socket, http: h11.Connection, status: int, *fields: tuple[bytes, bytes]
) -> None:
    """Answer an HTTP request with a status and an empty JSON object."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2"), *fields]
    reason = HTTPStatus(status).phrase.encode()
    parts = (
        h11.Response(status_code=status, headers=headers, reason=reason),
        h11.Data(data=b"{}"),
        h11.EndOfMessage(),
    )
    await _send_http(connection, b"".join(http.send(part) or b"" for part in parts))


async def _receive_http(connection: socket.socket) -> bytes:
    """Receive what has come. Between two pieces the loop runs others, whoever sends here."""
    while True:
        await wait_readable(connection)
        try:
            return connection.recv(_BLOCK)
        except BlockingIOError:
            continue


async def _send_http(connection: socket.socket, data: bytes | None) -> None:
    """Send bytes of an HTTP answer."""
    while data:
        try:
            data = data[connection.send(data) :]
        except BlockingIOError:
            await wait_writable(connection)


EVENTS = ("PreToolUse", "PostToolUse", "PostToolUseFailure")
LIMIT = 10  #: seconds of a hook, after which the agent goes on without it
_NEEDS = ("tr", "flock")

# No bash: it looks for a terminal, a user and a locale, all of which a kernel feed would tell of
# the agent. Of a line before that has no end, the newline that comes first is the end.
_SCRIPT = """#!/bin/sh
{{
  said=$({tr} '\\n' ' ')
  {{ {flock} -w 5 9 && printf '\\n%s\\n' "$said" >&9; }} 9>>{log} || echo >>{missed}
}} >/dev/null 2>&1
exit 0
"""


class Hooks(Struct, frozen=True):
    """The files that the hooks of an agent write."""

    log: Path
    missed: Path  #: a byte of each that did not write its line
    program: Path
    settings: Path
    helpers: tuple[str, ...]

    @property
    def hook_environment(self) -> dict[bytes, bytes]:
        """The variables that tell an agent where the hook and its settings are."""
        return {
            b"STREAM_HOOK": os.fsencode(self.program),
            b"STREAM_HOOK_SETTINGS": os.fsencode(self.settings),
        }


def missing_hook_programs() -> list[str]:
    """Programs that they need, and that are not here."""
    return [name for name in _NEEDS if shutil.which(name) is None]


def make_hooks(home: Path) -> Hooks:
    """Make the hooks in a folder that is there, and that the caller removes. Raise OSError."""
    programs = {name: shutil.which(name) or name for name in _NEEDS}
    hooks = Hooks(
        home / "hooks.ndjson",
        home / "hooks.missed",
        home / "hook",
        home / "hooks.json",
        tuple(programs.values()),
    )
    names = {**programs, "log": str(hooks.log), "missed": str(hooks.missed)}
    script = _SCRIPT.format(**{name: shlex.quote(path) for name, path in names.items()})
    command = {"type": "command", "command": shlex.quote(str(hooks.program)), "timeout": LIMIT}
    every = [{"matcher": "*", "hooks": [command]}]
    settings = {"hooks": dict.fromkeys(EVENTS, every)}
    for path, text, mode in (
        (hooks.log, "", 0o600),
        (hooks.missed, "", 0o600),
        (hooks.program, script, 0o700),
        (hooks.settings, json.dumps(settings), 0o600),
    ):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(os.fsencode(text))
    return hooks


_TURN = 1 << 20  #: bytes of a file that are read at a look
_BLOCK = 1 << 16
LOOK = 0.02  #: seconds between two looks at a file


class ToolCallChannels:
    """The source of what an agent tells of its tool calls. The channels lie in `home`, which the
    guard removes."""

    def __init__(self, home: Path, sdk: Sdk) -> None:
        self.log = home / "sdk-events.ndjson"
        self._home = home
        self._sdk = sdk
        self._followed: list[_FollowedFile] = []
        self._collector = TelemetryCollector() if sdk == OTEL else None
        self._is_over = False
        self._missed = -1
        self.helpers: tuple[str, ...] = ()  #: programs that the hooks run

    def open(self) -> dict[bytes, bytes]:
        """Open the channels, and return what the agent's environment must say. Raise OSError."""
        self._home.mkdir(mode=0o700, exist_ok=True)
        self._followed.append(_FollowedFile(LOG, open_new(self.log)))
        if self._collector is not None:
            return self._collector.open()
        if self._sdk == HOOKS:
            hooks = make_hooks(self._home)
            self.helpers = hooks.helpers
            fd = os.open(hooks.log, os.O_RDONLY | os.O_CLOEXEC)
            self._followed.append(_FollowedFile(HOOKS, fd))
            self._missed = os.open(hooks.missed, os.O_RDONLY | os.O_CLOEXEC)
            return hooks.hook_environment
        return {}

    def files(self) -> dict[str, int]:
        """Return the descriptors of the followed files, by channel."""
        return {one.channel: one.fd for one in self._followed}

    async def run(self, out: Out, /) -> None:
        """Read the channels until `end`, and then to the last of what was written."""
        async with create_task_group() as tasks:
            if self._collector is not None:
                tasks.start_soon(self._collector.run)
            while not self._is_over:
                await self._send_new_blocks(out)
                await sleep(LOOK)
        size = sum(os.fstat(one.fd).st_size - one.received for one in self._followed)
        for _ in range(0, size, _TURN):
            await self._send_new_blocks(out)
        await self._send_new_blocks(out)
        await out.send(Batch(CHANNELS, [*self._dropped_of_channels()]))

    def end(self) -> None:
        """Say that nobody is left who could write to the channels."""
        self._is_over = True
        if self._collector is not None:
            self._collector.end()

    def _dropped_of_channels(self) -> Iterator[DroppedInput]:
        """Say what of the channels was lost."""
        for one in self._followed:
            yield from one.dropped_input()
        if self._missed >= 0 and (count := os.fstat(self._missed).st_size):
            whose = "its" if count == 1 else "their"
            sentence = f"{number(count, 'hook invocation')} did not record {whose} input"
            yield DroppedInput(HOOKS, "missed", count, sentence)
        if self._collector is not None:
            yield from self._collector.unused_telemetry()

    def close(self) -> None:
        """Close the files of the channels."""
        while self._followed:
            os.close(self._followed.pop().fd)
        if self._missed >= 0:
            os.close(self._missed)
            self._missed = -1
        if self._collector is not None:
            self._collector.close()

    async def _send_new_blocks(self, out: Out) -> None:
        """Send what the agent has told of its tool calls since the last time."""
        blocks = [block for one in self._followed for block in one.read_new_blocks()]
        if self._collector is not None:
            blocks += self._collector.take_blocks()
        if blocks:
            await out.send(Batch(CHANNELS, blocks))


class _FollowedFile(Struct):
    """A file of a channel, which others append to."""

    channel: str
    fd: int
    received: int = 0

    def read_new_blocks(self) -> Iterator[ChannelBlock]:
        """Yield what is new in the file. Who writes without end gets no more than its turn."""
        most = _TURN
        while most > 0 and (block := os.read(self.fd, min(most, _BLOCK))):
            most -= len(block)
            self.received += len(block)
            yield ChannelBlock(self.channel, block, kernel_now())

    def dropped_input(self) -> Iterator[DroppedInput]:
        """Say what was taken out of the file before it was read."""
        if os.fstat(self.fd).st_size < self.received:
            sentence = f"the {self.channel}: what was told there was made shorter"
            yield DroppedInput(self.channel, "shortened", 1, sentence)


_DECISION_BLOCK = 1 << 20
_MOST = 64 << 20  #: bytes: whoever writes without end does not keep a run from its end
_SILENCE = 2.0  #: seconds that a pipe may say nothing while it has a writer
_TAIL = 1 << 12  #: bytes before the end by which it is known again


class DecisionLog:
    """The source of decisions that somebody else writes down. It is made when the run begins, and
    read when it is over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_over = Event()
        self._fd = -1  # held, so that no other file can get its number
        self._size = 0
        self._tail = b""
        self.unused: list[DroppedInput] = []
        self.warnings: list[str] = []
        try:
            # A pipe is not opened before it is read: that would take its writer's reader away.
            if stat.S_ISREG(path.stat().st_mode):
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                self._size = os.fstat(self._fd).st_size
                self._tail = self._read_tail_before_run(self._fd)
        except FileNotFoundError:
            pass  # the first decision makes it
        except OSError as error:
            self._record_dropped_input("unread", os_reason(error))
        except ValueError as error:  # a NUL in the path
            self._record_dropped_input("unread", str(error))

    def files(self) -> dict[str, int]:
        """Return the decision log's descriptor, by channel, where it was a file at the begin."""
        return {POLICY: self._fd} if self._fd >= 0 else {}

    async def run(self, out: Out, /) -> None:
        """Wait for the end of the run, and send what was written since it began."""
        await self._is_over.wait()
        blocks = self._read_decisions()
        while block := await to_thread.run_sync(next, blocks, b""):
            await out.send(Batch(CHANNELS, [ChannelBlock(POLICY, block)]))
        await out.send(Batch(CHANNELS, [*self.unused]))

    def end(self) -> None:
        """Say that nobody of the run is left who could decide."""
        self._is_over.set()

    def _read_decisions(self) -> Iterator[bytes]:
        """Yield what was written to the decision log since the run began."""
        if self.unused:
            return
        try:
            # Whatever lies there by now, nothing of it can keep the run from its end.
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(fd, "rb", buffering=0) as file:
                yield from self._written_since(file, self._start_of_run_in(fd))
        except OSError as error:
            self._record_dropped_input("unread", os_reason(error))

    def _written_since(self, file: FileIO, beginning: int) -> Iterator[bytes]:
        """Give what a file holds behind `beginning` at this moment, or what comes out of a pipe."""
        found = os.fstat(file.fileno())
        is_file = stat.S_ISREG(found.st_mode)
        rest, is_more = _MOST, True  # what is no file may have no end
        if is_file:
            file.seek(beginning)
            written = found.st_size - beginning
            rest, is_more = min(written, _MOST), written > _MOST
            if beginning and not written:
                what = f"--policy {self._path}: no decisions were written during the run"
                self.warnings.append(f"{what} (earlier lines are ignored)")
        while rest > 0:
            if not is_file and not select.select([file], [], [], _SILENCE)[0]:
                break  # nobody writes
            block = file.read(min(rest, _DECISION_BLOCK))
            if not block:
                break
            rest -= len(block)
            yield block
        if not rest and is_more:
            self._record_dropped_input("unread", f"more than {_MOST >> 20} MB came out")

    def close(self) -> None:
        """Close the decision log."""
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _start_of_run_in(self, fd: int) -> int:
        """Return where what was written since begins: 0 where that cannot be told."""
        if self._fd < 0:
            return 0
        if not os.path.samestat(os.fstat(fd), os.fstat(self._fd)):
            why, what = "replaced", "another file took its place meanwhile"
        elif os.fstat(fd).st_size < self._size or self._read_tail_before_run(fd) != self._tail:
            why, what = "shortened", "what was in it before was taken away"
        else:
            return self._size
        whole = "all of it is taken for decisions of this run"
        self._record_dropped_input(why, f"{what}, and {whole}")
        return 0

    def _read_tail_before_run(self, fd: int) -> bytes:
        start = max(0, self._size - _TAIL)
        return os.pread(fd, self._size - start, start)

    def _record_dropped_input(self, why: str, sentence: str) -> None:
        self.unused.append(DroppedInput(POLICY, why, 1, f"--policy {self._path}: {sentence}"))
