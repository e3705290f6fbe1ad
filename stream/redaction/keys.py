"""The table of keys that show by themselves what they are, whatever stands around them.

Who knows another one adds a line. In an example `<20>` stands for twenty letters and digits,
`<20h>` for lower hexadecimal digits, `<20A>` for capitals and digits, `<20d>` for digits: the tests
make them up, so that nothing here looks like a key to those who search repositories for keys.
"""

from __future__ import annotations

from msgspec import Struct

_W = rb"[A-Za-z0-9]"
_MIXED = rb"(?=[\w-]{0,200}[0-9])(?=[\w-]{0,200}[A-Z])"
_SLASH = rb"(?:\\{0,7}/)"
_NO_MORE = rb"(?![A-Za-z0-9])"


class Key(Struct, frozen=True):
    kind: str
    word: bytes  #: what every one of them has in it
    shape: bytes  #: of what follows it; a group `secret` is what is replaced, else all of it
    example: str
    counter: str  #: something alike that is none
    before: bytes = b""  #: what the word is preceded by, and belongs to it


def keys() -> list[Key]:
    return [*_clouds(), *_code(), *_models(), *_messages(), *_services(), *_stores()]


def _clouds() -> list[Key]:
    return [
        Key("aws", b"AKIA", rb"[A-Z0-9]{16}" + _NO_MORE, "AKIA<16A>", "AKIA<9A>"),
        Key("aws", b"ASIA", rb"[A-Z0-9]{16}" + _NO_MORE, "ASIA<16A>", "ASIAN<9A>"),
        Key("aws", b"ABIA", rb"[A-Z0-9]{16}" + _NO_MORE, "ABIA<16A>", "ABIA<9A>"),
        Key("aws", b"ACCA", rb"[A-Z0-9]{16}" + _NO_MORE, "ACCA<16A>", "ACCA<9A>"),
        Key("aws", b"ABSK", rb"[A-Za-z0-9+/]{60,512}={0,2}", "ABSK<112>", "ABSK<20>"),
        Key("aws", b"IQoJb3JpZ2lu", rb"[A-Za-z0-9+/]{80,512}={0,2}",
            "IQoJb3JpZ2lu<200>", "IQoJb3JpZ2lu"),
        Key("aws", b"FwoGZXIvYXdz", rb"[A-Za-z0-9+/]{80,512}={0,2}",
            "FwoGZXIvYXdz<200>", "FwoGZXIvYXdz"),
        Key("google", b"AIza", rb"[\w-]{35,64}", "AIza<35>", "AIza<12>"),
        Key("google", b"ya29.", rb"[\w.-]{20,512}", "ya29.<68>", "ya29.1"),
        Key("google", b"GOCSPX-", rb"[\w-]{20,64}", "GOCSPX-<28>", "GOCSPX-id"),
        Key("google", b"1//0", rb"[\w-]{30,256}", "1//0<60>", "1//0.5 is 2"),
        Key("azure", b"Q~", rb"[\w~.-]{31,40}", "<3>8Q~<34>", "<3>8Q~<9>",
            before=rb"(?<![\w~.-])[\w~.-]{3}\d\Z"),
        Key("azure", b"AZDO", rb"\w{4}" + _NO_MORE, "<76>AZDO<4>", "AZDO12 is no key",
            before=rb"(?<![A-Za-z0-9])\w{76}\Z"),
        Key("alibaba", b"LTAI", _W + rb"{16,24}" + _NO_MORE, "LTAI<20>", "LTAI<4>"),
        Key("tencent", b"AKID", _W + rb"{32,40}" + _NO_MORE, "AKID<32>", "AKID<8>"),
        *(
            Key("digitalocean", word, rb"[a-f0-9]{48,80}", f"{word.decode()}<64h>",
                f"{word.decode()}<9h>")
            for word in (b"dop_v1_", b"doo_v1_", b"dor_v1_")
        ),
        Key("heroku", b"HRKU-", rb"[\w-]{30,128}", "HRKU-<60>", "HRKU-1"),
        Key("fly", b"fm2_", rb"[\w+/=-]{40,512}", "fm2_<120>", "fm2_x"),
        Key("fly", b"fo1_", rb"[\w-]{40,128}", "fo1_<43>", "fo1_x"),
        Key("netlify", b"nfp_", _W + rb"{30,64}", "nfp_<36>", "nfp_x"),
        Key("vercel", b"vcp_", _W + rb"{24,128}", "vcp_<56>", "vcp_x"),
        Key("render", b"rnd_", _MIXED + _W + rb"{24,64}", "rnd_<32>", "rnd_seed_1"),
        Key("scaleway", b"SCW", rb"(?=[A-Z]{0,17}[0-9])[A-Z0-9]{17}" + _NO_MORE, "SCW<17A>",
            "SCW<5A>"),
        Key("tailscale", b"tskey-", rb"[a-z]{2,12}-[\w-]{16,128}", "tskey-auth-<17>-<32>",
            "tskey-auth"),
    ]  # fmt: skip


