"""The forms that a text may have in a record, each with the words that say it to people.

They end with `\\Z`, not `$`: the latter lets a trailing newline through.
"""

from __future__ import annotations

import re

DIGEST = r"^[0-9a-f]{64}\Z"
NAMED_DIGEST = r"^sha256:[0-9a-f]{64}\Z"
FILE_MODE = r"^[0-7]{4}\Z"
KEY = r"^[A-Za-z0-9_.-]+\Z"
RUN_ID = r"^[A-Za-z0-9_-]+\Z"
KERNEL_KIND = r"^(openat|connect|exec|file_blocked|connect_blocked|event_[0-9]+)\Z"
SANDBOX_MODE = r"^(read-only|workspace-write|danger-full-access)\Z"
# Not `\S`: engines differ in what they count as white space.
TITLE = r"[^ \t\n\r\f\v]"
is_told = re.compile(TITLE).search  #: whether a text is not blank

WORDS = {
    DIGEST: "64 hexadecimal digits, the lower-case ones",
    NAMED_DIGEST: "`sha256:` and 64 hexadecimal digits, the lower-case ones",
    FILE_MODE: "four octal digits",
    KEY: "letters, digits, `_`, `.` and `-`",
    RUN_ID: "letters, digits, `_` and `-`",
    KERNEL_KIND: "openat, connect, exec, file_blocked, connect_blocked or event_<number>",
    SANDBOX_MODE: "read-only, workspace-write or danger-full-access",
    TITLE: "a text that is not blank",
}
