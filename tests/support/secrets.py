"""Secrets as people leave them in configurations.

None is real. They are put together here, so that no scanner of this repository finds one.
"""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Iterator
from urllib.parse import quote

HEX = "0123456789abcdef"
WORD = string.ascii_letters + string.digits
UPPER = string.ascii_uppercase + string.digits
LOWER = string.ascii_lowercase + string.digits
URL_SAFE = WORD + "-_"

# prefix, alphabet, length: what a service's tokens look like.
SHAPES = [
    ("hf_", WORD, 34), ("api_org_", WORD, 34), ("ghp_", WORD, 36), ("gho_", WORD, 36), ("ghu_", WORD, 36),
    ("ghs_", WORD, 36), ("ghr_", WORD, 36), ("github_pat_", WORD + "_", 82), ("glpat-", URL_SAFE, 20),
    ("gldt-", URL_SAFE, 20), ("glrt-", URL_SAFE, 20), ("sk-", WORD, 48), ("sk-proj-", URL_SAFE, 100),
    ("sk-svcacct-", URL_SAFE, 60), ("sk-ant-api03-", URL_SAFE, 93), ("sk-or-v1-", HEX, 64), ("AKIA", UPPER, 16),
    ("ASIA", UPPER, 16), ("AIza", URL_SAFE, 35), ("ya29.", URL_SAFE, 60), ("GOCSPX-", URL_SAFE, 28),
    ("1//0", URL_SAFE, 60), ("xoxb-", LOWER, 40), ("xoxp-", LOWER, 40), ("xapp-1-", UPPER, 40),
    ("sk_live_", WORD, 24), ("rk_live_", WORD, 24), ("sk_test_", WORD, 24), ("whsec_", WORD, 32),
    ("nvapi-", URL_SAFE, 64), ("r8_", WORD, 37), ("gsk_", WORD, 52), ("pplx-", LOWER, 48), ("xai-", WORD, 80),
    ("fw_", WORD, 24), ("tgp_v1_", URL_SAFE, 43), ("wandb_v1_", WORD, 77), ("lsv2_pt_", HEX, 32),
    ("pcsk_", WORD, 60), ("dapi", HEX, 32), ("local-", HEX, 40), ("KGAT_", HEX, 32), ("dop_v1_", HEX, 64),
    ("npm_", WORD, 36), ("pypi-AgEIcHlwaS5vcmc", URL_SAFE, 120), ("rubygems_", HEX, 48), ("dckr_pat_", URL_SAFE, 27),
    ("hvs.", URL_SAFE, 90), ("dp.pt.", WORD, 43), ("key-", HEX, 32), ("SK", HEX, 32), ("sq0csp-", URL_SAFE, 43),
    ("shpat_", HEX, 32), ("lin_api_", WORD, 40), ("ntn_", WORD, 46), ("figd_", URL_SAFE, 40),
    ("ATATT3", URL_SAFE, 180), ("glc_", WORD, 60), ("NRAK-", UPPER, 27), ("sntryu_", HEX, 64),
    ("pscale_tkn_", URL_SAFE, 43), ("HRKU-", URL_SAFE, 60), ("AGE-SECRET-KEY-1", UPPER, 58), ("LTAI", WORD, 20),
    ("AKID", WORD, 32), ("AKLT", WORD, 44), ("sbp_", HEX, 40), ("tvly-", WORD, 32), ("csk-", LOWER, 48),
    ("EAA", WORD, 120),
]  # fmt: skip

NAMES = [
    "api_key", "apiKey", "API_KEY", "openai-api-key", "WANDB_API_KEY", "wandb_key", "swanlab_key",
    "azure_openai_key", "password", "db_password", "DB_PASS", "smtp_pass", "PGPASSWORD", "MYSQL_PWD",
    "mysqlPassword", "passwd", "passphrase", "secret", "client_secret", "clientSecret", "aws_secret_access_key",
    "AWS_SESSION_TOKEN", "secret_key", "SECRET_KEY_BASE64", "hub_token", "hf_token", "HF_TOKEN", "push_to_hub_token",
    "token", "access_token", "accessToken", "refresh_token", "auth_token", "bot_token", "id_token",
    "personal_access_token", "authorization", "Authorization", "Proxy-Authorization", "auth", "basic_auth", "cookie",
    "Set-Cookie", "X-Api-Key", "X-Auth-Token", "PRIVATE-TOKEN", "X-Vault-Token", "private_key", "privateKey",
    "ssh_key", "signing_key", "encryption_key", "account_key", "AccountKey", "SharedAccessKey",
    "service_account_key", "credentials", "creds", "bearer", "jwt", "webhook_secret", "storage_key", "license_key",
    "stats_logger.wandb.api_key", "api_key_2", "password_hash", "authtoken", "redis_password", "sshpass",
    "deploy_key",
]  # fmt: skip
"""Names whose values are secrets, whatever these look like."""