def _code() -> list[Key]:
    return [
        *(
            Key("github", b"gh%c_" % letter, rb"\w{30,512}", f"gh{letter:c}_<36>",
                f"gh{letter:c}_<9>")
            for letter in b"posur"
        ),
        Key("github", b"github_pat_", rb"\w{22,512}", "github_pat_<82>", "github_pat_x"),
        Key("gitlab", b"glpat-", rb"[\w-]{20,512}(?:\.[a-z0-9]{2}\.?[a-z0-9]{7})?",
            "glpat-<20>", "glpat-short"),
        *(
            Key("gitlab", word, rb"(?:t\d_)?[\w-]{20,512}(?:\.[a-z0-9]{2}\.?[a-z0-9]{7})?",
                f"{word.decode()}<20>", f"{word.decode()}short")
            for word in (b"glrt-", b"gldt-", b"glptt-", b"glft-", b"glsoat-", b"glagent-",
                         b"gloas-",
                         b"glcbt-", b"glimt-", b"glrtr-")
        ),
        Key("bitbucket", b"ATBB", _MIXED + rb"[\w=-]{28,64}", "ATBB<32>", "ATBB<6>"),
        Key("atlassian", b"ATATT3", rb"[\w=-]{60,512}", "ATATT3x<180>=<8A>", "ATATT3"),
        Key("atlassian", b"ATCTT3", rb"[\w=-]{60,512}", "ATCTT3x<180>=<8A>", "ATCTT3"),
        Key("npm", b"npm_", _W + rb"{36,512}", "npm_<36>", "npm_config_registry"),
        Key("pypi", b"pypi-", _MIXED + rb"[\w-]{32,512}", "pypi-AgEIcHlwaS5vcmc<60>",
            "pypi-a-package-of-a-very-long-name-2024"),
        Key("rubygems", b"rubygems_", rb"[a-f0-9]{40,64}", "rubygems_<48h>",
            "rubygems_version"),
        Key("crates", b"cio", _W + rb"{32}" + _NO_MORE, "cio<32>", "ciorand"),
        Key("nuget", b"oy2", rb"[a-z0-9]{43}" + _NO_MORE, "oy2<43h>", "oy2<9h>"),
        Key("clojars", b"CLOJARS_", rb"[a-z0-9]{50,64}", "CLOJARS_<60h>", "CLOJARS_URL"),
        Key("packagist", b"packagist_", rb"(?:[a-z]{2,4}_)?[a-f0-9]{40,96}",
            "packagist_uut_<68h>", "packagist_mirror"),
        Key("docker", b"dckr_pat_", rb"[\w-]{20,64}", "dckr_pat_<27>", "dckr_pat_x"),
        Key("docker", b"dckr_oat_", rb"[\w-]{20,64}", "dckr_oat_<32>", "dckr_oat_x"),
        Key("artifactory", b"AKCp", _W + rb"{50,128}", "AKCp8<68>", "AKCp8"),
        Key("artifactory", b"cmVmdGtuOj", _W + rb"{40,128}", "cmVmdGtuOj<54>",
            "cmVmdGtuOj"),
        Key("buildkite", b"bkua_", rb"[a-f0-9]{40}", "bkua_<40h>", "bkua_x"),
        Key("circleci", b"CCIPAT_", rb"\w{30,128}", "CCIPAT_<22>_<40h>", "CCIPAT_x"),
        Key("circleci", b"CCIPRJ_", rb"\w{30,128}", "CCIPRJ_<22>_<40h>", "CCIPRJ_x"),
        *(
            Key("sonar", word, rb"[a-f0-9]{40}", f"{word.decode()}<40h>",
                f"{word.decode()}<6h>")
            for word in (b"squ_", b"sqp_", b"sqa_")
        ),
        Key("snyk", b"snyk_", rb"[a-z]{2,4}\.[a-f0-9]{8}\.[\w-]{30,128}",
            "snyk_uat.<8h>.<80>", "snyk_uat"),
        Key("pulumi", b"pul-", rb"[a-f0-9]{40}", "pul-<40h>", "pul-1"),
        Key("terraform", b".atlasv1.", rb"[\w=-]{60,90}", "<14>.atlasv1.<67>",
            "x.atlasv1.y", before=rb"(?<![A-Za-z0-9])[A-Za-z0-9]{14}\Z"),
        Key("postman", b"PMAK-", rb"[a-f0-9]{24}-[a-f0-9]{34}", "PMAK-<24h>-<34h>", "PMAK-<6h>"),
        Key("doppler", b"dp.", rb"(?:pt|st|ct|sa|scim|audit)\.(?:[\w-]{2,35}\.)?" + _W
            + rb"{40,44}", "dp.pt.<43>", "dp.pt.x"),
        Key("sentry", b"sntry", rb"[su]_[\w+/=-]{40,512}", "sntrys_<120>", "sntrys_x"),
    ]  # fmt: skip


