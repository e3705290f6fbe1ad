"""The messages between a recorder and the guard of the program that it records."""

from __future__ import annotations

import msgspec
from msgspec import Struct

END_NOW = 0  #: in the place of a signal's number


class Prepare(Struct, tag=True):
    """Asks the guard to get ready, while the recorder loads the rest of itself."""

    home: bytes  #: a folder to be made
    wrap: list[str]
    path: bytes


class Start(Struct, kw_only=True, tag=True):
    """Asks the guard to start a program. Bytes: the system's words need not be text."""

    argv: list[bytes]
    executable: bytes
    env: dict[bytes, bytes]
    cwd: bytes
    grace: float  #: seconds that the tree has after its leader, or after a signal
    timeout: float | None
    #: How a tracer is called that is to start it, all of it. The tracer must detach itself from the
    #: program, and let it begin only after that.
    tracer: list[bytes] = []


class Ready(Struct, tag=True):
    """Answers a Prepare."""

    programs: dict[str, bytes] | None  #: name -> path; None: none are wanted, or no bash
    cgroup: str | None  #: the folder of the group that the program will be in
    trouble: str = ""


class Started(Struct, tag=True):
    """Reports that the program runs."""

    pid: int
    containment: str  #: cgroup, subreaper or process group


class Failed(Struct, tag=True):
    """Reports that the program could not be started."""

    reason: str
    number: int


class TimedOut(Struct, tag=True):
    """Reports that the program's time is over, and that it is being ended."""


class Stopped(Struct, tag=True):
    """Reports that the recorder itself stood still, and was continued."""

    ns: int  #: since it was last seen at work


class Exited(Struct, tag=True):
    """Reports the end of the leader. Its tree may live on."""

    code: int  #: negative: ended by this signal
    wall: int  #: ns: it had not been seen to have ended before


class TreeEnded(Struct, tag=True):
    """Reports that nobody of the tree is left."""

    outlived: list[str]  #: who was there when the leader had ended
    ended: list[str]  #: who did not end by itself in the time that it had
    took_wrappers: bool = False  #: somebody took the wrappers away, or changed them


GuardReport = Ready | Started | Failed | TimedOut | Stopped | Exited | TreeEnded

encode_report = msgspec.json.Encoder().encode
decode_message = msgspec.msgpack.Decoder(Prepare | Start).decode
decode_report = msgspec.json.Decoder(GuardReport).decode
