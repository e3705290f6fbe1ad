"""Replace the parts of a run's names that change in every run.

A process number, a UUID, a random ending or a time in a name does not describe what a run did. Each
shape is a rule with the proof that it needs, and every replacement is counted. A path that was only
read is never changed; in the workspace, only temporary files with the number of a process of the
run are: other names there are the user's. An ending as mkdtemp and mkstemp make it may be a word:
it is replaced only if the run made the file for its owner alone, another run made one of the same
form in the same folder, and not all of these endings are words. The same holds for a free port."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

RUN_FOLDER = "(run)"
#: What the run did to a path: it used the name first and moved the file; it used the name first;
#: it created or removed the name; it changed the file.
Proof = Literal["moved", "first", "made", "changed"]

_FIRST = {"mkdir", "exclusive", "bind"}
_MADE = {
    *("mkdir", "exclusive", "create", "symlink", "mknod", "bind"),
    *("link", "link_to", "rename", "rename_to"),
}
_READS = {"read", "unknown"}
_LEFT, _RIGHT = r"(?<![0-9A-Za-z])", r"(?![0-9A-Za-z])"
_NUMBER = re.compile(rf"{_LEFT}[1-9][0-9]{{0,9}}{_RIGHT}")
_DAY = re.compile(r"/20\d\d/[01]\d/[0-3]\d/")
_YEARS = range(1900, 2100)  #: such a number is rather a year than a process
_LEAST = 100  #: and smaller ones are in too many names
_PORTS = range(32768, 61000)  #: those that the kernel gives to who asks for any
_ANY_PORT = re.compile(rf"{_LEFT}[3-6][0-9]{{4}}{_RIGHT}")
_LOCAL = re.compile(r"(?:127\.\d+\.\d+\.\d+|\[::1\]):([0-9]{1,5})\Z")
_ENDPOINT = re.compile(r"(.+):([0-9]{1,5})\Z")
_TEMPORARY = re.compile(r"(?<=\.tmp\.)([0-9]{1,10})\.[0-9a-f]{6,32}\Z")
_PIECES = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_OPEN_FOLDERS = ("/proc/self/fd", "/proc/thread-self/fd", "/dev/fd")
#: A path from an open folder, as strace reports it: the number of the folder, and the rest.
BEHIND = re.compile(rf"(?:{'|'.join(_OPEN_FOLDERS)})/([0-9]{{1,10}})/(.+)", re.DOTALL)
_STANDARD = 2  #: the numbers up to it mean something
_WORD = 4  #: letters that may be one
_LONG_ID = 16  #: a shorter one may be a word that is in other names as well


class ProofRequest(Struct, frozen=True):
    """Asks what only the kernel layer of a run can answer."""

    numbers: Collection[int] = ()
    endpoints: Collection[str] = ()
    made: Collection[str] = ()  #: paths whose name the run was the first to use
    behind: Collection[str] = ()  #: paths that begin with the number of an open folder


class ProvenNames(Struct, frozen=True):
    """Holds what the kernel layer of a run proves."""

    processes: Collection[int] = ()  #: of the numbers: those of processes of the run
    callers: Collection[str] = ()  #: of the endpoints: those of who came to the run
    private: Collection[str] = ()  #: of the paths: those that were made for their owner alone
    free_ports: int = 0  #: how often the run asked for any port that is free
    #: By such a path: where it was, as the process had last opened that number. It may have put
    #: another folder there since: this is no evidence, but what was done to one name was done to
    #: the other.
    open_folder_paths: Mapping[str, Collection[str]] = {}


Proofs = Callable[[ProofRequest], ProvenNames]


def _is_scrambled(text: str) -> bool:
    """Return whether nobody would choose the text as a name: digits between letters, no word."""
    pieces = _PIECES.findall(text)
    is_mixed = len(pieces) > 3 and re.search(r"[A-Za-z]\d+[A-Za-z]", text) is not None
    return is_mixed and all(piece.isdigit() or len(piece) < _WORD for piece in pieces)


class NameRule(Struct, frozen=True):
    """Says which part of a component of a path changes in every run, and which proof that needs."""

    name: str
    shape: str  #: the group is the piece, where there is one
    proof: Proof
    example: str
    counter: str  #: a name that it leaves alone
    looks: Callable[[str], bool] | None = None  #: what else has to hold for the piece


#: In the order in which they are asked.
RULES = (
    NameRule(
        "uuid",
        rf"{_LEFT}[0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}}{_RIGHT}",
        "made",
        "01a1f405-2745-7593-937f-fad64de2a27b.lock",
        "uuid-notes.lock",
    ),
    NameRule(
        "ulid",  # of the years from 2005 to 2039
        rf"{_LEFT}01(?:[0-9A-HJKMNP-TV-Z]{{24}}|[0-9a-hjkmnp-tv-z]{{24}}){_RIGHT}",
        "made",
        "session-01M7T8V9MC0D3NCJEJQMMXAP3S.json",
        "session-01MONDAY.json",
    ),
    NameRule(
        "time",
        rf"{_LEFT}20\d\d-?[01]\d-?[0-3]\d[T_-][0-2]\d[-:.]?[0-5]\d"
        rf"(?:[-:.]?[0-5]\d(?:[.,-]\d{{3,9}})?)?Z?{_RIGHT}",
        "made",
        "session-2026-11-19T13-35.jsonl",
        "report-2026-11-19.md",
    ),
    NameRule(
        "time",  # since 1970, in seconds or in thousandths, millionths or billionths
        rf"{_LEFT}1[6-9]\d{{8}}(?:\d{{3}}|\d{{6}}|\d{{9}})?{_RIGHT}",
        "made",
        "settings.json.backup.1795095339634",
        "report-20261119.md",
    ),
    NameRule(
        "random",  # as programs are known to name their temporary files
        r"\A(?:tmp\.([A-Za-z0-9]{10})|(?:\.tmp|sed|sh-thd\.)([A-Za-z0-9]{6})"
        r"|cc([A-Za-z0-9]{6})\.(?:[cos]|res|ld|le)|tmp_(?:obj|pack|idx)_([A-Za-z0-9]{6})"
        r"|(?:codex-arg0|gemini-shell-|fswatch-probe-)([A-Za-z0-9]{6})"
        r"|claude-([0-9a-f]{4})-cwd|snapshot-[a-z]+-\(time\)-([a-z0-9]{6})\.sh)\Z",
        "made",
        "gemini-shell-2YYklp",
        "gemini-shell-notes.md",
    ),
    NameRule(
        "random",
        r"\A(?:tmp([a-z0-9_]{8})|([a-z0-9]{9})\.output\Z)",
        "first",
        "bol6cwd42.output",
        "report.output",
    ),
    NameRule("inode", r"\A#\d+\Z", "changed", "#16048272", "issue#12"),
    NameRule(
        "random",  # behind a temporary file's name, or behind what another rule found
        rf"(?:(?<=\.tmp\.)|(?<=\.tmp-))(?=[a-z]*\d)[0-9a-z]{{6,128}}{_RIGHT}"
        rf"|(?:(?<=pid\)\.)|(?<=time\)-)|(?<=uuid\)-))(?=[a-f]*\d)[0-9a-f]{{6,128}}{_RIGHT}",
        "made",
        "settings.json.tmp.30dbac95",
        "settings.json.tmp.report",
    ),
    NameRule(
        "hash",
        rf"{_LEFT}(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{{8,128}}{_RIGHT}",
        "made",
        "063cebc15e007869",
        "report-20261119",
    ),
    NameRule(
        "random",  # a file of a cache, before it has its name
        r"(?<=\(hash\)\.)[A-Za-z0-9]{6}\Z",
        "moved",
        "063cebc15e007869.cgtabn",
        "notes.cgtabn",
    ),
    NameRule(
        "random",
        rf"{_LEFT}[A-Za-z0-9]{{6,32}}{_RIGHT}",
        "first",
        "job-CG0UfH",
        "job-Report2Final3",
        _is_scrambled,
    ),
)
_SHAPES = [(rule, re.compile(rule.shape)) for rule in RULES]


class _NamedPath(Struct, frozen=True):
    """A path up to one of its components."""

    name: str
    rules: frozenset[str] = frozenset()
    is_workspace: bool = False


class RunNames:
    """Names what one run reached. Without `ways`, how it did, no rule applies to its paths."""

    def __init__(
        self,
        *,
        run_id: str = "",
        folder: str = "",
        subfolders: Iterable[str] = (),
        workspace: str = "",
        ways: Mapping[str, Collection[str]] | None = None,
        endpoints: Iterable[str] = (),
        proven: ProvenNames | None = None,
    ) -> None:
        """Take what is known of the run. `subfolders` are those of its folder, `workspace` is its
        agent's."""
        self.used: Counter[str] = Counter()  #: by rule: values that it changed
        self._ways = {**(ways or {})}
        self._known: dict[str, _NamedPath] = {"": _NamedPath("")}
        self._run_folders = tuple(f"{folder.rstrip('/')}/{name}" for name in subfolders if folder)
        self._workspace = workspace or None
        self._run_patterns = [*_run_name_patterns(run_id, folder)]
        self._folder = folder
        self._users = set[str]()  #: paths behind an open folder of the workspace
        self._learn_proofs(proven or ProvenNames())
        self._agreed: dict[str, tuple[str, str]] = {}  #: by path: its last part, and by which rule
        self._endpoints = [*endpoints]
        ports = (int(found[1]) for one in self._endpoints if (found := _LOCAL.match(one)))
        self._ports = {port for port in ports if port in _PORTS}

    def collect_proofs(self, paths: Iterable[str], proofs: Proofs) -> ProvenNames:
        """Collect what the kernel layer proves about these paths."""
        telling = filter(self._may_have_proof, paths)
        numbers = {int(number) for path in telling for number in _NUMBER.findall(path)}
        found = ((one, _ENDPOINT.match(one)) for one in self._endpoints)
        callers = {one for one, parts in found if parts and int(parts[2]) in _PORTS}
        workspace = f"{self._workspace}/"
        made = {
            path for path in self._ways if self._has_proof("first", path) and workspace not in path
        }
        behind = {path for path in self._ways if BEHIND.fullmatch(path)}
        if numbers or callers or made or behind:
            self._learn_proofs(proofs(ProofRequest(numbers, callers, made, behind)))
        return self._proven

    def _learn_proofs(self, proven: ProvenNames) -> None:
        """Keep what the kernel layer proves about paths: where they lead, and whose they are."""
        self._proven = proven
        for path, others in proven.open_folder_paths.items():
            for other in others:
                both = {*self._ways.get(path, ()), *self._ways.get(other, ())}
                self._ways.update(dict.fromkeys({path, other} & self._ways.keys(), both))
            if any(f"{self._workspace}/" in other for other in others):
                self._users.add(path)

    @property
    def private_paths(self) -> Collection[str]:
        """Paths outside of the workspace that the run made for their owner alone."""
        return self._proven.private

    @property
    def paths_with_port(self) -> list[str]:
        """Paths that the run made with a number in their names that may be a port which it got
        when it asked for any."""
        made = (path for path in self._ways if self._has_proof("made", path))
        found = {path: at[0] for path in made if (at := free_port(path.rpartition("/")[2]))}
        return [*found] if len({*found.values()}) <= self._proven.free_ports else []

    def folder_name(self, path: str) -> str | None:
        """Return the name of a path's folder, or None if the user names what is in it."""
        folder = self._named_path(path.rpartition("/")[0])
        is_users = folder.is_workspace or path in self._users
        is_own = is_users or path == self._workspace or path.endswith(self._run_folders)
        return None if is_own else folder.name

    def add_agreed_names(self, names: Mapping[str, tuple[str, str]]) -> None:
        """Take other names for the last parts of paths: `names` gives each with its rule.

        Call it before anyone asks for what lies in one of these paths."""
        self._agreed.update(names)

    @property
    def endpoint_names(self) -> set[str]:
        """Return the endpoints, without ports that mean nothing: of who comes to a run, because its
        kernel gave it one; of a server that asked for any port, where somebody came."""
        callers, found = self._proven.callers, set()
        local = {one for one in self._endpoints if _LOCAL.match(one) and one not in callers}
        served = {one for one in local if int(one.rpartition(":")[2]) in _PORTS}
        if not any(map(_LOCAL.match, callers)) or len(served) > self._proven.free_ports:
            served.clear()
        for one in self._endpoints:
            given = "(port)" if one in callers else "(served)" if one in served else ""
            self.used.update(["port"] if given else [])
            found.add(f"{one.rpartition(':')[0]}:{given}" if given else one)
        return found

    def path_names(self, paths: Iterable[str]) -> set[str]:
        """Return the names of the paths, and count the rules that applied."""
        found = set()
        for path in paths:
            named = self._named_path(path)
            self.used.update(named.rules)
            found.add(named.name)
        return found

    def path_name(self, path: str) -> str:
        """Return the name of a path, without what changes in every run."""
        return self._named_path(path).name

    def _may_have_proof(self, path: str) -> bool:
        return "/proc/" in path or not _READS.issuperset(self._ways.get(path, _READS))

    def _named_path(self, path: str) -> _NamedPath:
        """Find the name of a path. Folders are cached, for many files in one of them."""
        behind, at = [], path.rpartition("/")[0]
        while at not in self._known:
            behind.append(at)
            at = at.rpartition("/")[0]
        folder = self._known[at]
        for longer in reversed(behind):
            folder = self._known[longer] = self._named_path_below(folder, at, longer)
            at = longer
        return self._named_path_below(folder, at, path) if path else folder

    def _named_path_below(self, parent: _NamedPath, at: str, path: str) -> _NamedPath:
        """Name a path below a folder that has its name, and note the rules that applied."""
        if self._run_folders and path.endswith(self._run_folders):
            (known,) = (one for one in self._run_folders if path.endswith(one))
            before, name = path.removesuffix(known), known.rpartition("/")[2]
            shown = f"{before}/{RUN_FOLDER}/{name}" if before else f"{RUN_FOLDER}/{name}"
            return _NamedPath(shown, is_workspace=known == self._workspace)
        rules: set[str] = set()
        component = path[len(at) :].removeprefix("/")
        slash = "/" if path.startswith("/", len(at)) else ""
        name, whole = self._name_component(component, parent, path, rules), f"{parent.name}{slash}"
        if _DAY.search(whole) and not parent.is_workspace and self._has_proof("made", path):
            whole = _DAY.sub("/(day)/", whole)
            rules.add("time")
        is_workspace = parent.is_workspace or path == self._workspace or path in self._users
        return _NamedPath(f"{whole}{name}", parent.rules | rules, is_workspace)

    def _name_component(self, name: str, parent: _NamedPath, path: str, rules: set[str]) -> str:
        """Name the last part of a path, with what changes in every run replaced by a word."""
        if _NUMBER.fullmatch(name):
            if seen := self._process_name(int(name), parent.name):
                rules.add("pid")
                return seen
            if parent.name in _OPEN_FOLDERS and int(name) > _STANDARD:
                rules.add("fd")
                return "(fd)"
        if parent.is_workspace or path in self._users:
            return self._name_workspace_file(name, path, rules)
        if path in self._agreed:
            name, rule = self._agreed[path]
            rules.add(rule)
            return name
        if self._folder and path.endswith(self._folder):
            rules.add("run")
            return RUN_FOLDER
        for pattern in self._run_patterns:
            name = _replace_shape(pattern, RUN_FOLDER, name, "run", rules)
        ways = self._ways.get(path)
        if ways is None or _READS.issuperset(ways):
            return name
        name = _NUMBER.sub(lambda found: self._name_number(found[0], rules), name)
        for one, shape in _SHAPES:
            if self._has_proof(one.proof, path):
                name = _replace_shape(shape, f"({one.name})", name, one.name, rules, one.looks)
        return name

    def _process_name(self, number: int, folder: str) -> str:
        if folder.endswith("/proc") and number in self._proven.processes:
            return "(pid)"
        return "(tid)" if folder.endswith("/proc/(pid)/task") else ""

    def _name_workspace_file(self, name: str, path: str, rules: set[str]) -> str:
        """Name a file of the workspace: only a temporary file of a process gets another name."""
        found = _TEMPORARY.search(name)
        if (
            found is None
            or int(found[1]) not in self._proven.processes
            or not self._has_proof("made", path)
        ):
            return name
        rules |= {"pid", "random"}
        return f"{name[: found.start()]}(pid).(random)"

    def _name_number(self, digits: str, rules: set[str]) -> str:
        """Replace a number in a path by `(pid)` or `(port)`, if the run had such a one."""
        number = int(digits)
        for name, known in (("pid", self._proven.processes), ("port", self._ports)):
            if number in known and number >= _LEAST and number not in _YEARS:
                rules.add(name)
                return f"({name})"
        return digits

    def _has_proof(self, proof: Proof, path: str) -> bool:
        """Tell whether the run changed, moved or made a path, as a naming rule asks."""
        ways = self._ways.get(path, ())
        if proof == "changed":
            return not _READS.issuperset(ways)
        if proof == "moved" and "rename" not in ways:
            return False
        return not (_MADE if proof == "made" else _FIRST).isdisjoint(ways)