def _models() -> list[Key]:
    return [
        Key("anthropic", b"sk-ant-", rb"[\w-]{16,512}", "sk-ant-api03-<90>", "sk-ant-x"),
        Key("openai", b"sk-", rb"(?!ant-)" + _MIXED + rb"[\w-]{20,512}", "sk-proj-<60>",
            "sk-folding-cube-animation-item-number2"),
        Key("openrouter", b"sk-or-v1-", rb"[a-f0-9]{60,64}", "sk-or-v1-<64h>", "sk-or-v1-x"),
        Key("langfuse", b"sk-lf-", rb"[a-f0-9-]{36}", "sk-lf-<8h>-<4h>-<4h>-<4h>-<12h>",
            "sk-lf-x"),
        Key("langsmith", b"lsv2_", rb"[a-z]{2}_[a-f0-9]{32}_[a-f0-9]{10}",
            "lsv2_pt_<32h>_<10h>", "lsv2_pt"),
        Key("huggingface", b"hf_", _W + rb"{30,512}", "hf_<34>", "hf_hub"),
        Key("groq", b"gsk_", _W + rb"{40,64}", "gsk_<52>", "gsk_x"),
        Key("replicate", b"r8_", _W + rb"{30,48}" + _NO_MORE, "r8_<37>", "r8_x"),
        Key("perplexity", b"pplx-", _W + rb"{40,64}", "pplx-<48>", "pplx-api"),
        Key("xai", b"xai-", _W + rb"{60,96}", "xai-<80>", "xai-sdk"),
        Key("nvidia", b"nvapi-", rb"[\w-]{50,80}", "nvapi-<64>", "nvapi-x"),
        Key("cerebras", b"csk-", rb"[a-z0-9]{40,56}", "csk-<48h>", "csk-x"),
        Key("fireworks", b"fw_", _MIXED + _W + rb"{22,32}" + _NO_MORE, "fw_<24>", "fw_cfg"),
        Key("pinecone", b"pcsk_", rb"\w{50,80}", "pcsk_<6>_<62>", "pcsk_x"),
        Key("elevenlabs", b"sk_", rb"[a-f0-9]{48}" + _NO_MORE, "sk_<48h>", "sk_<12h>"),
        Key("tavily", b"tvly-", rb"[\w-]{28,64}", "tvly-<32>", "tvly-x"),
        Key("firecrawl", b"fc-", rb"[a-f0-9]{32}" + _NO_MORE, "fc-<32h>", "fc-1"),
        Key("jina", b"jina_", _W + rb"{50,70}", "jina_<60>", "jina_x"),
        Key("wandb", b"wandb_v1_", rb"\w{40,128}", "wandb_v1_<70>", "wandb_v1_x"),
        Key("voyage", b"pa-", _MIXED + rb"[\w-]{40,64}", "pa-<43>", "pa-1"),
    ]  # fmt: skip


