"""Loads the feed's programs with raw bpf(2): no library, no compiler; closing leaves nothing.

Where that cannot be, a FeedError says why in one sentence.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import platform
import signal
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from stream.errors import FeedError, os_reason
from stream.sources.kernel.calls import WatchedFile, split_by_sizes

_CALL = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _LOOKUP, _UPDATE, _NEXT, _LOAD, _RUN, _INFO, _ATTACH = 0, 1, 2, 4, 5, 10, 15, 17
_NEXT_PROGRAM, _PROGRAM_OF_NUMBER, _FREEZE = 11, 13, 22
_ARRAY, _SYSCALL_PROGRAM, _SLEEPABLE = 2, 31, 16
_ATTRIBUTES = 144  # bytes: as many as any of these calls reads
_MISSES = 208  # where bpf_prog_info has the runs that were skipped
_ATTEMPTS = 10
_CONTEXT, _MAP, _PROGRAM = 24, 16, 4  # the loader's argument: sizes of its parts


class LoadedPrograms:
    """Programs and maps in the kernel, and what attaches them: descriptors, until `close`."""

    def __init__(self, maps: dict[str, int], programs: dict[str, int]) -> None:
        self.maps = maps
        self._programs = programs
        self._links: list[int] = []

    def attach(self, *, looks_closer: bool = False) -> None:
        """Let the programs run: the one at the entry of calls only where that is looked at."""
        for name, fd in self._programs.items():  # each knows its tracepoint since it was loaded
            if name == "on_sys_enter" and not looks_closer:
                continue
            self._links.append(_bpf(_ATTACH, struct.pack("<QI", 0, fd)))

    def detach(self) -> None:
        """Let no program run any more."""
        while self._links:
            os.close(self._links.pop())

    def skipped_program_runs(self) -> int:
        """Return how many runs the kernel skipped because the program was running on that CPU."""
        found = map(_program_info, self._programs.values())
        return sum(int.from_bytes(info[_MISSES : _MISSES + 8], "little") for info in found)

    def read_map_value(self, name: str, size: int) -> bytes:
        """Return the value at 0 of a map."""
        key, value = ctypes.create_string_buffer(4), ctypes.create_string_buffer(size)
        _bpf(_LOOKUP, _map_element(self.maps[name], key, value))
        return value.raw

    def count_map_keys(self, name: str) -> int:
        """Return how many keys, of four bytes each, a map has."""
        key, after = None, ctypes.create_string_buffer(4)
        found = 0
        while True:
            try:
                _bpf(_NEXT, _map_element(self.maps[name], key, after))
            except FileNotFoundError:
                return found
            key, found = ctypes.create_string_buffer(after.raw[:4], 4), found + 1

    def freeze_maps(self) -> None:
        """Let the programs alone change what is in the maps, whoever asks. Not in the ring, where a
        reader says how far it has come."""
        for name, fd in self.maps.items():
            if name not in ("ring", "rodata"):  # which is frozen since it was made
                _bpf(_FREEZE, struct.pack("<I", fd))

    def close(self) -> None:
        """Detach the programs, and close them and their maps."""
        self.detach()
        for fd in (*self._programs.values(), *self.maps.values()):
            os.close(fd)
        self.maps, self._programs = {}, {}


def program_kinds() -> set[int]:
    """Return the kinds of all programs in the kernel, by their numbers. Raise OSError where that
    is not permitted."""
    kinds: set[int] = set()
    number = b"\0" * 4
    while True:
        found = ctypes.create_string_buffer(number, 16)
        try:
            _call_bpf(_NEXT_PROGRAM, found)
        except FileNotFoundError:
            return kinds
        number = found.raw[4:8]
        try:
            fd = _bpf(_PROGRAM_OF_NUMBER, number)
        except FileNotFoundError:  # it is gone
            continue
        try:
            kinds.add(int.from_bytes(_program_info(fd)[:4], "little"))
        finally:
            os.close(fd)


def _program_info(fd: int) -> bytes:
    """Return what the kernel says about a program."""
    info = ctypes.create_string_buffer(256)
    _bpf(_INFO, struct.pack("<IIQ", fd, len(info), ctypes.addressof(info)))
    return info.raw


def load_bpf_object(blob: Path, config: bytes, sizes: Mapping[str, int]) -> LoadedPrograms:
    """Load an object. `config` takes the place of the beginning of its constants; `sizes` are those
    of its maps."""
    try:
        raw = blob.read_bytes()
    except FileNotFoundError:
        raise FeedError(f"{blob}: this file of the installation is missing") from None
    for left in reversed(range(_ATTEMPTS)):
        try:
            with _signals_held():
                return _load_skeleton(raw, config, sizes)
        except OSError as error:
            if not left or error.errno not in (errno.EAGAIN, errno.EINTR):
                raise
    raise AssertionError


@contextmanager
def _signals_held() -> Iterator[None]:
    """Hold signals back: the kernel gives up checking a program as soon as one waits.

    A stop cannot be held, and a debugger's does not even look like a signal: for these there are
    the other attempts.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _load_skeleton(raw: bytes, config: bytes, sizes: Mapping[str, int]) -> LoadedPrograms:
    """Run the loader program of a light skeleton; return the maps and BPF programs that it made."""
    start = 4 + int.from_bytes(raw[:4], "little")
    head = json.loads(raw[4:start])
    image, data, code = split_by_sizes(raw[start:], [head["image"], head["data"], head["code"]])
    constants = mmap.mmap(-1, max(mmap.PAGESIZE, len(image)))
    constants[: len(image)] = config + image[len(config) :]
    held = ctypes.c_char.from_buffer(constants)
    maps, programs = head["maps"], head["programs"]
    context = ctypes.create_string_buffer(
        _loader_context(maps, len(programs), sizes, ctypes.addressof(held))
    )
    _run_loader(data, code, context)
    descriptors = struct.iter_unpack("<i12x", context.raw[_CONTEXT:][: _MAP * len(maps)])
    at = _CONTEXT + _MAP * len(maps)
    loaded = struct.unpack_from(f"<{len(programs)}i", context.raw, at)
    return LoadedPrograms(
        {name: fd for name, (fd,) in zip(maps, descriptors, strict=True)},
        dict(zip(programs, loaded, strict=True)),
    )


