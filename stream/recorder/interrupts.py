"""Signals to a recorder: they are meant for what it records."""

from __future__ import annotations

from collections.abc import Callable


class Interrupts:
    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._listeners: list[Callable[[int], None]] = []

    def listen(self, hear: Callable[[int], None]) -> None:
        """From the first one on, also if that has been."""
        self._listeners.append(hear)
        for number in self.numbers:
            hear(number)

    def pass_on(self, number: int) -> None:
        self.numbers.append(number)
        for hear in self._listeners:
            hear(number)
