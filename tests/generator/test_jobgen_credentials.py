"""Credentials never reach values, outputs, differences, notes or errors; what is not one is left alone."""

import random
from pathlib import Path

import pytest
import yaml

from tests.generator.diagnostic_lines import brief
from tests.generator.planted import KINDS

HEADER = "name: rl\nexecution: parallel\n---\n"
# Mistakes next to a credential, so that messages and source lines show the place.
MISTAKES = ["", "num_nodes: 0\n", "\tx", "resorces: {}\n", "- a\n"]
COMMANDS = [
    ("validate",),
    ("validate", "--format", "json"),
    ("validate", "--color", "always"),
    ("to-values",),
    ("to-values", "--lenient", "--color", "always"),
    ("to-values", "-o", "values.yaml"),
    ("to-values", "--check", "old.yaml"),
    ("to-values", "--diff", "old.yaml"),
]


@pytest.fixture
def group(tmp_path, monkeypatch):
    """Return a function that writes a group of one task, with files next to it, and changes to its folder."""
    monkeypatch.chdir(tmp_path)

    def write(fields: str, files: dict[str, str] | None = None) -> Path:
        for path, content in (files or {}).items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(content)
        Path("group.yaml").write_text(f"{HEADER}name: t\n{fields}\n")
        return Path("group.yaml")

    return write


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("kind", KINDS)
def test_planted_credentials_appear_nowhere(jobgen, group, kind, mistake):
    planted = KINDS[kind](random.Random(f"{kind} {mistake}"))
    file = group(f"{planted.fields}\n{mistake}", planted.files)
    # Values as an earlier version, or a person, wrote them.
    old = {"tasks": {"t": {"env": {"A": planted.secrets[0]}, "run": "x"}}, "files": {"files": {}}}
    for path, content in {**planted.files, "group.yaml": file.read_text()}.items():
        old["files"]["files"][path] = {"text": content}
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
        ("config: {kubernetes: {pod_config: {spec: {containers: [{env: [{name: A_KEY, value: b}]}]}}}}", {}, "A_KEY"),
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
]


@pytest.mark.parametrize("fields", HARMLESS)
def test_what_is_not_a_credential_is_accepted(jobgen, group, fields):
    result = jobgen("to-values", group(fields))
    assert result.exit_code == 0, result.stderr


def test_files_that_are_not_credentials_are_embedded(jobgen, group):
    names = [".env.example", "keys.py", "tokens.txt", "id_rsa.pub", "environment.yml", "key.pub", "secret_santa.py"]
    file = group("workdir: .", {name: "TOKEN = os.environ['TOKEN']\npassword: ${PASSWORD}\n" for name in names})
    result = jobgen("to-values", file)
    assert result.exit_code == 0, result.stderr
    assert set(yaml.safe_load(result.stdout)["files"]["files"]) == set(names)


def test_all_credential_files_are_named_at_once(jobgen, group):
    result = jobgen("to-values", group("workdir: .", {"a/.env": "x", "b.pem": "x", "c.py": "x"}))
    (line,) = [line for line in result.stderr.splitlines() if ": error: " in line]
    assert brief(line).endswith("$.workdir credential-file") and "a/.env" in line and "b.pem" in line


def test_the_note_names_every_file(jobgen, group):
    result = jobgen("to-values", group("workdir: .", {f"lib/{number}.py": "" for number in range(60)}))
    assert all(f"lib/{number}.py" in result.stderr for number in range(60))


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
        assert jobgen("to-values", file, "--diff", "out/values").exit_code == 0
    assert len(digests) == 1
    assert set(yaml.safe_load(digests.pop())["files"]["files"]) == {"code.py"}


def test_an_output_that_is_not_from_jobgen_is_left_out(jobgen, group):
    file = group("workdir: .", {"code.py": "x", "values.yaml": "by hand", "new.yaml": ""})
    shown = jobgen("to-values", file, "--diff", "values.yaml").stdout
    assert "code.py" in shown and "values.yaml:" not in shown
    assert jobgen("to-values", file, "-o", "values.yaml").exit_code == 0
    assert set(yaml.safe_load(Path("values.yaml").read_text())["files"]["files"]) == {"code.py", "new.yaml"}


def test_the_group_file_cannot_be_mounted(jobgen, group):
    result = jobgen("validate", group("file_mounts: {/g.yaml: group.yaml}"))
    assert result.exit_code == 1 and "[credential-file]" in result.stderr


def test_the_way_out_names_the_variable(jobgen, group):
    """A README's --env HF_TOKEN becomes --secret HF_TOKEN."""
    error = jobgen("validate", "--env", "HF_TOKEN=hf_" + "a" * 30, group("envs: {HF_TOKEN: ''}")).stderr
    assert "pass --secret HF_TOKEN:" in error and "hf_aaa" not in error
    assert jobgen("validate", "--secret", "HF_TOKEN", group("envs: {HF_TOKEN: ''}")).exit_code == 0
