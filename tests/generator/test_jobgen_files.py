"""file_mounts, workdir and volumes: embedded files, ignored files, and errors."""

import base64
import os

import pytest

from tests.generator.conftest import written
from tests.generator.diagnostic_lines import brief

HEADER = "name: rl\nexecution: parallel\n---\n"


@pytest.fixture
def folder(tmp_path):
    """Return a group file's folder with code, next to a folder outside it."""
    written(tmp_path, {"outside/x": "x"})
    group = written(tmp_path / "group", {
        "code/train.py": "print(1)\n", "code/lib/Z.py": "", "code/lib/a.py": "\n",
        "code/.git/config": "x", "app.toml": "a = 1", "code/data.bin": b"\xff\0",
    })  # fmt: skip
    (group / "code/train.py").chmod(0o755)
    return group


@pytest.fixture
def convert(convert_file, folder):
    """Return a function that converts a group of tasks with these fields to values and diagnostics."""

    def run(*tasks, options=()):
        text = HEADER + "---\n".join(
            f"name: t{index}\n{fields}\n" for index, fields in enumerate(tasks)
        )
        (folder / "group.yaml").write_text(text)
        return convert_file(folder / "group.yaml", *options)

    return run


def test_folder_and_file_are_embedded(convert):
    values, lines = convert("file_mounts: {/code: ./code, /etc/app.toml: app.toml}")
    assert values["files"] == {
        "code": {
            "data.bin": {"base64": base64.b64encode(b"\xff\0").decode()},
            "lib/Z.py": {"text": ""},
            "lib/a.py": {"text": "\n"},
            "train.py": {"text": "print(1)\n", "executable": True},
        },
        "app-toml": {"app.toml": {"text": "a = 1"}},
    }
    assert list(values["files"]["code"]) == ["data.bin", "lib/Z.py", "lib/a.py", "train.py"]
    assert values["tasks"]["t0"]["fileMounts"] == [
        {"mountPath": "/code", "files": "code"},
        {"mountPath": "/etc/app.toml", "files": "app-toml", "subPath": "app.toml"},
    ]
    assert list(map(brief, lines)) == [
        '5:22 $.file_mounts["/code"] embedded',
        '5:45 $.file_mounts["/etc/app.toml"] embedded',
    ]
    assert "embedded 12 bytes" in lines[0] and "embedded 5 bytes" in lines[1]


def test_a_folder_is_embedded_once(convert):
    values, lines = convert(
        "workdir: code",
        "file_mounts: {/a: code/, /b: {source: ./code, mode: COPY}}",
        "workdir: code/lib",
    )
    assert list(values["files"]) == ["code", "lib"]
    assert [task.get("workdir") for task in values["tasks"].values()] == [
        {"files": "code"},
        None,
        {"files": "lib"},
    ]
    assert {mount["files"] for mount in values["tasks"]["t1"]["fileMounts"]} == {"code"}
    assert len(lines) == 2


def test_two_folders_of_one_name_get_two_names(convert, folder):
    (folder / "b/code").mkdir(parents=True)
    (folder / "b/code/x").write_text("x")
    values, _ = convert("file_mounts: {/a: code, /b: b/code}")
    assert list(values["files"]) == ["code", "code-2"]


def test_times_and_modes_of_files_do_not_change_the_values(convert, folder):
    before, _ = convert("workdir: code")
    os.utime(folder / "code/train.py", (0, 0))
    (folder / "code/lib/a.py").chmod(0o600)
    os.rename(folder / "code/data.bin", folder / "code/x")
    os.rename(folder / "code/x", folder / "code/data.bin")
    assert convert("workdir: code")[0] == before


def test_the_folder_of_the_group_file_can_be_embedded_without_that_file(convert):
    values, (line, _) = convert("workdir: .")
    assert values["tasks"]["t0"]["workdir"] == {"files": "files"}
    assert "app.toml" in values["files"]["files"] and "group.yaml" not in values["files"]["files"]
    assert "left out" in line and "group.yaml" in line.partition("left out")[2]


def test_a_folder_of_which_nothing_is_left_is_not_mounted(convert, folder):
    (folder / "copy").mkdir()
    (folder / "copy/group.yaml").symlink_to("../group.yaml")
    values, (line,) = convert("workdir: copy")
    assert "files" not in values and "workdir" not in values["tasks"]["t0"]
    assert (
        brief(line) == "5:10 $.workdir embedded" and "group.yaml" in line.partition("left out")[2]
    )