def _messages() -> list[Key]:
    return [
        Key("slack", b"xox", rb"[abceoprsd](?:\.xox[bp])?-[\w-]{10,512}", "xoxb-<12d>-<12d>-<24>",
            "xoxo-hugs"),
        Key("slack", b"xapp-", rb"\d-[\w-]{20,512}", "xapp-1-<11A>-<13d>-<64h>", "xapp-1-x"),
        Key("slack", b"hooks.slack.com",
            _SLASH + rb"(?:services|workflows|triggers)" + _SLASH
            + rb"(?P<secret>(?:\w{6,64}" + _SLASH + rb"){1,3}\w{16,64})",
            "https://hooks.slack.com/services/T<8A>/B<10A>/<24>",
            "https://hooks.slack.com/services/"),
        Key("discord", b"/webhooks", _SLASH + rb"\d{16,20}" + _SLASH
            + rb"(?P<secret>[\w-]{40,128})", "https://discord.com/api/webhooks/<18d>/<68>",
            "https://example.org/api/webhooks/<18d>/logs"),
        *(
            Key("discord", b"." + first, rb"[\w-]{5}\.[\w-]{27,38}(?![\w-])",
                f"M<23>.{first.decode()}<5>.<38>", f"M<23>.{first.decode()}.m",
                before=rb"(?<![\w.-])[MNO][A-Za-z0-9_-]{22,27}\Z")
            for first in (b"C", b"G", b"X", b"Y")  # when it was made
        ),
        Key("teams", b"webhook.office.com", _SLASH + rb"(?P<secret>"
            rb"webhookb2" + _SLASH + rb"[\w@-]{30,90}" + _SLASH + rb"IncomingWebhook" + _SLASH
            + rb"[a-f0-9]{32}(?:" + _SLASH + rb"[\w-]{30,64}){0,2})",
            "https://x.webhook.office.com/webhookb2/<36h>@<36h>/IncomingWebhook/<32h>/<36h>",
            "https://x.webhook.office.com/"),
        Key("telegram", b":AA", rb"[\w-]{32,34}(?![\w-])", "<10d>:AA<33>", "12:AAAA",
            before=rb"(?<!\d)\d{8,10}\Z"),
        Key("sendgrid", b"SG.", rb"[\w-]{16,64}\.[\w-]{16,128}", "SG.<22>.<43>", "SG.a.b"),
        Key("mailgun", b"key-", rb"[a-f0-9]{32}" + _NO_MORE, "key-<32h>", "key-<8h>"),
        Key("mailgun", b"pubkey-", rb"[a-f0-9]{32}" + _NO_MORE, "pubkey-<32h>", "pubkey-<8h>"),
        Key("mailchimp", b"-us", rb"\d{1,2}" + _NO_MORE, "<32h>-us12", "<8h>-us12",
            before=rb"(?<![a-f0-9])[a-f0-9]{32}\Z"),
        Key("sendinblue", b"xkeysib-", rb"[a-f0-9]{64}-\w{16}", "xkeysib-<64h>-<16>",
            "xkeysib-x"),
        Key("resend", b"re_", rb"(?=\w{0,8}[A-Z0-9])" + _W + rb"{8}_" + _W + rb"{24}" + _NO_MORE,
            "re_<8>_<24>", "re_compile_this"),
        Key("twilio", b"SK", rb"[a-f0-9]{32}" + _NO_MORE, "SK<32h>", "SK<8h>"),
        Key("intercom", b"dG9rO", _W + rb"{50,64}={0,2}", "dG9rO<55>=", "dG9rO"),
    ]  # fmt: skip


