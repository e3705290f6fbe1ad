r"""Control records (a broken rule, a bad line, a loss), which travel with the stream; and the forms
that a text may have in a record, each with the words that say it to people.

Forms end with `\Z`, not `$`: the latter lets a trailing newline through.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple

from msgspec import UNSET, Meta, Struct, UnsetType

from stream.errors import visible

DIGEST = r"^[0-9a-f]{64}\Z"
NAMED_DIGEST = r"^sha256:[0-9a-f]{64}\Z"
FILE_MODE = r"^[0-7]{4}\Z"
KEY = r"^[A-Za-z0-9_.-]+\Z"
RUN_ID = r"^[A-Za-z0-9_-]+\Z"
KERNEL_KIND = r"^(openat|connect|exec|file_blocked|connect_blocked|event_[0-9]+)\Z"
SANDBOX_MODE = r"^(read-only|workspace-write|danger-full-access)\Z"
# Not `\S`: engines differ in what they count as white space.
TITLE = r"[^ \t\n\r\f\v]"
is_told = re.compile(TITLE).search  #: whether a text is not blank

WORDS = {
    DIGEST: "64 hexadecimal digits, the lower-case ones",
    NAMED_DIGEST: "`sha256:` and 64 hexadecimal digits, the lower-case ones",
    FILE_MODE: "four octal digits",
    KEY: "letters, digits, `_`, `.` and `-`",
    RUN_ID: "letters, digits, `_` and `-`",
    KERNEL_KIND: "openat, connect, exec, file_blocked, connect_blocked or event_<number>",
    SANDBOX_MODE: "read-only, workspace-write or danger-full-access",
    TITLE: "a text that is not blank",
}

# JSON Schema counts 1.0 as an integer.
Positive = Annotated[int, Meta(ge=1)] | Annotated[float, Meta(ge=1, multiple_of=1)]
NonNegative = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0, multiple_of=1)]
Sha256 = Annotated[str, Meta(pattern=DIGEST)]


GAP = "stream.gap.v1"


class Fault(NamedTuple):
    """A fault of a record: the reason, the place, and the rule if rules have names."""

    reason: str
    path: str = ""  #: JSON path; empty: the whole of it
    rule: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


class Finding(
    Struct,
    tag_field="schema",
    tag="stream.finding.v1",
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    frozen=True,
):
    """A rule that something breaks."""

    rule: str
    severity: Literal["error", "warning"]
    message: str
    source: str | UnsetType = UNSET
    line: Positive | UnsetType = UNSET
    path: str | UnsetType = UNSET
    event_id: str | UnsetType = UNSET


class Reject(
    Struct,
    tag_field="schema",
    tag="stream.reject.v1",
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    frozen=True,
):
    """A line that a stage could not use. The line itself is named by its hash."""

    stage: str
    source: str
    line: Positive
    offset: NonNegative
    sha256: Sha256
    reason: str
    path: str | UnsetType = UNSET


class Gap(
    Struct,
    tag_field="schema",
    tag=GAP,
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    frozen=True,
):
    """Something was lost here, and how much. Who notices a loss later than it happens has another
    one before it: from there on something may be missing."""

    source: str
    lost: NonNegative
    reason: str
    unit: str | UnsetType = UNSET
    begins: bool = False  #: it is that other one, and the next of the same source its end


Control = Finding | Reject | Gap

#: The kinds of items that a batch may hold.
LINES, EVENTS, BOUNDARY = "lines", "events", "boundary"
EMISSIONS, TELEMETRY, RAW = "emissions", "telemetry", "raw"
KERNEL, DETAILS, TIMES = "kernel", "details", "times"
FINDINGS, REJECTS, GAPS, CAPTURES = "findings", "rejects", "gaps", "captures"
_KINDS: dict[type, str] = {Finding: FINDINGS, Reject: REJECTS, Gap: GAPS}


def kind_of_item(item: object) -> str:
    """Return the kind of a line or a control record."""
    return _KINDS.get(type(item), LINES)


CONTROL_SCHEMAS = ("stream.finding.v1", "stream.reject.v1", GAP)


def place(source: str, line: float | UnsetType, path: str | UnsetType) -> str:
    """Write a place like `events.ndjson:17: $.seq: `, with the parts that there are."""
    where = source if line is UNSET else f"{source}:{line}"
    return f"{where}: " if path is UNSET else f"{where}: {path}: "


def sentence(record: Control) -> str:
    """Write the one line that a person reads. What it quotes of the input is made harmless."""
    return visible(_sentence(record))


def _sentence(record: Control) -> str:
    if isinstance(record, Gap):
        unit = "records" if record.unit is UNSET else record.unit
        if record.begins:
            return f"{record.source}: from here on, {unit} may be missing: {record.reason}"
        return f"{record.source}: {record.lost} {unit} lost: {record.reason}"
    if isinstance(record, Reject):
        return place(record.source, record.line, record.path) + record.reason
    source = "" if record.source is UNSET else record.source
    where = place(source, record.line, record.path) if source else ""
    note = "" if record.severity == "error" else f"{record.severity}: "
    return f"{where}{note}{record.message}"
