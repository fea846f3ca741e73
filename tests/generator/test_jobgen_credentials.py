"""Credentials never reach values, outputs, differences, notes or errors; what is not one is left
alone.
"""

import random
import time
from pathlib import Path

import pytest
import yaml

from hack.paths import REPO
from jobgen import credentials
from tests.generator.conftest import written
from tests.generator.diagnostic_lines import brief
from tests.generator.planted import KINDS, TEXTS

HEADER = "name: rl\nexecution: parallel\n---\n"
# Mistakes next to a credential, so that messages show the place.
MISTAKES = ["", "num_nodes: 0\n", "\tx", "resorces: {}\n", "- a\n"]
COMMANDS = [
    ("validate",),
    ("to-values",),
    ("to-values", "-o", "values.yaml"),
    ("to-values", "--check", "old.yaml"),
]


@pytest.fixture
def group(tmp_path, monkeypatch):
    """Return a function that writes a group of one task, with files next to it, and changes to its
    folder.
    """
    monkeypatch.chdir(tmp_path)

    def write(fields, files=None):
        text = f"{HEADER}name: t\n{fields}\n"
        return written(Path(), {**(files or {}), "group.yaml": text}) / "group.yaml"

    return write


# Every kind with every mistake takes long: the texts, which are many, take turns.
OF_TEXTS = [kind for kind in KINDS if kind.rpartition(" in ")[0] in TEXTS]
CASES = [(kind, mistake) for kind in KINDS for mistake in MISTAKES if kind not in OF_TEXTS]
CASES += [(kind, MISTAKES[number % len(MISTAKES)]) for number, kind in enumerate(OF_TEXTS)]


@pytest.mark.parametrize(("kind", "mistake"), CASES)
def test_planted_credentials_appear_nowhere(jobgen, group, kind, mistake):
    planted = KINDS[kind](random.Random(f"{kind} {mistake}"))
    file = group(f"{planted.fields}\n{mistake}", planted.files)
    # Values as an earlier version, or a person, wrote them.
    old = {"tasks": {"t": {"env": {"A": planted.secrets[0]}, "run": "x"}}, "files": {"files": {}}}
    for path, content in {**planted.files, "group.yaml": file.read_text()}.items():
        text = content if isinstance(content, str) else content.decode("latin-1")
        old["files"]["files"][path] = {"text": text}
    Path("old.yaml").write_text(yaml.safe_dump(old))
    for command in COMMANDS:
        result = jobgen(*command, *planted.options, file)
        assert result.exit_code in (0, 1), result.output
        shown = result.output + "".join(each.read_text() for each in Path().glob("values.yaml"))
        leaked = [secret for secret in planted.secrets if secret in shown]
        assert not leaked, (command, shown)


# The rest is accepted without its value, or has another mistake.
NOT_REFUSED = {"the group file's secrets", "docker login", "docker login as secrets"}
NOT_REFUSED |= {"a token as a key", "a token as an image"}
REFUSED = sorted(set(KINDS) - NOT_REFUSED)


@pytest.mark.parametrize("kind", REFUSED)
def test_credentials_are_refused_with_a_way_out(jobgen, group, kind):
    planted = KINDS[kind](random.Random(kind))
    result = jobgen("to-values", *planted.options, group(planted.fields, planted.files))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Secret" in result.stderr or "secrets" in result.stderr


@pytest.mark.parametrize(
    ("fields", "files", "allowed"),
    [
        ("envs: {API_TOKEN: abc}", {}, "API_TOKEN"),
        ("workdir: .", {"conf/.env": "A=b"}, "conf/.env"),
        ("workdir: conf", {"conf/.env": "A=b"}, "conf/.env"),
        ("workdir: .", {"group.yaml": ""}, "group.yaml"),
        ("run: echo KEY=abcdefgh1", {}, "$.run"),
        (
            "config: {kubernetes: {pod_config: {spec: {containers: [{env: [{name: A_KEY, value: b}]}]}}}}",
            {},
            "A_KEY",
        ),
    ],
)
def test_allow_accepts_one_of_them(jobgen, group, fields, files, allowed):
    result = jobgen("to-values", "--allow", allowed, group(fields, {"code.py": "x", **files}))
    assert result.exit_code == 0, result.stderr
    assert allowed.partition("/")[2] in result.stdout