def free_port(name: str) -> re.Match[str] | None:
    """Find a number in a name that may be a port which the kernel chose."""
    return next((one for one in _ANY_PORT.finditer(name) if int(one[0]) in _PORTS), None)


def _run_name_patterns(run_id: str, folder: str) -> Iterator[re.Pattern[str]]:
    """Yield patterns for the run's folder written as one word, as agents name projects, and for its
    id."""
    words = [re.escape(word) for word in re.split(r"[^A-Za-z0-9]+", folder) if word]
    if len(words) > 1:
        between = r"(?:%2[Ff]|[^A-Za-z0-9/]{1,2})"
        yield re.compile(rf"{_LEFT}(?:{between})?{between.join(words)}{_RIGHT}")
    if len(run_id) >= _LONG_ID:
        yield re.compile(rf"{_LEFT}{re.escape(run_id)}{_RIGHT}")


def _replace_shape(
    shape: re.Pattern[str],
    by: str,
    name: str,
    rule: str,
    rules: set[str],
    looks: Callable[[str], bool] | None = None,
) -> str:
    """Replace matches of a shape in a part of a path, and note the rule if there are any."""

    def replacement_of(found: re.Match[str]) -> str:
        """Return what stands in the place of one match."""
        if looks is not None and not looks(found[0]):
            return found[0]
        rules.add(rule)
        start, end = (at - found.start() for at in found.span(found.lastindex or 0))
        return f"{found[0][:start]}{by}{found[0][end:]}"

    return shape.sub(replacement_of, name)


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


