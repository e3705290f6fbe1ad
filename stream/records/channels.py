"""What comes on the channels on which an agent, or who decides for it, tells of tool calls."""

from __future__ import annotations

from msgspec import Struct

COMMANDS = "commands"  #: the channel of the wrappers
STDOUT, LOG, HOOKS, OTEL, POLICY = "stdout", "log", "hooks", "otel", "policy"
UNSEEN = "unseen"  #: why what came on a channel is not used: nobody was seen to write it


class ChannelBlock(Struct, frozen=True):
    """Bytes of a channel on which an agent, or who decides for it, tells of tool calls."""

    channel: str
    data: bytes
    arrived_ns: int = 0  #: by the kernel's monotonic clock


class DroppedInput(Struct, frozen=True):
    """Input about calls or decisions that could not be used, and is in no layer."""

    channel: str
    why: str
    count: int
    sentence: str