HARMLESS = [
    "envs: {MAX_TOKENS: 512, PAD_TOKEN: <pad>, MASK_TOKEN: '[MASK]', USE_KEY: true, SSH_PUBLIC_KEY: ssh-ed25519 AAAA}",
    "envs: {KEYS: a, TOKENIZER: b, SECRETARY: c, MONKEY: d, HF_TOKEN: '', EMAIL: me@example.com, REF: $HF_TOKEN}",
    "envs: {ADDRESS: 'http://buffer-0.rl:8080/a?b=c', TIME: '12:30@x', DIGEST: 'python:3.12@sha256:abc/'}",
    'run: |\n  export HF_TOKEN=$TOKEN API_KEY="${KEY}" PASSWORD=$(cat /run/secret)\n  curl http://$USER:$PASSWORD@host/',
    "workdir: {url: 'git@github.com:a/b.git'}",
    "workdir: {url: 'ssh://git@github.com/a/b.git'}",
    "config: {kubernetes: {pod_config: {spec: {tolerations: [{key: a, value: b}], containers: [{env: [{name: A_KEY, "
    "valueFrom: {secretKeyRef: {name: s, key: A_KEY}}}]}]}}}}",
    "envs: {GOOGLE_APPLICATION_CREDENTIALS: /secrets/gcp.json, DB_PASS: '2', MAX_TOKENS: '4096', STOP_TOKENS: '</s>'}",
    "envs: {PATH_PAT: 'checkpoint-*', FIRST_PASS: warmup, NUM_PASS: 3, TOKENIZER_KEY_2: '', COMPASS: northwest12}",
]


@pytest.mark.parametrize("fields", HARMLESS)
def test_what_is_not_a_credential_is_accepted(jobgen, group, fields):
    result = jobgen("to-values", group(fields))
    assert result.exit_code == 0, result.stderr


def test_files_that_are_not_credentials_are_embedded(jobgen, group):
    names = [
        ".env.example",
        "keys.py",
        "tokens.txt",
        "id_rsa.pub",
        "environment.yml",
        "key.pub",
        "secret_santa.py",
    ]
    file = group(
        "workdir: .",
        {name: "TOKEN = os.environ['TOKEN']\npassword: ${PASSWORD}\n" for name in names},
    )
    result = jobgen("to-values", file)
    assert result.exit_code == 0, result.stderr
    assert set(yaml.safe_load(result.stdout)["files"]["files"]) == set(names)


def test_all_credential_files_are_named_at_once(jobgen, group):
    result = jobgen("to-values", group("workdir: .", {"a/.env": "x", "b.pem": "x", "c.py": "x"}))
    (line,) = [line for line in result.stderr.splitlines() if ": error[" in line]
    assert (
        brief(line).endswith("$.workdir credential-file") and "a/.env" in line and "b.pem" in line
    )


def test_the_documented_commands_converge(jobgen, group):
    file = group("secrets: {HF_TOKEN: abcdefgh}\nworkdir: .", {"code.py": "x"})
    digests = set()
    for _ in range(6):
        assert jobgen("to-values", file, "-o", "values.yaml").exit_code == 0
        digests.add(Path("values.yaml").read_bytes())
        assert jobgen("to-values", file, "--check", "values.yaml").exit_code == 0
        digests.add(jobgen("to-values", file).stdout.encode())  # with values.yaml next to the code
        digests.add(jobgen("to-values", "-", stdin=file.read_text()).stdout.encode())
        Path("out").mkdir(exist_ok=True)
        assert jobgen("to-values", file, "-o", "out/values").exit_code == 0
        assert jobgen("to-values", file, "--check", "out/values").exit_code == 0
    assert len(digests) == 1
    assert set(yaml.safe_load(digests.pop())["files"]["files"]) == {"code.py"}


def test_an_output_that_is_not_from_jobgen_is_left_out(jobgen, group):
    file = group("workdir: .", {"code.py": "x", "values.yaml": "by hand", "new.yaml": ""})
    assert jobgen("to-values", file, "-o", "values.yaml").exit_code == 0
    assert set(yaml.safe_load(Path("values.yaml").read_text())["files"]["files"]) == {
        "code.py",
        "new.yaml",
    }