def agree_on_names(runs: Sequence[RunNames]) -> None:
    """Give names that differ only in such an ending the same name, folder by folder."""
    by_depth = [_paths_by_depth(run) for run in runs]
    for depth in sorted({depth for paths in by_depth for depth in paths}):
        offered = [
            _ending_forms(run, paths[depth]) for run, paths in zip(runs, by_depth, strict=True)
        ]
        times = Counter(key for offers in offered for key in offers)
        shared = [
            key
            for key, count in times.items()
            if count > 1
            and _are_random_endings(key, [offers[key] for offers in offered if key in offers])
        ]
        # By chance the beginnings of some endings are the same: that form fits fewer names.
        shared.sort(key=lambda key: -sum(len(offers.get(key, ())) for offers in offered))
        for run, offers in zip(runs, offered, strict=True):
            run.add_agreed_names(
                {path: _name_and_rule(key) for key, path in _first_shared_form(offers, shared)}
            )


def is_word_ending(ending: str) -> bool:
    """Return whether an ending may be a word: one or two words, perhaps with a number, or a short
    number."""
    words = _LETTERS.findall(ending)
    is_mixed = len(words) > 2 or re.search(r"[0-9][A-Za-z]", ending) is not None
    is_long = ending.isdigit() and len(ending) >= _LONG_NUMBER
    return not (is_mixed or is_long or any(_UNSPEAKABLE.search(word.lower()) for word in words))


