"""The table of secrets that show by what stands around them.

Who knows another place where a secret stands adds a line. Of a shape the group `secret` is what is
replaced, as far as a value without blanks, or its quotes, go. Examples are written as in `keys`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from stream.redaction import values
from stream.redaction.assignments import assignment, kubernetes
from stream.redaction.values import (
    COLOUR,
    EDGE,
    LOOK,
    START,
    SURE,
    Found,
    SecretRule,
    bare_end,
    piece,
    secret_at,
)


class Context(Struct, frozen=True):
    kind: str
    words: tuple[bytes, ...]  #: one of them is in it
    where: str
    rule: SecretRule
    example: str
    counter: str
    any_case: bool = True
    then: bytes = b""  #: what the word is followed by


_S = rb"(?:[ \t]{1,8}|\0|\\{0,7}[\"'],[ \t]{0,4}\\{0,7}[\"'])"  #: between two words of a command
_ARGS = rb"[^\r\n|;]{0,400}?"
_Q = rb"(?:\\{0,7}[\"'`])?"


def _shape(pattern: bytes, level: int = SURE) -> SecretRule:
    """What follows the pattern is a secret, in quotes or without."""
    compiled = re.compile(rb"(?i)" + pattern)

    def rule(text: bytes, place: int) -> Iterable[Found]:
        found = START.match(text, place) and compiled.match(text, place)
        answer = found and secret_at(text, found.end(), level)
        return [answer] if answer else []

    return rule


_OF_USERS = re.compile(rb"(?i)\b(?:user|role|login|grant|create|alter)\b[^\r\n]*\Z")


def _statement(pattern: bytes) -> SecretRule:
    """The same in SQL, of which prose has the words too: a word only in quotes, behind a user."""
    compiled = re.compile(rb"(?i)" + pattern)

    def rule(text: bytes, place: int) -> Iterable[Found]:
        found = START.match(text, place) and compiled.match(text, place)
        answer = found and secret_at(text, found.end(), SURE)
        if not found or not answer:
            return []
        assert answer.until is not None
        value = piece(text, answer.start, answer.until)
        if answer.start == found.end():
            good = values.is_special(value) or values.is_random(value)
        else:
            about_users = _OF_USERS.search(text, max(place - 256, 0), place)
            good = bool(about_users) or not value.isalpha()
        return [answer] if good else []

    return rule


def _user_and(pattern: bytes) -> SecretRule:
    """`USER:SECRET` or `USER%SECRET` in one word, perhaps in quotes."""
    compiled = re.compile(
        rb"(?i)" + pattern + _Q + rb"[^\s:%\"'`\\\0/]{1,64}[:%](?!/)" + COLOUR + rb"{0,3}"
    )

    def rule(text: bytes, place: int) -> Iterable[Found]:
        found = START.match(text, place) and compiled.match(text, place)
        if not found:
            return []
        until = bare_end(text, found.end())
        value = piece(text, found.end(), until)
        good = len(value) >= 3 and not values.is_none(value)
        return [Found("password", found.end(), found.end(), until)] if good else []

    return rule


# --- keys in several lines, or parts ------------------------------------------------------------

_JWT = re.compile(rb"eyJ[A-Za-z0-9_-]{8,1024}\.(?:eyJ[A-Za-z0-9_-]{5}|[A-Za-z0-9_-]{20})")
_JWT_END = re.compile(rb"[^A-Za-z0-9_.=-]|\.(?![A-Za-z0-9_-])")


def _jwt(text: bytes, place: int) -> Iterable[Found]:
    found = _JWT.match(text, place)
    if not found or not EDGE.match(text, place):
        return []
    return [Found("jwt", found.start(), found.end(), _JWT_END)]


_BLANK = rb"(?:[ +]|%20)"
_WHAT = (
    rb"(?:[A-Z0-9]|" + _BLANK + rb"){0,40}PRIVATE" + _BLANK + rb"KEY(?:" + _BLANK + rb"BLOCK)?-----"
)
_BREAK = rb"(?:\\+[nrt]|%0[AaDd]|[\s\"'+,>|#*-])"
_PEM = re.compile(
    rb"-----BEGIN"
    + _BLANK
    + _WHAT
    + rb"(?:"
    + _BREAK
    + rb"{0,80}[A-Za-z][A-Za-z-]{1,19}: [^\r\n\\\0]{0,160}){0,4}"
    + _BREAK
    + rb"{0,80}(?:(?:[A-Za-z0-9+/]|%2[BbFf]){12}|[A-Za-z0-9+/=]{1,11}\Z)"
)
#: its last line, what no key can have in it, or words
_PEM_END = re.compile(
    rb"-----END" + _BLANK + _WHAT + rb"|%(?!0[AaDd]|2[0BbFf]|3[Dd])|[^A-Za-z0-9+/=\s\\\"',:>|#*%-]"
    rb"|(?<![A-Za-z0-9+/=])[A-Za-z0-9,.]{1,15}[ \t]{1,4}[A-Za-z0-9]{1,15}(?![A-Za-z0-9+/=])"
)


def _pem(text: bytes, place: int) -> Iterable[Found]:
    found = _PEM.match(text, place)
    return [Found("private-key", found.start(), found.end(), _PEM_END)] if found else []


_PUTTY = re.compile(rb"Private-Lines: \d{1,3}(?:\r?\n|\\{1,7}n)(?=[A-Za-z0-9+/]{12})")
_PUTTY_END = re.compile(rb"[^A-Za-z0-9+/=\s\\]|Private-MAC")


def _putty(text: bytes, place: int) -> Iterable[Found]:
    found = _PUTTY.match(text, place)
    return [Found("private-key", found.end(), found.end(), _PUTTY_END)] if found else []


# --- headers and URLs ---------------------------------------------------------------------------

_GAP = rb"(?:[ \t]|" + COLOUR + rb"){0,8}"
_AUTHORIZATION = re.compile(
    rb"(?i)authorization\\{0,7}[\"'`]?\]?" + _GAP + rb"[:=,]" + _GAP + rb"(?:[bfr]?\\{0,7}[\"'`])?"
    rb"(?P<scheme>(?:bearer|basic|token|apikey|api-key|key|bot|genie[_-]?key|splunk|ghost|sso-key)"
    rb"[ \t]{1,4}|(?P<line>digest|negotiate|aws4-hmac-sha256)[ \t]{1,4})?" + COLOUR + rb"{0,3}"
)
_BEARER = re.compile(rb"(?i)bearer(?:[ \t]{1,4}|[=:][ \t]{0,4})" + COLOUR + rb"{0,3}")
_COOKIE = re.compile(rb"(?i)cookie\\{0,7}[\"']?:[ \t]{0,4}\\{0,7}[\"']?")


_PAIR = re.compile(rb"(?<![\w.-])[\w.-]{1,64}=[^;\s]{6}")


def _authorization(text: bytes, place: int) -> Iterable[Found]:
    found = _AUTHORIZATION.match(text, place)
    if not found:
        return []
    until = values.LINE_END if found["line"] else bare_end(text, found.end())
    value = piece(text, found.end(), until)
    shaped = values.is_mixed(value) or values.is_random(value)
    good = len(value) >= 6 if found["scheme"] else len(value) >= 8 and shaped
    if (
        not good
        or values.is_none(value)
        or values.is_chain(value)
        or values.is_call(text, found.end())
    ):
        return []
    return [Found("authorization", found.end(), found.end(), until)]


def _bearer(text: bytes, place: int) -> Iterable[Found]:
    found = START.match(text, place) and _BEARER.match(text, place)
    until = bare_end(text, found.end()) if found else None
    value = piece(text, found.end(), until) if found and until else b""
    shaped = values.is_mixed(value) or values.is_random(value)
    if not found or len(value) < 12 or not shaped or values.is_none(value):
        return []
    return [Found("authorization", found.end(), found.end(), until)]


def _cookie(text: bytes, place: int) -> Iterable[Found]:
    found = START.match(text, place) and _COOKIE.match(text, place)
    value = piece(text, found.end(), values.LINE_END) if found else b""
    is_set = text[max(place - 4, 0) : place].lower() == b"set-"
    pair = (_PAIR.match if is_set else _PAIR.search)(value)
    if not found or not pair or values.is_none(value):
        return []
    return [Found("cookie", found.end(), found.end(), values.LINE_END)]


_USERINFO = re.compile(rb":(?:\\{0,7}/){2}(?:[^\s/@:\"'<>\\\0]{0,128}:)?([^\s\"'\\\0]{1,512})\Z")
_AUTHORITY = re.compile(rb"[^/]*\Z|[^/?#]*[/?#][^:]{0,64}\Z")


def _url(text: bytes, place: int) -> Iterable[Found]:
    """The password in front of the host of a URL, seen from the @."""
    lowest = max(place - 700, 0)
    slashes = text.rfind(b"//", lowest, place)
    if slashes < 0:
        slashes = text.rfind(b"/\\/", lowest, place)
    colon = text.rfind(b":", lowest, slashes) if slashes >= 0 else -1
    found = _USERINFO.match(text[colon:place]) if colon >= 0 else None
    if not found:
        return []
    has_user = found[0].count(b":") > 1
    value = found[1]
    if b"/" in value and (re.match(rb"\d{1,5}(?:/|\Z)", value) or not has_user):
        return []  # a port, and a path with an @ in it
    if values.is_none(value) or not (has_user or (len(value) >= 20 and values.is_mixed(value))):
        return []
    return [Found("url", colon + found.start(1), place)]


_PGPASS = re.compile(
    rb"[^:\s\"'/]{1,64}:[^:\s\"'/]{1,64}:(?P<secret>[^\s:\"'\\]{4,128})(?=\s|\\|[\"']|\Z)"
)
_PGPASS_HOST = re.compile(rb"(?:^|[\s\"'+>]|\\n)[\w.*-]{1,128}\Z")


def _pgpass(text: bytes, place: int) -> Iterable[Found]:
    """`host:port:database:user:password`."""
    port = text.find(b":", place + 1, place + 8)
    found = _PGPASS.match(text, port + 1) if port > 0 else None
    if not found or not _PGPASS_HOST.search(text, max(place - 140, 0), place):
        return []
    if values.is_none(found["secret"]):
        return []
    return [Found("password", *found.span("secret"))]


def contexts() -> list[Context]:
    return [*_names(), *_places(), *_commands()]


def _names() -> list[Context]:
    ends = rb"(?=\d{0,2}[\\\"'`\]\s:=!\0\x1b,;|&><])"
    words = (
        *(b"secret", b"token", b"credential", b"credentials", b"key", b"pwd", b"psk", b"pass"),
        *(b"auth", b"jwt", b"_pw", b"_pat", b"passcode", b"secret_key_base", b"key-data"),
        *(b"key_data", b"connectionstring", b"connection_string", b"connection-string"),
        *(b"kennwort", b"masterauth", b"mnemonic"),
    )
    where = "given to a name: in code, YAML, JSON, XML, a query, a table below its heading"
    return [
        Context(
            "password",
            (b"passw", b"passphrase"),
            where,
            assignment,
            'password = "<12>"',
            "password = args.password",
        ),
        Context(
            "password", words, where, assignment, "api_key: <24>", "api_key = api_key", then=ends
        ),
        Context(
            "password",
            (b"sig=", b"signature="),
            "given to a name",
            assignment,
            "https://example.org/a?sv=1&sig=<24>&e=1",
            "signature=inspect.signature(call2)",
        ),
        Context(
            "kubernetes",
            (b"data", b"stringData"),
            "below `data:` of a Secret",
            kubernetes,
            "kind: Secret\ndata:\n  any: <24>",
            "kind: ConfigMap\ndata: any",
            any_case=False,
            then=rb"(?=\\{0,7}\"?[ \t]{0,4}:)",
        ),
    ]


def _places() -> list[Context]:
    return [
        Context(
            "authorization",
            (b"authorization",),
            "a header",
            _authorization,
            "Authorization: Basic <20>",
            "Authorization: required for this",
        ),
        Context(
            "authorization",
            (b"bearer",),
            "a header, or said so",
            _bearer,
            "bearer <24>",
            "the bearer of this letter",
        ),
        Context(
            "cookie",
            (b"cookie",),
            "a header",
            _cookie,
            "Set-Cookie: id=<24>; Path=/",
            "a cookie: it is sweet",
        ),
        Context(
            "url",
            (b"@",),
            "in front of a host",
            _url,
            "https://me:<12>@example.org/",
            "ssh://git@example.org/a/b.git",
        ),
        Context(
            "private-key",
            (b"-----BEGIN ", b"-----BEGIN+", b"-----BEGIN%20"),
            "PEM, OpenSSH, PGP",
            _pem,
            "-----BEGIN RSA PRIVATE KEY-----\n<60>",
            "-----BEGIN CERTIFICATE-----\n<60>",
            any_case=False,
        ),
        Context(
            "private-key",
            (b"Private-Lines: ",),
            "PuTTY",
            _putty,
            "Private-Lines: 8\n<60>",
            "Private-Lines: are what they are",
            any_case=False,
        ),
        Context(
            "jwt",
            (b"eyJ",),
            "a token in parts",
            _jwt,
            "eyJ<30>.eyJ<60>.<43>",
            "eyJ<4>.x",
            any_case=False,
        ),
        Context(
            "password",
            (b":5432:", b":6432:", b":*:"),
            ".pgpass",
            _pgpass,
            "db.example.org:5432:app:me:<14>",
            "10.0.0.1:5432: connection refused",
            any_case=False,
        ),
        Context(
            "password",
            (b"identified",),
            "SQL",
            _statement(
                rb"identified\s{1,4}(?:with\s{1,4}\S{1,40}\s{1,4})?by\s{1,4}"
                rb"(?:password\s{1,4}|values\s{1,4})?"
            ),
            "CREATE USER me IDENTIFIED BY '<12>';",
            "he is identified by name",
        ),
        Context(
            "password",
            (b"password",),
            "SQL",
            _shape(rb"password\s{1,4}(?=\\{0,7}')|password\s{0,2}\((?=\\{0,7}['\"])"),
            "ALTER ROLE me WITH ENCRYPTED PASSWORD '<12>';",
            "the password 'is' a word",
        ),
    ]


def _commands() -> list[Context]:
    def row(words: tuple[bytes, ...], rule: SecretRule, example: str, counter: str) -> Context:
        return Context("password", words, "a command line", rule, example, counter)

    user = rb"(?:-u|--user|--proxy-user|-U)(?:" + _S + rb"|=)?"
    mysql = (
        rb"(?:mysql|mariadb)(?:-?(?:dump|admin|import|show|check))?"
        + _ARGS
        + _S
        + rb"-p(?=[^\s\0\"',-]|[\"'][^\s\0\"',\]])"
    )
    by_p = (
        rb"(?:-p(?:" + _S + rb"|=|(?![a-z-]{2,}(?:[\s\0\"'`=]|\Z)))|--password(?:" + _S + rb"|=))"
    )
    return [
        row(
            (b"curl", b"http ", b"https ", b"xh "),
            _user_and(
                rb"(?:curl(?:\.exe)?|https?|xh)"
                + _ARGS
                + _S
                + rb"(?:"
                + user
                + rb"|-a"
                + _S
                + rb")"
            ),
            "curl -sS -u me:<12> https://example.org",
            "curl -sS -o out https://example.org",
        ),
        row(
            (b"mysql", b"mariadb"),
            _shape(mysql),
            "mysqldump -u root -p<12> db",
            "mysql -u root -p db",
        ),
        row(
            (b"sshpass",),
            _shape(rb"sshpass" + _ARGS + _S + rb"-p" + _S + rb"?"),
            "sshpass -p <12> ssh host",
            "sshpass -e ssh host",
        ),
        row(
            (b"login",),
            _shape(rb"login(?![\w-])" + _ARGS + _S + by_p),
            "docker login -u me -p <12> example.org",
            "docker login -progress plain",
        ),
        row(
            (b"redis-cli",),
            _shape(rb"redis-cli" + _ARGS + _S + rb"(?:-a|--pass)" + _S + rb"?"),
            "redis-cli -h host -a <12> ping",
            "redis-cli -h host ping",
        ),
        row(
            (b"mongo",),
            _shape(rb"mongo(?:sh|dump|restore|export|import)?" + _ARGS + _S + by_p),
            "mongosh -u me -p <12> db",
            "mongodb -path",
        ),
        row(
            (b"ldap",),
            _shape(rb"ldap(?:search|modify|add|delete|passwd|whoami)" + _ARGS + _S + rb"-w" + _S),
            "ldapsearch -x -D cn=me -w <12>",
            "ldapsearch -x -W",
        ),
        row(
            (b"sqlcmd", b"sqlplus"),
            _shape(
                rb"(?:sqlcmd"
                + _ARGS
                + _S
                + rb"-P"
                + _S
                + rb"?|sqlplus"
                + _S
                + rb"(?:-\w{1,2}"
                + _S
                + rb"){0,3}\w{1,32}/)"
            ),
            "sqlcmd -S host -U me -P <12>",
            "sqlcmd -S host -E",
        ),
        row(
            (b"smbclient",),
            _user_and(rb"smbclient" + _ARGS + _S + user),
            "smbclient //host/share -U me%<12>",
            "smbclient //host/share -N",
        ),
        row(
            (b"pass:",),
            _shape(rb"(?<=[\s\0\"'=])pass:"),
            "openssl rsa -passin pass:<12> -in k",
            "by pass: it is shut",
        ),
        row(
            (b"zip", b"unzip"),
            _shape(rb"(?:zip|unzip)" + _ARGS + _S + rb"-P" + _S),
            "zip -P <12> a.zip b",
            "zip -r a.zip b",
        ),
        row(
            (b"htpasswd",),
            _shape(
                rb"htpasswd"
                + _S
                + rb"(?:-\w{1,8}"
                + _S
                + rb"){1,6}(?:[\w./-]{1,64}"
                + _S
                + rb"){1,2}"
            ),
            "htpasswd -bc file me <12>",
            "htpasswd -c file",
        ),
        row(
            (b"useradd", b"usermod"),
            _shape(rb"user(?:add|mod)" + _ARGS + _S + rb"-p" + _S),
            "useradd -m -p <12> me",
            "useradd -m me",
        ),
        row(
            (b"--from-literal",),
            _shape(rb"--from-literal(?:=|" + _S + rb")" + _Q + rb"[\w.-]{1,64}="),
            "kubectl create secret generic x --from-literal=any=<12>",
            "--from-literal is an option",
        ),
        row((b"chpasswd",), _chpasswd, "echo 'me:<12>' | chpasswd", "chpasswd reads pairs"),
        row(
            (b"--password-stdin", b"--token-stdin", b"--with-token"),
            _from_stdin,
            "echo <12> | docker login -u me --password-stdin",
            "cat file | docker login -u me --password-stdin",
        ),
    ]


_PIPED = re.compile(
    rb"[\s\"'\0](?P<user>[\w.-]{1,32}):(?P<secret>[^\s\"'\\\0]{4,128})"
    rb"[\"']?\s{0,4}\|\s{0,4}(?:sudo\s)?\Z"
)


def _chpasswd(text: bytes, place: int) -> Iterable[Found]:
    found = _PIPED.search(text, max(place - 2 * LOOK, 0), place)
    if not found or values.is_none(found["secret"]):
        return []
    return [Found("password", *found.span("secret"))]


_ECHOED = re.compile(
    rb"(?:echo|printf)(?:\s-[neE]{1,3}|\s[\"']?%s[\"']?)?\s{1,4}[\"']?"
    rb"(?P<secret>[^\s\"'\\\0|-][^\s\"'\\\0|]{3,128})[\"']?\s{0,4}\|[^\r\n|;]{0,160}\Z"
)
_HERE = re.compile(rb"[^\r\n|;<]{0,160}<<<\s{0,4}[\"']?(?P<secret>[^\s\"'\\\0]{4,128})")


def _from_stdin(text: bytes, place: int) -> Iterable[Found]:
    """What a shell gives to a program that reads its password from stdin."""
    found = _ECHOED.search(text, max(place - 4 * LOOK, 0), place) or _HERE.match(text, place)
    if not found or values.is_none(found["secret"]):
        return []
    return [Found("password", *found.span("secret"))]


__all__ = ["Context", "contexts"]
