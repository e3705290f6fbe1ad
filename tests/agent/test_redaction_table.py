"""The tables of the rules hold what they promise, and few of many made-up secrets come out."""

from __future__ import annotations

import base64
import json
import random
import re
import sysconfig
import uuid
from collections import Counter
from pathlib import Path

import pytest

from stream.redaction.patterns import CONTEXTS, KEYS, Context, Key
from stream.redaction.policy import Redactor
from tests.agent.seeded import CHANNELS, fill_template, iter_written, make_secrets

ROWS: list[Key | Context] = [*KEYS, *CONTEXTS]


@pytest.mark.parametrize("seed", range(3))
def test_the_example_of_a_row_is_found_and_its_counter_example_is_not(seed: int) -> None:
    for row in ROWS:
        rng = random.Random(seed)
        example, counter = fill_template(row.example, rng), fill_template(row.counter, rng)
        redactor = Redactor({})
        assert f"[redacted:{row.kind}:1]" in redactor.redact_text(f"see {example}\n"), example
        assert Redactor({}).redact_text(f"see {counter}\n") == f"see {counter}\n", row.kind


def test_the_kinds_of_the_tables_are_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "schema" / "redaction.md").read_text()
    assert [row.kind for row in ROWS if f"`{row.kind}`" not in page] == []


def is_left(secret: str, shown: list[str], output: str) -> bool:
    return any(form in output for form in shown) or (len(secret) > 15 and secret[-10:] in output)


def test_of_secrets_of_many_kinds_in_many_places_less_than_three_in_a_hundred_stay() -> None:
    all_, left = 0, []
    for secret, channel, text, shown in iter_written(seed=12):
        all_ += 1
        if is_left(secret.value, shown, Redactor({}).redact_text(f"first\n{text}\nlast\n")):
            left.append((secret.kind, channel))
    assert len(list(make_secrets(12))) >= 90
    assert len(CHANNELS) >= 17
    assert all_ >= 1500
    assert len(left) < 0.03 * all_, Counter(left)
    most = Counter(kind for kind, _ in left).most_common(1)
    assert not most or most[0][1] <= 3, left  # no kind is blind


def test_they_do_not_come_out_of_a_stream_cut_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    chosen = rng.sample(list(iter_written(seed=13)), 60)
    data = "".join(
        f"{text}\n" + "a line\n" * rng.randrange(40) for _, _, text, _ in chosen
    ).encode()
    whole = Redactor({}).redact_bytes(data)
    monkeypatch.setattr("stream.redaction.scanner.STEP", 1)
    stream_ = Redactor({}).begin_stream()
    edges = sorted(rng.sample(range(len(data)), 120))
    pieces = [data[a:b] for a, b in zip([0, *edges], [*edges, len(data)], strict=True)]
    assert b"".join([*map(stream_.feed, pieces), stream_.finish()]) == whole


def test_a_long_table_is_read_to_its_end_however_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(4)
    values = [fill_template("<14>", rng) for _ in range(400)]
    rows = "".join(f"{n},user{n},{value},x\n" for n, value in enumerate(values))
    text = f"id,user,password,note\n{rows}\nid and user, a line\n".encode()
    whole = Redactor({}).redact_bytes(text)
    assert whole.count(b"[redacted:password:") == 400
    assert whole.endswith(b"\nid and user, a line\n")
    monkeypatch.setattr("stream.redaction.scanner.STEP", 1)
    stream_ = Redactor({}).begin_stream()
    cut = [stream_.feed(text[at : at + 97]) for at in range(0, len(text), 97)]
    assert b"".join([*cut, stream_.finish()]) == whole


TABLES = {
    "tabs": "user\tpassword\nme\t{}\n",
    "bars": "| user | password |\n|------|----------|\n| me | {} |\n",
    "psql": " user | password \n------+----------\n me   | {} \n",
    "blanks": "USER    PASSWORD          ROLE\nme      {}    admin\n",
    "a full column": "user   password       role\nme     {} admin\n",
    "an empty cell": "user   password        role\nyou                    x\nme     {}   y\n",
    "too long a name": "user   password    role\nsomebody {} x\n",
    "far apart": f"user  password{' ' * 90}role\nme    {{}}   x\n",
    "quoted": '"user","password"\n"me","{}"\n',
    "in json": '{{"content":"user,password\\nme,{}\\n"}}\n',
}


@pytest.mark.parametrize("table", TABLES)
def test_a_column_by_its_heading(table: str) -> None:
    value = fill_template("<14>", random.Random(table))
    output = Redactor({}).redact_text(TABLES[table].format(value))
    assert output == TABLES[table].format("[redacted:password:1]")


