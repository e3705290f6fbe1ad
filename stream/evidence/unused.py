"""What was told of a run's calls or decisions, by whomever, and is not in its layers."""

from __future__ import annotations

from msgspec import Struct


class Unused(Struct, frozen=True):
    """What was told somewhere, and could not be used."""

    channel: str
    why: str
    count: int
    sentence: str
