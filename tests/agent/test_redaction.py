"""No secret that was seeded comes out, at whatever places the bytes were cut."""

from __future__ import annotations

import base64
import json
import random
import re
import threading
import time
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import stream
from stream.redaction.policy import Redactor
from stream.redaction.values import is_plain_value, names_secret
from tests.sweeping import every, thorough

KEY_LINES = "\n".join("MIIEpAIBAAKCAQEA" + f"{n:02}" * 24 for n in range(10, 35))
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{KEY_LINES}\nAbc=\n-----END RSA PRIVATE KEY-----"
ENVIRONMENT = {
    "MY_SERVICE_TOKEN": 'Zq9!tr"ick/y\\sécret=',
    "DB_PASSWORD": "correct-horse-3-battery",
    "DEPLOY_KEY": "-----no pem-----\nline one of it 1\nline two of it 2",
    "HOME": "/home/user",
    "TERM": "xterm-256color",
}
_A = "aB3" * 40
# what is written, and what of it must never come out
SEEDED: dict[str, tuple[str, str]] = {
    "env": ('it is Zq9!tr"ick/y\\sécret= here', 'Zq9!tr"ick/y\\sécret='),
    "env of lines": (ENVIRONMENT["DEPLOY_KEY"], "line one of it 1\nline two of it 2"),
    "anthropic": (f"key sk-ant-api03-{_A[:90]}", f"sk-ant-api03-{_A[:90]}"),
    "openai": (f"key sk-proj-{_A[:60]}", f"sk-proj-{_A[:60]}"),
    "github": (f"x=ghp_{_A[:36]}", f"ghp_{_A[:36]}"),
    "github fine": (f"github_pat_{_A[:82]}", f"github_pat_{_A[:82]}"),
    "github app": (f"a\\nghs_{_A[:36]}", f"ghs_{_A[:36]}"),
    "gitlab": (f"(glpat-{_A[:20]})", f"glpat-{_A[:20]}"),
    "slack": ("xoxb-123456789012-abcdefABCDEF", "xoxb-123456789012-abcdefABCDEF"),
    "aws": ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    "google": (f"AIza{_A[:35]}", f"AIza{_A[:35]}"),
    "npm": (f"_authToken=npm_{_A[:36]}", f"npm_{_A[:36]}"),
    "pypi": (f"pypi-AgEIcHlwaS5vcmc{_A[:60]}", f"pypi-AgEIcHlwaS5vcmc{_A[:60]}"),
    "huggingface": (f"hf_{_A[:34]}", f"hf_{_A[:34]}"),
    "sendgrid": (f"SG.{_A[:22]}.{_A[:43]}", f"SG.{_A[:22]}.{_A[:43]}"),
    "stripe": (f"sk_live_{_A[:24]}", f"sk_live_{_A[:24]}"),
    "stripe restricted": (f"rk_live_{_A[:24]}", f"rk_live_{_A[:24]}"),
    "jwt": (f"eyJ{_A[:40]}.eyJ{_A}.{_A[:43]}", f"eyJ{_A[:40]}.eyJ{_A}.{_A[:43]}"),
    "long jwt": (f"eyJ{_A[:40]}.eyJ{_A * 80}.{_A[:43]}", f"eyJ{_A * 80}.{_A[:43]}"),
    "bearer": ("Authorization: Bearer qwertzuiopas", "qwertzuiopas"),
    "bearer in json": ('{"Authorization": "Bearer qwertzuiop12"}', "qwertzuiop12"),
    "bearer alone": ("curl -H 'bearer qwertzuiop12'", "qwertzuiop12"),
    "basic": ("authorization: basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA=="),
    "x-api-key": ("x-api-key: abcdefghijkl", "abcdefghijkl"),
    "cookie": ("Set-Cookie: session=abcdefghijkl; Path=/", "abcdefghijkl"),
    "assigned": ('password = "tr0ub4dor&3xyz"', "tr0ub4dor&3xyz"),
    "typed": ('password: str = "tr0ub4dor&3xyz"', "tr0ub4dor&3xyz"),
    "with blanks": ("passphrase = 'correct horse battery'", "correct horse battery"),
    "yaml": ("api_key: abcd1234efgh5678", "abcd1234efgh5678"),
    "yaml password": ("  password: hunter2hunter2", "hunter2hunter2"),
    "env file": ("export SOME_SECRET=abcdefghijklmn", "abcdefghijklmn"),
    "option": ("login --password hunter2hunter2 now", "hunter2hunter2"),
    "option with =": ("login --db-password=correcthorse now", "correcthorse"),
    "option in json": ('["--token", "abcdefgh-ijkl"]', "abcdefgh-ijkl"),
    "query": ("GET /x?a=b&token=abcdefghijkl&c=d", "abcdefghijkl"),
    "json": ('{"password": "abc\\"defghijkl"}', 'abc\\"defghijkl'),
    "json in json": ('"{\\"password\\": \\"abc\\\\\\"defghijkl\\"}"', "defghijkl"),
    "json twice": (
        json.dumps(json.dumps({"a": json.dumps({"password": "a'b\"cdefghijklm"})})),
        "cdefghijklm",
    ),
    "url": ("postgres://admin:s3cr3t-pa55word@db:5432/x", "s3cr3t-pa55word"),
    "xml": ("<password>hunter2hunter2</password>", "hunter2hunter2"),
    "netrc": ("machine a.org login me password hunter2hunter2\n", "hunter2hunter2"),
    "signed url": ("https://x.org/a?sv=1&sig=abcdefghijkl&e=1", "abcdefghijkl"),
    "url in json": ("https:\\/\\/admin:s3cr3t-pa55word@host", "s3cr3t-pa55word"),
    "pem": (PEM, KEY_LINES),
    "pem in json": (json.dumps(PEM), json.dumps(KEY_LINES)[1:-1]),
    "pem in a diff": ("+" + PEM.replace("\n", "\n+"), KEY_LINES.replace("\n", "\n+")),
    "pem on one line": (PEM.replace("\n", " "), KEY_LINES.replace("\n", " ")),
    "pem of pgp": (
        PEM.replace("RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK").replace(
            "\n", "\nVersion: GnuPG v1\n\n", 1
        ),
        KEY_LINES,
    ),
}


