"""Every field of every artifact and of every kind of line, in an archive that was made anew with
it: its manifest, its chain and all digests are right, so what finds it is what the rest implies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stream.archive.reader import Limits
from stream.contracts import LAYER_DECODERS
from stream.records.artifacts import (
    ARCHIVE_MANIFEST,
    CHAIN_FILE,
    COMPANION_FILE,
    CORRELATION_FILE,
    DETAIL_FILE,
    HEALTH_FILE,
    HOME,
    KERNEL_FILE,
    MARKERS_FILE,
    POLICY_FILE,
    RUNNER_FILE,
    SDK_FILE,
    SURFACE_FILE,
    ChainLink,
    Marker,
    PolicyEvent,
    SdkEvent,
)
from stream.records.control import Gap
from stream.records.kernel import KernelDetail, KernelEvent, RawCapture, RawEvent
from stream.records.run import SUMMARY_FILE
from stream.transformers.normalize import Normalize
from stream.verify.replay import LayerReplay
from stream.verify.report import VerifyReport
from stream.verify.session import VerifySession, reading_order, verify
from tests.archive.samples import (
    ARCHIVES,
    RUN,
    SUMMARY,
    Files,
    derive_artifacts,
    encode,
    encode_document,
    find_error_rules,
    make_run_files,
    make_runner_layer,
    ndjson,
    read_tar,
    read_tar_items,
    update_digests,
    write_files_as_archive,
)
from tests.core.properties import feed
from tests.evidence.raw import O_CREAT, O_WRONLY, RAW_EVENTS, raw, raw_error, raw_open
from tests.sweeping import every

LAYERS = (KERNEL_FILE, DETAIL_FILE, POLICY_FILE, SDK_FILE, MARKERS_FILE)
DOCUMENTS = (SURFACE_FILE, CORRELATION_FILE, HEALTH_FILE, COMPANION_FILE)
#: One of each kind of event, in one window, by two processes.
EVENTS: tuple[RawEvent, ...] = (
    raw_open("/work/in"),
    raw_open("x", O_WRONLY | O_CREAT, resolved="/work/x", base="/work", mode=0o644),
    raw_error("/work/none"),
    raw_open("deep", resolved=None, marks=["walk_cut"]),
    raw_open("/lib/x.so"),  # which is left out
    raw("fork", child=8),
    raw("exec", ret=0, path="/work/tool", resolved="/bin/true", argv=["tool", "a"], pid=8),
    raw("execve", ret=-2, path="/work/none", pid=8),
    raw("rename", ret=0, path="/work/x", to_path="y", to_base="/work"),
    raw("fchmod", ret=0, resolved="/work/y", mode=0o600),
    raw("chown", ret=0, path="/work/y", uid=1, gid=2),
    raw("truncate", ret=0, path="/work/y", size=5),
    raw("symlink", ret=0, path="text", to_path="/work/link"),
    raw("unlink", ret=-13, path="/work/y"),
    raw("connect", ret=-111, peer="1.2.3.4:443"),
    raw("connect", ret=0, peer="1.2.3.4:0"),
    raw("sendto", ret=1, peer="1.2.3.4:53"),
    raw("connect", ret=0, peer="unix:/run/x"),
    raw("file_blocked", path="/etc/shadow"),
    raw("connect_blocked", peer="5.6.7.8:9"),
    raw("exit", status=256, pid=8),
    raw("wrote", ret=5, size=5, stream="stdout"),
)
COUNT = len(EVENTS) - 2  #: lines of the kernel layer
CAPTURE = RawCapture(
    feed="ebpf",
    got=len(EVENTS) + 2,
    seen=len(EVENTS) + 2,
    before_exec=2,
    scopes={"both": len(EVENTS)},
    cgroup="clean",
    uring="unused",
    ring_bytes=16 << 20,
)


def make_rich_files(capture: RawCapture = CAPTURE, *, lost: int = 0) -> Files:
    records = feed(Normalize(RUN), EVENTS)
    kernel = [encode(one) for one in records if isinstance(one, KernelEvent)]
    details = [encode(one) for one in records if isinstance(one, KernelDetail)]
    if lost:
        details.append(encode(Gap(source="ebpf", lost=lost, reason="full", unit="events")))
        capture = replace(capture, dropped=lost, seen=capture.seen + lost)
        capture = replace(capture, cgroup="partial", cgroup_reasons=["events were lost"])
    call: dict[str, Any] = {"source": "agent", "tool_call_id": "c1", "tool": "Bash"}
    decision: dict[str, Any] = {"source": "gate", "source_event_type": "assay.tool.decision"}
    named: dict[str, Any] = {"sdk_name": "sdk", "sdk_version": "1"}
    files = {
        KERNEL_FILE: b"".join(line + b"\n" for line in kernel),
        DETAIL_FILE: b"".join(line + b"\n" for line in details),
        POLICY_FILE: ndjson(
            PolicyEvent(
                run_id=RUN, seq=0, **decision, tool_call_id="c1", tool="Bash", decision="allow"
            )
        ),
        SDK_FILE: ndjson(
            SdkEvent(run_id=RUN, seq=0, event_type="tool_call_started", **call, **named),
            SdkEvent(run_id=RUN, seq=1, event_type="tool_call_completed", **call),
            SdkEvent(run_id=RUN, seq=2, event_type="run_finished", source="agent"),
        ),
        MARKERS_FILE: ndjson(
            *(
                Marker(run_id=RUN, seq=seq, name=name, at=at, clock="kernel", **more)
                for seq, (name, at, more) in enumerate(MARKED)
            )
        ),
    }
    return rederive_artifacts(files, capture)


def rederive_artifacts(files: Files, capture: RawCapture = CAPTURE) -> Files:
    """With the artifacts that follow from its layers, whatever is in those."""
    made = derive_artifacts(files, capture)
    companion = json.loads(made[COMPANION_FILE])
    companion["filtered"], companion["aside"] = {"loader": 1}, {"wrote": 1}
    return {**files, **made, COMPANION_FILE: encode(companion), RUNNER_FILE: make_runner_layer()}


MARKED_CALL = {"tool_call_id": "c1", "pid": 7}
MARKED: tuple[tuple[Any, int, dict[str, Any]], ...] = (
    ("run_started", 0, {"home": f"/runs/{RUN}/{HOME}", "helpers": ["/usr/bin/tr"]}),
    ("tool_call_started", 1, {**MARKED_CALL, "sdk_seq": 0, "command": "tool a"}),
    ("tool_call_completed", COUNT - 1, {**MARKED_CALL, "sdk_seq": 1}),
    ("run_finished", COUNT, {}),
)


def link_again(files: Files) -> bytes:
    """Its last links, which are enough."""
    return ndjson(
        *(
            ChainLink(
                layer=name,
                lines=data.count(b"\n"),
                bytes=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
            )
            for name, data in sorted(files.items())
            if name in LAYERS
        )
    )


def find_broken_rules(files: Files) -> set[str]:
    """The rules that are broken in an archive of these files, without the archive around them."""
    report = VerifyReport("x", Limits(), False)
    _verify_files(report, files)
    return {item.rule for item in report.findings if item.severity == "error"}


def _verify_files(report: VerifyReport, files: Files) -> None:
    report.names = {*files}
    examination = VerifySession(report)
    for name in reading_order(report.names):
        examination.begin(name)
        examination.feed(files[name])
        examination.end()
    examination.conclude()
    examination.documents.check_waiting_artifacts()
    examination.close()


def iter_variants(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The same with one thing in it changed, dropped or added, and where that is."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{place}.{key}", {name: one for name, one in value.items() if name != key}
            if key in WORDS:
                yield f"{place}{{}}", {WORDS.get(name, name): one for name, one in value.items()}
            for where, other in iter_variants(inner, f"{place}.{key}"):
                yield where, {**value, key: other}
        yield place, {**value, "more": 1}
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield place, value[:index] + value[index + 1 :]
            for where, other in iter_variants(inner, f"{place}[]"):
                yield where, [*value[:index], other, *value[index + 1 :]]
        yield place, [*value, "more"]
    else:
        yield from ((place, other) for other in iter_other_values(value))


#: Another word of the same vocabulary.
WORDS = {
    "kernel": "arrival",
    "read": "write",
    "write": "read",
    "success": "error",
    "error": "success",
    "clean": "partial",
    "complete": "partial_ringbuf_drops",
    "present": "absent",
    "self_reported": "present",
    "connect_only": "absent",
    "diagnostic_only": "unknown",
    "allow": "deny",
    "ebpf": "strace",
    "unused": "unknown",
    "tool_call_started": "tool_call_completed",
    "tool_call_completed": "run_failed",
    "run_started": "run_finished",
    "run_finished": "run_failed",
    "walk_cut": "fault",
    "loader": "locale",
    "both": "tree",
    "openat": "openat2",
    "fchmod": "chmod",
    "connect": "sendto",
    "linux": "other",
    "command": "declared",
    "files": "answer",
}


def iter_other_values(value: Any) -> Iterator[Any]:
    """Of the same type, and of another one."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value + 4096, value * 2, 0)
    elif isinstance(value, str):
        yield from (f"{value}x", "", WORDS.get(value, value))
    yield from (one for one in (None, 7, "x", True) if type(one) is not type(value))