def test_git_workdir_is_not_embedded(convert):
    values, lines = convert("workdir: {url: 'https://example.com/x.git', ref: v1}")
    assert values["tasks"]["t0"]["workdir"] == {
        "git": {"url": "https://example.com/x.git", "ref": "v1"}
    }
    assert "files" not in values and lines == []


def test_variables_in_paths_are_replaced(convert):
    values, _ = convert(
        "envs: {WHAT: code, N: 1}\nworkdir: ./${WHAT}\nfile_mounts: {/x-$N: $WHAT/lib}\nvolumes: {/v$N: 'pvc-${N}'}"
    )
    task = values["tasks"]["t0"]
    assert (task["workdir"], task["fileMounts"][0]["mountPath"]) == ({"files": "code"}, "/x-1")
    assert task["volumes"] == [{"mountPath": "/v1", "claimName": "pvc-1"}]


@pytest.mark.parametrize(
    ("ignore", "rules", "kept"),
    [
        (".gitignore", "*.py\n!train.py\n# data.bin\n", {".gitignore", "data.bin", "train.py"}),
        (
            ".gitignore",
            "!\n\\\nlib/\n",
            {".gitignore", "data.bin", "train.py"},
        ),  # two lines that are no patterns
        (".skyignore", "lib\n", {".skyignore", "data.bin", "train.py"}),
        ("lib/.gitignore", "/a.py\n", {"lib/.gitignore", "lib/Z.py", "data.bin", "train.py"}),
    ],
)
def test_ignored_files_are_not_embedded(convert, folder, ignore, rules, kept):
    (folder / "code" / ignore).write_text(rules)
    values, _ = convert("workdir: code")
    assert set(values["files"]["code"]) == kept


def test_skyignore_comes_before_gitignore(convert, folder):
    (folder / "code/.gitignore").write_text("*\n")
    (folder / "code/.skyignore").write_text("lib\n")
    values, _ = convert("workdir: code")
    assert "train.py" in values["files"]["code"]


def test_links_inside_are_followed(convert, folder):
    (folder / "code/link.py").symlink_to("train.py")
    (folder / "code/more").symlink_to("lib")
    values, _ = convert("workdir: code")
    assert values["files"]["code"]["link.py"] == {"text": "print(1)\n", "executable": True}
    assert values["files"]["code"]["more/a.py"] == {"text": "\n"}


def test_a_link_to_nothing_is_named(convert, folder):
    (folder / "code/link").symlink_to("nowhere")
    values, (line,) = convert("workdir: code")
    assert (
        values is None and '"link"' in line and ".skyignore" in line and "[file-missing]: " in line
    )
    (folder / "code/.skyignore").write_text("link\n")
    assert convert("workdir: code")[0]


@pytest.mark.parametrize(
    "source", ["../outside", "link", "with-link", "../group/link/x", "'~'", "/etc/hostname"]
)
def test_files_outside_the_folder_need_a_confirmation(convert, folder, source):
    (folder / "link").symlink_to("../outside")
    (folder / "with-link").mkdir()
    (folder / "with-link/x").symlink_to("../../outside/x")
    values, (line,) = convert(f"file_mounts: {{/x: {source}}}")
    assert values is None and "--allow-outside" in line and "[file-outside]" in line
    if source in ("../outside", "link", "with-link"):
        values, _ = convert(f"file_mounts: {{/x: {source}}}", options=("--allow-outside",))
        assert list(values["files"].values()) == [{"x": {"text": "x"}}]


def test_unusable_files_are_refused(convert, folder):
    os.mkfifo(folder / "pipe")
    (folder / "code/up").symlink_to("../code")
    (folder / "empty").mkdir()
    values, lines = convert(
        "file_mounts: {/a: pipe, /b: code, /c: empty, /d: gone}\nworkdir: app.toml"
    )
    assert values is None
    assert [brief(line).partition("$.")[2] for line in lines] == [
        'file_mounts["/a"] file-unreadable',
        'file_mounts["/b"] file-unreadable',
        'file_mounts["/c"] file-missing',
        'file_mounts["/d"] file-missing',
        "workdir bad-value",
    ]
    names = ['"pipe"', '"up" is a symbolic link', '"empty"', '"gone"', '"app.toml" is a file']
    assert all(name in line for name, line in zip(names, lines, strict=True))