def test_a_secret_of_kubernetes_and_nothing_else_of_its_document() -> None:
    value = base64.b64encode(b"postgres://x").decode()
    text = (
        "items:\n- apiVersion: v1\n  data:\n    one: {0}\n    two: {0}\n  kind: {1}\n"
        "  metadata:\n    name: example\n"
    )
    secret = text.format(value, "Secret")
    shown = Redactor({}).redact_text(secret)
    assert shown == text.format("[redacted:kubernetes:1]", "Secret")
    assert Redactor({}).redact_text(json.dumps(secret)) == json.dumps(shown)
    other = text.format("plain text", "ConfigMap")
    assert Redactor({}).redact_text(other) == other
    as_json = {"kind": "Secret", "data": {"a.b": value, "c": "aGVsbG8="}, "type": "Opaque"}
    output = json.loads(Redactor({}).redact_text(json.dumps(as_json)))
    assert output["data"] == {"a.b": "[redacted:kubernetes:1]", "c": "[redacted:kubernetes:2]"}
    assert output["type"] == "Opaque"


BASIC = base64.b64encode(b"me:pw123456").decode()
STAYED = {  # what is written, with {} for the secret, and the secret
    "base64 that ends like a type": ("password: {}\n", "c2VjcmV0LXZhbHVlLTEyMzQ="),
    "an option and letters": ("mycli --password {} run\n", "orbitvelvet"),
    "behind a >": ("Authorization: Bearer {}\n", "TuMf8kQz2>tail9xWv3"),
    "a quote inside": ('DB_PASSWORD={}\n', "ab'cd\"efgh12"),
    "name and value": ('{{"name": "DB_PASSWORD", "value": "{}"}}\n', "ab12cd34efgh"),
    "env of kubernetes": ("- name: API_TOKEN\n  value: {}\n", "ab12cd34efgh"),
    "plist": ("<key>password</key>\n<string>{}</string>\n", "orbit velvet"),
    "docker": ('{{"auths": {{"x": {{"auth": "{}"}}}}}}\n', BASIC),
    "npmrc": ("//registry.example.org/:_auth={}\n", BASIC),
    "legacy Vault": ("vault_token: {}\n", f"s.{'aB3' * 8}"),
    "the key of a storage": ("the storage key: {}\n", "aB3" * 12),
    "a slash in a url": ("postgres://me:{}@db/x\n", "ab/cd+ef12"),
    "unzip": ("unzip -P {} a.zip\n", "orbitvelvet"),
    "quotes behind -p": ("mysql -u root -p'{}' app\n", "Walnut731!onion"),
    "the second cookie": ("Cookie: theme=dark; sessionid={}\n", "okxdmbxoin"),
    "in German": ("Passwort: {}\n", "kcstbyerxp"),
    "echo and a pipe": ("echo '{}' | docker login -u me --password-stdin\n", "orbitvelvet"),
    "printf and a pipe": ("printf %s {} | gh auth login --with-token\n", "ab12cd34efgh"),
    "a here string": ("docker login -u me --password-stdin <<< '{}'\n", "orbitvelvet"),
    "a colour before a key": (
        "\x1b[32m{}\x1b[0m\n", f"{'aB3' * 4}cD.{'atlas' + 'v1'}.{'xY7' * 22}z",
    ),
    "all bytes percent-encoded": (
        "q={}\n", "".join(f"%{byte:02X}" for byte in f"gl{'pat-'}{'aB3' * 7}".encode()),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYED)
def test_what_stayed_once_does_not(name: str) -> None:
    text, secret = STAYED[name]
    output = Redactor({}).redact_text(text.format(secret))
    assert secret not in output
    assert secret[-5:] not in output
    assert "[redacted:" in output


@pytest.mark.parametrize("form", ["\x1b", r"\u001b", r"\033", r"\e"])
@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("<96>API_TOKEN<0>=<33>{}<0> ok", "<96>API_TOKEN<0>=<33>[redacted:password:1]<0> ok"),
        (
            "<1;94>password:<39;49> <33>{}<39>",
            "<1;94>password:<39;49> <33>[redacted:password:1]<39>",
        ),
        (
            '<34>"secret"<0><1>:<0> <32>"{}"<0>',
            '<34>"secret"<0><1>:<0> <32>"[redacted:password:1]"<0>',
        ),
        ("me --password=<33>{}<0> db", "me --password=<33>[redacted:password:1]<0> db"),
        ("me --password <33>'{}'<0> db", "me --password <33>'[redacted:password:1]'<0> db"),
        ("docker login -p <1>{}<0>", "docker login -p <1>[redacted:password:1]<0>"),
        ("curl -u me:<1>{}<0> x", "curl -u me:<1>[redacted:password:1]<0> x"),
        (
            "<36>Authorization<0>: <33>Basic <1>{}<0>",
            "<36>Authorization<0>: <33>Basic <1>[redacted:authorization:1]<0>",
        ),
        ("bearer <1>{}<0>", "bearer <1>[redacted:authorization:1]<0>"),
    ],
)
def test_colours_stay_and_hide_no_secret(form: str, text: str, output: str) -> None:
    def colour_text(text: str) -> str:
        return re.sub("<([0-9;]+)>", lambda found: f"{form}[{found[1]}m", text)

    assert (
        Redactor({}).redact_text(f"{colour_text(text).format('ab12cd34efgh')}\n")
        == f"{colour_text(output)}\n"
    )