#: What follows from nothing else in an archive, and why.
FREE = {
    # Who runs the agent states it, and the run's own documents where there are any.
    (RUNNER_FILE, ".agent_shim"),
    (RUNNER_FILE, ".command"),
    (RUNNER_FILE, ".command[]"),
    (RUNNER_FILE, ".env_keys"),
    (RUNNER_FILE, ".window_elapsed_ms"),
    # Arguments and results of a call that only it knows.
    (KERNEL_FILE, ".flags"),  # but for those that the access and the operations repeat
    (KERNEL_FILE, ".mode"),
    (KERNEL_FILE, ".return_value"),  # of a success: the number of a descriptor
    (KERNEL_FILE, ".pid"),  # of an event without a detail
    (DETAIL_FILE, ".argv"),
    (DETAIL_FILE, ".argv[]"),
    (DETAIL_FILE, ".call"),  # but for the kind of its event: openat and openat2 are one
    (DETAIL_FILE, ".exit_status"),
    (DETAIL_FILE, ".gid"),
    (DETAIL_FILE, ".marks"),
    (DETAIL_FILE, ".marks[]"),
    (DETAIL_FILE, ".mode"),
    (DETAIL_FILE, ".path"),  # what the program named, which is not what it reached
    (DETAIL_FILE, ".return_value"),  # of a send: bytes
    (DETAIL_FILE, ".size"),
    (DETAIL_FILE, ".uid"),
    # Where something was lost is the gap's place; the source and the reason are for people.
    (DETAIL_FILE, ".reason"),
    (DETAIL_FILE, ".source"),
    (DETAIL_FILE, ".unit"),
    # What a program states of itself.
    (MARKERS_FILE, ".clock"),
    (MARKERS_FILE, ".command"),
    (MARKERS_FILE, ".helpers"),
    (MARKERS_FILE, ".helpers[]"),
    (POLICY_FILE, ".source"),
    (POLICY_FILE, ".source_event_type"),
    (SDK_FILE, ".event_type"),  # that it finished, or failed
    (SDK_FILE, ".sdk_name"),
    (SDK_FILE, ".sdk_version"),
    (SDK_FILE, ".source"),
    (SDK_FILE, ".tool"),  # of one of two events of a call: that the other names none is no lie
    # What the feed and the transformer behind it know alone.
    (COMPANION_FILE, ".capture.ring_bytes"),  # another power of two
    (COMPANION_FILE, ".filtered{}"),  # by which rule: how many there were in all is known
}


