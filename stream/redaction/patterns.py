"""The tables of secrets: KEYS are known by their own form, CONTEXTS by what stands around them.

Who knows another one adds a row. In an example `<20>` stands for twenty letters and digits, `<20h>`
for lower hexadecimal digits, `<20A>` for capitals and digits, `<20d>` for digits: the tests make
them up, so that nothing here looks like a key to those who search repositories for keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from stream.redaction import values
from stream.redaction.assignments import assigned_secret, kubernetes_secrets
from stream.redaction.values import (
    COLOUR,
    EDGE,
    LOOK,
    START,
    SURE,
    Secret,
    SecretRule,
    secret_at,
    unquoted_end,
    value_piece,
)

# --- keys ---------------------------------------------------------------------------------------


class Key(Struct, frozen=True):
    """A secret that is known by its own form."""

    kind: str
    word: bytes  #: what every one of them has in it
    shape: bytes  #: of what follows it; a group `secret` is what is replaced, else all of it
    example: str
    counter: str  #: something alike that is none
    before: bytes = b""  #: what the word is preceded by, and belongs to it


def _keys(kind: str, words: str, shape: bytes, example: str, counter: str) -> Iterator[Key]:
    """Yield a key for each word; the word goes before the example and the counter-example."""
    for word in words.split():
        yield Key(kind, word.encode(), shape, word + example, word + counter)


_W = rb"[A-Za-z0-9]"
_MIXED = rb"(?=[\w-]{0,200}[0-9])(?=[\w-]{0,200}[A-Z])"
_SLASH = rb"(?:\\{0,7}/)"
_NO_MORE = rb"(?![A-Za-z0-9])"
_CRYPT = rb"[./A-Za-z0-9]{1,16}\$[./A-Za-z0-9]{22,86}(?![./A-Za-z0-9])"

KEYS: tuple[Key, ...] = (
    # clouds
    *_keys("aws", "AKIA", rb"[A-Z0-9]{16}" + _NO_MORE, "<16A>", "<9A>"),
    *_keys("aws", "ASIA", rb"[A-Z0-9]{16}" + _NO_MORE, "<16A>", "N<9A>"),
    *_keys("aws", "ABIA ACCA", rb"[A-Z0-9]{16}" + _NO_MORE, "<16A>", "<9A>"),
    *_keys("aws", "ABSK", rb"[A-Za-z0-9+/]{60,512}={0,2}", "<112>", "<20>"),
    *_keys("aws", "IQoJb3JpZ2lu FwoGZXIvYXdz", rb"[A-Za-z0-9+/]{80,512}={0,2}", "<200>", ""),
    *_keys("google", "AIza", rb"[\w-]{35,64}", "<35>", "<12>"),
    *_keys("google", "ya29.", rb"[\w.-]{20,512}", "<68>", "1"),
    *_keys("google", "GOCSPX-", rb"[\w-]{20,64}", "<28>", "id"),
    *_keys("google", "1//0", rb"[\w-]{30,256}", "<60>", ".5 is 2"),
    Key("azure", b"Q~", rb"[\w~.-]{31,40}", "<3>8Q~<34>", "<3>8Q~<9>",
        before=rb"(?<![\w~.-])[\w~.-]{3}\d\Z"),
    Key("azure", b"AZDO", rb"\w{4}" + _NO_MORE, "<76>AZDO<4>", "AZDO12 is no key",
        before=rb"(?<![A-Za-z0-9])\w{76}\Z"),
    *_keys("alibaba", "LTAI", _W + rb"{16,24}" + _NO_MORE, "<20>", "<4>"),
    *_keys("tencent", "AKID", _W + rb"{32,40}" + _NO_MORE, "<32>", "<8>"),
    *_keys("digitalocean", "dop_v1_ doo_v1_ dor_v1_", rb"[a-f0-9]{48,80}", "<64h>", "<9h>"),
    *_keys("heroku", "HRKU-", rb"[\w-]{30,128}", "<60>", "1"),
    *_keys("fly", "fm2_", rb"[\w+/=-]{40,512}", "<120>", "x"),
    *_keys("fly", "fo1_", rb"[\w-]{40,128}", "<43>", "x"),
    *_keys("netlify", "nfp_", _W + rb"{30,64}", "<36>", "x"),
    *_keys("vercel", "vcp_", _W + rb"{24,128}", "<56>", "x"),
    *_keys("render", "rnd_", _MIXED + _W + rb"{24,64}", "<32>", "seed_1"),
    *_keys("scaleway", "SCW", rb"(?=[A-Z]{0,17}[0-9])[A-Z0-9]{17}" + _NO_MORE, "<17A>", "<5A>"),
    *_keys("tailscale", "tskey-", rb"[a-z]{2,12}-[\w-]{16,128}", "auth-<17>-<32>", "auth"),
    # source code, packages and builds
    *_keys("github", "ghp_ gho_ ghs_ ghu_ ghr_", rb"\w{30,512}", "<36>", "<9>"),
    *_keys("github", "github_pat_", rb"\w{22,512}", "<82>", "x"),
    *_keys("gitlab", "glpat-", rb"[\w-]{20,512}(?:\.[a-z0-9]{2}\.?[a-z0-9]{7})?", "<20>", "short"),
    *_keys("gitlab", "glrt- gldt- glptt- glft- glsoat- glagent- gloas- glcbt- glimt- glrtr-",
        rb"(?:t\d_)?[\w-]{20,512}(?:\.[a-z0-9]{2}\.?[a-z0-9]{7})?", "<20>", "short"),
    *_keys("bitbucket", "ATBB", _MIXED + rb"[\w=-]{28,64}", "<32>", "<6>"),
    *_keys("atlassian", "ATATT3 ATCTT3", rb"[\w=-]{60,512}", "x<180>=<8A>", ""),
    *_keys("npm", "npm_", _W + rb"{36,512}", "<36>", "config_registry"),
    *_keys("pypi", "pypi-", _MIXED + rb"[\w-]{32,512}", "AgEIcHlwaS5vcmc<60>",
        "a-package-of-a-very-long-name-2024"),
    *_keys("rubygems", "rubygems_", rb"[a-f0-9]{40,64}", "<48h>", "version"),
    *_keys("crates", "cio", _W + rb"{32}" + _NO_MORE, "<32>", "rand"),
    *_keys("nuget", "oy2", rb"[a-z0-9]{43}" + _NO_MORE, "<43h>", "<9h>"),
    *_keys("clojars", "CLOJARS_", rb"[a-z0-9]{50,64}", "<60h>", "URL"),
    *_keys("packagist", "packagist_", rb"(?:[a-z]{2,4}_)?[a-f0-9]{40,96}", "uut_<68h>", "mirror"),
    *_keys("docker", "dckr_pat_", rb"[\w-]{20,64}", "<27>", "x"),
    *_keys("docker", "dckr_oat_", rb"[\w-]{20,64}", "<32>", "x"),
    *_keys("artifactory", "AKCp", _W + rb"{50,128}", "8<68>", "8"),
    *_keys("artifactory", "cmVmdGtuOj", _W + rb"{40,128}", "<54>", ""),
    *_keys("buildkite", "bkua_", rb"[a-f0-9]{40}", "<40h>", "x"),
    *_keys("circleci", "CCIPAT_ CCIPRJ_", rb"\w{30,128}", "<22>_<40h>", "x"),
    *_keys("sonar", "squ_ sqp_ sqa_", rb"[a-f0-9]{40}", "<40h>", "<6h>"),
    *_keys("snyk", "snyk_", rb"[a-z]{2,4}\.[a-f0-9]{8}\.[\w-]{30,128}", "uat.<8h>.<80>", "uat"),
    *_keys("pulumi", "pul-", rb"[a-f0-9]{40}", "<40h>", "1"),
    Key("terraform", b".atlasv1.", rb"[\w=-]{60,90}", "<14>.atlasv1.<67>", "x.atlasv1.y",
        before=rb"(?<![A-Za-z0-9])[A-Za-z0-9]{14}\Z"),
    *_keys("postman", "PMAK-", rb"[a-f0-9]{24}-[a-f0-9]{34}", "<24h>-<34h>", "<6h>"),
    *_keys("doppler", "dp.", rb"(?:pt|st|ct|sa|scim|audit)\.(?:[\w-]{2,35}\.)?" + _W + rb"{40,44}",
        "pt.<43>", "pt.x"),
    *_keys("sentry", "sntry", rb"[su]_[\w+/=-]{40,512}", "s_<120>", "s_x"),
    # models
    *_keys("anthropic", "sk-ant-", rb"[\w-]{16,512}", "api03-<90>", "x"),
    *_keys("openai", "sk-", rb"(?!ant-)" + _MIXED + rb"[\w-]{20,512}", "proj-<60>",
        "folding-cube-animation-item-number2"),
    *_keys("openrouter", "sk-or-v1-", rb"[a-f0-9]{60,64}", "<64h>", "x"),
    *_keys("langfuse", "sk-lf-", rb"[a-f0-9-]{36}", "<8h>-<4h>-<4h>-<4h>-<12h>", "x"),
    *_keys("langsmith", "lsv2_", rb"[a-z]{2}_[a-f0-9]{32}_[a-f0-9]{10}", "pt_<32h>_<10h>", "pt"),
    *_keys("huggingface", "hf_", _W + rb"{30,512}", "<34>", "hub"),
    *_keys("groq", "gsk_", _W + rb"{40,64}", "<52>", "x"),
    *_keys("replicate", "r8_", _W + rb"{30,48}" + _NO_MORE, "<37>", "x"),
    *_keys("perplexity", "pplx-", _W + rb"{40,64}", "<48>", "api"),
    *_keys("xai", "xai-", _W + rb"{60,96}", "<80>", "sdk"),
    *_keys("nvidia", "nvapi-", rb"[\w-]{50,80}", "<64>", "x"),
    *_keys("cerebras", "csk-", rb"[a-z0-9]{40,56}", "<48h>", "x"),
    *_keys("fireworks", "fw_", _MIXED + _W + rb"{22,32}" + _NO_MORE, "<24>", "cfg"),
    *_keys("pinecone", "pcsk_", rb"\w{50,80}", "<6>_<62>", "x"),
    *_keys("elevenlabs", "sk_", rb"[a-f0-9]{48}" + _NO_MORE, "<48h>", "<12h>"),
    *_keys("tavily", "tvly-", rb"[\w-]{28,64}", "<32>", "x"),
    *_keys("firecrawl", "fc-", rb"[a-f0-9]{32}" + _NO_MORE, "<32h>", "1"),
    *_keys("jina", "jina_", _W + rb"{50,70}", "<60>", "x"),
    *_keys("wandb", "wandb_v1_", rb"\w{40,128}", "<70>", "x"),
    *_keys("voyage", "pa-", _MIXED + rb"[\w-]{40,64}", "<43>", "1"),
    # messages
    *_keys("slack", "xox", rb"[abceoprsd](?:\.xox[bp])?-[\w-]{10,512}", "b-<12d>-<12d>-<24>",
        "o-hugs"),
    *_keys("slack", "xapp-", rb"\d-[\w-]{20,512}", "1-<11A>-<13d>-<64h>", "1-x"),
    Key("slack", b"hooks.slack.com",
        _SLASH + rb"(?:services|workflows|triggers)" + _SLASH
        + rb"(?P<secret>(?:\w{6,64}" + _SLASH + rb"){1,3}\w{16,64})",
        "https://hooks.slack.com/services/T<8A>/B<10A>/<24>", "https://hooks.slack.com/services/"),
    Key("discord", b"/webhooks", _SLASH + rb"\d{16,20}" + _SLASH + rb"(?P<secret>[\w-]{40,128})",
        "https://discord.com/api/webhooks/<18d>/<68>",
        "https://example.org/api/webhooks/<18d>/logs"),
    *(
        Key("discord", b"." + made, rb"[\w-]{5}\.[\w-]{27,38}(?![\w-])",
            f"M<23>.{made.decode()}<5>.<38>", f"M<23>.{made.decode()}.m",
            before=rb"(?<![\w.-])[MNO][A-Za-z0-9_-]{22,27}\Z")
        for made in (b"C", b"G", b"X", b"Y")  # by the time when it was made
    ),
    Key("teams", b"webhook.office.com",
        _SLASH + rb"(?P<secret>webhookb2" + _SLASH + rb"[\w@-]{30,90}" + _SLASH
        + rb"IncomingWebhook" + _SLASH + rb"[a-f0-9]{32}(?:" + _SLASH + rb"[\w-]{30,64}){0,2})",
        "https://x.webhook.office.com/webhookb2/<36h>@<36h>/IncomingWebhook/<32h>/<36h>",
        "https://x.webhook.office.com/"),
    Key("telegram", b":AA", rb"[\w-]{32,34}(?![\w-])", "<10d>:AA<33>", "12:AAAA",
        before=rb"(?<!\d)\d{8,10}\Z"),
    *_keys("sendgrid", "SG.", rb"[\w-]{16,64}\.[\w-]{16,128}", "<22>.<43>", "a.b"),
    *_keys("mailgun", "key- pubkey-", rb"[a-f0-9]{32}" + _NO_MORE, "<32h>", "<8h>"),
    Key("mailchimp", b"-us", rb"\d{1,2}" + _NO_MORE, "<32h>-us12", "<8h>-us12",
        before=rb"(?<![a-f0-9])[a-f0-9]{32}\Z"),
    *_keys("sendinblue", "xkeysib-", rb"[a-f0-9]{64}-\w{16}", "<64h>-<16>", "x"),
    *_keys("resend", "re_", rb"(?=\w{0,8}[A-Z0-9])" + _W + rb"{8}_" + _W + rb"{24}" + _NO_MORE,
        "<8>_<24>", "compile_this"),
    *_keys("twilio", "SK", rb"[a-f0-9]{32}" + _NO_MORE, "<32h>", "<8h>"),
    *_keys("intercom", "dG9rO", _W + rb"{50,64}={0,2}", "<55>=", ""),
    # services
    *_keys("stripe", "sk_live_ rk_live_ sk_test_ rk_test_ sk_org_", rb"\w{10,512}", "<24>", "x"),
    *_keys("stripe", "whsec_", rb"[A-Za-z0-9+/]{24,128}={0,2}", "<32>", "x"),
    *_keys("square", "sq0", rb"(?:atp|csp|idp)-[\w-]{20,64}", "csp-<43>", "csp-x"),
    *_keys("square", "EAAA", _MIXED + rb"[\w-]{56,64}" + _NO_MORE, "<60>", "<9>"),
    *_keys("paypal", "access_token$", rb"(?:production|sandbox)\$\w{8,24}\$[a-f0-9]{32}",
        "production$<16h>$<32h>", "x"),
    *_keys("plaid", "access-", rb"(?:production|development|sandbox)-[a-f0-9-]{36}",
        "production-<8h>-<4h>-<4h>-<4h>-<12h>", "production-1"),
    *_keys("razorpay", "rzp_", rb"(?:live|test)_" + _W + rb"{14,32}", "live_<14>", "live"),
    *_keys("flutterwave", "FLWSECK", rb"(?:_TEST)?-\w{32,64}(?:-X)?", "-<32h>-X", "-x"),
    *_keys("shopify", "shpat_ shpca_ shppa_ shpss_", rb"[a-fA-F0-9]{32,64}", "<32h>", "<6h>"),
    *_keys("linear", "lin_api_", _W + rb"{32,64}", "<40>", "x"),
    *_keys("linear", "lin_oauth_", _W + rb"{32,80}", "<64>", "x"),
    *_keys("notion", "ntn_", _W + rb"{40,64}", "<46>", "x"),
    *_keys("notion", "secret_", _MIXED + _W + rb"{40,64}" + _NO_MORE, "<43>", "of_the_house"),
    *_keys("figma", "figd_", rb"[\w-]{36,64}", "<40>", "x"),
    *_keys("airtable", "pat", _W + rb"{14}\.[a-f0-9]{64}", "<14>.<64h>", "tern.match"),
    *_keys("hubspot", "pat-", rb"(?:na|eu|ap)\d-[a-f0-9-]{36}", "na1-<8h>-<4h>-<4h>-<4h>-<12h>",
        "na1-x"),
    *_keys("facebook", "EAA", _MIXED + _W + rb"{90,512}", "<160>", "<12>"),
    *_keys("adyen", "AQE", rb"[a-z]hm[A-Za-z0-9+/=-]{60,512}", "yhm<100>", "yhm"),
    *_keys("grafana", "glc_", rb"[A-Za-z0-9+/]{32,512}={0,2}", "<100>", "x"),
    *_keys("grafana", "glsa_", _W + rb"{32}_[a-fA-F0-9]{8}", "<32>_<8h>", "x"),
    *_keys("newrelic", "NRAK- NRJS- NRII- NRRA- NRBR- NRSP- NRIQ-", rb"[A-Za-z0-9]{24,64}", "<32A>",
        "1"),
    Key("newrelic", b"NRAL", _NO_MORE, "<36h>NRAL", "<4h>NRAL",
        before=rb"(?<![A-Za-z0-9])[A-Za-z0-9]{36}\Z"),
    *_keys("datadog", "ddp_", _W + rb"{32,64}", "<36>", "x"),
    *_keys("dynatrace", "dt0", rb"[a-z]\d\d\.[A-Z0-9]{24}\.[A-Z0-9]{64}", "c01.<24A>.<64A>",
        "c01.x"),
    *_keys("honeycomb", "hca", rb"[a-z]k_[a-z0-9]{50,64}", "ik_<58h>", "ik_x"),
    *_keys("posthog", "phx_", rb"\w{32,64}", "<43>", "x"),
    # stores and hashes
    *_keys("vault", "hvs. hvb. hvr.", rb"[\w-]{24,512}", "<90>", "x"),
    *_keys("databricks", "dapi", rb"[a-f0-9]{32}(?:-\d{1,2})?" + _NO_MORE, "<32h>-2", "<6h>"),
    *_keys("planetscale", "pscale_tkn_ pscale_pw_ pscale_oauth_", rb"[\w.=-]{32,64}", "<43>", "x"),
    *_keys("supabase", "sbp_", rb"(?:v0_)?[a-f0-9]{40}", "<40h>", "x"),
    *_keys("supabase", "sb_secret_", rb"[\w-]{24,64}", "<31>", "x"),
    *_keys("1password", "ops_eyJ", rb"[\w+/-]{100,512}={0,2}", "<250>", ""),
    *_keys("1password", "A3-",
        rb"[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}",
        "<6A>-<6A>-<5A>-<5A>-<5A>-<5A>", "paper"),
    *_keys("age", "AGE-SECRET-KEY-", rb"(?:PQ-)?1[A-Z0-9]{50,128}", "1<58A>", "1x"),
    *_keys("bitcoin", "xprv", _W + rb"{100,112}" + _NO_MORE, "<107>", ""),
    *_keys("password-hash", "$2a$ $2b$ $2y$", rb"\d\d\$[./A-Za-z0-9]{53}", "12$<53>", "12$"),
    *_keys("password-hash", "$6$ $5$", rb"(?:rounds=\d{1,9}\$)?" + _CRYPT, "<8>$<86>", "1"),
    *_keys("password-hash", "$y$", rb"[./A-Za-z0-9]{1,8}\$" + _CRYPT, "j9T$<8>$<86>", "1"),
    *_keys("password-hash", "$apr1$", rb"[./A-Za-z0-9]{1,8}\$[./A-Za-z0-9]{22}", "<8>$<22>", "x"),
    *_keys("password-hash", "$argon2",
        rb"(?:id|i|d)\$v=\d{1,3}\$[mtp=,\d]{5,40}\$[A-Za-z0-9+/]{8,64}\$[A-Za-z0-9+/]{16,128}",
        "id$v=19$m=65536,t=3,p=4$<22>$<43>", "id$"),
)  # fmt: skip

# --- contexts -----------------------------------------------------------------------------------


class Context(Struct, frozen=True):
    """A position where a secret stands; its rule is asked where one of the words is found."""

    kind: str
    words: tuple[bytes, ...]  #: one of them is in it
    rule: SecretRule
    example: str
    counter: str
    any_case: bool = True
    then: bytes = b""  #: what the word is followed by


_S = rb"(?:[ \t]{1,8}|\0|\\{0,7}[\"'],[ \t]{0,4}\\{0,7}[\"'])"  #: between two words of a command
_ARGS = rb"[^\r\n|;]{0,400}?" + _S  #: words of a command, up to the one that is looked for
_Q = rb"(?:\\{0,7}[\"'`])?"


def _after(pattern: bytes, find: Callable[[bytes, re.Match[bytes]], Secret | None]) -> SecretRule:
    """Return the rule of a secret that follows a pattern, as `find` finds it there."""
    compiled = re.compile(rb"(?i)" + pattern)

    def find_after_pattern(text: bytes, position: int) -> Iterable[Secret]:
        """Find the secret that follows the words at a position."""
        found = START.match(text, position) and compiled.match(text, position)
        answer = find(text, found) if found else None
        return [answer] if answer else []

    return find_after_pattern


def _value(text: bytes, found: re.Match[bytes]) -> Secret | None:
    """Find a secret in quotes or without."""
    return secret_at(text, found.end(), SURE)


_OF_USERS = re.compile(rb"(?i)\b(?:user|role|login|grant|create|alter)\b[^\r\n]*\Z")


def _sql_secret(text: bytes, found: re.Match[bytes]) -> Secret | None:
    """Find a secret of SQL, whose words prose has too: a word counts in quotes, after a user."""
    answer = secret_at(text, found.end(), SURE)
    if not answer:
        return None
    assert answer.until is not None
    value = value_piece(text, answer.start, answer.until)
    if answer.start == found.end():
        good = values.is_special_value(value) or values.is_random(value)
    else:
        about_users = _OF_USERS.search(text, max(found.start() - 256, 0), found.start())
        good = bool(about_users) or not value.isalpha()
    return answer if good else None


#: `USER:` or `USER%` in one word with the secret, perhaps in quotes
_OF_USER = _Q + rb"[^\s:%\"'`\\\0/]{1,64}[:%](?!/)" + COLOUR + rb"{0,3}"


def _secret_after_user(text: bytes, found: re.Match[bytes]) -> Secret | None:
    """Find the password that follows a user's name."""
    until = unquoted_end(text, found.end())
    value = value_piece(text, found.end(), until)
    good = len(value) >= 3 and not values.is_no_secret(value)
    return Secret("password", found.end(), found.end(), until) if good else None