PLACEHOLDERS = [
    *("docker login -progress plain", "loginctl show-user -p Linger me", "login --token-stdin"),
    *("password: ${DB_PASSWORD}", "password: $DB_PASSWORD", "password=$(cat file)"),
    *('password: "{{ vault.password }}"', "password: <your-password>", "password=%s"),
    "password: %PWD%",
    *("--password PASSWORD    the password to use", "use --password to set it", "--token or --key"),
    *("  --password string   the password", "login(user, password, role)", "user, password = pair"),
    *("the password is required", "identified by name", "IDENTIFIED BY <password>"),
    *("a library identified by 'name'.", "private_key: PKCS7PrivateKeyTypes,"),
    "private_key = ed25519.Ed25519PrivateKey.from_private_bytes(raw)",
    "MLKEM768X25519PrivateKey = rust.hpke.MLKEM768X25519PrivateKey",
    *('token = r"[-!#$%&*+.^_|~0-9a-zA-Z]+"', "pass :data:`h11.CLIENT`. If"),
    *('`{"Authorization": "Basic <username>:<password>"}`.', "(`<your-password>`, `***`)"),
    *("leaves `login -progress` alone", "Set-Cookie: a=b; Path=/folder"),
    *("echo $TOKEN | docker login --password-stdin", "mysql '-p' 'db'", 'login("-p", "db")'),
    *("from x import (\n    user, password,\n    a_name, b_name,\n)", "password: required"),
]  # fmt: skip


@pytest.mark.parametrize("text", PLACEHOLDERS)
def test_what_only_speaks_of_a_secret_stays(text: str) -> None:
    assert Redactor({}).redact_text(f"{text}\n") == f"{text}\n"


def make_log_lines(rng: random.Random) -> str:
    """Lines of logs with hashes, ids and the words that rules look for."""
    number = rng.randbytes
    return rng.choice(
        [
            f"INFO request_id={uuid.UUID(bytes=number(16))} status=200 key=user:{rng.random()}",
            f"{number(32).hex()}  dist/a-{rng.random()}.tar.gz",
            f'{{"trace_id": "{number(16).hex()}", "level": "warn"}}',
            f"commit {number(20).hex()}",
            f'"integrity": "sha512-{base64.b64encode(number(64)).decode()}",',
            f'GET /a%20b/{number(4).hex()}?q=hello%20world&sort=name%2Cdate "{number(8).hex()}"',
            f"auth: password accepted for user1, token issued, session {number(6).hex()} expires",
            base64.b64encode(number(57)).decode(),
            f"{rng.random()},alice,{uuid.UUID(bytes=number(16))},{rng.random()}",
        ]
    )


def test_ordinary_logs_and_sources_stay_as_they_are() -> None:
    rng = random.Random(9)
    lines = "\n".join(make_log_lines(rng) for _ in range(6000)).encode()
    assert Redactor({}).redact_bytes(lines) == lines
    library = Path(sysconfig.get_paths()["stdlib"])
    found = 0
    for name in ("argparse", "asyncio/sslproto", "http/client", "netrc", "getpass", "urllib/parse"):
        found += (
            Redactor({}).redact_bytes((library / f"{name}.py").read_bytes()).count(b"[redacted:")
        )
    assert found == 0


def test_how_many_were_replaced_is_counted_by_kind() -> None:
    redactor = Redactor({})
    assert redactor.count_replaced() == {}
    one, two = (fill_template("gl" + "pat-<20>", random.Random(n)) for n in range(2))
    redactor.redact_text(f"{one} {two} {one} password: hunter2hunter2\n")
    assert redactor.count_replaced() == {"gitlab": 2, "password": 1}


@pytest.mark.parametrize(
    "unit", ["password=/" + "a" * 90 + "! ", "a,password\n", "%41%42", "secret: " + "a" * 99 + "! "]
)
def test_no_rule_takes_forever(unit: str) -> None:
    import time

    data = (unit * (1 << 17))[: 1 << 17].encode()
    start = time.process_time()
    Redactor({}).redact_bytes(data)
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    "line",
    ["mysql -u root db", "Installing packages9", "2026-11-19T10:11:12Z started server42 on port"],
)
def test_a_line_below_a_table_is_no_row_of_it(line: str) -> None:
    text = f"PASSWORD      ROLE\nno            admin\n{line}\n"
    assert Redactor({}).redact_text(text) == text


def test_rows_are_read_in_time_that_grows_with_them() -> None:
    import time

    data = b"id,user,password\n" + b"1,me,\n" * (1 << 16)
    start = time.process_time()
    assert Redactor({}).redact_bytes(data) == data
    assert time.process_time() - start < 10