def iter_rewritten(files: Files, name: str) -> Iterator[tuple[str, Files]]:
    """One thing in one file, and everything that depends on its bytes alone."""
    is_document = name.endswith(".json")
    lines = [files[name]] if is_document else files[name].splitlines()
    for index, line in enumerate(lines):
        whole = json.loads(line)
        for place, other in iter_variants(whole):
            # A null that may be left out means the same there as not.
            if other == whole or ({**whole, **other} == whole and whole[place[1:]] is None):
                continue
            text = json.dumps(other, separators=(",", ":"), ensure_ascii=False).encode()
            spoiled = (*lines[:index], text, *lines[index + 1 :])
            data = text if is_document else b"".join(one + b"\n" for one in spoiled)
            made = {**files, name: data}
            yield place, {**made, CHAIN_FILE: link_again(made)}


@every(5)
@pytest.mark.parametrize("state", ["whole", "lossy"])
def test_every_field_is_implied_by_something_else(state: str, step: int) -> None:
    files = make_rich_files(lost=3 if state == "lossy" else 0)
    files[CHAIN_FILE] = link_again(files)
    assert find_broken_rules(files) == set()
    numbers: dict[tuple[str, str], int] = {}
    free, tried, count = set(), set(), 0
    for name in (*DOCUMENTS, *LAYERS, RUNNER_FILE):
        for place, spoiled in iter_rewritten(files, name):
            if numbers.setdefault((name, place), len(numbers)) % step:
                continue
            tried.add((name, place))
            count += 1
            if not find_broken_rules(spoiled):
                free.add((name, place))
    assert count > 2500 // step
    gaps = {(DETAIL_FILE, place) for place in (".reason", ".source", ".unit")}
    assert free - FREE == set()
    if state == "lossy":
        assert gaps & tried <= free
    else:
        assert FREE & tried - gaps - free == set()


