r"""Control records (a broken rule, a bad line, a loss), which travel with the stream; and the forms
that a text may have in a record, each with the words that say it to people.

Forms end with `\Z`, not `$`: the latter lets a trailing newline through.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple

from msgspec import UNSET, Meta, Struct, UnsetType

from stream.errors import printable

DIGEST = r"^[0-9a-f]{64}\Z"
NAMED_DIGEST = r"^sha256:[0-9a-f]{64}\Z"
FILE_MODE = r"^[0-7]{4}\Z"
KEY = r"^[A-Za-z0-9_.-]+\Z"
BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\Z"
RUN_ID = r"^[A-Za-z0-9_-]+\Z"
KERNEL_KIND = r"^(openat|connect|exec|file_blocked|connect_blocked|event_[0-9]+)\Z"
MODE_NAME = r"^[a-z0-9][a-z0-9._-]*\Z"
SANDBOX_MODE = r"^(read-only|workspace-write|danger-full-access)\Z"
# Not `\S`: engines differ in what they count as white space.
TITLE = r"[^ \t\n\r\f\v]"
has_text = re.compile(TITLE).search  #: whether a text is not blank

WORDS = {
    DIGEST: "64 hexadecimal digits, the lower-case ones",
    NAMED_DIGEST: "`sha256:` and 64 hexadecimal digits, the lower-case ones",
    FILE_MODE: "four octal digits",
    KEY: "letters, digits, `_`, `.` and `-`",
    RUN_ID: "letters, digits, `_` and `-`",
    KERNEL_KIND: "openat, connect, exec, file_blocked, connect_blocked or event_<number>",
    MODE_NAME: "lower-case letters, digits, `.`, `_` and `-`",
    SANDBOX_MODE: "read-only, workspace-write or danger-full-access",
    TITLE: "a text that is not blank",
}

# JSON Schema counts 1.0 as an integer.
Positive = Annotated[int, Meta(ge=1)] | Annotated[float, Meta(ge=1, multiple_of=1)]
NonNegative = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0, multiple_of=1)]
Sha256 = Annotated[str, Meta(pattern=DIGEST)]


GAP = "stream.gap.v1"
#: The pattern of boundary objects that the bundled probes follow.
PATTERN_VERSION: Literal["boundary_event_v1"] = "boundary_event_v1"


class Record(Struct, tag_field="schema", forbid_unknown_fields=True):
    """A record names its contract in `schema`, and has no field that the contract does not have."""


class FrozenRecord(Struct, tag_field="schema", forbid_unknown_fields=True, frozen=True):
    """A record that never changes."""


class Fault(NamedTuple):
    """A fault of a record: the reason, the place, and the rule if rules have names."""

    reason: str
    path: str = ""  #: JSON path; empty: the whole of it
    rule: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


class Finding(FrozenRecord, tag="stream.finding.v1", omit_defaults=True, kw_only=True, frozen=True):
    """A rule that a record or a run breaks."""

    rule: str  #: Id of the rule.
    severity: Literal["error", "warning"]  #: Whether the finding makes the answer no.
    message: str  #: What is wrong, as a sentence.
    #: File or stream in which it was found; absent when it has none.
    source: str | UnsetType = UNSET
    #: Line in the source, counted from 1; absent when the finding is about no single line.
    line: Positive | UnsetType = UNSET
    #: JSON path inside the record, for example $.run.mode; absent when the finding is about the
    #: whole record.
    path: str | UnsetType = UNSET
    #: Id of the event that the finding is about; absent when it has none.
    event_id: str | UnsetType = UNSET


class Reject(FrozenRecord, tag="stream.reject.v1", omit_defaults=True, kw_only=True, frozen=True):
    """A line that is not a valid record, and was therefore not passed on."""

    stage: str  #: Stage that refused the line.
    source: str  #: File or stream that the line came from.
    line: Positive  #: Number of the line in the source, counted from 1.
    offset: NonNegative  #: Offset of the first byte of the line in the source, counted from 0.
    sha256: Sha256  #: SHA-256 of the bytes of the line, in lower-case hexadecimal digits.
    reason: str  #: Why the line was refused.
    #: JSON path of the offending value; absent when the line as a whole is unusable.
    path: str | UnsetType = UNSET


class Gap(FrozenRecord, tag=GAP, omit_defaults=True, kw_only=True, frozen=True):
    """A loss: something was there and was not delivered. Who notices a loss later than it happens
    has another one before it: from there on something may be missing."""

    source: str  #: Source that could not deliver.
    lost: NonNegative  #: How many units were lost.
    reason: str  #: Why.
    #: What is counted, for example events, records or bytes; absent where the source has only one
    #: unit.
    unit: str | UnsetType = UNSET
    #: True: nothing is known to be lost here, but from here on something may be missing, up to the
    #: next gap of the same source. Absent: false.
    begins: bool = False


Control = Finding | Reject | Gap

#: The kinds of items that a batch may hold.
LINES, EVENTS, BOUNDARY = "lines", "events", "boundary"
EMISSIONS, TELEMETRY, RAW = "emissions", "telemetry", "raw"
KERNEL, DETAILS, TIMES = "kernel", "details", "times"
CHANNELS = "channels"
FINDINGS, REJECTS, GAPS, CAPTURES = "findings", "rejects", "gaps", "captures"
_KINDS: dict[type, str] = {Finding: FINDINGS, Reject: REJECTS, Gap: GAPS}


def kind_of_item(item: object) -> str:
    """Return the kind of a line or a control record."""
    return _KINDS.get(type(item), LINES)


CONTROL_SCHEMAS = ("stream.finding.v1", "stream.reject.v1", GAP)


def location_prefix(source: str, line: float | UnsetType, path: str | UnsetType) -> str:
    """Write a place like `events.ndjson:17: $.seq: `, with the parts that there are."""
    where = source if line is UNSET else f"{source}:{line}"
    return f"{where}: " if path is UNSET else f"{where}: {path}: "


def sentence_for_people(record: Control) -> str:
    """Write the one line that a person reads. What it quotes of the input is made harmless."""
    return printable(_control_sentence(record))


def _control_sentence(record: Control) -> str:
    """Put a control record (a gap, a reject, a finding) in a sentence for people."""
    if isinstance(record, Gap):
        unit = "records" if record.unit is UNSET else record.unit
        if record.begins:
            return f"{record.source}: from here on, {unit} may be missing: {record.reason}"
        return f"{record.source}: {record.lost} {unit} lost: {record.reason}"
    if isinstance(record, Reject):
        return location_prefix(record.source, record.line, record.path) + record.reason
    source = "" if record.source is UNSET else record.source
    where = location_prefix(source, record.line, record.path) if source else ""
    note = "" if record.severity == "error" else f"{record.severity}: "
    return f"{where}{note}{record.message}"
