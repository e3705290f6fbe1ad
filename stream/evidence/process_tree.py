"""What a shell was asked to run, by its arguments: to be held against what tool calls ask for.

Claude Code runs a command as `bash -c "… eval 'the command' < /dev/null && …"`: quoted as a shell
would want it. Others hand it over as it is. The text is taken out before anything is censored,
and censored as the call's own is: what was one command stays one, whatever may be written down.

Which process descends from which, and which of them tell of the tool calls.

Held are the living, and of the dead those that the living descend from and that told something.

Which calls each process may have been started for, as forks and execs are met in order.

A process that the agent forks while calls are open was started for one of them: for the one that
is open alone, unless it turns out to run the command of another; for the one whose command it
runs; else nobody knows for which. So were its children, also when the call is long over. What is
left is the agent itself, and what was there before."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Generic, TypeVar

from msgspec import Struct

MOST = 1024  #: characters that a command is known by: of a long one a feed keeps no more
_EVAL = re.compile(r"(?:\A|[\s;&|({])eval ")
_DIGEST = "sha256:"


def known_by(command: str) -> str:
    """What two texts of one command have in common. Empty: nothing can be known by it."""
    return command[:MOST] if command.strip() else ""


def digest_of(command: str) -> str:
    import hashlib

    text = known_by(command).encode("utf-8", "surrogatepass")
    return f"{_DIGEST}{hashlib.sha256(text).hexdigest()}"


def asked_in(argv: Sequence[str] | None) -> list[str]:
    """The word behind `-c`, and what is evaluated in it: what stands last first."""
    for number, word in enumerate(argv or ()):
        if number and _takes_a_command(word):
            given = [_untold(one) for one in (argv or ())[number + 1 : number + 2]]
            return [*given, *(text for one in given for text in _evaluated(one))]
    return []


def _takes_a_command(word: str) -> bool:
    return word[:1] == "-" and word[1:2] != "-" and word[-1:] == "c"


def _evaluated(text: str) -> list[str]:
    """The last one is the command; those before it belong to what prepares it. What stands in
    one of them is not asked for by itself."""
    words: list[str] = []
    at = 0
    while place := _EVAL.search(text, at):
        word, at = _first_word(text, place.end())
        if word is not None:
            words.insert(0, word)
    return words


def _first_word(text: str, at: int) -> tuple[str | None, int]:
    """As a shell would read it, and where it ends. One that was cut off has to be long enough."""
    word = ""
    while found := _PIECE.match(text, at):
        at = found.end()
        piece, is_whole = _plain(found)
        word += piece
        if not is_whole:
            return (word if len(word) >= MOST else None), len(text)
    return word, at


_PIECE = re.compile(
    r"""'(?P<single>[^']*)(?P<end>'?)"""
    r"""|"(?P<double>(?:[^"\\]|\\.)*)(?P<shut>"?)"""
    r"""|\\(?P<escaped>.)"""
    r"""|(?P<plain>[^\s'"\\;&|()<>]+)""",
    re.DOTALL,
)


def _plain(piece: re.Match[str]) -> tuple[str, bool]:
    """Without its quotes, and whether the last of these is there."""
    if piece["single"] is not None:
        return piece["single"], bool(piece["end"])
    if piece["double"] is not None:
        return re.sub(r"\\([\"\\$`!])", r"\1", piece["double"]), bool(piece["shut"])
    return piece["escaped"] or piece["plain"], True


def _untold(word: str) -> str:
    """A kernel feed doubles every backslash."""
    return word.replace("\\\\", "\\")


class TracedProcess(Struct, eq=False):
    parent: TracedProcess | None
    program: int  #: of its own from an exec on; until then it is a copy of who forked it
    is_teller: bool = False
    has_told: bool = False  #: else it is only known that it will
    has_executed: bool = False
    is_hook: bool = False  #: of the recorder's
    is_over: bool = False
    is_late: bool = False  #: started by one that had told, or by such a one


