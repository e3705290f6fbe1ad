"""What differs between two runs, how far that can be trusted, and that nothing is an exception."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.compare.diff import CanonicalLayers, diff_runs, fail_on_reason, has_no_changes
from stream.compare.sides import (
    Evidence,
    evidence_of,
    read_artifacts,
    read_evidence,
    read_lines,
    run_folders,
)
from stream.errors import InputError
from stream.evidence.surface import Surface, make_companion
from stream.records.artifacts import (
    ARCHIVE_MANIFEST,
    COMPANION_FILE,
    CORRELATION_FILE,
    DETAIL_FILE,
    HEALTH_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    SURFACE_FILE,
    SURFACE_SETS,
    CapabilityDiff,
)
from stream.records.kernel import RawCapture
from stream.records.run import EVENTS_FILE, MANIFEST_FILE
from tests.archive.samples import (
    Rewritten,
    build_manifest,
    build_tar,
    compress_tar,
    make_run_files,
    make_stream_files,
    read_tar,
    read_tar_items,
    write_files_as_archive,
    write_run_folder,
)
from tests.sweeping import every

ASSAY = Path(__file__).parent.parent / "data/assay"
GOLDEN = ASSAY / "golden"
ARCHIVES = sorted((ASSAY / "archives").glob("*.tar.gz"))
LOOSE = read_artifacts(str(GOLDEN))


def with_changes(**changes: dict[str, Any]) -> Evidence:
    """The golden evidence, with other fields: `surface={"mcp_tools": []}`."""
    found = dict(LOOSE)
    names = {"surface": SURFACE_FILE, "correlation": CORRELATION_FILE, "health": HEALTH_FILE}
    for what, fields in changes.items():
        name = names[what]
        found[name] = json.dumps({**json.loads(found[name]), **fields}).encode()
    return evidence_of(found)


def make_binding(call: str, decision: str | None = "allow") -> dict[str, Any]:
    return {
        "tool_call_id": call,
        "policy_decision": decision,
        "kernel_event_count": 1,
        "window": {"start": "a", "end": "b"},
    }


def make_health(
    coverage: str, scope: str, *notes: str, drops: int = 0, **fields: Any
) -> dict[str, Any]:
    """Health that agrees with itself."""
    seen = {"network_protocol_coverage": coverage, "network_endpoint_claim_scope": scope}
    text = " ".join(f"{name}={value}" for name, value in seen.items())
    others = json.loads(LOOSE[HEALTH_FILE])["notes"][1:]
    kernel = f"s2_kernel_capture: monitor_events=4 ringbuf_drops={drops} {text}"
    return {**seen, "ringbuf_drops": drops, "notes": [kernel, *others, *notes], **fields}


OTHER_NOTES = json.loads(LOOSE[HEALTH_FILE])["notes"][1:]
UNSEEN: dict[str, Any] = {
    "kernel_layer": "absent",
    "cgroup_correlation": "failed",
    "network_protocol_coverage": "unknown",
    "network_endpoint_claim_scope": "unknown",
    "notes": OTHER_NOTES,
}
TRACED = make_health(
    "connect_only", "diagnostic_only", "stream_cgroup_failed: strace", cgroup_correlation="failed"
)
LOSSY = make_health("unknown", "unknown", drops=7, kernel_layer="partial_ringbuf_drops")
BASE = with_changes()


def note_codes(found: CapabilityDiff) -> list[str]:
    return [note.partition(":")[0] for note in found.notes]


def is_failing(word: str, found: CapabilityDiff) -> bool:
    return bool(fail_on_reason(word, found))


def test_the_golden_is_reproduced_byte_for_byte() -> None:
    golden = (GOLDEN / "capability-diff-s5-idempotent-v0.json").read_bytes()
    found = diff_runs(read_evidence(str(GOLDEN)), read_evidence(str(GOLDEN)))
    assert msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n" == golden
    assert msgspec.json.decode(golden, type=CapabilityDiff) == found


def test_what_is_bound_to_no_call_is_reported_of_a_clean_comparison() -> None:
    """Where there is something that counts it. No such thing leaves a call in doubt."""
    quiet = diff_runs(BASE, BASE)
    assert not is_failing("unbound", quiet)
    between = encode_companion(BASE.run_id, unbound={"openat": 2})
    found = diff_runs(BASE, evidence_of({**LOOSE, COMPANION_FILE: between}))
    assert found.status == "clean"
    assert "capability_diff_head_outside" in note_codes(found)
    assert "capability_diff_base_outside" not in note_codes(found)
    assert is_failing("unbound", found)
    assert not is_failing("partial", found)
    for code in ("kernel_events_after_call:a", "kernel_events_of_other_processes:a,b"):
        assert is_failing(
            "unbound", diff_runs(with_changes(correlation={"ambiguities": [code]}), BASE)
        )
    others = with_changes(correlation={"ambiguities": ["sdk_tool_call_duplicate:a"]})
    assert not is_failing("unbound", diff_runs(BASE, others))


def test_without_calls_no_ids_are_there_that_could_be_stable() -> None:
    """It is reported of the ids, and is no fault of a run that made no calls."""
    quiet = with_changes(correlation={"bindings": []})
    for sides in ((quiet, quiet), (BASE, quiet), (quiet, BASE)):
        found = diff_runs(*sides)
        assert found.preconditions["stable_tool_call_ids_present"] is False
        assert found.status == "partial:unbound"
        assert not any(code.endswith("_tool_call_ids") for code in note_codes(found))
    assert diff_runs(BASE, BASE).preconditions["stable_tool_call_ids_present"] is True


def test_the_diff_of_two_runtimes_is_another_contract() -> None:
    other = (GOLDEN / "cross-runtime-diff-s5-gemini-v0.json").read_bytes()
    assert msgspec.json.decode(other)["schema"] == "assay.runner.cross_runtime_diff.v0"
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(other, type=CapabilityDiff)


@pytest.mark.parametrize("path", ARCHIVES)
def test_the_references_archives_are_evidence(path: Path) -> None:
    evidence = read_evidence(str(path))
    assert evidence.problems == []
    found = diff_runs(evidence, evidence)
    # Their reports bind no call at all, and call that clean.
    assert found.status == "partial:unbound"
    assert found.unbound["filesystem_paths"] == found.surface["filesystem_paths"].unchanged
    assert has_no_changes(found)


def test_what_came_and_what_went() -> None:
    head = with_changes(
        surface={"mcp_tools": ["write_file", "read_file"], "filesystem_paths": ["/b", "/a"]}
    )
    found = diff_runs(BASE, head)
    assert found.surface["mcp_tools"].added == ["write_file"]
    assert found.surface["mcp_tools"].unchanged == ["read_file"]
    assert found.surface["filesystem_paths"].added == ["/a", "/b"]
    assert len(found.surface["filesystem_paths"].removed) == 2
    assert (found.status, found.notes) == ("clean", [])


@given(st.lists(st.text(max_size=3)), st.lists(st.text(max_size=3)))
def test_sets_are_sets(before: list[str], after: list[str]) -> None:
    base = with_changes(surface={"process_execs": before})
    found = diff_runs(base, with_changes(surface={"process_execs": after})).surface["process_execs"]
    assert found.unchanged == sorted(set(before) & set(after))
    assert sorted([*found.removed, *found.unchanged]) == sorted(set(before))
    assert sorted([*found.added, *found.unchanged]) == sorted(set(after))
    assert [t.encode() for t in found.added] == sorted(t.encode() for t in found.added)


def test_calls_are_the_same_by_their_ids_only() -> None:
    base = with_changes(
        correlation={"bindings": [make_binding("a"), make_binding("b"), make_binding("c", None)]}
    )
    head = with_changes(
        correlation={"bindings": [make_binding("b", "deny"), make_binding("c"), make_binding("d")]}
    )
    found = diff_runs(base, head)
    assert found.binding_ids.added == ["d"]
    assert found.binding_ids.removed == ["a"]
    assert found.policy_outcomes == {
        "changed": [
            {"tool_call_id": "b", "base": "allow", "head": "deny"},
            {"tool_call_id": "c", "base": None, "head": "allow"},
        ]
    }


def test_an_id_that_is_there_twice_names_no_call() -> None:
    base = with_changes(correlation={"bindings": [make_binding("a"), make_binding("a", "deny")]})
    found = diff_runs(base, with_changes(correlation={"bindings": [make_binding("a", "x")]}))
    assert found.policy_outcomes == {"changed": []}
    assert found.preconditions["stable_tool_call_ids_present"] is False
    assert found.status == "partial:correlation"
    assert note_codes(found) == [
        "capability_diff_base_correlation",
        "capability_diff_base_tool_call_ids",
        "capability_diff_idempotent",
    ]


def test_ids_of_another_run_are_not_compared() -> None:
    found = diff_runs(BASE, with_changes(correlation={"bindings": [make_binding("toolu_1")]}))
    assert note_codes(found) == ["capability_diff_no_common_call"]
    assert found.status == "clean"


HOLE = "stream_uring_hole: what went by way of io_uring was not seen"
PARTIAL = {"status": "partial", "ambiguities": ["sdk_event_without_tool_call_id"]}


@pytest.mark.parametrize(
    ("changes", "status", "expected"),
    [
        ({"health": UNSEEN}, "partial:health", "health"),
        ({"health": LOSSY}, "partial:health", "health"),
        ({"health": {"cgroup_correlation": "partial"}}, "partial:health", "health"),
        ({"health": make_health("unknown", "unknown", HOLE)}, "partial:health", "health"),
        ({"health": make_health("absent", "not_applicable")}, "clean", ""),
        ({"correlation": {"status": "partial"}}, "partial:correlation", "correlation"),
        ({"correlation": {"status": "failed"}}, "partial:correlation", "correlation"),
        ({"correlation": {"bindings": []}}, "partial:unbound", "unbound"),
        ({"correlation": PARTIAL}, "partial:correlation", "correlation"),
        (
            {"health": LOSSY, "correlation": {"status": "partial", "bindings": []}},
            "partial:health",
            "health",
        ),
        (
            {"correlation": {"status": "partial", "bindings": []}},
            "partial:correlation",
            "correlation",
        ),
    ],
)
def test_the_first_reason_is_the_status(
    changes: dict[str, Any], status: str, expected: str
) -> None:
    changed = with_changes(**changes)
    for sides in ((BASE, changed), (changed, BASE)):
        found = diff_runs(*sides)
        assert found.status == status
        side = "head" if sides[1] is changed else "base"
        if expected:
            assert f"capability_diff_{side}_{expected}" in note_codes(found)
        health = found.preconditions[f"{side}_health_clean"]
        assert health == (status != "partial:health")


def test_nothing_in_the_surface_is_unbound() -> None:
    empty: dict[str, Any] = {name: [] for name in SURFACE_SETS}
    one = with_changes(surface=empty, correlation={"bindings": []})
    assert diff_runs(one, one).status == "clean"


def test_ambiguities_say_whose_they_are() -> None:
    head = with_changes(correlation={"status": "partial", "ambiguities": ["z", "a"]})
    assert diff_runs(BASE, head).ambiguities == ["head: a", "head: z"]


def test_evidence_by_other_rules_is_reported() -> None:
    ours = evidence_of({**LOOSE, COMPANION_FILE: encode_companion(BASE.run_id)})
    assert "capability_diff_rules_differ" in note_codes(diff_runs(BASE, ours))
    assert "capability_diff_rules_differ" not in note_codes(diff_runs(ours, ours))


# --- broken evidence ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [SURFACE_FILE, CORRELATION_FILE, HEALTH_FILE])
def test_what_is_missing_fails(name: str) -> None:
    broken = evidence_of({key: data for key, data in LOOSE.items() if key != name})
    found = diff_runs(broken, BASE)
    assert found.status == "failed"
    assert found.notes == [f"capability_diff_base_unusable: {name} is missing"]
    assert found.surface["mcp_tools"].unchanged == found.surface["mcp_tools"].added == []
    assert found.head_run_id == BASE.run_id


def test_artifacts_of_several_runs_fail() -> None:
    found = diff_runs(BASE, with_changes(surface={"run_id": "other"}))
    assert found.status == "failed"
    assert found.notes == ["capability_diff_head_unusable: its artifacts belong to several runs"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
fields = st.sampled_from(
    sorted({key for data in LOOSE.values() for key in json.loads(data)} | {"stray"})
)


@st.composite
def broken_artifacts(draw: st.DrawFn) -> dict[str, bytes]:
    found = {}
    for name, data in LOOSE.items():
        what = draw(st.sampled_from(["whole", "changed", "bytes", "missing"]))
        if what == "whole":
            found[name] = data
        elif what == "bytes":
            found[name] = draw(st.binary(max_size=20) | json_values.map(encode_json))
        elif what == "changed":
            found[name] = encode_json({**json.loads(data), draw(fields): draw(json_values)})
    return found


def encode_json(value: Any) -> bytes:
    return json.dumps(value).encode()


@given(broken_artifacts(), broken_artifacts())
def test_broken_evidence_is_an_answer(base: dict[str, bytes], head: dict[str, bytes]) -> None:
    sides = evidence_of(base), evidence_of(head)
    found = diff_runs(*sides)
    assert (found.status == "failed") == any(side.problems for side in sides)
    assert (found.status == "failed") == any(n.endswith("_unusable") for n in note_codes(found))
    assert all(note.isprintable() for note in found.notes)
    again = msgspec.json.decode(msgspec.json.encode(found), type=CapabilityDiff)
    assert again == found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archives") / "broken.tar.gz"


WHOLE = ARCHIVES[0].read_bytes()
PLAIN = gzip.decompress(WHOLE)


def status_of(place: Path, data: bytes) -> str:
    """The status, or that there is no evidence at all."""
    place.write_bytes(data)
    try:
        return diff_runs(read_evidence(str(place)), BASE).status
    except InputError as error:
        assert str(error).startswith(str(place))  # noqa: PT017
        return "none"


def test_archives_of_all_kinds_are_read(tmp_path: Path) -> None:
    for files in (make_stream_files(), make_run_files()):
        evidence = read_evidence(str(write_files_as_archive(tmp_path / "a.tar.gz", files)))
        assert evidence.problems == []
        assert evidence.companion is not None


def test_every_cut_of_an_archive_fails(place: Path) -> None:
    for cut in range(len(WHOLE)):
        assert status_of(place, WHOLE[:cut]) == ("failed" if cut > 1 else "none"), cut


def test_every_cut_of_a_tar_fails(place: Path) -> None:
    for cut in range(0, len(PLAIN), 256):
        assert status_of(place, compress_tar(PLAIN[:cut])) == ("failed" if cut else "none"), cut


def test_what_follows_an_archive_fails(place: Path) -> None:
    assert status_of(place, compress_tar(PLAIN)) == "partial:unbound"
    for more in (b"\0", WHOLE):
        assert status_of(place, WHOLE + more) == "failed"
    assert status_of(place, compress_tar(PLAIN + bytes(512))) == "failed"


@every(17)
def test_another_byte_of_an_archive_is_never_another_comparison(tmp_path: Path, step: int) -> None:
    whole = write_files_as_archive(tmp_path / "a.tar.gz", make_stream_files())
    tar, whole_evidence = bytearray(read_tar(whole)), read_evidence(str(whole))
    assert not whole_evidence.problems
    same = 0
    with Rewritten(tmp_path / "b.tar.gz") as target:
        for at in range(0, len(tar), step):
            tar[at] ^= 1 << at % 8
            found = read_evidence(str(target.put(compress_tar(bytes(tar)))))
            same += found == whole_evidence
            assert found.problems or found == whole_evidence, at
            tar[at] ^= 1 << at % 8
    assert same < 20  # the run id of the manifest


def test_what_is_not_as_the_manifest_lists_it_fails(tmp_path: Path) -> None:
    files = make_stream_files()
    listed = (ARCHIVE_MANIFEST, build_manifest(files))
    order = [
        name
        for name, _ in read_tar_items(
            read_tar(write_files_as_archive(tmp_path / "a.tar.gz", files))
        )
    ][1:]
    target = tmp_path / "b.tar.gz"

    def problem(changed: dict[str, bytes]) -> str:
        target.write_bytes(
            compress_tar(build_tar(listed, *((n, changed[n]) for n in order if n in changed)))
        )
        (found,) = read_evidence(str(target)).problems
        return found.removeprefix(f"{target}/")

    edited = {**files, SURFACE_FILE: files[SURFACE_FILE].replace(b"/work/a", b"/work/x")}
    assert problem(edited).startswith(f"{SURFACE_FILE}: the archive is damaged: its digest is ")
    longer = {**files, COMPANION_FILE: files[COMPANION_FILE] + b"\n"}
    assert problem(longer).startswith(f"{COMPANION_FILE}: the archive is damaged: it has ")
    gone = {name: data for name, data in files.items() if name != COMPANION_FILE}
    assert problem(gone) == f"{COMPANION_FILE}: the archive is damaged: it is not there"


@given(st.binary(max_size=2000))
def test_what_is_no_archive_is_an_answer(place: Path, data: bytes) -> None:
    assert status_of(place, data) in ("failed", "none")
    assert status_of(place, gzip.compress(data)) in ("failed", "none")


def test_a_link_in_place_of_an_artifact_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(LOOSE[SURFACE_FILE])
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as out:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            info = tarfile.TarInfo(SURFACE_FILE)
            info.type, info.linkname = kind, str(secret)
            out.addfile(info)
        info = tarfile.TarInfo(HEALTH_FILE)
        info.size = len(LOOSE[HEALTH_FILE])
        out.addfile(info, io.BytesIO(LOOSE[HEALTH_FILE]))
    for data in (archive.read_bytes(), compress_tar(gzip.decompress(archive.read_bytes()))):
        archive.write_bytes(data)
        (problem,) = read_evidence(str(archive)).problems
        assert problem.startswith(f"{archive}: it is damaged, or not the archive of a run: ")


def test_an_artifact_without_end_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.compare.sides.MOST_ARTIFACT", 100_000)
    archive = write_files_as_archive(
        tmp_path / "a.tar.gz", {**make_stream_files(), SURFACE_FILE: b" " * 100_001}
    )
    problems = read_evidence(str(archive)).problems
    assert len(problems) == 1
    assert "above the limit" in problems[0]


def test_an_archive_without_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.compare.sides.MOST_ARCHIVE", 10_000)
    archive = write_files_as_archive(
        tmp_path / "a.tar.gz", {**make_stream_files(), KERNEL_FILE: b" " * 10_001}
    )
    assert "more than 10000 bytes" in read_evidence(str(archive)).problems[0]


def test_two_loose_files_of_one_contract_are_no_evidence(tmp_path: Path) -> None:
    for name, data in LOOSE.items():
        (tmp_path / f"one-{name}").write_bytes(data)
    assert read_evidence(str(tmp_path)).problems == []
    (tmp_path / "two.json").write_bytes(LOOSE[HEALTH_FILE])
    assert "the folder has two files of this contract" in read_evidence(str(tmp_path)).problems[0]


def test_a_run_folder_is_read_by_its_names(tmp_path: Path) -> None:
    for name, data in LOOSE.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "metadata.json").write_bytes(LOOSE[HEALTH_FILE])
    (tmp_path / COMPANION_FILE).write_bytes(encode_companion(BASE.run_id))
    evidence = read_evidence(str(tmp_path))
    assert evidence.companion is not None
    assert diff_runs(evidence, evidence).status == "clean"


def test_a_run_that_is_not_as_its_manifest_lists_it_fails(tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path / "run")
    assert read_evidence(str(folder)).problems == []

    def problem(name: str, change: Callable[[bytes], bytes | None]) -> str:
        place = folder / name
        data = place.read_bytes() if place.exists() else b""
        changed = change(data)
        place.unlink(missing_ok=True)
        if changed is not None:
            place.write_bytes(changed)
        (found,) = read_evidence(str(folder)).problems
        assert CanonicalLayers(str(folder)).damage == found
        place.write_bytes(data) if data else place.unlink()
        return found.removeprefix(f"{folder}/")

    def other(data: bytes) -> bytes:
        return data.replace(b"/work/a", b"/work/x") + b" "

    for name in (SURFACE_FILE, HEALTH_FILE, COMPANION_FILE, KERNEL_FILE, DETAIL_FILE, MARKERS_FILE):
        size = (folder / name).stat().st_size
        text = f"{MANIFEST_FILE}: {name} has {size + 1} bytes, not {size}"
        assert problem(name, other) == text
        assert problem(name, lambda data: None).startswith(f"{MANIFEST_FILE}: {name}: ")
        text = f"{MANIFEST_FILE}: {name} is not what was hashed: "
        assert problem(name, lambda data: data.swapcase()).startswith(text)
    assert problem(MANIFEST_FILE, lambda data: data[:-3]).startswith(f"{MANIFEST_FILE}: ")
    begun = problem(EVENTS_FILE, lambda data: b" " + data)
    size = json.loads((folder / MANIFEST_FILE).read_bytes())["events"]["bytes"]
    assert begun == f"{MANIFEST_FILE}: the first {size} bytes of {EVENTS_FILE} were changed"
    extra = json.loads((folder / MANIFEST_FILE).read_bytes())
    extra["files"] = [file for file in extra["files"] if file["path"] != COMPANION_FILE]
    unlisted = problem(MANIFEST_FILE, lambda data: json.dumps(extra).encode())
    assert unlisted == f"{MANIFEST_FILE}: {COMPANION_FILE} is not listed"
    place = folder / MANIFEST_FILE
    place.rename(folder / "elsewhere")
    for make in (place.mkdir, partial(os.mkfifo, place), partial(place.symlink_to, "../elsewhere")):
        make()
        (found,) = read_evidence(str(folder)).problems
        assert found.startswith(f"{place}: a ")
        place.rmdir() if place.is_dir() else place.unlink()
    assert read_evidence(str(folder)).problems == []


def test_where_nothing_is_there_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_evidence(str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"there is no evidence.*--kernel auto"):
        read_evidence(str(tmp_path))


def test_what_nobody_watched_may_have_been_added() -> None:
    assert not is_failing("added-paths", diff_runs(BASE, BASE))
    unknown = diff_runs(BASE, with_changes(health=UNSEEN))
    assert is_failing("added-paths", unknown)
    assert not is_failing("removed-paths", unknown)
    assert not is_failing("added-tools", unknown)


EVERYTHING = ("paths", "endpoints", "execs")


@pytest.mark.parametrize(
    ("health", "blind"),
    [
        (UNSEEN, EVERYTHING),
        (LOSSY, EVERYTHING),
        (
            make_health("connect_only", "diagnostic_only", "stream_kernel_unnamed: events=3"),
            EVERYTHING,
        ),
        ({"cgroup_correlation": "partial"}, EVERYTHING),
        (TRACED, ()),  # strace: it followed every process
        (make_health("unknown", "unknown", HOLE), ("paths", "endpoints")),
        (make_health("absent", "not_applicable"), ()),
    ],
)
def test_words_hold_for_what_nobody_could_see(
    health: dict[str, Any], blind: tuple[str, ...]
) -> None:
    changed = with_changes(health=health)
    assert changed.problems == []
    for how, other, sides in (
        ("added", "removed", (BASE, changed)),
        ("removed", "added", (changed, BASE)),
    ):
        found = diff_runs(*sides)
        assert [what for what in EVERYTHING if is_failing(f"{how}-{what}", found)] == [*blind]
        assert not any(is_failing(f"{other}-{what}", found) for what in EVERYTHING)
        assert not is_failing(f"{how}-tools", found)
        assert is_failing("any", found) == (found.status != "clean")


@pytest.mark.parametrize(
    ("word", "changes", "why"),
    [
        ("added-tools", {"surface": {"mcp_tools": ["read_file", "x", "y"]}}, "2 tools"),
        ("added-paths", {"health": UNSEEN}, "B has no kernel layer, so it cannot be known"),
        ("added-execs", {"health": LOSSY}, "the capture of B is incomplete (kernel_layer=partial"),
        ("partial", {"correlation": {"status": "partial"}}, "the status is partial:correlation: c"),
        ("any", {"surface": {"mcp_tools": ["read_file", "x"]}}, "added-tools"),
        (
            "any",
            {"correlation": {"bindings": [make_binding("else")]}},
            "a call is on one side only",
        ),
    ],
)
def test_a_word_that_holds_gives_the_reason(word: str, changes: dict[str, Any], why: str) -> None:
    found = diff_runs(BASE, with_changes(**changes))
    assert fail_on_reason(word, found).startswith(why)


DOUBTS: tuple[dict[str, Any], ...] = (
    {"health": UNSEEN},
    {"correlation": {"status": "partial"}},
    {"correlation": {"bindings": []}},
    {"correlation": {"ambiguities": ["kernel_events_of_other_processes"]}},
)


@pytest.mark.parametrize("changes", DOUBTS)
def test_any_is_each_of_the_words(changes: dict[str, Any]) -> None:
    same = with_changes(**changes)
    assert is_failing("any", diff_runs(same, same))
    assert not is_failing("any", diff_runs(BASE, BASE))


@pytest.mark.parametrize(
    ("health", "fault"),
    [
        ({"platform": "darwin"}, "kernel_layer: complete on a platform that is not linux"),
        ({"ringbuf_drops": 7}, "kernel_layer: complete, and 7 events were dropped"),
        (
            {"network_endpoint_claim_scope": "unknown"},
            "network_endpoint_claim_scope: unknown does not follow from connect_only",
        ),
    ],
)
def test_health_that_contradicts_itself_is_no_evidence(health: dict[str, Any], fault: str) -> None:
    found = diff_runs(BASE, with_changes(health=health))
    assert found.status == "failed"
    assert f"capability_diff_head_unusable: {HEALTH_FILE}: {fault}" in found.notes
    assert found.preconditions["head_health_clean"] is False


def own_evidence(**changes: Any) -> Evidence:
    data = encode_json({**json.loads(LOOSE[HEALTH_FILE]), **changes})
    return evidence_of({**LOOSE, HEALTH_FILE: data, COMPANION_FILE: encode_companion(BASE.run_id)})


def test_our_own_notes_are_held_to_our_own_rules() -> None:
    for code in ("stream_kernel_misses: misses=5", "stream_cgroup_partial: x"):
        health = make_health("connect_only", "diagnostic_only", code)
        assert diff_runs(own_evidence(**health), BASE).status == "failed"


@pytest.mark.parametrize(
    ("health", "fault"),
    [
        ({"notes": []}, "notes: s2_kernel_capture is missing"),
        (
            make_health("unknown", "unknown"),
            "network_protocol_coverage: unknown, and nothing is said to be missing",
        ),
    ],
)
def test_what_another_recorder_need_not_say_is_asked_of_ours(
    health: dict[str, Any], fault: str
) -> None:
    """The contract names no code of a note that must stand there."""
    found = diff_runs(BASE, own_evidence(**health))
    assert f"capability_diff_head_unusable: {HEALTH_FILE}: {fault}" in found.notes
    found = diff_runs(BASE, with_changes(health=health))
    assert found.status != "failed"
    assert found.preconditions["head_health_clean"] is ("network_protocol_coverage" not in health)


def test_two_platforms_are_reported() -> None:
    mac = with_changes(health={**UNSEEN, "platform": "darwin"})
    assert "capability_diff_platforms_differ" in note_codes(diff_runs(BASE, mac))
    assert "capability_diff_platforms_differ" not in note_codes(diff_runs(mac, mac))


def first_events(folder: str) -> bytes:
    """How the events of a run in that folder begin."""
    items = [{"type": "workspace", "metadata": {"run_folder": folder}}]
    events: list[dict[str, Any]] = [
        {"event_type": "run_started", "agent_action": {"artifacts": []}},
        {"event_type": "workspace_prepared", "agent_action": {"artifacts": items}},
    ]
    return b"".join(encode_json(event) + b"\n" for event in events)


def run_evidence(run_id: str, folder: str, *paths: str, **changes: Any) -> Evidence:
    fields = {"run_id": run_id}
    found = {name: encode_json({**json.loads(data), **fields}) for name, data in LOOSE.items()}
    surface = {**json.loads(found[SURFACE_FILE]), "filesystem_paths": list(paths), **changes}
    found[SURFACE_FILE] = encode_json(surface)
    return evidence_of({**found, EVENTS_FILE: first_events(folder)} if folder else found)


def test_folders_of_runs_are_compared_without_their_names() -> None:
    places = ("/workspace/x", "/workspace", "/.wrappers/bin/git", "/workspaces/x", "/other")
    sides = []
    for run_id, top in (("run_a", "/home/me/runs"), ("run_b", "/srv/sym link\\\\xff")):
        folder = f"{top}/{run_id}"
        paths = [f"{folder}{place}" for place in places]
        sides.append(run_evidence(run_id, folder, *paths, "/etc/x", process_execs=paths[:1]))
    found = diff_runs(*sides)
    assert found.surface["filesystem_paths"].unchanged == [
        "(run)/.wrappers/bin/git",
        "(run)/workspace",
        "(run)/workspace/x",
        "/etc/x",
    ]
    assert len(found.surface["filesystem_paths"].added) == 2
    assert found.surface["process_execs"].unchanged == ["(run)/workspace/x"]
    assert "capability_diff_run_folder" in note_codes(found)


def test_what_only_looks_like_a_runs_folder_is_not_placed() -> None:
    base = run_evidence("ga", "/runs/ga", "/runs/ga/workspace/f1")
    head = run_evidence("gb", "/runs/gb", "/runs/gb/workspace/f1", "/out/gb/workspace/f1")
    found = diff_runs(base, head)
    assert found.surface["filesystem_paths"].added == ["/out/gb/workspace/f1"]
    assert is_failing("added-paths", found)
    other = run_evidence("gb", "/runs/gb", "/runs/ga/workspace/f1")
    assert diff_runs(base, other).surface["filesystem_paths"].added == ["/runs/ga/workspace/f1"]


def test_where_no_record_shows_where_a_run_lay_nothing_is_placed() -> None:
    sides = [run_evidence(name, "", f"/runs/{name}/workspace/f1") for name in ("ga", "gb")]
    changes = diff_runs(*sides).surface["filesystem_paths"]
    assert (changes.added, changes.removed) == (
        ["/runs/gb/workspace/f1"],
        ["/runs/ga/workspace/f1"],
    )
    for events in (b"", b"{}\n[]\n", first_events("workspace"), first_events("")):
        assert run_folders(events) == ("", "")
    assert run_folders(first_events("/runs/ga")) == ("/runs/ga", "")


def test_the_folder_is_read_from_the_runs_own_events(tmp_path: Path) -> None:
    files = {**LOOSE, EVENTS_FILE: first_events("/runs/ga")}
    archive = write_files_as_archive(
        tmp_path / "a.tar.gz", {**make_stream_files(), EVENTS_FILE: first_events("/runs/ga")}
    )
    assert read_evidence(str(archive)).folder == "/runs/ga"
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert read_evidence(str(tmp_path)).folder == "/runs/ga"


# --- which files ran by a name ------------------------------------------------------------------


def encode_companion(
    run_id: str,
    feed: str = "ebpf",
    programs: dict[str, list[str]] | None = None,
    unbound: dict[str, int] | None = None,
) -> bytes:
    made = make_companion(
        run_id,
        Surface(),
        capture=RawCapture(feed=feed),  # type: ignore[arg-type]
        filtered={},
        aside={},
        calls={},
        unbound=unbound or {},
    ).whole_record()
    made.programs = programs or {}
    return msgspec.json.encode(made)


def with_programs(feed: str = "ebpf", **programs: list[str]) -> Evidence:
    surface = {**json.loads(LOOSE[SURFACE_FILE]), "process_execs": ["tool", "cat"]}
    own_companion = encode_companion(BASE.run_id, feed, programs)
    return evidence_of({**LOOSE, SURFACE_FILE: encode_json(surface), COMPANION_FILE: own_companion})


@pytest.mark.parametrize("other", [["/bin/id"], ["/bin/id", "/bin/true"], ["tool"]])
def test_another_file_by_the_same_name_went_and_came(other: list[str]) -> None:
    base, head = with_programs(tool=["/bin/true"]), with_programs(tool=other)
    found = diff_runs(base, head)
    changes = found.surface["process_execs"]
    assert (changes.added, changes.removed, changes.unchanged) == (["tool"], ["tool"], ["cat"])
    assert not has_no_changes(found)
    assert is_failing("added-execs", found)
    assert found.notes == [
        f"capability_diff_program_replaced: tool: /bin/true in base, {', '.join(other)} in head"
    ]
    assert has_no_changes(diff_runs(base, base))


def test_files_of_programs_lie_in_the_runs_folders() -> None:
    sides = []
    for name in ("ga", "gb"):
        tool, file = f"/runs/{name}/workspace/tool", f"/runs/{name}/workspace/real"
        found = {key: encode_json({**json.loads(v), "run_id": name}) for key, v in LOOSE.items()}
        surface = {**json.loads(found[SURFACE_FILE]), "process_execs": [tool]}
        own_companion = encode_companion(name, programs={tool: [file]})
        more = {SURFACE_FILE: encode_json(surface), COMPANION_FILE: own_companion}
        sides.append(evidence_of({**found, **more, EVENTS_FILE: first_events(f"/runs/{name}")}))
    assert has_no_changes(diff_runs(*sides))


def test_a_feed_that_does_not_know_the_files_is_reported() -> None:
    base, head = with_programs(tool=["/bin/true"]), with_programs("strace")
    found = diff_runs(base, head)
    assert found.surface["process_execs"].unchanged == ["cat", "tool"]
    (note,) = found.notes
    assert note.startswith("capability_diff_programs_unknown: ")
    assert "it is unknown in head which files ran" in note
    for one in (found, diff_runs(head, base), diff_runs(head, head), diff_runs(BASE, head)):
        assert "capability_diff_programs_unknown" in note_codes(one)
        assert "capability_diff_idempotent" not in note_codes(one)
        assert not is_failing("added-execs", one) or one.surface["process_execs"].added
    assert "it is unknown in base and head which files ran" in diff_runs(head, head).notes[0]
    assert note_codes(diff_runs(base, base)) == ["capability_diff_idempotent"]


def test_a_broken_companion_fails() -> None:
    found = diff_runs(BASE, evidence_of({**LOOSE, COMPANION_FILE: b"{}"}))
    assert found.status == "failed"
    assert found.notes[0].startswith("capability_diff_head_unusable: companion.json: ")


# --- what nobody saw ----------------------------------------------------------------------------


def test_what_could_not_be_named_is_not_clean() -> None:
    notes = [*json.loads(LOOSE[HEALTH_FILE])["notes"], "stream_kernel_unnamed: events=3"]
    found = diff_runs(BASE, with_changes(health={"notes": notes}))
    assert found.status == "partial:health"
    assert found.notes[0] == "capability_diff_head_health: unnamed_events=3"
    assert is_failing("added-paths", found)
    assert not is_failing("removed-paths", found)


def test_two_runs_that_nobody_watched_are_not_identical() -> None:
    blind = with_changes(health=UNSEEN)
    for sides in ((blind, blind), (BASE, blind)):
        assert "capability_diff_idempotent" not in note_codes(diff_runs(*sides))
        assert "capability_diff_unobserved" in note_codes(diff_runs(*sides))


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ff")
    with pytest.raises(InputError, match="ff: a fifo: neither a run folder nor an archive"):
        read_evidence(str(tmp_path / "ff"))
    with pytest.raises(InputError, match="a fifo"):
        list(read_lines(str(tmp_path / "ff"), "layers/kernel.ndjson"))
