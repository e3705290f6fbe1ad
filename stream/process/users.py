"""The user that probes run as: who called, or who was named."""

from __future__ import annotations

import os
from functools import cached_property

from msgspec import Struct

from stream.errors import UsageError


class User(Struct, frozen=True, dict=True):
    """A user of this machine."""

    uid: int
    gid: int
    name: str | None
    home: str | None

    @property
    def is_caller(self) -> bool:
        """Tell whether this process already runs as that user."""
        return self.uid == os.geteuid()

    @cached_property
    def switch(self) -> list[str]:
        """Return the words before a command that make it run as that user."""
        if self.is_caller:
            return []
        groups = "--init-groups" if self.name else "--clear-groups"
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", groups, "--"]

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that name the user; none where it is the caller."""
        if self.is_caller or self.name is None:
            return {}
        return {"USER": self.name, "LOGNAME": self.name}


def find_user(named: str | None) -> User:
    """Return the user that is named; else, under sudo, the one that called it; else the caller.
    Raise UsageError."""
    caller = os.geteuid()
    if named is None:
        given = os.environ.get("SUDO_UID", "") if caller == 0 else ""
        return _user_of(int(given) if given.isdigit() and int(given) else caller)
    user = _user_of(int(named)) if named.isdigit() else _user_called(named)
    if caller != 0 and not user.is_caller:
        raise UsageError(f"--as {named}: only root can run probes as another user")
    return user


def _user_called(name: str) -> User:
    """Return the user of a name. Raise UsageError."""
    import pwd

    try:
        return _user_of(pwd.getpwnam(name).pw_uid)
    except KeyError:
        raise UsageError(f"--as {name}: there is no such user") from None


def _user_of(uid: int) -> User:
    """Return the user of a number, who need not have a name."""
    import pwd

    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        return User(uid, uid, None, None)
    return User(uid, found.pw_gid, found.pw_name, found.pw_dir)