# Keys in several lines, or parts

_JWT = re.compile(rb"eyJ[A-Za-z0-9_-]{8,1024}\.(?:eyJ[A-Za-z0-9_-]{5}|[A-Za-z0-9_-]{20})")
_JWT_END = re.compile(rb"[^A-Za-z0-9_.=-]|\.(?![A-Za-z0-9_-])")


def _find_jwt(text: bytes, position: int) -> Iterable[Secret]:
    """Find a JSON web token."""
    found = _JWT.match(text, position)
    if not found or not EDGE.match(text, position):
        return []
    return [Secret("jwt", found.start(), found.end(), _JWT_END)]


_BLANK = rb"(?:[ +]|%20)"
_WHAT = (
    rb"(?:[A-Z0-9]|" + _BLANK + rb"){0,40}PRIVATE" + _BLANK + rb"KEY(?:" + _BLANK + rb"BLOCK)?-----"
)
_BREAK = rb"(?:\\+[nrt]|%0[AaDd]|[\s\"'+,>|#*-])"
_PEM = re.compile(
    rb"-----BEGIN" + _BLANK + _WHAT
    + rb"(?:" + _BREAK + rb"{0,80}[A-Za-z][A-Za-z-]{1,19}: [^\r\n\\\0]{0,160}){0,4}"
    + _BREAK + rb"{0,80}(?:(?:[A-Za-z0-9+/]|%2[BbFf]){12}|[A-Za-z0-9+/=]{1,11}\Z)"
)  # fmt: skip
#: its last line, what no key can have in it, or words
_PEM_END = re.compile(
    rb"-----END" + _BLANK + _WHAT + rb"|%(?!0[AaDd]|2[0BbFf]|3[Dd])|[^A-Za-z0-9+/=\s\\\"',:>|#*%-]"
    rb"|(?<![A-Za-z0-9+/=])[A-Za-z0-9,.]{1,15}[ \t]{1,4}[A-Za-z0-9]{1,15}(?![A-Za-z0-9+/=])"
)