def _paths_by_depth(run: RunNames) -> dict[int, list[str]]:
    """Group by depth a run's private paths, and those that may be named by a port."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in {*run.private_paths, *run.paths_with_port}:
        found[path.count("/")].append(path)
    return found


def _ending_forms(run: RunNames, paths: Sequence[str]) -> _Offers:
    """Return the endings of paths, in the order of the forms that they have."""
    private, found = run.private_paths, _Offers()
    named = [(path, folder) for path in paths if (folder := run.folder_name(path)) is not None]
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


def _are_random_endings(key: _Key, endings: Sequence[dict[str, str]]) -> bool:
    """Return whether endings are random: not if all runs have the same, or all are words."""
    differ = len({frozenset(one.values()) for one in endings}) > 1
    return differ and (
        key[1] == "port" or not all(is_word_ending(e) for one in endings for e in one.values())
    )


def _first_shared_form(offers: _Offers, shared: Sequence[_Key]) -> Iterator[tuple[_Key, str]]:
    """Yield, for each path, the first of its forms that another run shares."""
    known = set[str]()
    for key in shared:
        paths = offers.get(key, {})
        yield from ((key, path) for path in paths if path not in known)
        known.update(paths)


def _name_and_rule(key: _Key) -> tuple[str, str]:
    _, rule, before, behind = key
    return f"{before}({rule}){behind}", rule
