"""Credentials of different kinds, each planted in a group file, in a file next to it, or on the
command line.
"""

import base64
import json
import random
import string
from collections.abc import Callable
from dataclasses import dataclass, field

import yaml

ALPHABET = string.ascii_letters + string.digits


@dataclass
class Planted:
    """One credential: the fields of the task that contain it, files next to the group, and options."""

    fields: str = "workdir: ."
    files: dict[str, str | bytes] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()  # the texts that must not appear anywhere


def _planted(
    fields: str = "workdir: .", pattern: str = "%s", *options: str, files: dict | None = None
) -> Callable[[random.Random], Planted]:
    """The credential at %s in the task's fields, in options or in files; `pattern` is its format."""

    def plant(chance):
        secret = pattern % "".join(chance.choices(ALPHABET, k=40))
        filled = [each.replace("%s", secret) for each in (fields, *options)]
        found = {path: text.replace("%s", secret) for path, text in (files or {}).items()}
        return Planted(filled[0], found, tuple(filled[1:]), (secret,))

    return plant


def _private_key(chance: random.Random) -> str:
    lines = [base64.b64encode(chance.randbytes(48)).decode() for _ in range(5)]
    return "\n".join(
        ["-----BEGIN OPENSSH PRIVATE KEY-----", *lines, "-----END OPENSSH PRIVATE KEY-----", ""]
    )


def _key_in_a_script(chance: random.Random) -> Planted:
    key = _private_key(chance).splitlines()
    script = "\n".join(f"  {line}" for line in key)
    return Planted(
        f"run: |\n  cat > key <<END\n{script}\n  END\nnum_nodes: 0", secrets=tuple(key[1:-1])
    )


def _key_in_a_file(chance: random.Random) -> Planted:
    key = _private_key(chance)
    return Planted(files={"conf/deploy.txt": key}, secrets=tuple(key.splitlines()[1:-1]))


def _key_in_utf_16(chance: random.Random) -> Planted:
    key = _private_key(chance)
    encoded = [
        base64.b64encode(each).decode()[:60]
        for each in (key.encode("utf-16"), key.encode("utf-16-le"))
    ]
    return Planted(
        files={"deploy.txt": key.encode("utf-16")}, secrets=(*key.splitlines()[1:-1], *encoded)
    )


def _text(
    place: str, pattern: str, alphabet: str = "any", length: int = 40
) -> Callable[[random.Random], Planted]:
    """A text, with the credential at %s, in one of PLACES."""

    def plant(chance):
        secret = (
            "".join(chance.choices(HEX if alphabet == "hex" else ALPHABET, k=length - 1)) + "7"
        )  # a digit, as in nearly every random text
        text = pattern % secret
        content = text.encode("utf-16") if place == "a file in UTF-16" else f"first line\n{text}\n"
        if place.startswith("a file"):
            shown = (
                base64.b64encode(content).decode()[:60] if isinstance(content, bytes) else secret
            )
            return Planted(files={"conf/some.txt": content}, secrets=(secret, shown))
        return Planted(PLACES[place] % json.dumps(text), secrets=(secret,))

    return plant


PLACES = {
    "run": "run: %s",
    "setup": "setup: %s",
    "envs": "envs: {SETTING: %s}",
    "an annotation": "config: {kubernetes: {pod_config: {metadata: {annotations: {a: %s}}}}}",
    "a file": "workdir: .",
    "a file in UTF-16": "workdir: .",
}
HEX = "0123456789abcdef"
# Texts whose credential has no format of its own, or one of a service.
TEXTS = yaml.safe_load(r"""
wandb login: [wandb login %s, hex]
wandb login with an option: [wandb login --relogin '%s', hex]
wandb.login: [wandb.login(key='%s'), hex]
an assignment by subscript: ['os.environ[''WANDB_API_KEY''] = ''%s''', hex]
an assignment by subscript of a token: ['os.environ["HF_HUB_TOKEN"]="%s"']
an assignment: [API_KEY = "%s"]
an argument of a function: [client = OpenAI(api_key="%s")]
a token of W&B: [wandb_v1_%s]
a header with a key: ['curl -H "X-Api-Key: %s" https://example.com/']
Databricks: ['databricks configure --host x # dapi%s', hex, 32]
DigitalOcean: [doctl auth init -t dop_v1_%s, hex, 64]
aws configure set: [aws configure set aws_secret_access_key %s, any, 40]
an assignment on two lines: ['export HF_TOKEN=\

    %s']
kaggle: ['{"username": "me", "key": "%s"}', hex, 32]
npm's password: ['//registry.example.com/:_password=%s']
a user's token of kubeconfig: ["users:\n- user:\n    token: %s"]
a token of EKS: ['token: k8s-aws-v1.%s']
JSON: ['{"openai_api_key": "%s"}', hex, 32]
JSON in camel case: ['{"clientSecret": "%s"}']
YAML: ["database:\n  password: %s", any, 14]
quoted YAML: ['password: "%s"', any, 14]
a variable in YAML: ['HF_TOKEN: %s']
a webhook of Slack: ['https://hooks.slack.com/services/T00000000/B00000000/%s']
a webhook of Discord: ['https://discord.com/api/webhooks/123456789012345678/%s']
Stripe: [sk_live_%s]
?token: ['https://example.com/data?token=%s']
?access_token: ['https://example.com/data?a=b&access_token=%s']
?api_key: ['https://example.com/data?api_key=%s']
curl -u: ['curl -fsS -u me:%s https://example.com/', any, 12]
curl --user: ['curl --user ''me:%s'' https://example.com/', any, 12]
docker login -p: [docker login -u me -p %s registry.example.com, any, 12]
docker login --password: [docker login --username me --password=%s registry.example.com, any, 12]
--api-key: [python serve.py --api-key=%s]
--password: [python load.py --user me --password %s, any, 14]
an option in a list: ['["serve", "--api-key", "%s"]']
export of a name with a number: [export HF_TOKEN_2=%s]
export of APIKEY: [export WANDB_APIKEY=%s]
export of PASS: [export DB_PASS=%s]
export of PAT: [export GITHUB_PAT=%s]
""")
NAMES = (
    "WANDB_APIKEY",
    "DB_PASS",
    "GITHUB_PAT",
    "HF_TOKEN_2",
    "TOKENS",
    "MY_CREDENTIALS",
    "Client_Secret",
)