def _find_pem(text: bytes, position: int) -> Iterable[Secret]:
    found = _PEM.match(text, position)
    return [Secret("private-key", found.start(), found.end(), _PEM_END)] if found else []


_PUTTY = re.compile(rb"Private-Lines: \d{1,3}(?:\r?\n|\\{1,7}n)(?=[A-Za-z0-9+/]{12})")
_PUTTY_END = re.compile(rb"[^A-Za-z0-9+/=\s\\]|Private-MAC")


def _find_putty_key(text: bytes, position: int) -> Iterable[Secret]:
    found = _PUTTY.match(text, position)
    return [Secret("private-key", found.end(), found.end(), _PUTTY_END)] if found else []


# Headers and URLs

_GAP = rb"(?:[ \t]|" + COLOUR + rb"){0,8}"
_AUTHORIZATION = re.compile(
    rb"(?i)authorization\\{0,7}[\"'`]?\]?" + _GAP + rb"[:=,]" + _GAP + rb"(?:[bfr]?\\{0,7}[\"'`])?"
    rb"(?P<scheme>(?:bearer|basic|token|apikey|api-key|key|bot|genie[_-]?key|splunk|ghost|sso-key)"
    rb"[ \t]{1,4}|(?P<line>digest|negotiate|aws4-hmac-sha256)[ \t]{1,4})?" + COLOUR + rb"{0,3}"
)
_BEARER = rb"bearer(?:[ \t]{1,4}|[=:][ \t]{0,4})" + COLOUR + rb"{0,3}"
_COOKIE = rb"cookie\\{0,7}[\"']?:[ \t]{0,4}\\{0,7}[\"']?"
_PAIR = re.compile(rb"(?<![\w.-])[\w.-]{1,64}=[^;\s]{6}")