def _loader_context(
    maps: list[str], programs: int, sizes: Mapping[str, int], constants: int
) -> bytes:
    """Make the context of a light skeleton's loader: the sizes of its maps, and its constants."""
    size = _CONTEXT + _MAP * len(maps) + _PROGRAM * programs
    size += -size % 8
    context = bytearray(struct.pack("<I", size).ljust(size, b"\0"))
    for number, name in enumerate(maps):
        initial = constants if name == "rodata" else 0
        struct.pack_into("<iIQ", context, _CONTEXT + _MAP * number, 0, sizes.get(name, 0), initial)
    return bytes(context)


def _run_loader(data: bytes, code: bytes, context: ctypes.Array[ctypes.c_char]) -> None:
    """Run a light skeleton's loader program in the kernel, which fills in the context."""
    table = _bpf(
        _MAP_CREATE,
        struct.pack("<IIIIIII16s", _ARRAY, 4, len(data), 1, 0, 0, 0, b"stream_loader"),
    )
    try:
        _write_map(table, data)
        program = _load_loader_program(code, table)
    finally:
        os.close(table)
    try:
        run = ctypes.create_string_buffer(
            struct.pack("<IIIIQQIIII", program, 0, 0, 0, 0, 0, 0, 0, len(context) - 1, 0)
            + struct.pack("<QQ", ctypes.addressof(context), 0),
            80,  # the kernel refuses bytes of this call that it does not know
        )
        _call_bpf(_RUN, run)
    finally:
        os.close(program)
    (result,) = struct.unpack_from("<i", run.raw, 4)
    if result < 0:
        raise OSError(-result, os.strerror(-result))


def _load_loader_program(code: bytes, table: int) -> int:
    """Load the loader program of a light skeleton into the kernel, and return its descriptor."""
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


def _write_map(fd: int, data: bytes) -> None:
    key, value = ctypes.create_string_buffer(4), ctypes.create_string_buffer(data, len(data))
    _bpf(_UPDATE, _map_element(fd, key, value))


def _map_element(
    fd: int, key: ctypes.Array[ctypes.c_char] | None, value: ctypes.Array[ctypes.c_char]
) -> bytes:
    """Make the attributes of a bpf(2) call about an element of a map."""
    at = 0 if key is None else ctypes.addressof(key)
    return struct.pack("<IIQQQ", fd, 0, at, ctypes.addressof(value), 0)


def _bpf(command: int, attributes: bytes) -> int:
    return _call_bpf(command, ctypes.create_string_buffer(attributes, _ATTRIBUTES))