class Lineage:
    """`tellers`: the numbers of those that are known to tell."""

    def __init__(self, tellers: Collection[int]) -> None:
        self.telling: set[TracedProcess] = set()  #: who is there to tell
        self._tellers = tellers
        self._living: dict[int, TracedProcess] = {}
        self._programs = count()

    def of(self, pid: int) -> TracedProcess:
        """Of one whose fork was not seen, nobody knows where it comes from."""
        return self._living.get(pid) or self._enter(pid, None)

    def forked(self, parent: int, child: int) -> None:
        self.gone(child)  # its number may have been another's
        self._enter(child, self.of(parent))

    def executed(self, pid: int) -> TracedProcess:
        one = self.of(pid)
        one.has_executed, one.program = True, next(self._programs)
        return one

    def gone(self, pid: int) -> None:
        one = self._living.pop(pid, None)
        if one is not None:
            one.is_over = True
            self.telling.discard(one)

    def tells(self, one: TracedProcess) -> None:
        one.has_told = True
        self._expect(one)

    def tellers_of(self, one: TracedProcess) -> Iterator[TracedProcess]:
        """Itself and those that it descends from, as far as they tell of tool calls."""
        at: TracedProcess | None = one
        while at is not None:
            if at.is_teller:
                yield at
            above = at.parent
            while above is not None and above.is_over and not above.is_teller:
                above = above.parent
            at.parent = above  # a long row of the dead is walked along once
            at = above

    def acting(self, one: TracedProcess) -> Iterator[TracedProcess]:
        """Those that tell, and whose own program it is that the process runs: a hook is run by
        who started it."""
        while one.is_hook and one.parent is not None:
            one = one.parent
        return (teller for teller in self.tellers_of(one) if teller.program == one.program)

    def _enter(self, pid: int, parent: TracedProcess | None) -> TracedProcess:
        program = next(self._programs) if parent is None else parent.program
        one = self._living[pid] = TracedProcess(parent, program)
        if parent is not None:
            one.is_hook = parent.is_hook
            one.is_late = parent.is_late or parent.has_told
        if pid in self._tellers:
            self._expect(one)
        return one

    def _expect(self, one: TracedProcess) -> None:
        one.is_teller = True
        if not one.is_over:
            self.telling.add(one)


CallT = TypeVar("CallT")


class Suspects(Struct, Generic[CallT], eq=False):
    """The calls that one process may have been started for: one at least."""

    calls: tuple[CallT, ...]
    are_all: bool = True  #: else there were more of them than anybody would name

    @property
    def owner(self) -> CallT | None:
        return self.calls[0] if len(self.calls) == 1 and self.are_all else None


class Ownership(Generic[CallT]):
    def __init__(self) -> None:
        self.owners: dict[int, Suspects[CallT]] = {}  #: by pid; the agent's own are not in it
        self._unsure: set[int] = set()  # forked by the agent itself, and nothing executed yet
        self._commands: defaultdict[str, dict[CallT, None]] = defaultdict(dict)

    def expect(self, call: CallT, command: str) -> None:
        """While the call is open, who runs this is its own."""
        if known := known_by(command):
            self._commands[known][call] = None

    def forget(self, call: CallT, command: str) -> None:
        known = known_by(command)
        if known in self._commands:
            self._commands[known].pop(call, None)
            if not self._commands[known]:
                del self._commands[known]

    def is_sure(self, pid: int) -> bool:
        """That it was started for a call, whichever that is."""
        return pid in self.owners and pid not in self._unsure

    def forked(self, parent: int, child: int, some: Suspects[CallT] | None) -> None:
        """`some`: the calls that the parent can be at work for."""
        self.gone(child)  # its number may have been another's
        suspects = self.owners.get(parent)
        if suspects is not None:
            self.owners[child] = suspects
            if parent in self._unsure:
                self._unsure.add(child)
        elif some is not None:
            self.owners[child] = some
            self._unsure.add(child)

    def executed(self, pid: int, asked: Iterable[str], may_be: Callable[[CallT], bool]) -> None:
        """`may_be`: of calls that are open, whether the process can be at work for one."""
        suspects = self.owners.get(pid)
        if suspects is not None and self.is_sure(pid):
            if suspects.owner is not None:
                return  # what a call's own process runs is the call's, whatever it is called
            if suspects.are_all:
                may_be = suspects.calls.__contains__
        self._unsure.discard(pid)
        for text in asked:
            those = filter(may_be, self._commands.get(known_by(text), ()))
            found = tuple(islice(those, 2))
            if found:
                if len(found) == 1:
                    self.owners[pid] = Suspects(found)
                return

    def gone(self, pid: int) -> None:
        self.owners.pop(pid, None)
        self._unsure.discard(pid)
