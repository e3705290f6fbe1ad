"""The evaluation of a run, from what was recorded of it."""

from __future__ import annotations

from msgspec import Struct

from stream.recorder.commands import CommandLog
from stream.recorder.recording import Recording
from stream.recorder.trace import not_evaluated
from stream.recorder.workplace import Compared
from stream.records.decision import Evaluation


class Verdict(Struct):
    summary: str
    closing: str
    evaluation: Evaluation
    denials: list[str] | None = None
    declared_error: bool | None = None


def reach_verdict(recording: Recording, changes: Compared, log: CommandLog | None) -> Verdict:
    return Verdict("", "", not_evaluated())
