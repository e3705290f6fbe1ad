"""Puts the object into the kernel, or says in one sentence why that cannot be."""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from stream.errors import FeedError, os_reason
from stream.sources.kernel.watch import Watch

if TYPE_CHECKING:
    from stream.sources.kernel.loader import Loaded

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
    loaded: Loaded
    name: str  #: of the object

    @property
    def sees_uring(self) -> bool:
        return self.name != "stream"


def attach(
    guard: int, cgroup: Path | None, watch: Sequence[Watch], ring_bytes: int, tree_size: int
) -> Attachment:
    from stream.sources.kernel.loader import is_known_machine

    assert len(watch) <= WATCHES
    if not is_known_machine():
        raise FeedError(f"{_PLACE}: there is none for {platform.machine()}")
    if not _BTF.exists():
        raise FeedError(f"{_BTF}: missing: this kernel does not describe itself (BTF)")
    config = _config(guard, cgroup is not None, ring_bytes, watch)
    made = _load(config, {"ring": ring_bytes, "tree": tree_size})
    try:
        if cgroup is not None:
            _put_cgroup(made.loaded, cgroup)
        made.loaded.freeze()
        made.loaded.attach()
    except (OSError, FeedError) as error:
        made.loaded.close()
        raise _explained(error) from None
    return made


def wake_at(ring_bytes: int) -> int:
    """As often in a small ring, which is full sooner."""
    return min(WAKE, ring_bytes // 64)


def _config(guard: int, use_cgroup: bool, ring_bytes: int, watch: Sequence[Watch]) -> bytes:
    """The first constants of the object, in their order."""
    space = os.stat("/proc/self/ns/pid")  # noqa: PTH116
    mounts = os.stat("/proc/self/ns/mnt").st_ino  # noqa: PTH116
    head = struct.pack(
        "<QQIIIIQQ",
        _kernel_device(space.st_dev),
        space.st_ino,
        guard,
        use_cgroup,
        wake_at(ring_bytes),
        len(watch),
        ring_bytes // 4,
        mounts,
    )
    pairs = [struct.pack("<QQ", _kernel_device(one.device), one.inode) for one in watch]
    return head + b"".join(pairs).ljust(16 * WATCHES, b"\0")


def _kernel_device(number: int) -> int:
    """stat puts the halves of a device's number together in another way than the kernel."""
    return os.major(number) << 20 | os.minor(number)


def _load(config: bytes, sizes: dict[str, int]) -> Attachment:
    """The first object that this kernel takes."""
    from stream.sources.kernel.loader import load

    machine = _MACHINES[platform.machine()]
    for name in OBJECTS:
        try:
            return Attachment(load(_BLOBS / f"{name}.{machine}.lskel", config, sizes), name)
        except OSError as error:
            refused = error
    raise _explained(refused)


def _put_cgroup(loaded: Loaded, cgroup: Path) -> None:
    try:
        fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FeedError(f"{cgroup}: {os_reason(error)}") from None
    try:
        loaded.write("cgroup", fd.to_bytes(4, "little"))
    except OSError:
        raise FeedError(f"{cgroup}: not a control group of version 2") from None
    finally:
        os.close(fd)


def _explained(error: OSError | FeedError) -> FeedError:
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
    """By its capabilities; where these cannot be read, the kernel's answer has to do."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return True
    mask = int(status.partition("\nCapEff:")[2].split(maxsplit=1)[0], 16)
    return bool(mask & _SYS_ADMIN) or mask & _BPF_AND_PERFMON == _BPF_AND_PERFMON