def summarize_evidence(files: Files) -> dict[str, Any]:
    """What the summary of a run states of its evidence."""
    health, report = json.loads(files[HEALTH_FILE]), json.loads(files[CORRELATION_FILE])
    return {
        "kernel_layer": health["kernel_layer"],
        "kernel_events": files[KERNEL_FILE].count(b"\n"),
        "kernel_lost": health["ringbuf_drops"],
        "cgroup_correlation": health["cgroup_correlation"],
        "tool_calls": len(report["bindings"]),
        "correlation": report["status"],
    }


def test_what_is_examined_here_is_what_verify_examines(tmp_path: Path) -> None:
    files = {**make_run_files(), **make_rich_files()}
    files = update_digests(
        {**files, SUMMARY_FILE: encode_document(replace(SUMMARY, **summarize_evidence(files)))}
    )
    whole = tmp_path / "a.tar.gz"
    assert verify(write_files_as_archive(whole, files)).findings == []
    assert find_broken_rules(files) == set()
    surface = files[SURFACE_FILE].replace(b"/work/y", b"/work/z")
    spoiled = update_digests({**files, SURFACE_FILE: surface})
    assert (
        find_error_rules(write_files_as_archive(whole, spoiled))
        == find_broken_rules(spoiled)
        == {"contract.surface"}
    )


def make_plausible(event: RawEvent) -> RawEvent:
    """With a result that its call can have, and a path only where it has one."""
    ret = event.ret
    if event.call == "io_uring_setup":
        event = replace(event, path=None, resolved=None)
    if event.call == "exec":
        ret = 0
    elif event.call.startswith("exec"):
        ret = None if ret is None else min(ret, -1)
    elif ret is not None and not event.call.startswith(("open", "creat", "send", "io_uring")):
        ret = min(ret, 0)
    return replace(event, ret=ret)


@given(st.lists(RAW_EVENTS.map(make_plausible), max_size=12))
def test_whatever_is_normalized_agrees_with_itself(events: list[RawEvent]) -> None:
    records = feed(Normalize(RUN), events)
    kernel = [encode(one) for one in records if isinstance(one, KernelEvent)]
    details = [encode(one) for one in records if isinstance(one, KernelDetail)]
    with closing(LayerReplay()) as replay:
        for name, some in ((KERNEL_FILE, kernel), (DETAIL_FILE, details)):
            replay.add_records(name, LAYER_DECODERS[name].decode_lines(b"\n".join(some)))
        replay.finish()
        assert replay.mismatched_details == []
        assert replay.count_scopes().total() == replay.events == len(kernel)


