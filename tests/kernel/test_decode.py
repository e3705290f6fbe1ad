"""Records to events: however the ring is cut, and whatever the names are."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.records.kernel import RawEvent, path_text
from stream.sources.kernel.calls import peer_text
from stream.sources.kernel.decode import _RECORD, CALLS, NAMES_AT
from stream.sources.kernel.decode import RingDecoder as Plain


class Decoder(Plain):
    """What is in a chunk, as events."""

    def events(self, chunk: bytes) -> tuple[list[RawEvent], int]:
        batch, taken = self.decode_ring_records(chunk)
        return batch, taken


names = st.binary(min_size=1, max_size=12).filter(lambda name: not {0, 47} & set(name))
folders = st.lists(names, max_size=6)


def encode_record(
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


def encode_path(path: list[bytes]) -> bytes:
    return b"".join(name + b"\0" for name in reversed(path)) or b"\0"


@given(st.lists(folders, min_size=1), st.data())
def test_a_chunk_may_be_cut_anywhere(paths: list[list[bytes]], data: st.DataObject) -> None:
    whole = b"".join(encode_record("openat", b"x", encode_path(path)) for path in paths)
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
    first, second = (
        encode_record("openat", b"/a", b"a\0"),
        bytearray(encode_record("openat", b"/b", b"b\0")),
    )
    second[3] |= 0x80
    events, taken = Decoder().events(first + bytes(second) + first)
    assert [event.path for event in events] == ["/a"]
    assert taken == len(first)


def test_more_folders_than_are_kept() -> None:
    decoder = Decoder()
    for number in range(10_000):
        name = str(number).encode()
        [event], _ = decoder.events(encode_record("openat", b"x", b"leaf\0" + name + b"\0"))
        assert event.resolved == f"/{number}/leaf"
    assert decoder.events(encode_record("openat", b"/", b"\0"))[0][0].resolved == "/"


def test_results_of_io_uring_find_their_requests() -> None:
    uring = 512 | 3
    decoder = Decoder()
    request = encode_record("openat", b"/a", flags=uring, extra=1)
    other = encode_record("openat", b"/b", flags=uring, extra=2)
    result = encode_record("uring_result", flags=512, ret=-2, extra=1)
    assert decoder.events(request + other)[0] == []
    [event] = decoder.events(result)[0]
    assert (event.path, event.ret, event.marks) == ("/a", -2, ["uring"])
    assert decoder.events(result)[0] == []  # the second one's request was lost
    [stale] = decoder.events(other)[0]  # another one at the same place
    assert (stale.path, stale.ret) == ("/b", None)
    assert [(event.path, event.ret) for event in decoder.unanswered_requests()] == [("/b", None)]
    assert decoder.unanswered_requests() == []
    assert decoder.got == 5
    assert decoder.scopes == {"both": 3}


@pytest.mark.parametrize("ret", range(-516, -511))
@pytest.mark.parametrize("call", ["openat", "connect", "execve"])
def test_what_a_signal_interrupted_has_no_result(call: str, ret: int) -> None:
    [first, second], _ = Decoder().events(
        encode_record("exec", b"/x", ret=0) + encode_record(call, b"", ret=ret)
    )
    assert (first.ret, second.call, second.ret) == (0, call, None)


def test_another_file_may_have_been_put_in_its_place() -> None:
    [same, other], _ = Decoder().events(
        encode_record("openat", b"/a", b"a\0", flags=3 | 1024)
        + encode_record("openat", b"/b", b"a\0", flags=3 | 1024)
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


# ---------------------------------------------------------------- opens, and all the others

PLACES: tuple[list[bytes], ...] = (
    [b"usr", b"lib"],
    [b"proc", b"1"],
    [b"home", b"me", b"node_modules", b"x"],
    [b"home", b"me"],
    [b"etc"],
    [],
    [b'od"d', b"b\\s"],
    [b"\xff\xfe"],
    ["é".encode(), b"\n"],
    [b"target", b"debug"],
)
LEAVES = (b"a", b"pyvenv.cfg", b"x.so.1", b'q"', b"b\\", b"\xff", "é".encode(), b"\x01", b"passwd")
OPENING = st.sampled_from(("open", "openat", "openat", "openat", "creat", "openat2"))
FLAGS = (0, 0, 1, 2, 3, 0o101, 0o2101, 0o1102, 0o20200002, 0o2000000, 0o10000000, 0o30000000)


@st.composite
def opens_of_files(draw: st.DrawFn) -> bytes:
    folder = draw(st.sampled_from(PLACES))
    name = draw(st.sampled_from(LEAVES))
    straight = b"/" + b"/".join([*folder, name])
    path = draw(
        st.sampled_from((straight, straight, straight, name, b"/proc/self/root" + straight))
    )
    ret = draw(st.sampled_from((3, 0, 17, -2, -13)))
    return encode_record(
        draw(OPENING),
        path,
        encode_path([*folder, name]) if ret >= 0 else b"",
        flags=draw(st.sampled_from((3, 3, 3, 2, 1, 3 | 64, 3 | 128, 3 | 1024, 3 | 1024))),
        ret=ret,
        opened=draw(st.sampled_from(FLAGS)),
        mode=draw(st.sampled_from((0, 0o644, 0o170777))),
        resolve=draw(st.sampled_from((0, 0, 8, 0x10))),
    )


@st.composite
def failing_opens(draw: st.DrawFn) -> bytes:
    """What failed: by a path of any form, from a folder or from nowhere."""
    base = draw(st.sampled_from((None, *PLACES)))
    words = st.lists(st.sampled_from((b"", b".", b"..", b"sub", b"proc", b"dev", b"1", *LEAVES)))
    return encode_record(
        draw(OPENING),
        b"/".join(draw(words)),
        b"",
        b"" if base is None else encode_path(base),
        ret=draw(st.sampled_from((-2, -2, -20, -13, -4095, -4096, -512, -516))),
        opened=draw(st.sampled_from(FLAGS)),
        resolve=draw(st.sampled_from((0, 0, 8, 0x10))),
    )


@given(st.lists(opens_of_files() | failing_opens(), max_size=20))
def test_opens_are_decoded_as_all_others_are(records: list[bytes]) -> None:
    """Ordinary ones are decoded many at a time."""
    decoder, plain = Decoder(), Plain()
    plain._has_begun = decoder._has_begun = True
    one_by_one = [
        plain._decode_other_record(_RECORD.unpack_from(data), data[NAMES_AT:]) for data in records
    ]
    events, _ = decoder.events(b"".join(records))
    assert events == [event for some in one_by_one for event in some]
    assert decoder.scopes == plain.scopes
    assert decoder.got == len(records)
