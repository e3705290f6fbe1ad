"""The contract of a policy: what settings promise of capabilities, each with the line that says it,
and what a measurement says to that."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stream.records.mode_files import Promise


class Setting(Struct, frozen=True):
    """A line of a settings file."""

    source: str
    line: int
    text: str

    @property
    def place(self) -> str:
        """Return the file and the line."""
        return f"{self.source}:{self.line}"


class PolicyPromise(Struct, frozen=True):
    """A capability that a policy allows, denies, or asks about, and the setting that says so."""

    capability: str
    promise: Promise
    setting: Setting

    def __str__(self) -> str:
        return f"{self.setting.place} promises {self.promise}: {self.setting.text}"


class UnmeasuredSetting(Struct, frozen=True):
    """A setting that promises nothing of a capability, and why."""

    setting: Setting
    name: str
    reason: str


class Policy(Struct, frozen=True):
    """What settings promise, one promise a capability, and which of them promise nothing."""

    promises: tuple[PolicyPromise, ...]
    unmeasured: tuple[UnmeasuredSetting, ...] = ()

    def promise_of(self, capability: str) -> PolicyPromise | None:
        """Return what is promised of a capability."""
        return next((one for one in self.promises if one.capability == capability), None)


#: `fail-open`: promised `deny` or `ask`, and it got through. `fail-closed`: promised `allow`, and
#: it did not. `untold`: whether the promise is kept could not be measured.
ContradictionKind = Literal["fail-open", "fail-closed", "untold"]


class Contradiction(Struct, frozen=True):
    """A cell whose measurement does not agree with a promise."""

    kind: ContradictionKind
    promise: PolicyPromise
    mode: str  #: empty where no probe of the capability was run
    probe: str
    what: str  #: what became of the cell
