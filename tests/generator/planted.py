"""Credentials of different kinds, each planted in a group file, in a file next to it, or on the command line."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable
from dataclasses import dataclass, field

ALPHABET = string.ascii_letters + string.digits


@dataclass
class Planted:
    """One credential: the fields of the task that contain it, files next to the group, and options."""

    fields: str = "workdir: ."
    files: dict[str, str | bytes] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()  # the texts that must not appear anywhere


def _word(chance: random.Random, length: int = 24) -> str:
    return "".join(chance.choices(ALPHABET, k=length))


def _file(path: str, content: str) -> Callable[[random.Random], Planted]:
    """A file that is part of the workdir; %s in its content is the credential."""

    def plant(chance: random.Random) -> Planted:
        secret = _word(chance, 40)
        return Planted(files={path: content % secret}, secrets=(secret,))

    return plant


def _fields(fields: str, pattern: str = "%s", *options: str) -> Callable[[random.Random], Planted]:
    """A task whose fields, or the options, contain the credential at %s; `pattern` is its format."""

    def plant(chance: random.Random) -> Planted:
        secret = pattern % _word(chance, 40)
        return Planted(
            fields.replace("%s", secret), {}, tuple(each.replace("%s", secret) for each in options), (secret,)
        )

    return plant


def _private_key(chance: random.Random) -> str:
    lines = [base64.b64encode(chance.randbytes(48)).decode() for _ in range(5)]
    return "\n".join(["-----BEGIN OPENSSH PRIVATE KEY-----", *lines, "-----END OPENSSH PRIVATE KEY-----", ""])


def _key_in_a_script(chance: random.Random) -> Planted:
    key = _private_key(chance).splitlines()
    script = "\n".join(f"  {line}" for line in key)
    return Planted(f"run: |\n  cat > key <<END\n{script}\n  END\nnum_nodes: 0", secrets=tuple(key[1:-1]))


def _key_in_a_file(chance: random.Random) -> Planted:
    key = _private_key(chance)
    return Planted(files={"conf/deploy.txt": key}, secrets=tuple(key.splitlines()[1:-1]))


def _key_in_utf_16(chance: random.Random) -> Planted:
    key = _private_key(chance)
    encoded = [base64.b64encode(each).decode()[:60] for each in (key.encode("utf-16"), key.encode("utf-16-le"))]
    return Planted(files={"deploy.txt": key.encode("utf-16")}, secrets=(*key.splitlines()[1:-1], *encoded))


def _copy_of_a_secret(chance: random.Random) -> Planted:
    secret = _word(chance)
    fields = f"secrets: {{LICENSE: {secret}}}\nrun: program --license {secret}"
    return Planted(fields, secrets=(secret,))


def _other_group(chance: random.Random) -> Planted:
    """The group file's own secret in a file without any known format."""
    secret = _word(chance)
    return Planted(f"secrets: {{LICENSE: {secret}}}\nworkdir: .", {"old.txt": f"it was {secret}"}, secrets=(secret,))


def _text(pattern: str, place: str, alphabet: str = ALPHABET, length: int = 40) -> Callable[[random.Random], Planted]:
    """A text, with the credential at %s, in one of PLACES."""

    def plant(chance: random.Random) -> Planted:
        secret = "".join(chance.choices(alphabet, k=length - 1)) + "7"  # a digit, as in nearly every random text
        text = pattern % secret
        content = text.encode("utf-16") if place == "a file in UTF-16" else f"first line\n{text}\n"
        if place.startswith("a file"):
            shown = base64.b64encode(content).decode()[:60] if isinstance(content, bytes) else secret
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
TEXTS: dict[str, tuple] = {
    "wandb login": ("wandb login %s", HEX),
    "wandb login with an option": ("wandb login --relogin '%s'", HEX),
    "wandb.login": ("wandb.login(key='%s')", HEX),
    "an assignment by subscript": ("os.environ['WANDB_API_KEY'] = '%s'", HEX),
    "an assignment by subscript of a token": ('os.environ["HF_HUB_TOKEN"]="%s"',),
    "an assignment": ('API_KEY = "%s"',),
    "an argument of a function": ('client = OpenAI(api_key="%s")',),
    "a token of W&B": ("wandb_v1_%s",),
    "a header with a key": ('curl -H "X-Api-Key: %s" https://example.com/',),
    "Databricks": ("databricks configure --host x # dapi%s", HEX, 32),
    "DigitalOcean": ("doctl auth init -t dop_v1_%s", HEX, 64),
    "aws configure set": ("aws configure set aws_secret_access_key %s", ALPHABET, 40),
    "an assignment on two lines": ("export HF_TOKEN=\\\n%s",),
    "kaggle": ('{"username": "me", "key": "%s"}', HEX, 32),
    "npm's password": ("//registry.example.com/:_password=%s",),
    "a user's token of kubeconfig": ("users:\n- user:\n    token: %s",),
    "a token of EKS": ("token: k8s-aws-v1.%s",),
    "JSON": ('{"openai_api_key": "%s"}', HEX, 32),
    "JSON in camel case": ('{"clientSecret": "%s"}',),
    "YAML": ("database:\n  password: %s", ALPHABET, 14),
    "quoted YAML": ('password: "%s"', ALPHABET, 14),
    "a variable in YAML": ("HF_TOKEN: %s",),
    "a webhook of Slack": ("https://hooks.slack.com/services/T00000000/B00000000/%s",),
    "a webhook of Discord": ("https://discord.com/api/webhooks/123456789012345678/%s",),
    "Stripe": ("sk_live_%s",),
    "?token": ("https://example.com/data?token=%s",),
    "?access_token": ("https://example.com/data?a=b&access_token=%s",),
    "?api_key": ("https://example.com/data?api_key=%s",),
    "curl -u": ("curl -fsS -u me:%s https://example.com/", ALPHABET, 12),
    "curl --user": ("curl --user 'me:%s' https://example.com/", ALPHABET, 12),
    "docker login -p": ("docker login -u me -p %s registry.example.com", ALPHABET, 12),
    "docker login --password": ("docker login --username me --password=%s registry.example.com", ALPHABET, 12),
    "--api-key": ("python serve.py --api-key=%s",),
    "--password": ("python load.py --user me --password %s", ALPHABET, 14),
    "an option in a list": ('["serve", "--api-key", "%s"]',),
    "export of a name with a number": ("export HF_TOKEN_2=%s",),
    "export of APIKEY": ("export WANDB_APIKEY=%s",),
    "export of PASS": ("export DB_PASS=%s",),
    "export of PAT": ("export GITHUB_PAT=%s",),
}
NAMES = ("WANDB_APIKEY", "DB_PASS", "GITHUB_PAT", "HF_TOKEN_2", "TOKENS", "MY_CREDENTIALS", "Client_Secret")