def cut_secret(secret: str) -> set[bytes]:
    data = secret.encode()
    return {data[n : n + 12] for n in range(max(len(data) - 11, 1))}


def check_clean(output: bytes, secret: str) -> None:
    assert secret.encode() not in output
    for piece in cut_secret(secret):
        assert piece not in output, (piece, output[-500:])


def redact_in_parts(redactor: Redactor, data: bytes, places: list[int]) -> bytes:
    stream_ = redactor.begin_stream()
    edges = [0, *sorted(places), len(data)]
    parts = [stream_.feed(data[a:b]) for a, b in pairwise(edges)]
    return b"".join([*parts, stream_.finish()])


@pytest.mark.parametrize("name", SEEDED)
def test_a_secret_does_not_come_out(name: str) -> None:
    written, secret = SEEDED[name]
    text = f"first line\n{written}\nlast line\n"
    output = Redactor(ENVIRONMENT).redact_text(text)
    check_clean(output.encode(), secret)
    assert output.startswith("first line\n")
    assert output.endswith("\nlast line\n"), output[-200:]


FILLER = "some words that are nothing special, and a line\n" * 60  # more than what is held back


def redact_in_chunks(redactor: Redactor, data: bytes, size: int, first: int = 0) -> bytes:
    return redact_in_parts(redactor, data, [*range(first, len(data), size)])


