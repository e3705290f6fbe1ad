"""What cannot wait comes first: a kernel's ring that is full loses what comes next."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

URGENT = -10  #: nice: of two cores, one whenever it is needed


@contextmanager
def urgent() -> Iterator[None]:
    """The calling thread goes before others; what it starts meanwhile does not. Nothing changes
    where that is not permitted, or where somebody has chosen how urgent we are."""
    if os.getpriority(os.PRIO_PROCESS, 0) or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    try:
        os.setpriority(os.PRIO_PROCESS, 0, URGENT)
    except PermissionError:
        yield
        return
    _inherit(os.SCHED_OTHER | os.SCHED_RESET_ON_FORK)
    try:
        yield
    finally:
        _inherit(os.SCHED_OTHER)
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def _inherit(policy: int) -> None:
    os.sched_setscheduler(0, policy, os.sched_param(0))
