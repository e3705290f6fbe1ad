"""What is collected from the channels of an agent, and of the engine that decides for it."""

from __future__ import annotations

from stream.evidence.claude_formats import Sdk
from stream.pipeline import Batch
from stream.records.channels import STDOUT, ChannelBlock
from stream.records.control import CHANNELS
from stream.redaction.policy import CapturePolicy
from stream.transformers.tool_events import ToolCallCollector


def make_collector(run_id: str = "r", sdk: Sdk = "stream-json") -> ToolCallCollector:
    return ToolCallCollector(run_id, CapturePolicy("full", None), sdk)


def feed_channel(
    collector: ToolCallCollector, data: bytes, channel: str = STDOUT, arrived: int = 1
) -> None:
    collector.feed(Batch(CHANNELS, [ChannelBlock(channel, data, arrived)]))


def collect_events(
    data: bytes, channel: str = STDOUT, *, run_id: str = "r", sdk: Sdk = "stream-json"
) -> ToolCallCollector:
    """Collect what one channel carries, to its end."""
    collector = make_collector(run_id, sdk)
    feed_channel(collector, data, channel)
    collector.finish()
    return collector


def list_problems(collector: ToolCallCollector) -> dict[tuple[str, str], int]:
    return {(one.channel, one.why): one.count for one in collector.dropped}