@every(5)
@pytest.mark.parametrize("name", SEEDED)
@pytest.mark.parametrize("size", [1, 61])
def test_it_does_not_where_the_bytes_are_cut_anywhere(
    name: str, size: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.redaction.scanner.STEP", 1)
    written, secret = SEEDED[name]
    data = f"{FILLER}{written}\n{FILLER}".encode()
    whole = Redactor(ENVIRONMENT).redact_bytes(data)
    check_clean(whole, secret)
    for first in range(0, size, 6 * step):
        assert redact_in_chunks(Redactor(ENVIRONMENT), data, size, first) == whole


# Secrets that have a part in each other, or end where something else begins.
CROWDED = [
    'token=Zq9!tr"ick/y\\sécret=',
    'password="a;b',
    "https://user:password=abcdefgh1;2@host/",
    "https://user:" + "token=abcdefgh1" * 20 + "@host/",
    "x-api-key: correct-horse-3-battery-and-more;, next",
    "DB_TOKEN=abcdefgh;;; next",
    "DB_TOKEN=correct-horse-3-battery;correct-horse-3-battery",
    "DB_TOKEN=xx;correct-horse-3-battery yyyy",
    "secret=abcdefghcorrect-horse-3-battery\\correct-horse-3-battery",
    '"password": "' + PEM + '"',
    "PRIVATE_KEY=" + json.dumps(PEM) + PEM,
    PEM[:900] + " password=abcdefgh1 " + PEM,
    "Authorization: Bearer eyJ" + _A + ".eyJ" + _A * 30 + ".x. next",
    f"https://x:ghp_{_A[:36]}@github.com",
    'password = "' + "\\" * 300 + '" next',
    'password = "' + "a" * 5000 + '" next',
]


@pytest.mark.parametrize("number", range(len(CROWDED)))
@pytest.mark.parametrize("size", [1, 61])
def test_nor_where_secrets_overlap(number: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.redaction.scanner.STEP", 1)
    data = f"{FILLER}{CROWDED[number]}\n{FILLER}".encode()
    whole = Redactor(ENVIRONMENT).redact_bytes(data)
    for value in ("abcdefgh1", "correct-horse", "0123456789012", "MIIEpAIBAAKCAQEA", "eyJaB3"):
        assert value.encode() not in whole
    assert whole.startswith(FILLER.encode())
    assert whole.endswith(FILLER.encode())
    for first in range(0, size, 20):
        assert redact_in_chunks(Redactor(ENVIRONMENT), data, size, first) == whole


def test_overlapping_secrets_are_one() -> None:
    redactor = Redactor(ENVIRONMENT)
    assert (
        redactor.redact_text("(https://u:password=abcdefgh1;2@host/)")
        == "(https://u:[redacted:url:1])"
    )
    assert redactor.redact_text("DB_TOKEN=xxxxxx;correct-horse-3-battery yyyy").endswith("] yyyy")


_parts = st.one_of(
    st.sampled_from([written for written, _ in SEEDED.values()]),
    st.deferred(lambda: st.sampled_from(CROWDED)),
    st.just(FILLER),
    st.text(max_size=30),
    st.sampled_from(['"', "\\", '\\\\"', "\n", " ", "@", "://", "password=", "-----END", "token"]),
    st.integers(1, 3000).map(lambda n: "a" * n),
    st.integers(1, 3000).map(lambda n: "word " * n),
)


@thorough(150, deadline=None)
@given(
    st.lists(_parts, min_size=3, max_size=20), st.integers(1, 5000), st.sampled_from([1, 50, 5000])
)
def test_the_output_depends_on_the_bytes_alone(parts: list[str], size: int, step: int) -> None:
    text = "".join(parts).encode("utf-8", "replace")
    size = max(size, len(text) // 400)
    whole = Redactor(ENVIRONMENT).redact_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stream.redaction.scanner.STEP", step)
        assert redact_in_chunks(Redactor(ENVIRONMENT), text, size) == whole


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(SEEDED)), min_size=1, max_size=8), st.integers(0, 9000))
@example(["url", "url in json"], 0)
def test_none_of_many_secrets_comes_out(names: list[str], before: int) -> None:
    text = "." * before + "\n" + "\n\n".join(SEEDED[name][0] for name in names) + "\n"
    output = Redactor(ENVIRONMENT).redact_bytes(text.encode())
    for name in names:
        check_clean(output, SEEDED[name][1])