def _services() -> list[Key]:
    stripe = (b"sk_live_", b"rk_live_", b"sk_test_", b"rk_test_", b"sk_org_")
    return [
        *(
            Key("stripe", word, rb"\w{10,512}", f"{word.decode()}<24>", f"{word.decode()}x")
            for word in stripe
        ),
        Key("stripe", b"whsec_", rb"[A-Za-z0-9+/]{24,128}={0,2}", "whsec_<32>", "whsec_x"),
        Key("square", b"sq0", rb"(?:atp|csp|idp)-[\w-]{20,64}", "sq0csp-<43>", "sq0csp-x"),
        Key("square", b"EAAA", _MIXED + rb"[\w-]{56,64}" + _NO_MORE, "EAAA<60>", "EAAA<9>"),
        Key("paypal", b"access_token$", rb"(?:production|sandbox)\$\w{8,24}\$[a-f0-9]{32}",
            "access_token$production$<16h>$<32h>", "access_token$x"),
        Key("plaid", b"access-", rb"(?:production|development|sandbox)-[a-f0-9-]{36}",
            "access-production-<8h>-<4h>-<4h>-<4h>-<12h>", "access-production-1"),
        Key("razorpay", b"rzp_", rb"(?:live|test)_" + _W + rb"{14,32}", "rzp_live_<14>",
            "rzp_live"),
        Key("flutterwave", b"FLWSECK", rb"(?:_TEST)?-\w{32,64}(?:-X)?", "FLWSECK-<32h>-X",
            "FLWSECK-x"),
        *(
            Key("shopify", word, rb"[a-fA-F0-9]{32,64}", f"{word.decode()}<32h>",
                f"{word.decode()}<6h>")
            for word in (b"shpat_", b"shpca_", b"shppa_", b"shpss_")
        ),
        Key("linear", b"lin_api_", _W + rb"{32,64}", "lin_api_<40>", "lin_api_x"),
        Key("linear", b"lin_oauth_", _W + rb"{32,80}", "lin_oauth_<64>", "lin_oauth_x"),
        Key("notion", b"ntn_", _W + rb"{40,64}", "ntn_<46>", "ntn_x"),
        Key("notion", b"secret_", _MIXED + _W + rb"{40,64}" + _NO_MORE, "secret_<43>",
            "secret_of_the_house"),
        Key("figma", b"figd_", rb"[\w-]{36,64}", "figd_<40>", "figd_x"),
        Key("airtable", b"pat", _W + rb"{14}\.[a-f0-9]{64}", "pat<14>.<64h>", "pattern.match"),
        Key("hubspot", b"pat-", rb"(?:na|eu|ap)\d-[a-f0-9-]{36}",
            "pat-na1-<8h>-<4h>-<4h>-<4h>-<12h>", "pat-na1-x"),
        Key("facebook", b"EAA", _MIXED + _W + rb"{90,512}", "EAA<160>", "EAA<12>"),
        Key("adyen", b"AQE", rb"[a-z]hm" + rb"[A-Za-z0-9+/=-]{60,512}", "AQEyhm<100>", "AQEyhm"),
        Key("grafana", b"glc_", rb"[A-Za-z0-9+/]{32,512}={0,2}", "glc_<100>", "glc_x"),
        Key("grafana", b"glsa_", _W + rb"{32}_[a-fA-F0-9]{8}", "glsa_<32>_<8h>", "glsa_x"),
        *(
            Key("newrelic", word, rb"[A-Za-z0-9]{24,64}", f"{word.decode()}<32A>",
                f"{word.decode()}1")
            for word in (b"NRAK-", b"NRJS-", b"NRII-", b"NRRA-", b"NRBR-", b"NRSP-", b"NRIQ-")
        ),
        Key("newrelic", b"NRAL", _NO_MORE, "<36h>NRAL", "<4h>NRAL",
            before=rb"(?<![A-Za-z0-9])[A-Za-z0-9]{36}\Z"),
        Key("datadog", b"ddp_", _W + rb"{32,64}", "ddp_<36>", "ddp_x"),
        Key("dynatrace", b"dt0", rb"[a-z]\d\d\.[A-Z0-9]{24}\.[A-Z0-9]{64}", "dt0c01.<24A>.<64A>",
            "dt0c01.x"),
        Key("honeycomb", b"hca", rb"[a-z]k_[a-z0-9]{50,64}", "hcaik_<58h>", "hcaik_x"),
        Key("posthog", b"phx_", rb"\w{32,64}", "phx_<43>", "phx_x"),
    ]  # fmt: skip


