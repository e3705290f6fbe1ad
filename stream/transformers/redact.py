"""Redact: what a kernel feed saw, without its secrets, before anything else is made of it.

The same goes for what is copied as it came: a copy behind `Redact` holds no secret either.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stream.evidence.command_lines import commands_asked_of_shell, comparable_command
from stream.pipeline import Batch, Counts, Transformer
from stream.records.control import RAW, TELEMETRY
from stream.records.kernel import NAMES, RawEvent, Telemetry, path_bytes, path_text
from stream.redaction.policy import CapturePolicy
from stream.transformers.tool_events import redact_shell_command


class Redact(Transformer):
    """Take the secrets out of names, peers and command lines of raw telemetry."""

    name = "redact"
    kinds = (TELEMETRY,)

    def __init__(self, policy: CapturePolicy) -> None:
        self.counts = Counts()
        self._policy = policy

    def feed(self, batch: Batch[Telemetry], /) -> list[Batch[Telemetry]]:
        """Replace the secrets in a batch of telemetry."""
        self.counts.received += len(batch.items)
        self.counts.passed += len(batch.items)
        return [Batch(TELEMETRY, [self._redact_event(item) for item in batch.items])]

    def _redact_event(self, item: Telemetry) -> Telemetry:
        """Replace the secrets in the names and words of a raw event of the kernel feed."""
        if not isinstance(item, RawEvent):  # it tells of the feed alone
            return item
        seen: dict[str, Any] = {}
        for name in NAMES:
            text = getattr(item, name)
            if text is not None:
                seen[name] = self._policy.redact_name(path_bytes(text), path_text)
        if item.argv:
            seen["argv"] = self._policy.redact_words([*map(path_bytes, item.argv)], path_text)
            seen["asked"] = [
                comparable_command(redact_shell_command(self._policy, text))
                for text in commands_asked_of_shell(item.argv)
            ] or None
        return msgspec.structs.replace(item, **seen)


class CopyRaw(Transformer):
    """Give raw telemetry out twice: as it is for who keeps it raw, and to be normalized."""

    name = "copy"
    kinds = (TELEMETRY,)

    def __init__(self) -> None:
        self.counts = Counts()

    def feed(self, batch: Batch[Telemetry], /) -> list[Batch[Telemetry]]:
        """Pass a batch on, after a copy of it."""
        self.counts.received += len(batch.items)
        self.counts.passed += len(batch.items)
        return [Batch(RAW, batch.items), batch]
