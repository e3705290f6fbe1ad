"""Records to events: however the ring is cut, and whatever the names are."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.records.kernel import RawEvent, path_text
from stream.sources.kernel.decode import CALLS, peer_text
from stream.sources.kernel.decode import RingDecoder as Plain


class Decoder(Plain):
    """What is in a chunk, as events."""

    def events(self, chunk: bytes) -> tuple[list[RawEvent], int]:
        batch, taken = self.decode(chunk)
        return [event for event in batch if isinstance(event, RawEvent)], taken


names = st.binary(min_size=1, max_size=12).filter(lambda name: not {0, 47} & set(name))
folders = st.lists(names, max_size=6)


def record(
    call: str,
    *parts: bytes,
    flags: int = 3,
    ret: int = 3,
    extra: int = 0,
    opened: int = 0o100,
    mode: int = 0o644,
    resolve: int = 7,
) -> bytes:
    data = b"".join(parts)
    lengths = [len(part) for part in parts] + [0] * (5 - len(parts))
    head = struct.pack(
        "<BBHIIiQIIQHHHHHHI",
        *(CALLS.index(call), 0, flags, 11, 10, ret, 99, opened, mode, extra),
        *(*lengths, parts[1].find(b"\0") if lengths[1] else 0, resolve),
    )
    body = struct.pack("<II", len(head) + len(data), 0) + head + data
    return body + bytes(-len(body) % 8)


def walked(path: list[bytes]) -> bytes:
    return b"".join(name + b"\0" for name in reversed(path)) or b"\0"


@given(st.lists(folders, min_size=1), st.data())
def test_a_chunk_may_be_cut_anywhere(paths: list[list[bytes]], data: st.DataObject) -> None:
    whole = b"".join(record("openat", b"x", walked(path)) for path in paths)
    once, pieces = Decoder(), Decoder()
    expected, length = once.events(whole)
    assert length == len(whole)
    assert [event.resolved for event in expected] == [
        "/" + "/".join(path_text(name) for name in path) for path in paths
    ]
    events: list[RawEvent] = []
    at = 0
    while at < len(whole):
        end = data.draw(st.integers(at, len(whole)))
        found, taken = pieces.events(whole[at : max(end, at + 320)])
        events += found
        at += taken
    assert events == expected
    assert once.got == pieces.got == len(paths)
    assert once.scopes == pieces.scopes == {"both": len(paths)}


def test_a_record_that_is_being_written_is_left_for_later() -> None:
    first, second = record("openat", b"/a", b"a\0"), bytearray(record("openat", b"/b", b"b\0"))
    second[3] |= 0x80
    events, taken = Decoder().events(first + bytes(second) + first)
    assert [event.path for event in events] == ["/a"]
    assert taken == len(first)


def test_more_folders_than_are_kept() -> None:
    decoder = Decoder()
    for number in range(10_000):
        name = str(number).encode()
        [event], _ = decoder.events(record("openat", b"x", b"leaf\0" + name + b"\0"))
        assert event.resolved == f"/{number}/leaf"
    assert decoder.events(record("openat", b"/", b"\0"))[0][0].resolved == "/"


def test_results_of_io_uring_find_their_requests() -> None:
    uring = 512 | 3
    decoder = Decoder()
    request = record("openat", b"/a", flags=uring, extra=1)
    other = record("openat", b"/b", flags=uring, extra=2)
    result = record("uring_result", flags=512, ret=-2, extra=1)
    assert decoder.events(request + other)[0] == []
    [event] = decoder.events(result)[0]
    assert (event.path, event.ret, event.marks) == ("/a", -2, ["uring"])
    assert decoder.events(result)[0] == []  # the second one's request was lost
    [stale] = decoder.events(other)[0]  # another one at the same place
    assert (stale.path, stale.ret) == ("/b", None)
    assert [(event.path, event.ret) for event in decoder.rest()] == [("/b", None)]
    assert decoder.rest() == []
    assert decoder.got == 5
    assert decoder.scopes == {"both": 3}


@pytest.mark.parametrize("ret", range(-516, -511))
@pytest.mark.parametrize("call", ["openat", "connect", "execve"])
def test_what_a_signal_interrupted_has_no_result(call: str, ret: int) -> None:
    [first, second], _ = Decoder().events(record("exec", b"/x", ret=0) + record(call, b"", ret=ret))
    assert (first.ret, second.call, second.ret) == (0, call, None)


def test_another_file_may_have_been_put_in_its_place() -> None:
    [same, other], _ = Decoder().events(
        record("openat", b"/a", b"a\0", flags=3 | 1024)
        + record("openat", b"/b", b"a\0", flags=3 | 1024)
    )
    assert (same.marks, other.marks) == ([], ["shared_files"])


@given(st.binary(max_size=128))
def test_no_address_is_too_odd(address: bytes) -> None:
    assert (peer_text(address) is None) == (len(address) < 2)


INET, INET6, PACKET = 2, 10, 17
NO_FAMILY = bytes((0, 0, 0, 53, 127, 0, 0, 1))


@pytest.mark.parametrize(
    ("address", "family", "text"),
    [
        (NO_FAMILY, 0, "127.0.0.1:53"),
        (NO_FAMILY, INET, "127.0.0.1:53"),
        (NO_FAMILY, INET6, None),
        (NO_FAMILY[:6], INET, None),
        (NO_FAMILY, PACKET, "af17:00357f000001"),
        (b"\1\0/x", PACKET, "af17:2f78"),
        (b"\1\0/x", 1, "unix:/x"),
    ],
)
def test_sends_are_read_as_their_socket_reads_them(
    address: bytes, family: int, text: str | None
) -> None:
    assert peer_text(address, is_send=True, family=family) == text
    assert peer_text(NO_FAMILY) == "unspec"