# ---------------------------------------------------------------- the feed's counters

UNBALANCED: list[tuple[str, dict[str, Any]]] = [
    ("got", {"got": 1, "seen": 1}),
    ("seen", {"seen": 1}),
    ("got", {"before_exec": 3}),
    ("scopes", {"scopes": {"both": COUNT}, "got": COUNT + 2, "seen": COUNT + 2}),
    ("cgroup", {"scopes": {"both": COUNT, "tree": 2}}),
    ("scopes", {"scopes": {"both": 1, "tree": COUNT + 1}, "cgroup": "partial"}),
    ("scopes", {"scopes": {"both": COUNT + 2, "mine": 0}}),
    ("cgroup_reasons", {"cgroup_reasons": ["it left"]}),
    ("cgroup_reasons", {"cgroup": "partial"}),
    ("cgroup", {"lost_forks": 1}),
    ("cgroup", {"misses": 1}),
    ("cgroup", {"dropped": 1, "seen": CAPTURE.seen + 1}),
    ("reason", {"reason": "no BTF"}),
    ("ring_bytes", {"ring_bytes": 0}),
    ("ring_bytes", {"ring_bytes": 3000}),
    ("ring_bytes", {"feed": "strace", "cgroup": "failed", "cgroup_reasons": ["it is strace"]}),
    ("cgroup", {"feed": "strace", "ring_bytes": 0}),
    ("uring", {"uring": "seen"}),
    ("uring", {"uring": "unknown"}),
    ("capture", {"feed": "absent"}),
]


def join_counter_messages(files: Files) -> str:
    report = VerifyReport("x", Limits(), False)
    _verify_files(report, files)
    return " | ".join(item.message for item in report.findings if item.rule == "contract.books")


@pytest.mark.parametrize(("field", "changes"), UNBALANCED)
def test_counters_that_do_not_balance(field: str, changes: dict[str, Any]) -> None:
    """With a health that states the same, so that the counters alone give it away."""
    capture = replace(CAPTURE, **changes)
    assert f"$.capture.{field}: ".replace("capture.capture", "capture") in join_counter_messages(
        make_rich_files(capture)
    )


LEFT_OUT: list[dict[str, Any]] = [
    {"filtered": {}},
    {"filtered": {"loader": 2}},
    {"filtered": {"loader": 1, "locale": 1}},
    {"filtered": {"loader": 1, "locale": 0}},
    {"filtered": {"other": 1}},
    {"filtered": None},
    {"aside": {}},
    {"aside": {"wrote": 2}},
    {"aside": {"loader": 1}},
    {"aside": None},
]


@pytest.mark.parametrize("changes", LEFT_OUT)
def test_what_was_left_out_is_accounted_for(changes: dict[str, Any]) -> None:
    files = make_rich_files()
    files[CHAIN_FILE] = link_again(files)
    companion = {**json.loads(files[COMPANION_FILE]), **changes}
    assert join_counter_messages({**files, COMPANION_FILE: encode(companion)})


def test_an_event_of_another_scope_is_not_clean() -> None:
    files = make_rich_files()
    lines = files[DETAIL_FILE].splitlines()
    lines[0] = lines[0][:-1] + b',"scope":"tree"}'
    files[DETAIL_FILE] = b"".join(line + b"\n" for line in lines)
    decision = join_counter_messages(files)
    assert "$.capture.cgroup: clean, and there are events of the scope 'tree'" in decision
    assert "1 lines are of the scope 'tree'" in decision


def test_where_nobody_knows_what_was_lost_the_counters_need_not_balance() -> None:
    unsure = {"cgroup": "partial", "cgroup_reasons": ["it was killed"]}
    unknown = replace(CAPTURE, got=1, seen=1, scopes={}, unknown_loss="it was killed", **unsure)
    assert join_counter_messages(make_rich_files(unknown)) == ""


# ---------------------------------------------------------------- lines that no feed writes

