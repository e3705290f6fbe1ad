"""What is collected of what an agent, and who decides for it, tell on their channels."""

from __future__ import annotations

from stream.evidence.claude_formats import Sdk
from stream.evidence.markers import STDOUT, ChannelBlock
from stream.pipeline import Batch
from stream.records.control import CHANNELS
from stream.redaction.policy import CapturePolicy
from stream.transformers.tool_events import ToolCallCollector


def new_collector(run_id: str = "r", sdk: Sdk = "stream-json") -> ToolCallCollector:
    return ToolCallCollector(run_id, CapturePolicy("full", None), sdk)


def tell(
    collector: ToolCallCollector, data: bytes, channel: str = STDOUT, arrived: int = 1
) -> None:
    collector.feed(Batch(CHANNELS, [ChannelBlock(channel, data, arrived)]))


def collected(
    data: bytes, channel: str = STDOUT, *, run_id: str = "r", sdk: Sdk = "stream-json"
) -> ToolCallCollector:
    """What was told on one channel, to its end."""
    collector = new_collector(run_id, sdk)
    tell(collector, data, channel)
    collector.finish()
    return collector


def problems(collector: ToolCallCollector) -> dict[tuple[str, str], int]:
    return {(one.channel, one.why): one.count for one in collector.dropped}