def test_too_many_bytes_are_refused_with_the_largest_files(convert, folder):
    for number in range(12):
        (folder / f"code/{number:02}").write_bytes(b"x" * (100_000 + number))
    values, lines = convert("workdir: code")
    assert values is None
    (line,) = [line for line in lines if "error" in line]
    assert brief(line) == "1:1 $ files-too-large" and "1,200,078" in line and "1,000,000" in line
    assert (
        "code/11 100,011, code/10 100,010," in line and "code/02" in line and "code/01" not in line
    )
    assert "image" in line and "volume" in line and "clone" in line


def test_files_that_do_not_fit_into_the_release_secret_are_refused(convert, folder):
    (folder / "code/random").write_bytes(os.urandom(400_000))
    assert convert("workdir: code")[0] is None
    (folder / "code/random").write_bytes(os.urandom(150_000))
    assert convert("workdir: code")[0]
    (folder / "code/random").write_bytes(b"compresses well\n" * 60_000)
    assert convert("workdir: code")[0]


def test_volumes_become_claims_and_ephemeral_volumes(task_values, task_notes):
    task = """\
        name: t
        volumes:
          /data: shared
          /part: {name: shared, sub_path: a/b}
          /scratch:
            {size: 100Gi, type: k8s-pvc, labels: {a: b}, config: {storage_class_name: fast, access_mode: ReadWriteOnce}}
          /small: {size: 5}
        """
    assert task_values(task)["volumes"] == [
        {"mountPath": "/data", "claimName": "shared"},
        {"mountPath": "/part", "claimName": "shared", "subPath": "a/b"},
        {
            "mountPath": "/scratch",
            "size": "100Gi",
            "storageClassName": "fast",
            "accessMode": "ReadWriteOnce",
            "labels": {"a": "b"},
        },
        {"mountPath": "/small", "size": "5Gi"},
    ]
    assert len(task_notes(task)) == 2


def test_a_sized_volume_of_several_nodes_is_refused(task_notes, task_error):
    (note,) = task_notes("name: t\nnum_nodes: 2\nvolumes: {/data: shared}\n")
    assert "ReadWriteMany" in note and "several nodes" in note
    task = "name: t\nnum_nodes: 2\nvolumes: {/data: {size: 1Gi}}\n"
    assert "[volume-of-one-node]" in task_error(task)


# The code of the error: fields of the task.
REFUSED = """\
bad-value: volumes: {data: a}
bad-value: volumes: {/data/../x: a}
bad-value: volumes: {/data: {name: a, sub_path: ../b}}
missing-field: volumes: {/data: {sub_path: x}}
bad-value: volumes: {/data: a, /data//: b}
same-path: volumes: {/tmp: a}
same-path: volumes: {/group/state: a}
same-path: volumes: {/a/./b: a, /a/b: b}
refused-field: volumes: {/data: a}; file_mounts: {/data: 's3://b'}
bad-value: workdir: {url: '--upload-pack=x'}
unknown-variable: workdir: code-$NO_SUCH_VARIABLE
unknown-variable: volumes: {$/scratch: {size: 1Gi}}
unknown-variable: volumes: {/scratch: {size: $}}
unknown-variable: envs: {A: $B}; volumes: {/a: {name: $A}}
bad-value: envs: {A: ''}; volumes: {/$A: a}
bad-value: envs: {A: x}; volumes: {$A/y: a}
bad-value: envs: {A: /x/../y}; volumes: {$A: a}
unknown-variable: envs: {A: x}; volumes: {/$A/$B: {size: $}}
secret-in-values: secrets: {X: }; file_mounts: {/$X: code}
"""


@pytest.mark.parametrize("row", REFUSED.splitlines())
def test_mount_is_refused(errors, row):
    code, _, fields = row.partition(": ")
    lines = errors(f"{HEADER}name: t\n" + fields.replace("; ", "\n"))
    assert any(f"[{code}]" in line for line in lines)


def test_nothing_is_mounted_over_the_workdir(errors, folder):
    lines = errors(
        f"{HEADER}name: t\nworkdir: {{url: 'https://x/y'}}\nfile_mounts: {{~/sky_workdir: ./b}}\n"
    )
    assert any("workdir is already mounted" in line and "[same-path]: " in line for line in lines)
