"""Which reads say nothing about an agent: those of loaders, runtimes and the kernel's own folders.

The rules are about the file that was really reached, by its canonical path; who asks must know
that something was only read. A path that fails may be noise as well, but only where its text
alone tells what it would have reached: see `is_straight`, and only in the system's own folders.
Elsewhere, as in node_modules, anybody may have put a link on the way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from msgspec import Struct

FolderFilter = Callable[[str], str | None]
_DOTS = ("", ".", "..")  #: no names in a folder


class FilterRule(Struct, frozen=True):
    """Which reads are left out, and why."""

    name: str
    what: str
    folders: tuple[str, ...] = ()  #: themselves, and everything below
    files: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  #: in whatever folder
    inside: str = ""  #: what a folder's path must show, for all that is in it
    some_inside: str = ""  #: the same, for what is called like `some` only
    some: str = ""
    but: str = ""  #: what is called like this stays, wherever in `folders` it lies


_SHARED_OBJECT = r"\.so(?:\.[0-9]+)*"
_LIB, _PYTHON = "/lib(?:32|64)?", r"(?:python|pypy)[23]\.[0-9]+t?"

# Where /lib is a link to /usr/lib the canonical path says the latter, and a time zone's file is
# what /etc/localtime leads to: both forms of a place are the same place.
RULES = (
    FilterRule(
        "loader",
        "the dynamic loader's cache and libraries",
        folders=(
            *("/lib", "/lib32", "/lib64"),
            *("/usr/lib", "/usr/lib32", "/usr/lib64"),
        ),
        files=("/etc/ld.so.cache",),
    ),
    FilterRule(
        "locale",
        "locales and the time zone",
        folders=("/usr/share/locale", "/usr/share/zoneinfo"),
        files=("/etc/localtime", "/etc/locale.alias"),  # where /usr/share/locale leads
    ),
    # Not what they have in their memory.
    FilterRule("proc", "what the kernel tells of processes", folders=("/proc",), but="mem"),
    FilterRule("sys", "what the kernel tells of devices", folders=("/sys",)),
    FilterRule("dev", "devices", folders=("/dev",)),
    FilterRule(
        "node_modules",
        "installed dependencies of Node programs",
        names=("node_modules",),
        inside=r"/node_modules(?:/|\Z)",
    ),
    FilterRule(
        "python_packages",
        "installed dependencies of Python programs",
        names=("site-packages", "dist-packages"),
        inside=r"/(?:site|dist)-packages(?:/|\Z)",
    ),
    FilterRule(
        "python_library",
        "Python's own library, wherever it is installed",
        inside=rf"{_LIB}/{_PYTHON}(?:/|\Z)",
        some_inside=rf"{_LIB}\Z",
        some=rf"{_PYTHON}|python3[0-9]+t?\.zip|libpython3.*?{_SHARED_OBJECT}",
    ),
    FilterRule(
        "trust_store",
        "certificates of authorities",
        folders=(
            *("/etc/ssl/certs", "/etc/ca-certificates", "/var/lib/ca-certificates"),
            *("/usr/share/ca-certificates", "/usr/local/share/ca-certificates"),
            *("/etc/pki/ca-trust", "/etc/pki/tls/certs", "/usr/share/pki/ca-trust-source"),
        ),
        files=("/etc/ssl/cert.pem", "/etc/pki/tls/cert.pem", "/etc/ca-certificates.conf"),
        but=r"(?i).*key.*",  # of a server, put beside its certificate
    ),
    FilterRule("runtime_config", "settings of OpenSSL", files=("/etc/ssl/openssl.cnf",)),
    FilterRule(
        "python_bootstrap", "how Python finds itself", names=("pyvenv.cfg", "pybuilddir.txt")
    ),
    FilterRule(
        "toolchain",
        "shared objects of Rust's toolchains and builds",
        some_inside=(
            r"/\.rustup/toolchains/[^/]+(?:/|\Z)"
            r"|/target/(?:[^/]+/)*(?:build|debug|release)(?:/|\Z)"
        ),
        some=rf".*{_SHARED_OBJECT}",
    ),
)

_VIEW = r"/proc/[^/]+/(?:task/[^/]+/)?(?:root|cwd|exe|fd|map_files|ns)(?:/|\Z)|/dev/fd(?:/|\Z)"
_ELSEWHERE = re.compile(rf"{_VIEW}|/dev/(?:stdin|stdout|stderr|shm)(?:/|\Z)")
#: No folder of a canonical path: one behind a link of the kernel's, or a text that is no such path.
_CROOKED = re.compile(rf"{_VIEW}|(?!/|\Z)|.*?/\.{{0,2}}(?:/|\Z)", re.DOTALL)


def filter_rule_for(folder: str, *, is_reached: bool = True) -> FolderFilter:
    """Return, for the path of a folder, what tells which rule a name in it falls under.

    The folder of `/x` is the empty text. A rule for the whole folder goes before the others. What
    was not reached falls under the rules for the system's own folders and files alone.
    """
    if _CROOKED.match(folder):
        return _never
    for rule in RULES:
        if any(folder == top or folder.startswith(f"{top}/") for top in rule.folders):
            return _all_but(rule.name, rule.but)
        if is_reached and rule.inside and re.search(rule.inside, folder):
            return _all_but(rule.name)
    judge: FolderFilter = dict(_named(folder, is_reached=is_reached)).get
    for rule in RULES:
        if is_reached and rule.some_inside and re.search(rule.some_inside, folder):
            judge = _some(rule.name, rule.some, judge)
    return judge


def is_straight(path: str, plain: str) -> bool:
    """Tell whether an absolute path leads where its text says: nothing in it goes up, and it does
    not go through another process's view. `plain` is the same path, normalised."""
    return "/../" not in f"{path}/" and _ELSEWHERE.match(plain) is None


def _never(name: str) -> None:
    return None


def _all_but(rule: str, but: str = "") -> FolderFilter:
    stays = re.compile(but, re.DOTALL).fullmatch if but else _never
    return lambda name: None if name in _DOTS or stays(name) else rule


def _some(rule: str, names: str, others: FolderFilter) -> FolderFilter:
    is_meant = re.compile(names, re.DOTALL).fullmatch
    return lambda name: rule if is_meant(name) else others(name)


def _named(folder: str, *, is_reached: bool) -> Iterator[tuple[str, str]]:
    for rule in RULES:
        if is_reached:
            yield from ((name, rule.name) for name in rule.names)
        for path in (*rule.folders, *rule.files):
            place, _, name = path.rpartition("/")
            if place == folder:
                yield name, rule.name
