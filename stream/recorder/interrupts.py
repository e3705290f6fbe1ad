"""Signals to a recorder: they are meant for what it records, as long as that lives."""

from __future__ import annotations

from collections.abc import Callable


class Interrupts:
    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.are_ours = False  #: what it recorded is over
        self._listeners: list[Callable[[int], None]] = []

    def listen(self, hear: Callable[[int], None]) -> None:
        """From the first one on, also if that has been."""
        self._listeners.append(hear)
        for number in self.numbers:
            hear(number)

    def keep(self, hear: Callable[[int], None]) -> None:
        """From now on they are for who has recorded. Those that have been are not heard again."""
        self.are_ours = True
        self._listeners = [hear]

    def pass_on(self, number: int) -> None:
        self.numbers.append(number)
        for hear in self._listeners:
            hear(number)