def _stores() -> list[Key]:
    return [
        *(
            Key("vault", word, rb"[\w-]{24,512}", f"{word.decode()}<90>", f"{word.decode()}x")
            for word in (b"hvs.", b"hvb.", b"hvr.")
        ),
        Key("databricks", b"dapi", rb"[a-f0-9]{32}(?:-\d{1,2})?" + _NO_MORE, "dapi<32h>-2",
            "dapi<6h>"),
        *(
            Key("planetscale", word, rb"[\w.=-]{32,64}", f"{word.decode()}<43>",
                f"{word.decode()}x")
            for word in (b"pscale_tkn_", b"pscale_pw_", b"pscale_oauth_")
        ),
        Key("supabase", b"sbp_", rb"(?:v0_)?[a-f0-9]{40}", "sbp_<40h>", "sbp_x"),
        Key("supabase", b"sb_secret_", rb"[\w-]{24,64}", "sb_secret_<31>", "sb_secret_x"),
        Key("1password", b"ops_eyJ", rb"[\w+/-]{100,512}={0,2}", "ops_eyJ<250>", "ops_eyJ"),
        Key("1password", b"A3-", rb"[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})"
            rb"(?:-[A-Z0-9]{5}){3}", "A3-<6A>-<6A>-<5A>-<5A>-<5A>-<5A>", "A3-paper"),
        Key("age", b"AGE-SECRET-KEY-", rb"(?:PQ-)?1[A-Z0-9]{50,128}",
            "AGE-SECRET-KEY-1<58A>", "AGE-SECRET-KEY-1x"),
        Key("bitcoin", b"xprv", _W + rb"{100,112}" + _NO_MORE, "xprv<107>", "xprv"),
        *(
            Key("password-hash", word, rb"\d\d\$[./A-Za-z0-9]{53}",
                f"{word.decode()}12$<53>", f"{word.decode()}12$")
            for word in (b"$2a$", b"$2b$", b"$2y$")
        ),
        *(
            Key("password-hash", word, shape + rb"[./A-Za-z0-9]{1,16}\$[./A-Za-z0-9]{22,86}"
                rb"(?![./A-Za-z0-9])", f"{word.decode()}{salt}<8>$<86>",
                f"{word.decode()}1")
            for word, shape, salt in ((b"$6$", rb"(?:rounds=\d{1,9}\$)?", ""),
                                (b"$5$", rb"(?:rounds=\d{1,9}\$)?", ""),
                                (b"$y$", rb"[./A-Za-z0-9]{1,8}\$", "j9T$"))
        ),
        Key("password-hash", b"$apr1$", rb"[./A-Za-z0-9]{1,8}\$[./A-Za-z0-9]{22}",
            "$apr1$<8>$<22>", "$apr1$x"),
        Key("password-hash", b"$argon2", rb"(?:id|i|d)\$v=\d{1,3}\$[mtp=,\d]{5,40}\$"
            rb"[A-Za-z0-9+/]{8,64}\$[A-Za-z0-9+/]{16,128}",
            "$argon2id$v=19$m=65536,t=3,p=4$<22>$<43>", "$argon2id$"),
    ]  # fmt: skip