def _find_authorization(text: bytes, position: int) -> Iterable[Secret]:
    """Find the secret of an HTTP header `Authorization`."""
    found = _AUTHORIZATION.match(text, position)
    if not found:
        return []
    start = found.end()
    until = values.LINE_END if found["line"] else unquoted_end(text, start)
    value = value_piece(text, start, until)
    shaped = values.is_mixed(value) or values.is_random(value)
    good = len(value) >= 6 if found["scheme"] else len(value) >= 8 and shaped
    if values.is_no_secret(value) or values.is_chain(value) or values.is_call(text, start):
        good = False
    return [Secret("authorization", start, start, until)] if good else []


def _find_bearer_token(text: bytes, found: re.Match[bytes]) -> Secret | None:
    """Find the secret that follows the word `bearer`."""
    until = unquoted_end(text, found.end())
    value = value_piece(text, found.end(), until)
    shaped = values.is_mixed(value) or values.is_random(value)
    good = len(value) >= 12 and shaped and not values.is_no_secret(value)
    return Secret("authorization", found.end(), found.end(), until) if good else None


def _find_cookie(text: bytes, found: re.Match[bytes]) -> Secret | None:
    """Find the value of a header `Cookie` or `Set-Cookie`."""
    value = value_piece(text, found.end(), values.LINE_END)
    is_set = text[max(found.start() - 4, 0) : found.start()].lower() == b"set-"
    pair = (_PAIR.match if is_set else _PAIR.search)(value)
    if not pair or values.is_no_secret(value):
        return None
    return Secret("cookie", found.end(), found.end(), values.LINE_END)