@settings(max_examples=60, deadline=None)
@given(st.lists(_parts, max_size=8))
def test_redacting_twice_changes_nothing_more(parts: list[str]) -> None:
    redactor = Redactor(ENVIRONMENT)
    once = redactor.redact_bytes("".join(parts).encode("utf-8", "replace"))
    for token in re.findall(rb"\[redacted:[a-z0-9-]+:\d+\]", once):
        assert redactor.redact_bytes(token) == token
        assert redactor.redact_bytes(b'password = "%s"' % token) == b'password = "%s"' % token


def test_a_cut_private_key_does_not_come_out() -> None:
    for length in range(len("-----BEGIN RSA PRIVATE KEY-----\n"), len(PEM), 7):
        output = Redactor({}).redact_bytes(PEM[:length].encode())
        for piece in cut_secret(KEY_LINES):
            assert piece not in output, length


def test_what_only_speaks_of_a_private_key_stays() -> None:
    text = 'if "-----BEGIN RSA PRIVATE KEY-----" in text:\n    raise Bad("a key")\n'
    assert Redactor({}).redact_text(text) == text


def test_words_after_a_cut_key_stay() -> None:
    text = f"-----BEGIN PRIVATE KEY-----\n{KEY_LINES}\nand so on, it was cut here\n"
    output = Redactor({}).redact_text(text)
    assert output == "[redacted:private-key:1]and so on, it was cut here\n"


def test_the_same_secret_is_the_same_token_and_others_count_on() -> None:
    redactor = Redactor({})
    first = redactor.redact_text('password = "tr0ub4dor&3xyz" --password=other-secret-2')
    assert first == 'password = "[redacted:password:1]" --password=[redacted:password:2]'
    again = redactor.redact_text(
        "postgres://u:tr0ub4dor&3xyz@h\n" + '{"password": "other-secret-2"}'
    )
    assert "[redacted:password:1]" in again
    assert "[redacted:password:2]" in again


def test_the_same_key_is_the_same_token_however_it_is_written() -> None:
    redactor = Redactor({})
    assert redactor.redact_text(PEM) == redactor.redact_text(json.dumps(PEM)).strip('"')
    assert redactor.redact_text(PEM) == "[redacted:private-key:1]"


def test_every_form_of_a_value_of_the_environment_is_one_token() -> None:
    value = ENVIRONMENT["MY_SERVICE_TOKEN"]
    forms = [
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(value))[3:-3],
        "Zq9%21tr%22ick%2Fy%5Cs%C3%A9cret%3D",
        "Zq9%21tr%22ick%2fy%5cs%c3%a9cret%3d",
        base64.b64encode(value.encode()).decode(),
        base64.urlsafe_b64encode(b"u:" + value.encode()).decode(),
        base64.b64encode(b"x" + value.encode() + b"yyy").decode(),
    ]
    redactor = Redactor(ENVIRONMENT)
    for form in forms:
        output = redactor.redact_text(f"<{form}>")
        assert "[redacted:env:1]" in output, form
        check_clean(output.encode(), form)


def test_the_lines_of_a_value_are_secret_too() -> None:
    output = Redactor({"SIGNING_KEY": PEM}).redact_text("tail: " + "\n".join(PEM.splitlines()[-4:]))
    assert output.splitlines()[:2] == ["tail: [redacted:env:1]", "[redacted:env:1]"]


def test_the_password_of_a_url_in_the_environment_is_secret_alone() -> None:
    redactor = Redactor({"DATABASE_URL": "postgres://app:s3cr3t-pa55@db/x", "URL": "http://a@b"})
    assert redactor.redact_text("it is s3cr3t-pa55") == "it is [redacted:env:1]"


def test_blanks_around_a_value_do_not_hide_it() -> None:
    assert Redactor({"A_TOKEN": "abcdef123\n"}).redact_text("abcdef123") == "[redacted:env:1]"


def test_a_long_value_of_the_environment_is_found_in_pieces() -> None:
    value = "".join(random.Random(3).choices("abcdefghijklmnopqrstuvwxyzABC0123456789", k=9000))
    output = Redactor({"BIG_SECRET": value}).redact_text(f"<{value}>")
    assert set(re.findall(r"[^<>]+", output)) == {"[redacted:env:1]" * 5}


