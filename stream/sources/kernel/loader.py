"""Loads a light skeleton with raw bpf(2): no library, no compiler; closing leaves nothing."""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import platform
import signal
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stream.errors import FeedError

_CALL = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _LOOKUP, _UPDATE, _NEXT, _LOAD, _RUN, _INFO, _ATTACH = 0, 1, 2, 4, 5, 10, 15, 17
_FREEZE = 22
_ARRAY, _SYSCALL_PROGRAM, _SLEEPABLE = 2, 31, 16
_ATTRIBUTES = 144  # bytes: as many as any of these calls reads
_MISSES = 208  # where bpf_prog_info has the runs that were skipped
_ATTEMPTS = 10
_CONTEXT, _MAP, _PROGRAM = 24, 16, 4  # the loader's argument: sizes of its parts


def is_known_machine() -> bool:
    return platform.machine() in _CALL


class Loaded:
    """Programs and maps in the kernel, and what attaches them: descriptors, until `close`."""

    def __init__(self, maps: dict[str, int], programs: dict[str, int]) -> None:
        self.maps = maps
        self._programs = programs
        self._links: list[int] = []

    def attach(self) -> None:
        for fd in self._programs.values():  # each knows its tracepoint since it was loaded
            self._links.append(_bpf(_ATTACH, struct.pack("<QI", 0, fd)))

    def detach(self) -> None:
        while self._links:
            os.close(self._links.pop())

    def misses(self) -> int:
        """Runs that the kernel skipped, because the same program was running on that CPU."""
        total = 0
        for fd in self._programs.values():
            info = ctypes.create_string_buffer(256)
            _bpf(_INFO, struct.pack("<IIQ", fd, len(info), ctypes.addressof(info)))
            total += int.from_bytes(info.raw[_MISSES : _MISSES + 8], "little")
        return total

    def read(self, name: str, size: int) -> bytes:
        """The value at 0."""
        key, value = ctypes.create_string_buffer(4), ctypes.create_string_buffer(size)
        _bpf(_LOOKUP, _element(self.maps[name], key, value))
        return value.raw

    def count(self, name: str) -> int:
        """How many keys, of four bytes each, there are."""
        key, after = None, ctypes.create_string_buffer(4)
        found = 0
        while True:
            try:
                _bpf(_NEXT, _element(self.maps[name], key, after))
            except FileNotFoundError:
                return found
            key, found = ctypes.create_string_buffer(after.raw[:4], 4), found + 1

    def write(self, name: str, data: bytes) -> None:
        _write(self.maps[name], data)

    def freeze(self) -> None:
        """From now on the programs alone change what is in the maps, whoever asks. Not of the ring,
        where a reader says how far it has come."""
        for name, fd in self.maps.items():
            if name not in ("ring", "rodata"):  # which is frozen since it was made
                _bpf(_FREEZE, struct.pack("<I", fd))

    def close(self) -> None:
        self.detach()
        for fd in (*self._programs.values(), *self.maps.values()):
            os.close(fd)
        self.maps, self._programs = {}, {}


def load(blob: Path, config: bytes, sizes: Mapping[str, int]) -> Loaded:
    """`config` takes the place of the beginning of the constants; `sizes` are those of maps."""
    try:
        raw = blob.read_bytes()
    except FileNotFoundError:
        raise FeedError(f"{blob}: this file of the installation is missing") from None
    for left in reversed(range(_ATTEMPTS)):
        try:
            with _signals_held():
                return _load(raw, config, sizes)
        except OSError as error:
            if not left or error.errno not in (errno.EAGAIN, errno.EINTR):
                raise
    raise AssertionError


