"""One line of the command log: a wrapper on the PATH was called."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

COMMAND = "stream.command.v1"


class CommandRecord(
    Struct, tag_field="schema", tag=COMMAND, forbid_unknown_fields=True, kw_only=True
):
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