_USERINFO = re.compile(rb":(?:\\{0,7}/){2}(?:[^\s/@:\"'<>\\\0]{0,128}:)?([^\s\"'\\\0]{1,512})\Z")


def _find_url_password(text: bytes, position: int) -> Iterable[Secret]:
    """Find the password in front of the host of a URL, from the @ on."""
    lowest = max(position - 700, 0)
    slashes = max(text.rfind(slash, lowest, position) for slash in (b"//", b"\\/"))
    colon = text.rfind(b":", lowest, slashes) if slashes >= 0 else -1
    found = _USERINFO.match(text[colon:position]) if colon >= 0 else None
    if not found:
        return []
    has_user = found[0].count(b":") > 1
    value = found[1]
    if b"/" in value and (re.match(rb"\d{1,5}(?:/|\Z)", value) or not has_user):
        return []  # a port, and a path with an @ in it
    if values.is_no_secret(value) or not (
        has_user or (len(value) >= 20 and values.is_mixed(value))
    ):
        return []
    return [Secret("url", colon + found.start(1), position)]


_PGPASS = re.compile(
    rb"[^:\s\"'/]{1,64}:[^:\s\"'/]{1,64}:(?P<secret>[^\s:\"'\\]{4,128})(?=\s|\\|[\"']|\Z)"
)
_PGPASS_HOST = re.compile(rb"(?:^|[\s\"'+>]|\\n)[\w.*-]{1,128}\Z")