def test_the_words_of_a_command_are_seen_together() -> None:
    words = ["login", "--password", "hunter2hunter2", "--header", "Authorization: Bearer abcdef12"]
    output = Redactor({}).redact_text("\0".join(words)).split("\0")
    assert output == [
        "login",
        "--password",
        "[redacted:password:1]",
        "--header",
        "Authorization: Bearer [redacted:authorization:2]",
    ]


ESCAPES = (
    *(r"\0", r"\7", r"\12", r"\033", r"\b", r"\f", r"\n", r"\e"),
    *(r"\xff", r"\\x0a", r"\u001b", "%2F"),
    *(
        "\x1b[m",
        "\x1b[31m",
        "\x1b[01;31m\x1b[K",
        r"\u001b[31m",
        r"\033[0m",
        r"\e[1;32m",
        r"\x1b[31m",
    ),
)
AFTER_ESCAPES = {
    f"ghp_{_A[:36]}": f"ghp_{_A[:36]}",
    f"eyJ{_A[:40]}.eyJ{_A}.{_A[:43]}": f"{_A[:43]}",
    "bearer qwertzuiop12": "qwertzuiop12",
    "Cookie: session=abcdefghijkl": "abcdefghijkl",
    "password=tr0ub4dor3xyz": "tr0ub4dor3xyz",
    "pwd: tr0ub4dor3xyz": "tr0ub4dor3xyz",
    "sig=abcd1234efgh5678": "abcd1234efgh5678",
}


@pytest.mark.parametrize("text", AFTER_ESCAPES)
def test_the_end_of_an_escape_hides_no_secret(text: str) -> None:
    """Its last letter or digit is no part of the word that follows."""
    for escape in ESCAPES:
        output = Redactor({}).redact_text(f"it{escape}{text} ")
        assert output.startswith(f"it{escape}"), output
        assert "[redacted:" in output, output
        assert AFTER_ESCAPES[text] not in output


def test_what_is_not_utf_8_goes_through() -> None:
    assert Redactor({}).redact_text("a\udcff") == "a\udcff"
    assert Redactor({}).redact_bytes(b"a\xff\0") == b"a\xff\0"


def test_half_of_a_surrogate_pair_goes_through() -> None:
    assert Redactor({}).redact_text("a\ud800b") == "a\ud800b"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("ANTHROPIC_API_KEY", True),
        ("GITHUB_TOKEN", True),
        ("DB_PASSWORD_2", True),
        ("npm_config__authToken", True),
        ("SENTRY_DSN", True),
        ("SESSION_COOKIE", True),
        ("TOKEN_FILE", False),
        ("AUTH_METHOD", False),
        ("GIT_AUTHOR_NAME", False),
        ("KEYBOARD", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("PATH", False),
        ("", False),
    ],
)
def test_which_names_are_secret(name: str, secret: bool) -> None:
    assert names_secret(name) is secret


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ("short", True),
        ("true", True),
        ("default", True),
        ("password", True),
        ("12345678", True),
        ("/run/user/1000/keyring", True),
        ("disabled", True),
        ("hunter2", False),
        ("correcthorse", False),
        ("1234567890123", False),
        ("/Ab3xY7+kQ==", False),
    ],
)
def test_which_values_are_plain(value: str, plain: bool) -> None:
    assert is_plain_value(value) is plain