def test_the_group_file_cannot_be_mounted(jobgen, group):
    result = jobgen("validate", group("file_mounts: {/g.yaml: group.yaml}"))
    assert result.exit_code == 1 and "[credential-file]" in result.stderr


def test_the_way_out_names_the_variable(jobgen, group):
    """A README's --env HF_TOKEN becomes --secret HF_TOKEN."""
    error = jobgen(
        "validate", "--env", "HF_TOKEN=hf_" + "a" * 30, group("envs: {HF_TOKEN: ''}")
    ).stderr
    assert "pass --secret HF_TOKEN:" in error and "hf_aaa" not in error
    assert jobgen("validate", "--secret", "HF_TOKEN", group("envs: {HF_TOKEN: ''}")).exit_code == 0


CODE = """
    import wandb; wandb.login()
    wandb login; git checkout 0123456789abcdef0123456789abcdef01234567
    git clone https://github.com/wandb/wandb && git checkout 0123456789abcdef0123456789abcdef01234567
    api_key = os.environ["OPENAI_API_KEY"]
    os.environ["WANDB_API_KEY"] = args.wandb_key
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    client = OpenAI(api_key="EMPTY", base_url="http://server-0.rl:8000/v1", organization="team1")
    client = OpenAI(api_key="not-needed")
    def connect(user: str, password: str = "", token: Optional[str] = None, api_key: SecretStr | None = None):
    connect(password=password, token=self.tokenizer.eos_token_2, api_key=get_key_of_v2(user), secret=config.v2.secret)
    PAD_TOKEN = "<pad>"
    EOS_TOKEN = "<|endoftext|>"
    STATE_KEY = "hidden_states_layer_12"
    IMAGE_TOKEN = "<image_token_0123456789>"
    tokens: 1024, max_tokens=4096, num_tokens = 1_000_000_000_000
    "pad_token": "<pad>", "token": "hello", "key": "value", "sha": "0123456789abcdef0123456789abcdef01234567"
    parser.add_argument("--api-key", type=str2bool, default=None, help="key of API version 2")
    parser.add_argument("--token", default="", help="a token")
    python train.py --max-tokens 4096 --eos-token 151643 --tokenizer org/model-7b-v1.5 --password-file /run/p1
    python serve.py --api-key $API_KEY --token "${HF_TOKEN}" --password="$(cat /run/secret/p1)"
    docker login -u me --password-stdin registry.example.com < /run/secret/p1
    docker run -u 1000:1000 -p 8080:80 image && curl -u "$USER:$PASSWORD" https://example.com/
    curl 'https://example.com/v1?limit=12345678&sort_key=created2026&token=$TOKEN'
    password: ${PASSWORD}
    password: {{ .Values.password1 }}
    token_type_ids: 0123456789abcdef0123456789abcdef
    secretKeyRef: {name: database-2026-credentials, key: password}
    secretName: my-very-long-secret-name-2026
    hidden = self.key_projection_1(hidden); key = "model.layers.12.self_attn.k_proj.weight"
    https://hooks.slack.com/services/$SLACK_PATH
"""


@pytest.mark.parametrize("line", [line.strip() for line in CODE.splitlines() if line.strip()])
def test_ordinary_code_is_not_a_credential(line):
    assert not credentials.contains(line), credentials.redact(line)


def test_the_repository_itself_has_no_credential():
    """Code, examples and pages are ordinary texts."""
    folders = ("worker/src", "generator/src", "values-examples", "hack", "charts/*/files")
    found = [path for folder in folders for top in REPO.glob(folder) for path in top.rglob("*")]
    texts = [path for path in found if path.suffix in (".py", ".md", ".yaml", ".sh", ".json")]
    texts.remove(REPO / "hack/gen/accept_docs.py")  # "KEY=NUMBER" has the format
    texts.remove(REPO / "generator/src/jobgen/credential_formats.py")
    assert len(texts) > 200
    assert [str(path) for path in texts if credentials.is_content(path.read_bytes())] == []


def test_a_large_file_is_searched_in_seconds():
    text = ("password token wandb login api_key= --token " * 30_000)[:1_000_000]
    began = time.process_time()
    assert not credentials.contains(text) and not credentials.contains("a" * 1_000_000)
    assert time.process_time() - began < 10