POD_ENV = "config: {kubernetes: {pod_config: {spec: {containers: [{env: [{name: DB_PASSWORD, value: %s}]}]}}}}"

KINDS: dict[str, Callable[[random.Random], Planted]] = {
    "the group file's secrets": _fields("secrets: {HF_TOKEN: %s}\nworkdir: ."),
    "a dotenv file": _file(".env", "ANYTHING=%s\n"),
    "a dotenv file for production": _file("app/.env.production", "ANYTHING=%s\n"),
    "netrc": _file(".netrc", "machine example.com login me password %s\n"),
    "netrc under another name": _file("conf/login", "machine example.com\nlogin me\npassword %s\n"),
    "a private key": _file(".ssh/id_ed25519", "%s\n"),
    "a private key by its content": _key_in_a_file,
    "a certificate's key": _file("tls/server.key", "%s\n"),
    "kubeconfig": _file(".kube/config", "users: [{name: me, user: {token: %s}}]\n"),
    "kubeconfig under another name": _file("prod.yaml", "current-context: x\nusers: [{user: {token: %s}}]\n"),
    "AWS credentials": _file(".aws/credentials", "[default]\nkey = %s\n"),
    "AWS credentials under another name": _file("aws.ini", "aws_secret_access_key = %s\n"),
    "GCP credentials": _file("my-service-account.json", '{"key": "%s"}'),
    "GCP credentials under another name": _file("gcp.json", '{"private_key": "%s"}'),
    "git credentials": _file(".git-credentials", "https://me:%s@github.com\n"),
    "npm": _file(".npmrc", "//registry.npmjs.org/:_authToken=%s\n"),
    "PyPI": _file("pip.conf", "[global]\nindex-url = https://me:%s@pypi.example.com/simple\n"),
    "docker": _file("docker.json", '{"auths": {"example.com": {"auth": "%s"}}}'),
    "a script that exports a token": _file("start.sh", "export WANDB_API_KEY=%s\npython train.py\n"),
    "a secret in an unknown file": _other_group,
    "envs by name": _fields("envs: {API_TOKEN: %s}"),
    "envs by format": _fields("envs: {SETTING: %s}", "hf_%s"),
    "envs that go into a path": _fields("envs: {DB_PASSWORD: %s}\nworkdir: ./$DB_PASSWORD"),
    "--env": _fields("envs: {WANDB_API_KEY: }", "%s", "--env", "WANDB_API_KEY=%s"),
    "a URL in envs": _fields("envs: {DATABASE: 'postgres://me:%s@db/x'}"),
    "a token as the user of a git URL": _fields("workdir: {url: 'https://%s@github.com/a/b.git'}", "ghp_%s"),
    "an unknown token as the user of a git URL": _fields("workdir: {url: 'https://%s@github.com/a/b.git'}"),
    "a password in a git URL": _fields("workdir: {url: 'https://me:%s@github.com/a/b.git'}"),
    "a URL in a script": _fields("run: git clone https://me:%s@github.com/a/b.git"),
    "a token in a script": _fields("setup: export GH_TOKEN=%s"),
    "a private key in a script": _key_in_a_script,
    "a secret in a script": _copy_of_a_secret,
    "pod_config env": _fields(POD_ENV),
    "pod_config env by format": _fields(POD_ENV.replace("DB_PASSWORD", "SETTING"), "sk-ant-%s"),
    "an annotation": _fields("config: {kubernetes: {pod_config: {metadata: {annotations: {a: %s}}}}}", "glpat-%s"),
    "a token as a key": _fields("envs: {SETTING: a, %s: b}\n%s: c", "hf_%s"),
    "a token as an image": _fields("resources: {image_id: 'docker:me:%s@registry.example.com/a b'}"),
}
KINDS |= {f"{name} in {place}": _text(text[0], place, *text[1:]) for name, text in TEXTS.items() for place in PLACES}
KINDS |= {f"{name} in envs": _fields(f"envs: {{{name}: %s}}") for name in NAMES}
KINDS["a private key in UTF-16"] = _key_in_utf_16
