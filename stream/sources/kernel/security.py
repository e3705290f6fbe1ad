"""The security modules of this kernel: which ones may refuse a call, and where Landlock, one of
them, keeps what it knows of a process."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

from stream.sources.kernel.loader import program_kinds

_LIST = Path("/sys/kernel/security/lsm")
_LIST_MODULES = 461  # the number of the system call, on every machine; since Linux 6.8
#: By the kernel's number. The others refuse nothing that a probe tries, or are asked for apart.
_REFUSING = {101: "selinux", 102: "smack", 103: "tomoyo", 104: "apparmor", 113: "ipe"}
_BPF_MODULE, _BPF_PROGRAM = 109, 29
_UNKNOWN = "a security module"
_POINTER = 1 << 63  # an address in the kernel is above it


def refusing_modules() -> tuple[str, ...]:
    """Name the security modules beside Landlock that may refuse a call."""
    numbers = _module_numbers()
    found = {_REFUSING[number] for number in numbers if number in _REFUSING}
    if not numbers:
        found.add(_UNKNOWN)
    if _BPF_MODULE in numbers and _has_bpf_program():
        found.add("bpf")
    return tuple(sorted(found))


def _has_bpf_program() -> bool:
    """Tell whether a program in the kernel may refuse calls, or nobody may know."""
    try:
        return _BPF_PROGRAM in program_kinds()
    except OSError:
        return True


def _module_numbers() -> list[int]:
    """Return the numbers of the modules that are active; none where the kernel does not tell."""
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = (ctypes.c_uint64 * 64)()
    size = ctypes.c_uint32(ctypes.sizeof(numbers))
    many = libc.syscall(_LIST_MODULES, numbers, ctypes.byref(size), 0)
    if many > 0:
        return list(numbers[:many])
    names = {name: number for number, name in _REFUSING.items()} | {"bpf": _BPF_MODULE}
    with suppress(OSError):
        return [names.get(name, 0) for name in _LIST.read_text().strip().split(",")]
    return []


def domain_places(before: tuple[int, ...], after: tuple[int, ...]) -> set[int]:
    """Return where the domain of a process may stand in what security modules keep of it: in words
    that are empty before the process has restricted itself, and an address after that."""
    words = enumerate(zip(before, after, strict=True))
    return {place for place, (then, now) in words if not then and now > _POINTER}