def make_tokens() -> list[str]:
    """A token of every service, and what has a structure of its own; the same in every run."""
    source = random.Random(20260101)

    def draw(alphabet: str, length: int) -> str:
        # A token of a real alphabet holds all of its classes.
        ending = ("Z9" if "Z" in alphabet else "9") + alphabet[11]
        return "".join(source.choices(alphabet, k=length - len(ending))) + ending

    tokens = [prefix + draw(alphabet, length) for prefix, alphabet, length in SHAPES]
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
    claims = base64.urlsafe_b64encode(b'{"sub":"1234567890","admin":true}').decode().rstrip("=")
    uuid = "-".join(draw(HEX, length) for length in (8, 4, 4, 4, 12))
    return [
        *tokens,
        f"{header}.{claims}.{draw(URL_SAFE, 43)}",
        f"{header}..{draw(URL_SAFE, 16)}.{draw(URL_SAFE, 60)}.{draw(URL_SAFE, 22)}".replace("..", f".{claims}."),
        f"SG.{draw(URL_SAFE, 22)}.{draw(URL_SAFE, 43)}",
        f"{draw(WORD, 14)}.atlasv1.{draw(URL_SAFE, 67)}",
        f"pat{draw(WORD, 14)}.{draw(HEX, 64)}",
        f"glsa_{draw(WORD, 32)}_{draw(HEX, 8)}",
        f"PMAK-{draw(HEX, 24)}-{draw(HEX, 34)}",
        f"{draw(HEX, 32)}-us12",
        f"{draw(HEX, 32)}.{draw(WORD, 16)}",
        f"1234567890:AA{draw(URL_SAFE, 33)}",
        f"M{draw(WORD, 23)}.{draw(WORD, 6)}.{draw(URL_SAFE, 38)}",
        f"ms-{uuid}",
        "wJalrXUtnFEMI/K7MDENG/bPx" + "RfiCYEXAMPLEKEY",
        draw(WORD, 40) + "==",
        draw(WORD, 64),
        draw(WORD + "+/", 88),
    ]