ORDINARY = [
    "commit 3f2504e04f8941d39a0c0305e82c3301a1b2c3d4",
    "id: 3f2504e0-4f89-41d3-9a0c-0305e82c3301",
    '"integrity": "sha512-' + base64.b64encode(bytes(range(64))).decode() + '",',
    'checksum = "' + "0123456789abcdef" * 4 + '"',
    '"js-tokens": "^4.0.0", "jsonwebtoken": "^9.0.2-beta.1"',
    'resolved "https://example.com/@babel/x/-/x-7.1.0.tgz#' + "ab12" * 10 + '"',
    "token = self.next_token()",
    "if (token !== !user1.token2) {",
    "_token = rf'[0-9]{_nl}abc'",
    "signature = inspect.signature(call2)",
    "the <token>abc</token> element",
    "password = args.password",
    'password = os.environ["DB_PASSWORD2"]',
    "password: str | None = None",
    "api_key=api_key, token=token",
    "const token = getToken(user1);",
    "secret: SecretStr",
    'password = "${DB_PASSWORD}"',
    'token = f"{prefix1}_{name}"',
    "max_tokens: 4096",
    '"password": {"type": "string"}',
    'help="Enter your password"',
    'password = getpass("Password: ", stream)',
    "prompt='Password: ', stream=None)",
    "from: someone <someone@example.org>",
    "git clone ssh://git@github.com/a/b.git",
    "https://example.org:8080/a@b/c",
    "--password PASSWORD    the password to use",
    "task-force risk-management-and-something-else-2",
    "class sk-folding-cube-animation-item-number2",
    "npm_config_registry_setting_with_a_long_name_that_goes_on",
    "the bearer of this letter, a basic token of trust",
    "Authorization: required for this",
    "-----BEGIN CERTIFICATE-----\n" + KEY_LINES + "\n-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----\n" + KEY_LINES + "\n-----END PUBLIC KEY-----",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_source_stays_as_it_is(text: str) -> None:
    assert Redactor({"HOME": "/root"}).redact_text(text) == text


def test_the_source_of_this_package_stays_as_it_is() -> None:
    """Its own rules name every word that a secret may have next to it."""
    redactor = Redactor({"HOME": "/root", "API_KEY": "true", "AUTH_MODE": "stream"})
    house = Path(stream.__file__).parent
    changed = [
        str(path.relative_to(house))
        for path in sorted(house.rglob("*.py"))
        if redactor.redact_bytes(path.read_bytes()) != path.read_bytes()
    ]
    assert changed == []


def test_random_base64_stays_as_it_is() -> None:
    data = base64.encodebytes(random.Random(5).randbytes(300_000))
    assert Redactor(ENVIRONMENT).redact_bytes(data) == data


@every(4)
def test_memory_is_bounded_without_newlines(step: int) -> None:
    redactor = Redactor(ENVIRONMENT)
    heads = (b"", b'password = "', b"token=", PEM[:200].encode(), b"eyJ" + b"a" * 40 + b".eyJ")
    for head in heads:
        stream_ = redactor.begin_stream()
        stream_.feed(head)
        stream_.feed(b"A" * (1 << 17))
        tracemalloc.start()
        for _ in range(100 // step):
            stream_.feed(b"A" * (1 << 17))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2 << 20, head
        stream_.finish()


@pytest.mark.parametrize(
    "unit",
    [
        "token=",
        'password="',
        "\\",
        "-----BEGIN PRIVATE KEY-----",
        "://a:b@",
        "eyJaaaaaaaaaaa.",
        "k",
    ],
)
def test_no_input_takes_forever(unit: str) -> None:
    data = (unit * (1 << 18))[: 1 << 18].encode()
    start = time.process_time()
    Redactor(ENVIRONMENT).redact_bytes(data)
    spent = time.process_time() - start
    assert spent < 5


def test_streams_of_several_threads_share_the_numbers() -> None:
    redactor = Redactor({})
    outputs: list[bytes] = []

    def redact_lines() -> None:
        lines = [f'password = "secret-number-{n}"\n'.encode() for n in range(200)]
        outputs.append(redact_in_parts(redactor, b"".join(lines), []))

    threads = [threading.Thread(target=redact_lines) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(outputs)) == 1
    tokens = set(re.findall(rb"\[redacted:password:(\d+)\]", outputs[0]))
    assert tokens == {str(n).encode() for n in range(1, 201)}


def test_there_is_an_end_to_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.redaction.policy.MOST", 1)
    text = 'password = "secret-one" password = "secret-two" password = "secret-one"'
    one, two = '"[redacted:password:1]"', '"[redacted:password:more]"'
    assert Redactor({}).redact_text(text) == f"password = {one} password = {two} password = {one}"
