"""What contradicts a policy: every cell, by what it came to."""

from __future__ import annotations

import json
from typing import Any, cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.boundary.contradictions import PromiseCheck, contradiction_kind
from stream.boundary.measured import OUTCOMES, Outcome
from stream.records.boundary import decode_boundary
from stream.records.mode_files import Promise
from stream.records.policies import Policy, PolicyPromise, Setting, UnmeasuredSetting
from tests.lock.records import baseline_record, decode, mode_record
from tests.transformers.samples import record

CAPABILITY = "cap_fs_write_outside_workspace"


def policy(**promises: str) -> Policy:
    return Policy(
        tuple(
            PolicyPromise(name, cast("Promise", promise), Setting("p.toml", line, name))
            for line, (name, promise) in enumerate(promises.items(), 1)
        )
    )


def check(promises: Policy, *values: dict[str, Any]) -> PromiseCheck:
    judge = PromiseCheck(promises)
    assert [*judge.judged(records := decode(*values))] == records
    return judge


def kinds(judge: PromiseCheck) -> list[tuple[str, str]]:
    return [(one.kind, one.mode) for one in judge.contradictions()]


EXPECTED = {
    "allow": {"closed": "fail-closed", "diverted": "fail-closed", "open": None, "partial": None},
    "deny": {"closed": None, "diverted": None, "open": "fail-open", "partial": "fail-open"},
}


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("promise", get_args(Promise))
def test_every_outcome_of_every_promise(promise: Promise, outcome: Outcome) -> None:
    expected = EXPECTED["allow" if promise == "allow" else "deny"].get(outcome, "untold")
    assert contradiction_kind(promise, outcome) == expected
    judge = check(policy(**{CAPABILITY: promise}), mode_record(outcome=outcome))
    assert kinds(judge) == ([(expected, "bwrap-ro")] if expected else [])
    assert judge.kept == (0 if expected else 1)


_CELLS = st.lists(
    st.tuples(
        st.sampled_from(["fs_one", "fs_two"]),
        st.sampled_from(OUTCOMES),
        st.sampled_from(["bwrap-ro", "srt"]),
        st.sampled_from(["cap_a", "cap_b", "cap_c"]),
    ),
    max_size=12,
)


@given(
    _CELLS,
    st.dictionaries(
        st.sampled_from(["cap_a", "cap_b", "cap_d"]), st.sampled_from(["allow", "deny"])
    ),
    st.randoms(),
)
def test_every_cell_is_judged_whatever_comes_first(
    cells: list[tuple[str, Outcome, str, str]], promises: dict[str, Promise], random: Any
) -> None:
    values = [
        mode_record(probe, outcome, mode=mode, capability=capability)
        for probe, outcome, mode, capability in cells
    ]
    judge = check(policy(**promises), *values)
    found = judge.contradictions()
    random.shuffle(values)
    assert check(policy(**promises), *values).findings() == judge.findings()
    expected = set()
    kept = 0
    for probe, outcome, mode, capability in cells:
        if capability in promises:
            kind = contradiction_kind(promises[capability], outcome)
            expected.add((kind, capability, mode, probe))
            kept += kind is None
    measured = {capability for _, _, _, capability in cells}
    expected |= {("untold", name, "", "") for name in promises if name not in measured}
    assert {(one.kind, one.promise.capability, one.mode, one.probe) for one in found} == {
        one for one in expected if one[0]
    }
    assert judge.kept == kept
    order = ["fail-open", "fail-closed", "untold"]
    assert [one.kind for one in found] == sorted((one.kind for one in found), key=order.index)


def test_a_finding_names_the_cell_its_effect_and_the_line() -> None:
    promises = Policy(
        (PolicyPromise(CAPABILITY, "ask", Setting("s.json", 7, '"allowWrite": ["."]')),),
        (UnmeasuredSetting(Setting("s.json", 2, '"model": "x"'), "model", "it says nothing"),),
    )
    judge = check(promises, mode_record(outcome="open"), mode_record("fs_x", "no-control"))
    first, second, third = judge.findings()
    assert (first.rule, first.severity, first.source, first.line) == (
        *("policy.fail-open", "error", "s.json", 7),
    )
    assert first.message == (
        "fail-open: fs_outside_workspace in bwrap-ro got through (write:outside was seen on the"
        f' host), but {CAPABILITY} is promised ask, which counts as deny: "allowWrite": ["."]'
    )
    assert (second.rule, second.severity) == ("policy.untold", "warning")
    assert "fs_x in bwrap-ro: without the sandbox it fails as well (EACCES)" in second.message
    assert (third.rule, third.line, third.message) == (
        *("policy.unmeasured", 2, "model: it says nothing"),
    )
    assert judge.summary == "1 fail-open, 0 fail-closed, 1 untold; 0 as promised"


def test_what_is_done_without_a_sandbox_contradicts_nothing() -> None:
    judge = check(policy(**{CAPABILITY: "deny"}), baseline_record(), mode_record())
    assert (kinds(judge), judge.kept) == ([], 1)


@pytest.mark.parametrize(
    ("status", "kind"),
    [("success", "fail-open"), ("partial", "fail-open"), ("denied", None), ("error", "untold")],
)
def test_of_a_record_without_a_control_the_report_counts(status: str, kind: str | None) -> None:
    value = record(probe={"primary_capability_id": CAPABILITY}, result={"observed_result": status})
    judge = PromiseCheck(policy(**{CAPABILITY: "deny"}))
    judge.judge(decode_boundary(json.dumps(value).encode()))
    assert kinds(judge) == ([(kind, "baseline")] if kind else [])
