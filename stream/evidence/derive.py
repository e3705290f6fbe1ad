"""What follows from the layers of a run: its surface, its correlation, its health, its companion.

The recorder derives these artifacts when a run ends; `stream verify` derives them again from the
files alone. Both call `derive`, which depends on nothing but what it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from stream.evidence.attribution import AttributionEvent
from stream.evidence.correlation import Correlation, correlate
from stream.evidence.health import make_health
from stream.evidence.markers import calls_started
from stream.evidence.surface import StreamedRecord, Surface, make_companion
from stream.records.artifacts import (
    COMPANION_FILE,
    CORRELATION_FILE,
    HEALTH_FILE,
    SURFACE_FILE,
    CapabilitySurface,
    Companion,
    Marker,
    ObservationHealth,
    PolicyEvent,
    SdkEvent,
)
from stream.records.kernel import RawCapture


class LayerContent(Struct, kw_only=True):
    """What the layers of a run say."""

    surface: Surface  #: what the kernel, SDK and policy layers reached
    kernel_events: int  #: lines of the kernel layer
    events: Iterable[AttributionEvent]  #: of the kernel layer, to be read once
    gaps: Sequence[tuple[int, int]]  #: between which numbers events were lost
    sdk: Sequence[SdkEvent]
    policy: Sequence[PolicyEvent]
    markers: Sequence[Marker]
    #: False: somebody else wrote into the kernel layer, so that no event can be attributed.
    has_kernel: bool = True


class DerivedArtifacts(Struct):
    """The artifacts of a run. The long ones can be written without ever being held whole."""

    surface: StreamedRecord[CapabilitySurface]
    correlation: Correlation
    health: ObservationHealth
    companion: StreamedRecord[Companion]

    def documents(self) -> dict[str, StreamedRecord[Any]]:
        """Return each artifact by the name of its file."""
        return {
            SURFACE_FILE: self.surface,
            CORRELATION_FILE: StreamedRecord(self.correlation.report, {}),
            HEALTH_FILE: StreamedRecord(self.health, {}),
            COMPANION_FILE: self.companion,
        }


def derive(
    run_id: str,
    layers: LayerContent,
    capture: RawCapture,
    *,
    filtered: Mapping[str, int] | None,
    aside: Mapping[str, int] | None,
) -> DerivedArtifacts:
    """Derive the artifacts of a run from its layers and from the counters of its capture.

    `filtered` and `aside` count by rule what was left out of the layers; None where that is not
    known. The layers' surface is changed: what correlation finds to be the recorder's own work
    is taken out of it.
    """
    surface = layers.surface
    correlation = correlate(
        run_id,
        markers=layers.markers,
        sdk=layers.sdk,
        policy=layers.policy,
        events=layers.events,
        gaps=layers.gaps,
        has_kernel=layers.has_kernel and capture.feed != "absent",
        capture=capture,
    )
    surface.exclude_recorder_files(correlation.recorder_file_uses)
    health = make_health(
        run_id,
        capture,
        monitor_events=layers.kernel_events,
        has_connect=surface.has_connect,
        has_datagram=surface.has_datagram,
        policy_events=len(layers.policy),
        sdk_events=len(layers.sdk),
        sdk_tool_calls=calls_started(layers.sdk),
        unnamed=surface.unnamed.total(),
    )
    companion = make_companion(
        run_id,
        surface,
        capture=capture,
        filtered=filtered,
        aside=aside,
        calls=correlation.calls,
        unbound=correlation.unbound,
    )
    return DerivedArtifacts(surface.long_surface(run_id), correlation, health, companion)