#: Of one line: which it is, what it is changed to, and the rule that this breaks.
IMPOSSIBLE: list[tuple[str, bytes, bytes, str]] = [
    (KERNEL_FILE, b'"1.2.3.4:443"', b'"nonsense"', "contract.kernel_event"),
    (KERNEL_FILE, b'"1.2.3.4:443"', b'"1.2.3.4:99999"', "contract.kernel_event"),
    (KERNEL_FILE, b'"1.2.3.4:443"', b'"[1.2.3.4]:443"', "contract.kernel_event"),
    (KERNEL_FILE, b'"/work/in"', b'""', "contract.kernel_event"),
    (KERNEL_FILE, b'"/work/in"', b'"../in"', "contract.kernel_event"),
    (KERNEL_FILE, b'"/work/in"', b'"/work/\\\\q"', "contract.kernel_event"),
    (KERNEL_FILE, b'"/work/tool"', b'"tool"', "contract.kernel_event"),
    (
        *(KERNEL_FILE, b'"1.2.3.4:443"}', b'"1.2.3.4:443","flags":0,"access_mode":"read"}'),
        "contract.kernel_event",
    ),
    (KERNEL_FILE, b'"1.2.3.4:443"}', b'"1.2.3.4:443","mode":3}', "contract.kernel_event"),
    (KERNEL_FILE, b'"1.2.3.4:443"}', b'"1.2.3.4:443","resolve":1}', "contract.kernel_event"),
    (DETAIL_FILE, b'"path":"deep"', b'"path":"deep","return_value":-2', "contract.detail"),
    (DETAIL_FILE, b'"path":"deep"', b'"path":"deep","flags":2', "contract.detail"),
    (DETAIL_FILE, b'"path":"deep"', b'"path":"deep","mode":511', "contract.detail"),
    (DETAIL_FILE, b'"path":"deep"', b'"path":"deep","status":"error"', "contract.detail"),
]


@pytest.mark.parametrize(("name", "old", "new", "rule"), IMPOSSIBLE)
def test_lines_that_no_feed_writes(name: str, old: bytes, new: bytes, rule: str) -> None:
    """With artifacts that follow from it."""
    files = make_rich_files()
    assert old in files[name]
    made = rederive_artifacts({**files, name: files[name].replace(old, new, 1)})
    made[CHAIN_FILE] = link_again(made)
    assert rule in find_broken_rules(made)


def test_no_event_lacks_its_detail() -> None:
    """Where a rename led is only in its detail. But for those that may have none: a connect is
    one that succeeded then."""
    files = make_rich_files()
    lines = files[DETAIL_FILE].splitlines(keepends=True)
    for number, line in enumerate(lines):
        if (
            line.count(b'"call":"open') > line.count(b"walk_cut")
            or b":443" in line
            or b":0" in line
        ):
            continue
        rest = b"".join((*lines[:number], *lines[number + 1 :]))
        made = rederive_artifacts({**files, DETAIL_FILE: rest})
        made[CHAIN_FILE] = link_again(made)
        assert "contract.detail" in find_broken_rules(made), line


REFERENCE: list[tuple[str, dict[str, Any], set[str]]] = [
    (
        CORRELATION_FILE,
        {"ambiguities": ["policy_events_without_kernel_events"]},
        {"contract.correlation"},
    ),
    (
        HEALTH_FILE,
        {"kernel_layer": "partial_ringbuf_drops"},
        {"contract.health", "contract.correlation"},  # which is called clean
    ),
    (HEALTH_FILE, {"cgroup_correlation": "failed"}, {"contract.health"}),
]


@pytest.mark.parametrize(("name", "changes", "broken"), REFERENCE)
def test_what_the_reference_never_writes(
    tmp_path: Path, name: str, changes: dict[str, Any], broken: set[str]
) -> None:
    files = dict(read_tar_items(read_tar(ARCHIVES[0])))
    run_id = json.loads(files.pop(ARCHIVE_MANIFEST))["run_id"]
    target = tmp_path / "a.tar.gz"
    assert find_error_rules(write_files_as_archive(target, files, run_id)) == set()
    files[name] = encode({**json.loads(files[name]), **changes})
    assert find_error_rules(write_files_as_archive(target, files, run_id)) == broken