POD_ENV = "config: {kubernetes: {pod_config: {spec: {containers: [{env: [{name: DB_PASSWORD, value: %s}]}]}}}}"

# Path and content of a file.
FILES = yaml.safe_load("""
a dotenv file: [.env, 'ANYTHING=%s

    ']
a dotenv file for production: [app/.env.production, 'ANYTHING=%s

    ']
netrc: [.netrc, 'machine example.com login me password %s

    ']
netrc under another name: [conf/login, 'machine example.com

    login me

    password %s

    ']
a private key: [.ssh/id_ed25519, '%s

    ']
a certificate's key: [tls/server.key, '%s

    ']
kubeconfig: [.kube/config, 'users: [{name: me, user: {token: %s}}]

    ']
kubeconfig under another name: [prod.yaml, 'current-context: x

    users: [{user: {token: %s}}]

    ']
AWS credentials: [.aws/credentials, '[default]

    key = %s

    ']
AWS credentials under another name: [aws.ini, 'aws_secret_access_key = %s

    ']
GCP credentials: [my-service-account.json, '{"key": "%s"}']
GCP credentials under another name: [gcp.json, '{"private_key": "%s"}']
git credentials: [.git-credentials, 'https://me:%s@github.com

    ']
npm: [.npmrc, '//registry.npmjs.org/:_authToken=%s

    ']
PyPI: [pip.conf, '[global]

    index-url = https://me:%s@pypi.example.com/simple

    ']
docker: [docker.json, '{"auths": {"example.com": {"auth": "%s"}}}']
a script that exports a token: [start.sh, 'export WANDB_API_KEY=%s

    python train.py

    ']
""")
# Fields of the task; format of the credential; options.
FIELDS = yaml.safe_load("""
the group file's secrets: ['secrets: {HF_TOKEN: %s}

    workdir: .']
envs by name: ['envs: {API_TOKEN: %s}']
envs by format: ['envs: {SETTING: %s}', hf_%s]
envs that go into a path: ['envs: {DB_PASSWORD: %s}

    workdir: ./$DB_PASSWORD']
--env: ['envs: {WANDB_API_KEY: }', '%s', --env, WANDB_API_KEY=%s]
a URL in envs: ['envs: {DATABASE: ''postgres://me:%s@db/x''}']
a token as the user of a git URL: ['workdir: {url: ''https://%s@github.com/a/b.git''}', ghp_%s]
an unknown token as the user of a git URL: ['workdir: {url: ''https://%s@github.com/a/b.git''}']
a password in a git URL: ['workdir: {url: ''https://me:%s@github.com/a/b.git''}']
a URL in a script: ['run: git clone https://me:%s@github.com/a/b.git']
a token in a script: ['setup: export GH_TOKEN=%s']
an annotation: ['config: {kubernetes: {pod_config: {metadata: {annotations: {a: %s}}}}}', glpat-%s]
a token as a key: ['envs: {SETTING: a, %s: b}

    %s: c', hf_%s]
a token as an image: ['resources: {image_id: ''docker:me:%s@registry.example.com/a b''}']
""")
OLD = {"old.txt": "it was %s"}  # the group file's own secret without any known format
KINDS: dict[str, Callable[[random.Random], Planted]] = {
    "a private key by its content": _key_in_a_file,
    "a secret in an unknown file": _planted("secrets: {LICENSE: %s}\nworkdir: .", files=OLD),
    "a private key in a script": _key_in_a_script,
    "a secret in a script": _planted("secrets: {LICENSE: %s}\nrun: program --license %s"),
    "pod_config env": _planted(POD_ENV),
    "pod_config env by format": _planted(POD_ENV.replace("DB_PASSWORD", "SETTING"), "sk-ant-%s"),
}
KINDS |= {name: _planted(files=dict([each])) for name, each in FILES.items()}
KINDS |= {name: _planted(*each) for name, each in FIELDS.items()}
KINDS |= {
    f"{name} in {place}": _text(place, *text) for name, text in TEXTS.items() for place in PLACES
}
KINDS |= {f"{name} in envs": _planted(f"envs: {{{name}: %s}}") for name in NAMES}
KINDS["a private key in UTF-16"] = _key_in_utf_16