def _find_pgpass_password(text: bytes, position: int) -> Iterable[Secret]:
    """Find the password in `host:port:database:user:password`."""
    port = text.find(b":", position + 1, position + 8)
    found = _PGPASS.match(text, port + 1) if port > 0 else None
    if not found or not _PGPASS_HOST.search(text, max(position - 140, 0), position):
        return []
    return _found_password(found)


# What a shell passes to a program

_PIPED = re.compile(
    rb"[\s\"'\0](?P<user>[\w.-]{1,32}):(?P<secret>[^\s\"'\\\0]{4,128})"
    rb"[\"']?\s{0,4}\|\s{0,4}(?:sudo\s)?\Z"
)
_ECHOED = re.compile(
    rb"(?:echo|printf)(?:\s-[neE]{1,3}|\s[\"']?%s[\"']?)?\s{1,4}[\"']?"
    rb"(?P<secret>[^\s\"'\\\0|-][^\s\"'\\\0|]{3,128})[\"']?\s{0,4}\|[^\r\n|;]{0,160}\Z"
)
_HERE = re.compile(rb"[^\r\n|;<]{0,160}<<<\s{0,4}[\"']?(?P<secret>[^\s\"'\\\0]{4,128})")


def _find_chpasswd(text: bytes, position: int) -> Iterable[Secret]:
    return _found_password(_PIPED.search(text, max(position - 2 * LOOK, 0), position))


