"""The record of one path that is different after a run."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from stream.records.control import NonNegative, Sha256
from stream.records.forms import FILE_MODE

Kind = Literal["file", "dir", "symlink", "fifo", "socket", "device"]
FS_CHANGE: Literal["stream.fs_change.v1"] = "stream.fs_change.v1"

#: why a change is not in the patch
Reason = Literal[
    "inside-git",
    "refused-name",
    "long-path",
    "folder",
    "mode-bits",
    "special-file",
    "too-large",
    "unreadable",
    "in-the-way",
    "redacted",
]


class FileState(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    kind: Kind
    mode: Annotated[str, Meta(pattern=FILE_MODE)]
    bytes: NonNegative | None
    sha256: Sha256 | None
    target: str | UnsetType = UNSET
    target_base64: str | UnsetType = UNSET


class FsChange(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A field that may be absent is in no other way empty; null is "not there" or "not known"."""

    schema: Literal["stream.fs_change.v1"]  # a tag could be absent
    path: str
    path_base64: str | UnsetType = UNSET
    change: Literal["added", "removed", "changed"]
    before: FileState | None
    after: FileState | None
    in_patch: bool
    not_in_patch: Reason | None
    after_exit: bool | None


encode_change = msgspec.json.Encoder().encode
decode_change = msgspec.json.Decoder(FsChange).decode


def shown_name(name: bytes) -> tuple[str, str | UnsetType]:
    """(text for people, the exact bytes where the text is not them)."""
    try:
        return name.decode(), UNSET
    except UnicodeDecodeError:
        from base64 import b64encode

        return name.decode(errors="replace"), b64encode(name).decode()


def exact_name(text: str, base64: str | UnsetType) -> bytes:
    """Raises ValueError."""
    if base64 is UNSET:
        return text.encode()
    from base64 import b64decode

    return b64decode(base64, validate=True)