@contextmanager
def _signals_held() -> Iterator[None]:
    """The kernel gives up checking a program as soon as a signal waits: they come afterwards.

    A stop cannot be held, and a debugger's does not even look like a signal: for these there are
    the other attempts.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _load(raw: bytes, config: bytes, sizes: Mapping[str, int]) -> Loaded:
    start = 4 + int.from_bytes(raw[:4], "little")
    head = json.loads(raw[4:start])
    image, data, code = _cut(raw[start:], head["image"], head["data"], head["code"])
    constants = mmap.mmap(-1, max(mmap.PAGESIZE, len(image)))
    constants[: len(image)] = config + image[len(config) :]
    held = ctypes.c_char.from_buffer(constants)
    maps, programs = head["maps"], head["programs"]
    context = ctypes.create_string_buffer(
        _context(maps, len(programs), sizes, ctypes.addressof(held))
    )
    _run_loader(data, code, context)
    descriptors = struct.iter_unpack("<i12x", context.raw[_CONTEXT:][: _MAP * len(maps)])
    at = _CONTEXT + _MAP * len(maps)
    loaded = struct.unpack_from(f"<{len(programs)}i", context.raw, at)
    return Loaded(
        {name: fd for name, (fd,) in zip(maps, descriptors, strict=True)},
        dict(zip(programs, loaded, strict=True)),
    )


def _cut(data: bytes, *lengths: int) -> list[bytes]:
    parts, at = [], 0
    for length in lengths:
        parts.append(data[at : at + length])
        at += length
    return parts


def _context(maps: list[str], programs: int, sizes: Mapping[str, int], constants: int) -> bytes:
    size = _CONTEXT + _MAP * len(maps) + _PROGRAM * programs
    size += -size % 8
    context = bytearray(struct.pack("<I", size).ljust(size, b"\0"))
    for number, name in enumerate(maps):
        initial = constants if name == "rodata" else 0
        struct.pack_into("<iIQ", context, _CONTEXT + _MAP * number, 0, sizes.get(name, 0), initial)
    return bytes(context)


def _run_loader(data: bytes, code: bytes, context: ctypes.Array[ctypes.c_char]) -> None:
    table = _bpf(
        _MAP_CREATE,
        struct.pack("<IIIIIII16s", _ARRAY, 4, len(data), 1, 0, 0, 0, b"stream_loader"),
    )
    try:
        _write(table, data)
        program = _load_program(code, table)
    finally:
        os.close(table)
    try:
        run = ctypes.create_string_buffer(
            struct.pack("<IIIIQQIIII", program, 0, 0, 0, 0, 0, 0, 0, len(context) - 1, 0)
            + struct.pack("<QQ", ctypes.addressof(context), 0),
            80,  # the kernel refuses bytes of this call that it does not know
        )
        _call(_RUN, run)
    finally:
        os.close(program)
    (result,) = struct.unpack_from("<i", run.raw, 4)
    if result < 0:
        raise OSError(-result, os.strerror(-result))


def _load_program(code: bytes, table: int) -> int:
    instructions = ctypes.create_string_buffer(code, len(code))
    license_ = ctypes.create_string_buffer(b"Dual BSD/GPL")
    tables = (ctypes.c_int * 1)(table)
    return _bpf(
        _LOAD,
        struct.pack(
            "<IIQQIIQII16s56xQ",
            *(_SYSCALL_PROGRAM, len(code) // 8),
            *(ctypes.addressof(instructions), ctypes.addressof(license_)),
            *(0, 0, 0, 0, _SLEEPABLE, b"stream_loader", ctypes.addressof(tables)),
        ),
    )


def _write(fd: int, data: bytes) -> None:
    key, value = ctypes.create_string_buffer(4), ctypes.create_string_buffer(data, len(data))
    _bpf(_UPDATE, _element(fd, key, value))


def _element(
    fd: int, key: ctypes.Array[ctypes.c_char] | None, value: ctypes.Array[ctypes.c_char]
) -> bytes:
    at = 0 if key is None else ctypes.addressof(key)
    return struct.pack("<IIQQQ", fd, 0, at, ctypes.addressof(value), 0)


def _bpf(command: int, attributes: bytes) -> int:
    return _call(command, ctypes.create_string_buffer(attributes, _ATTRIBUTES))


def _call(command: int, attributes: ctypes.Array[ctypes.c_char]) -> int:
    number = _CALL[platform.machine()]
    result: int = _libc().syscall(number, command, attributes, len(attributes))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