def _find_from_stdin(text: bytes, position: int) -> Iterable[Secret]:
    """Find what a shell gives to a program that reads its password from stdin."""
    echoed = _ECHOED.search(text, max(position - 4 * LOOK, 0), position)
    return _found_password(echoed or _HERE.match(text, position))


def _found_password(found: re.Match[bytes] | None) -> Iterable[Secret]:
    if not found or values.is_no_secret(found["secret"]):
        return []
    return [Secret("password", *found.span("secret"))]


_AFTER_NAME = rb"(?=\d{0,2}[\\\"'`\]\s:=!\0\x1b,;|&><])"
#: given to a name: in code, YAML, JSON, XML, a query, a table below its heading
_NAMES = (
    Context("password", (b"passw", b"passphrase"), assigned_secret,
        'password = "<12>"', "password = args.password"),
    Context("password",
        (b"secret", b"token", b"credential", b"credentials", b"key", b"pwd", b"psk", b"pass",
         b"auth", b"jwt", b"_pw", b"_pat", b"passcode", b"secret_key_base", b"key-data",
         b"key_data", b"connectionstring", b"connection_string", b"connection-string",
         b"kennwort", b"masterauth", b"mnemonic"),
        assigned_secret, "api_key: <24>", "api_key = api_key", then=_AFTER_NAME),
    Context("password", (b"sig=", b"signature="), assigned_secret,
        "https://example.org/a?sv=1&sig=<24>&e=1", "signature=inspect.signature(call2)"),
    Context("kubernetes", (b"data", b"stringData"), kubernetes_secrets,
        "kind: Secret\ndata:\n  any: <24>", "kind: ConfigMap\ndata: any",
        any_case=False, then=rb"(?=\\{0,7}\"?[ \t]{0,4}:)"),
)  # fmt: skip
_PLACES = (
    Context("authorization", (b"authorization",), _find_authorization,
        "Authorization: Basic <20>", "Authorization: required for this"),
    Context("authorization", (b"bearer",), _after(_BEARER, _find_bearer_token),
        "bearer <24>", "the bearer of this letter"),
    Context("cookie", (b"cookie",), _after(_COOKIE, _find_cookie),
        "Set-Cookie: id=<24>; Path=/", "a cookie: it is sweet"),
    Context("url", (b"@",), _find_url_password, "https://me:<12>@example.org/", "ssh://git@example.org/a/b.git"),
    Context("private-key", (b"-----BEGIN ", b"-----BEGIN+", b"-----BEGIN%20"), _find_pem,
        "-----BEGIN RSA PRIVATE KEY-----\n<60>", "-----BEGIN CERTIFICATE-----\n<60>",
        any_case=False),
    Context("private-key", (b"Private-Lines: ",), _find_putty_key,
        "Private-Lines: 8\n<60>", "Private-Lines: are what they are", any_case=False),
    Context("jwt", (b"eyJ",), _find_jwt, "eyJ<30>.eyJ<60>.<43>", "eyJ<4>.x", any_case=False),
    Context("password", (b":5432:", b":6432:", b":*:"), _find_pgpass_password,
        "db.example.org:5432:app:me:<14>", "10.0.0.1:5432: connection refused", any_case=False),
    Context("password", (b"identified",),
        _after(rb"identified\s{1,4}(?:with\s{1,4}\S{1,40}\s{1,4})?by\s{1,4}"
               rb"(?:password\s{1,4}|values\s{1,4})?", _sql_secret),
        "CREATE USER me IDENTIFIED BY '<12>';", "he is identified by name"),
    Context("password", (b"password",),
        _after(rb"password\s{1,4}(?=\\{0,7}')|password\s{0,2}\((?=\\{0,7}['\"])", _value),
        "ALTER ROLE me WITH ENCRYPTED PASSWORD '<12>';", "the password 'is' a word"),
)  # fmt: skip
_USER = rb"(?:-u|--user|--proxy-user|-U)(?:" + _S + rb"|=)?"
_BY_P = rb"(?:-p(?:" + _S + rb"|=|(?![a-z-]{2,}(?:[\s\0\"'`=]|\Z)))|--password(?:" + _S + rb"|=))"
_COMMANDS = (
    Context("password", (b"curl", b"http ", b"https ", b"xh "),
        _after(rb"(?:curl(?:\.exe)?|https?|xh)" + _ARGS + rb"(?:" + _USER
               + rb"|-a" + _S + rb")" + _OF_USER, _secret_after_user),
        "curl -sS -u me:<12> https://example.org", "curl -sS -o out https://example.org"),
    Context("password", (b"mysql", b"mariadb"),
        _after(rb"(?:mysql|mariadb)(?:-?(?:dump|admin|import|show|check))?" + _ARGS
               + rb"-p(?=[^\s\0\"',-]|[\"'][^\s\0\"',\]])", _value),
        "mysqldump -u root -p<12> db", "mysql -u root -p db"),
    Context("password", (b"sshpass",), _after(rb"sshpass" + _ARGS + rb"-p" + _S + rb"?", _value),
        "sshpass -p <12> ssh host", "sshpass -e ssh host"),
    Context("password", (b"login",), _after(rb"login(?![\w-])" + _ARGS + _BY_P, _value),
        "docker login -u me -p <12> example.org", "docker login -progress plain"),
    Context("password", (b"redis-cli",),
        _after(rb"redis-cli" + _ARGS + rb"(?:-a|--pass)" + _S + rb"?", _value),
        "redis-cli -h host -a <12> ping", "redis-cli -h host ping"),
    Context("password", (b"mongo",),
        _after(rb"mongo(?:sh|dump|restore|export|import)?" + _ARGS + _BY_P, _value),
        "mongosh -u me -p <12> db", "mongodb -path"),
    Context("password", (b"ldap",),
        _after(rb"ldap(?:search|modify|add|delete|passwd|whoami)" + _ARGS + rb"-w" + _S, _value),
        "ldapsearch -x -D cn=me -w <12>", "ldapsearch -x -W"),
    Context("password", (b"sqlcmd", b"sqlplus"),
        _after(rb"(?:sqlcmd" + _ARGS + rb"-P" + _S + rb"?|sqlplus" + _S + rb"(?:-\w{1,2}" + _S
               + rb"){0,3}\w{1,32}/)", _value),
        "sqlcmd -S host -U me -P <12>", "sqlcmd -S host -E"),
    Context("password", (b"smbclient",),
        _after(rb"smbclient" + _ARGS + _USER + _OF_USER, _secret_after_user),
        "smbclient //host/share -U me%<12>", "smbclient //host/share -N"),
    Context("password", (b"pass:",), _after(rb"(?<=[\s\0\"'=])pass:", _value),
        "openssl rsa -passin pass:<12> -in k", "by pass: it is shut"),
    Context("password", (b"zip", b"unzip"), _after(rb"(?:zip|unzip)" + _ARGS + rb"-P" + _S, _value),
        "zip -P <12> a.zip b", "zip -r a.zip b"),
    Context("password", (b"htpasswd",),
        _after(rb"htpasswd" + _S + rb"(?:-\w{1,8}" + _S + rb"){1,6}(?:[\w./-]{1,64}" + _S
               + rb"){1,2}", _value),
        "htpasswd -bc file me <12>", "htpasswd -c file"),
    Context("password", (b"useradd", b"usermod"),
        _after(rb"user(?:add|mod)" + _ARGS + rb"-p" + _S, _value),
        "useradd -m -p <12> me", "useradd -m me"),
    Context("password", (b"--from-literal",),
        _after(rb"--from-literal(?:=|" + _S + rb")" + _Q + rb"[\w.-]{1,64}=", _value),
        "kubectl create secret generic x --from-literal=any=<12>", "--from-literal is an option"),
    Context("password", (b"chpasswd",), _find_chpasswd,
        "echo 'me:<12>' | chpasswd", "chpasswd reads pairs"),
    Context("password", (b"--password-stdin", b"--token-stdin", b"--with-token"), _find_from_stdin,
        "echo <12> | docker login -u me --password-stdin",
        "cat file | docker login -u me --password-stdin"),
)  # fmt: skip
CONTEXTS: tuple[Context, ...] = (*_NAMES, *_PLACES, *_COMMANDS)