def _call_bpf(command: int, attributes: ctypes.Array[ctypes.c_char]) -> int:
    """Call bpf(2), and return its result. Raise OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = _CALL[platform.machine()]
    result: int = libc.syscall(number, command, attributes, len(attributes))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


WATCHES = 8  #: as many as the object has room for
WAKE = 256 << 10  #: bytes in the ring that are worth to wake up for

_BLOBS = Path(__file__).parent / "bpf"
#: What is tried, the best one first. The first asks for Linux 6.9, the last one for 5.17.
OBJECTS = ("stream-direct", "stream-uring", "stream")
_MACHINES = {"x86_64": "x86", "aarch64": "arm64"}
_BTF = Path("/sys/kernel/btf/vmlinux")
_PLACE = "the kernel feed"
_SYS_ADMIN = 1 << 21  # before Linux 5.8, all there was
_BPF_AND_PERFMON = 1 << 39 | 1 << 38


class Attachment(Struct, frozen=True):
    """Programs that run in the kernel."""

    loaded: LoadedPrograms
    name: str  #: of the object

    @property
    def sees_uring(self) -> bool:
        """Tell whether operations through io_uring are seen."""
        return self.name != "stream"


def attach_feed_programs(
    guard: int,
    cgroup: Path | None,
    watch: Sequence[WatchedFile],
    ring_bytes: int,
    tree_size: int,
    *,
    looks_closer: bool = False,
) -> Attachment:
    """Attach the best programs that this kernel takes. Raises FeedError, or OSError where /proc is
    missing."""
    assert len(watch) <= WATCHES
    if platform.machine() not in _CALL:
        raise FeedError(f"{_PLACE}: there is none for {platform.machine()}")
    if not _BTF.exists():
        raise FeedError(f"{_BTF}: missing: this kernel does not describe itself (BTF)")
    config = _object_constants(guard, cgroup is not None, ring_bytes, watch, looks_closer)
    entered = tree_size if looks_closer else 1
    made = _load_first_object(config, {"ring": ring_bytes, "tree": tree_size, "entered": entered})
    try:
        if cgroup is not None:
            _set_cgroup(made.loaded, cgroup)
        made.loaded.freeze_maps()
        made.loaded.attach(looks_closer=looks_closer)
    except (OSError, FeedError) as error:
        made.loaded.close()
        raise _explain_load_failure(error) from None
    return made


def wake_threshold(ring_bytes: int) -> int:
    """Return at how many bytes to wake up: earlier in a small ring, which is full sooner."""
    return min(WAKE, ring_bytes // 64)


def _object_constants(
    guard: int,
    use_cgroup: bool,
    ring_bytes: int,
    watch: Sequence[WatchedFile],
    looks_closer: bool,
) -> bytes:
    """Return the first constants of the object, in their order."""
    space = os.stat("/proc/self/ns/pid")  # noqa: PTH116
    mounts = os.stat("/proc/self/ns/mnt").st_ino  # noqa: PTH116
    head = struct.pack(
        "<QQIIIIQQQ",
        _kernel_device(space.st_dev),
        space.st_ino,
        guard,
        use_cgroup,
        wake_threshold(ring_bytes),
        len(watch),
        ring_bytes // 4,
        mounts,
        looks_closer,
    )
    pairs = [struct.pack("<QQ", _kernel_device(one.device), one.inode) for one in watch]
    return head + b"".join(pairs).ljust(16 * WATCHES, b"\0")


def _kernel_device(number: int) -> int:
    """Return a device's number as the kernel has it: stat puts its halves together in another
    way."""
    return os.major(number) << 20 | os.minor(number)


def _load_first_object(config: bytes, sizes: dict[str, int]) -> Attachment:
    """Load the first object that this kernel takes."""
    machine = _MACHINES[platform.machine()]
    for name in OBJECTS:
        try:
            return Attachment(
                load_bpf_object(_BLOBS / f"{name}.{machine}.lskel", config, sizes), name
            )
        except OSError as error:
            refused = error
    raise _explain_load_failure(refused)


def _set_cgroup(loaded: LoadedPrograms, cgroup: Path) -> None:
    """Put the run's control group into the map by which the BPF programs know it."""
    try:
        fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FeedError(f"{cgroup}: {os_reason(error)}") from None
    try:
        _write_map(loaded.maps["cgroup"], fd.to_bytes(4, "little"))
    except OSError:
        raise FeedError(f"{cgroup}: not a control group of version 2") from None
    finally:
        os.close(fd)


def _explain_load_failure(error: OSError | FeedError) -> FeedError:
    """Say why the kernel refused the feed's BPF programs."""
    if isinstance(error, FeedError):
        return error
    if not _is_privileged():  # whatever the kernel calls that: without one of them, EINVAL
        return FeedError(f"{_PLACE}: not permitted: it takes root, or CAP_BPF and CAP_PERFMON")
    if error.errno == errno.EPERM:
        return FeedError(
            f"{_PLACE}: not permitted: a user namespace, a filter or a lockdown forbids bpf(2) here"
        )
    return FeedError(f"{_PLACE}: kernel {platform.release()} refuses it: {os_reason(error)}")


def _is_privileged() -> bool:
    """Judge by the capabilities of this process; where these cannot be read, the kernel's answer
    has to do."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return True
    mask = int(status.partition("\nCapEff:")[2].split(maxsplit=1)[0], 16)
    return bool(mask & _SYS_ADMIN) or mask & _BPF_AND_PERFMON == _BPF_AND_PERFMON
