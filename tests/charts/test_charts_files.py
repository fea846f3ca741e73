"""What users write reaches their programs byte for byte: through values, Helm, ConfigMaps and the
entry script.
"""

import base64
import json
import re

import pytest

from tests.helpers.processes import ran
from tests.helpers.rendering import GROUP, each_helm, objects, output, refusal

TEXTS = {
    "empty": "",
    "no newline at the end": "a",
    "newlines": "\n",
    "newlines at the end": "a\n\n\n",
    "newlines at the start": "\n\n a\n",
    "blanks at the start": "  a\nb\n",
    "blanks at the end": "a \nb  \n  \n",
    "tabs": "\ta\n\tb\t\n",
    "carriage returns": "a\r\nb\r\n\rc\r",
    "end of a document": "---\na\n---\n...\n",
    "a template": "{{ .Values.name }}\n{{- fail `x` }}\n",
    "shell": "echo \"$HOME\" '$$' $(id) `id` ${x} \\\\ \\n # a\n",
    "other types": "null",
    "a number": "1e3",
    "YAML": "a: [b]\n- &c *d !e | > %F @g\n",
    "Unicode": "ü€😀\u00a0\u2028\u2029\ufeff\n",
    "control characters": "\x00\x01\x1b[0m\x0c\n",
    "what YAML does not carry": "\x7f\x80\x85\x9f\ufffe\uffff\n",
    "long lines": "word " * 100 + "\n\t" + "x" * 5000,
    "500 KB": "".join(f"line {number}\t$(x) 'q'\n" for number in range(25_000)),
}
PATHS = ["a b.py", "a'b", 'a"b', "a$b", "a:b", "ü/é/x", "#x", "- x", "{{ x }}", "a\\b"]
PATHS += ["....x", "~", "null", "tab\tx", " x "]


def encoded(values: dict) -> bytes:
    """JSON with the characters escaped that YAML does not carry; jobgen writes such files as
    base64.
    """
    text = json.dumps(values, ensure_ascii=False)
    return re.sub("[\x7f-\uffff]", lambda found: f"\\u{ord(found[0]):04x}", text).encode()


def data(item: dict) -> dict[str, bytes]:
    """The files in a ConfigMap."""
    found = {key: text.encode() for key, text in (item.get("data") or {}).items()}
    return found | {
        key: base64.b64decode(text) for key, text in (item.get("binaryData") or {}).items()
    }


def rendered(helm: str, values: dict) -> tuple[dict, dict[str, bytes], dict[str, bytes]]:
    """A Job, the scripts and the files of a group with plain Jobs."""
    group = {**GROUP, "workload": "jobs", "interConnection": False, **values}
    group["networkPolicy"] = {"enabled": False}
    items = objects(output(helm, "job-group", encoded(group)))
    scripts, files, job = [each for each in items if "-programs-" not in each["metadata"]["name"]]
    return job, data(scripts), data(files)


@each_helm
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_what_it_was_as_the_last_of_an_object(name, helm):
    text = TEXTS[name]
    values = {"files": {"a": {"x": {"text": text}}}, "tasks": {"t": {"setup": text, "run": ""}}}
    _, scripts, files = rendered(helm, values)
    assert (scripts["t.setup"].decode(), files["a.0"].decode()) == (text, text)


@each_helm
def test_files_of_different_sets_have_different_keys(helm):
    """Also of sets with names that continue each other, and of more than ten files."""
    sets = {
        name: {f"f{n}": {"text": f"{name} {n}"} for n in range(12)}
        for name in ("a", "a-1", "a1", "1")
    }
    _, _, found = rendered(helm, {"files": sets, "tasks": {"t": {"run": ""}}})
    assert sorted(found.values()) == sorted(
        f["text"].encode() for files in sets.values() for f in files.values()
    )


@each_helm
def test_a_variable_that_would_empty_a_merged_pod_is_refused(helm):
    task = {"env": {"A": "\x7f"}, "run": "", "podTemplate": {"spec": {"priorityClassName": "high"}}}
    said = refusal("job-group", {"tasks": {"t": task}}, helm=helm)
    assert "tasks.t.podTemplate: a text in it or in env has a control character" in said


def test_programs_find_their_files(tmp_path):
    """The entry script, run as the pod would run it, with what the chart put into its ConfigMaps."""
    folder = tmp_path / "elsewhere"
    binary = bytes(range(256))
    texts = {
        path: {"text": f"{path}\n\n", "executable": number % 2 == 0}
        for number, path in enumerate(PATHS)
    }
    texts["bin"] = {"base64": base64.b64encode(binary).decode()}
    mounts = [
        {"mountPath": str(folder), "files": "code"},
        {"mountPath": "~/my code", "files": "code"},
        {"mountPath": "~/.config/a $HOME", "files": "code", "subPath": "a$b"},
    ]
    task = {"fileMounts": mounts, "workdir": {"files": "code"}, "run": "cat 'a b.py'; pwd"}
    job, scripts, files = rendered("helm", {"files": {"code": texts}, "tasks": {"t": task}})
    pod = job["spec"]["template"]["spec"]
    volume = next(volume for volume in pod["volumes"] if volume["name"] == "scripts")
    for name in ("scripts", "files", "state", "home"):
        (tmp_path / name).mkdir()
    for item in volume["configMap"]["items"]:
        (tmp_path / "scripts" / item["path"]).write_bytes(scripts[item["key"]])
    for key, content in files.items():
        (tmp_path / "files" / key).write_bytes(content)
    env = {
        item["name"]: item.get("value", "").replace("$$", "$")
        for item in pod["containers"][0]["env"]
    }
    home = tmp_path / "home"
    done = ran(
        "sh",
        tmp_path / "scripts/entry.sh",
        env={"PATH": "/usr/bin:/bin", **env, "GPU_CHARTS_ROOT": str(tmp_path), "HOME": str(home)},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert f"a b.py\n\n{home}/sky_workdir\n" in done.stdout
    for place in (folder, home / "my code", home / "sky_workdir"):
        assert (place / "bin").read_bytes() == binary
        for path, file in texts.items():
            assert path == "bin" or (place / path).read_text() == file["text"]
            assert (place / path).stat().st_mode & 0o777 == (
                0o755 if file.get("executable") else 0o644
            ), path
    assert (home / ".config/a $HOME").read_text() == "a$b\n\n"
