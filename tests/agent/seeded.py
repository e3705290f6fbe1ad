"""Makes up secrets of many kinds in many places, as somebody would who wants to get them past.

Everything comes from a seed: no text in this repository looks like a key.
"""

from __future__ import annotations

import base64
import json
import random
import re
import string
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import quote
from xml.sax.saxutils import escape

from stream.redaction.patterns import KEYS

LETTERS = string.ascii_letters + string.digits
_ALPHABETS = {
    "": LETTERS,
    "h": "0123456789abcdef",
    "A": string.ascii_uppercase + string.digits,
    "d": string.digits,
}


def fill_template(template: str, rng: random.Random) -> str:
    """A template of the tables, with `<20>` and the like made up."""

    def make(found: re.Match[str]) -> str:
        letters = "".join(rng.choices(_ALPHABETS[found[2]], k=int(found[1])))
        return letters if found[2] or int(found[1]) < 8 else f"Z7{letters[2:]}"

    return re.sub(r"<(\d+)([hAd]?)>", make, template)


class Secret(NamedTuple):
    kind: str
    name: str  #: what it is given to
    value: str


def _text(rng: random.Random, letters: str, size: int) -> str:
    """With a letter and a digit, if there are such."""
    made = "".join(rng.choices(letters, k=size))
    return made if re.search(r"\d", made) or "0" not in letters else f"{made[:-1]}7"


def _password(first: str) -> Callable[[random.Random], str]:
    return lambda rng: first + _text(rng, LETTERS + "!#%^*+=?@~", 14) + _text(rng, LETTERS, 2)


_WORDS = re.split(
    r"\s+",
    "orbit velvet candle puzzle marble timber falcon pepper walnut garden rocket silver copper"
    " meadow bishop canyon dragon empire fossil guitar",
)

GENERIC: dict[str, tuple[str, Callable[[random.Random], str]]] = {
    "letters and digits": ("password", lambda r: _text(r, LETTERS, 14)),
    "base64 with one =": (
        "password",
        lambda r: base64.b64encode(r.randbytes(17)).decode(),
    ),
    "base64 with two =": ("secret_key", lambda r: base64.b64encode(r.randbytes(16)).decode()),
    "begins with $": ("password", _password("$")),
    "begins with [": ("password", _password("[")),
    "begins with <": ("db_password", _password("<")),
    "begins with {": ("password", _password("{")),
    "begins with %": ("password", _password("%")),
    "begins with ,": ("password", _password(",")),
    "begins with -": ("password", _password("-")),
    "has a >": ("auth_token", lambda r: f"{_text(r, LETTERS, 12)}>{_text(r, LETTERS, 10)}"),
    "letters": ("password", lambda r: "".join(r.sample(_WORDS, 2))),
    "digits": ("password", lambda r: _text(r, string.digits, 10)),
    "mixed letters": ("password", lambda r: _text(r, string.ascii_letters, 16)),
    "hex": ("api_key", lambda r: r.randbytes(16).hex()),
    "long hex": ("client_secret", lambda r: r.randbytes(32).hex()),
    "uuid": ("access_token", lambda r: str(uuid.UUID(bytes=r.randbytes(16)))),
    "aws secret": ("aws_secret_access_key", lambda r: _text(r, LETTERS + "+/", 40)),
    "azure account": ("account_key", lambda r: base64.b64encode(r.randbytes(64)).decode()),
    "capitals": ("license_key", lambda r: "-".join(_text(r, _ALPHABETS["A"], 5) for _ in range(5))),
    "twilio token": ("auth_token", lambda r: r.randbytes(16).hex()),
    "datadog": ("dd_api_key", lambda r: r.randbytes(16).hex()),
    "cloudflare": ("cloudflare_api_token", lambda r: _text(r, LETTERS + "_-", 40)),
    "jwt": (
        "token",
        lambda r: ".".join(
            base64.urlsafe_b64encode(part).decode().rstrip("=")
            for part in (
                b'{"alg":"HS256","typ":"JWT"}',
                json.dumps({"sub": r.randbytes(6).hex()}).encode(),
                r.randbytes(32),
            )
        ),
    ),
}

Channel = Callable[[Secret], str]


def _json(secret: Secret) -> str:
    return json.dumps({"user": "me", secret.name: secret.value, "n": 1})


def _header(secret: Secret) -> str:
    if "token" in secret.name:
        return f"> Authorization: Bearer {secret.value}"
    return f"> X-{secret.name.replace('_', '-').title()}: {secret.value}"


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"


CHANNELS: dict[str, Channel] = {
    "plain line": lambda s: f"the {s.name.replace('_', ' ')} is {s.value}",
    "KEY=value": lambda s: f"{s.name.upper()}={s.value}",
    "export": lambda s: f"export {s.name.upper()}={_quoted(s.value)}",
    "yaml": lambda s: f"database:\n  host: db\n  {s.name}: {s.value}\n  port: 1",
    "json": _json,
    "json in json": lambda s: json.dumps({"type": "text", "text": _json(s)}),
    "url userinfo": lambda s: f"GET https://me:{quote(s.value, safe='')}@db.example.org/x",
    "url query": lambda s: f"GET /x?a=1&{s.name}={quote(s.value, safe='')}&b=2",
    "header": _header,
    "option with =": lambda s: f"$ mycli --{s.name.replace('_', '-')}={s.value} run",
    "option with blank": lambda s: f"$ mycli --{s.name.replace('_', '-')} {s.value} run",
    ".env": lambda s: f'{s.name.upper()}="{s.value}"',
    "ini": lambda s: f"[db]\n{s.name} = {s.value}\nport = 1",
    "xml": lambda s: f"<cfg><{s.name}>{escape(s.value)}</{s.name}></cfg>",
    "percent-encoded": lambda s: f"body={quote(_json(s), safe='')}",
    "table": lambda s: f"user,{s.name},role\nme,{s.value},admin\nyou,,none",
    "diff": lambda s: f"@@ -1 +1 @@\n-{s.name}: old\n+{s.name}: {s.value}",
    "log": lambda s: f"2026-01-01T10:00:00Z INFO connect user=me {s.name}={s.value} ok",
    "kubernetes": lambda s: (
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: x\ndata:\n"
        f"  settings: {base64.b64encode(s.value.encode()).decode()}\ntype: Opaque"
    ),
    "sql": lambda s: f"CREATE USER me IDENTIFIED BY '{s.value}';",
}

#: A comma or a quote of the value would be its end for whoever reads it.
_BREAKS = {"table": ",;", ".env": '"$`', "sql": "'"}


def make_secrets(seed: int) -> Iterator[Secret]:
    """Keys of every vendor of the table, one each, and what no shape shows."""
    rng = random.Random(seed)
    seen = set()
    for key in KEYS:
        if key.kind not in seen and "secret" not in str(key.shape):
            seen.add(key.kind)
            name = rng.choice(["api_token", "service_key", "config", "value", "password"])
            yield Secret(key.kind, name, fill_template(key.example, rng))
    for kind, (name, make) in GENERIC.items():
        yield Secret(kind, name, make(rng))


def iter_written(seed: int) -> Iterator[tuple[Secret, str, str, list[str]]]:
    """(secret, channel, what is written, the forms of which none may come out)."""
    for secret in make_secrets(seed):
        for name, channel in CHANNELS.items():
            if any(mark in secret.value for mark in _BREAKS.get(name, "")):
                continue
            value = secret.value
            shown = [value, quote(value, safe=""), json.dumps(value)[1:-1], escape(value)]
            shown.append(base64.b64encode(value.encode()).decode())
            yield secret, name, channel(secret), list(dict.fromkeys(shown))
