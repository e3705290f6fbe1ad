"""Endings of names that are others in each run, where one run alone proves too little.

An ending as mkdtemp and mkstemp make it may be a word. It is left out where the run made the file
or folder for its owner alone, as these do, and another run made one of the same form in the same
folder, and not all that these runs put there are words. The same holds for a port of a run that
asked for any.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from stream.comparison.names import Names, free_port

#: Of a name: its folder as it is compared, the rule, and what is before and behind the ending.
_Key = tuple[str, str, str, str]
_Offers = dict[_Key, dict[str, str]]  #: by path: the ending

#: Those of libc and Node, of Python, of templates, of mktemp, of Go and Java.
_FORMS = [
    re.compile(rf"(.*)({ending})((?:[.-].*)?)\Z", re.DOTALL)
    for ending in (
        *("[A-Za-z0-9]{6}", "[a-z0-9_]{8}", "[A-Za-z0-9]{8}", "[A-Za-z0-9]{10}", "[0-9]{9,19}"),
    )
]
_LONG_NUMBER = 9  #: digits: more than a day has
_LETTERS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
#: As no word of English is spelled.
_UNSPEAKABLE = re.compile(
    r"[^aeiouy]{5}|\A(?:[^aeiouy]{4}|[^aeiouy]{2,}\Z)"
    r"|q[^u]|[jv][^aeiouy]|[^aeiouycns]q|[^aeiouyn]x"
)


def agree(runs: Sequence[Names]) -> None:
    """Give names that differ in nothing but such an ending the same name, folder by folder."""
    by_depth = [_by_depth(run) for run in runs]
    for depth in sorted({depth for paths in by_depth for depth in paths}):
        offered = [_offers(run, paths[depth]) for run, paths in zip(runs, by_depth, strict=True)]
        times = Counter(key for offers in offered for key in offers)
        shared = [
            key
            for key, count in times.items()
            if count > 1 and _is_random(key, [offers[key] for offers in offered if key in offers])
        ]
        # By chance the beginnings of some endings are the same: that form fits fewer names.
        shared.sort(key=lambda key: -sum(len(offers.get(key, ())) for offers in offered))
        for run, offers in zip(runs, offered, strict=True):
            run.agree({path: _named(key) for key, path in _first(offers, shared)})


def is_word(ending: str) -> bool:
    """Whether it can be said: one or two words, perhaps with a number behind, or a short number."""
    words = _LETTERS.findall(ending)
    is_mixed = len(words) > 2 or re.search(r"[0-9][A-Za-z]", ending) is not None
    is_long = ending.isdigit() and len(ending) >= _LONG_NUMBER
    return not (is_mixed or is_long or any(_UNSPEAKABLE.search(word.lower()) for word in words))


def _by_depth(run: Names) -> dict[int, list[str]]:
    found: dict[int, list[str]] = defaultdict(list)
    for path in {*run.private, *run.ported}:
        found[path.count("/")].append(path)
    return found


def _offers(run: Names, paths: Sequence[str]) -> _Offers:
    """In the order of the forms."""
    private, found = run.private, _Offers()
    named = [(path, folder) for path in paths if (folder := run.folder(path)) is not None]
    for form in _FORMS:
        for path, folder in named:
            if path in private and (parts := form.match(path.rpartition("/")[2])):
                key = (folder, "random", parts[1], parts[3])
                found.setdefault(key, {})[path] = parts[2]
    for path, folder in named:
        name = path.rpartition("/")[2]
        if (port := free_port(name)) is not None:
            key = (folder, "port", name[: port.start()], name[port.end() :])
            found.setdefault(key, {})[path] = port[0]
    return found


def _is_random(key: _Key, endings: Sequence[dict[str, str]]) -> bool:
    """What is the same in all runs is no random ending, nor are words that differ."""
    differ = len({frozenset(one.values()) for one in endings}) > 1
    is_port = key[1] == "port"
    return differ and (is_port or not all(is_word(e) for one in endings for e in one.values()))


def _first(offers: _Offers, shared: Sequence[_Key]) -> Iterator[tuple[_Key, str]]:
    """Of each path the first of its forms that is shared."""
    known = set[str]()
    for key in shared:
        paths = offers.get(key, {})
        yield from ((key, path) for path in paths if path not in known)
        known.update(paths)


def _named(key: _Key) -> tuple[str, str]:
    _, rule, before, behind = key
    return f"{before}({rule}){behind}", rule