def make_private_keys() -> list[str]:
    """In the armour of their formats."""
    body = "\n".join("MIIEpAIBAAKCAQEA" + letter * 48 for letter in "abc")
    kinds = ("RSA PRIVATE KEY", "PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY", "ENCRYPTED PRIVATE KEY")
    keys = [f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----" for kind in kinds]
    pgp = "PGP PRIVATE KEY BLOCK"
    return [*keys, f"-----BEGIN {pgp}-----\n\n{body}\n-----END {pgp}-----", f"-----BEGIN {kinds[0]}-----\n{body}"]


def disguise_named(name: str, secret: str) -> Iterator[object]:
    """A secret as configurations hold it under a name."""
    document = {"lr": 0.1, name: secret}
    yield document
    yield {"outer": [{"inner": (document,)}]}
    yield {"env": [{"name": name, "value": secret}]}
    yield {"headers": [[name, secret], ["Accept", "text/html"]]}
    yield {name: [secret, secret]}
    yield json.dumps(document)
    yield json.dumps({"config": json.dumps(document)})
    yield f"AREAL_CALLBACKS='{json.dumps(document)}' python train.py"
    yield repr(document)
    yield [f"--{name}={secret}", "--lr", "0.1"]
    yield ["train.py", f"--{name}", secret, "--lr", "0.1"]
    yield ("train.py", f"-{name}", secret)
    yield f"python train.py --{name} {secret} --lr 0.1"
    yield f"python train.py --{name}={secret} --lr 0.1"
    yield f"{name}={secret} python train.py"
    yield f"export {name}='{secret}'"
    yield f"lr: 0.1\n{name}: {secret}\nseed: 1"
    yield f'{name} = "{secret}"\nlr = 0.1'
    yield f"https://host.example/path?step=1&{name}={secret}&x=2"
    yield f"https://host.example/login?next=https%3A%2F%2Fh%2F%3F{name}%3D{secret}"
    yield f"curl -H '{name}: {secret}' https://host.example"
    yield ["curl", "-H", f"{name}: {secret}", "https://host.example"]
    yield f"Config(lr=0.1, {name}='{secret}')"
    yield f"<config><{name}>{secret}</{name}></config>"


def disguise_bare(secret: str) -> Iterator[object]:
    """A secret that no name announces."""
    yield {"note": secret}
    yield {secret: 1}
    yield [secret]
    yield ("run", [secret])
    yield f"use {secret} here"
    yield f"'{secret}'"
    yield f"note={secret}"
    yield json.dumps({"note": ["a", secret]})
    yield f"https://user:{quote(secret, safe='')}@host.example/path"
    yield f"https://{quote(secret, safe='')}@host.example/path"
    yield f"Bearer {secret}"


# A whole text, and the parts of it that must go.
TEXTS = [
    ("Authorization: Basic YWxhZGRpbjpvcGVuc2VzYW1l", ["YWxhZGRpbjpvcGVuc2VzYW1l"]),
    ('Authorization: Digest username="me", response="6629fae49393a05397450978507c4ef1"', ["6629fae4"]),
    ("Authorization: AWS4-HMAC-SHA256 Credential=AKID/20260101/us, Signature=fe5f80f77d5f", ["fe5f80f7"]),
    ("Cookie: session=abc123def; csrftoken=Zx81", ["abc123def", "Zx81"]),
    ("postgres://user:p@ss/w#rd@db.example:5432/name", ["p@ss", "w#rd"]),
    ("mongodb+srv://admin:hunter2@cluster0.example.net/x", ["hunter2"]),
    ("redis://:s3cr3tpass@cache.example:6379/0", ["s3cr3tpass"]),
    ("https://6f1d3b2a9c8e4f7d@o1.ingest.example.io/42", ["6f1d3b2a9c8e4f7d"]),
    ("user:hunter2@host.example:5432/db", ["hunter2"]),
    ("DefaultEndpointsProtocol=https;AccountName=me;AccountKey=Zm9vYmFy+/x==;EndpointSuffix=x", ["Zm9vYmFy"]),
    ("Endpoint=sb://x.example/;SharedAccessKey=aB3dE5fG7hJ=", ["aB3dE5fG7hJ"]),
    ("host=db user=me password=hunter2 dbname=x", ["hunter2"]),
    ("https://b.s3.x/k?X-Amz-Credential=AKIDX%2F2026&X-Amz-Signature=5ca1ab1e&X-Amz-Expires=60", ["5ca1ab1e", "AKIDX"]),
    ("https://b.blob.example/c?sv=2024-01-01&se=2026&sig=aB%2FcD%3D&sp=r", ["aB%2FcD"]),
    ("https://storage.example/b/o?GoogleAccessId=me@x&Signature=Zm9v%2B", ["Zm9v", "me@x"]),
    ("https://cdn.example/f?Policy=eyJTdGF0ZW1lbnQi&Signature=Mx81~&Key-Pair-Id=K1", ["Mx81~"]),
    ("https://qy.x/cgi-bin/webhook/send?key=693a91f6-7xx1-4bc4-97a0-0ec2sifa5aaa", ["693a91f6", "0ec2sifa5aaa"]),
    ("https://hooks.slack.com/services/T0001/B0001/" + "Xq81" * 6, ["Xq81Xq81"]),
    ("https://discord.com/api/webhooks/1234/" + "Yp-72" * 8, ["Yp-72Yp"]),
    ("https://x.webhook.office.com/webhookb2/aaaa-bbbb@cccc/IncomingWebhook/dddd/eeee", ["dddd", "aaaa-bbbb"]),
    ("https://open.feishu.cn/open-apis/bot/v2/hook/2a6e5c11-3b6e-4b4e", ["2a6e5c11"]),
    ("https://api.telegram.org/bot123:abcdef/sendMessage", ["123:abcdef"]),
    ("curl -u admin:hunter2 https://host.example", ["hunter2"]), ("sshpass -p hunter2 ssh host", ["hunter2"]),
    ("password: correct horse battery staple", ["correct", "horse", "battery", "staple"]),
    ('{"password": "with \\" a quote"}', ["a quote"]), ('run --config={"api_key": "s3", "lr": 1}', ["s3"]),
    (r"run --config '{\"api_key\": \"s3cr3t\"}'", ["s3cr3t"]), ("auth=('me', 'hunter2')", ["hunter2"]),
    ("credentials: {user: me, key: hunter2}", ["hunter2"]),
    ("wandb login --api-key  0123456789abcdef0123456789abcdef01234567", ["0123456789abcdef"]),
    ("set api_key => hunter2", ["hunter2"]), ("token%3Dhunter2%26x%3D1", ["hunter2"]),
]  # fmt: skip
