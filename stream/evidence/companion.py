"""companion.json: what the artifacts have no room for, from the same evidence."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import to_builtins

from stream.evidence.pieces import Long
from stream.evidence.surface import Surface
from stream.records.kernel import RawCapture
from stream.records.runner import Companion


def make_companion(
    run_id: str,
    surface: Surface,
    *,
    capture: RawCapture | None,
    filtered: Mapping[str, int] | None,
    aside: Mapping[str, int] | None,
    calls: Mapping[str, Mapping[str, int]],
    unbound: Mapping[str, int],
) -> Long[Companion]:
    """`filtered` and `aside` are counted by rule, `calls` and `unbound` by kind of event; what
    order they come in makes no difference."""
    outline = Companion(
        run_id=run_id,
        capture={} if capture is None else to_builtins(capture),
        filtered=None if filtered is None else dict(sorted(filtered.items())),
        aside=None if aside is None else dict(sorted(aside.items())),
        unnamed=dict(sorted(surface.unnamed.items())),
        paths={},
        failed_paths={},
        programs=surface.programs(),
        failed_endpoints=surface.failed_endpoints(),
        address_probes=surface.address_probes(),
        local_sockets=surface.local_sockets(),
        self_reported_tools=surface.self_reported_tools(),
        calls={call: dict(sorted(kinds.items())) for call, kinds in sorted(calls.items())},
        unbound=dict(sorted(unbound.items())),
    )
    return Long(outline, {"paths": surface.reached, "failed_paths": surface.missed})
