"""Local paths: relative to the group file, or to --folder."""

from pathlib import Path

import pytest

from tests.generator.conftest import written
from tests.generator.diagnostic_lines import brief

HEADER = "name: rl\nexecution: parallel\n---\nname: t\n"


@pytest.fixture
def convert(convert_file, tmp_path, monkeypatch):
    """Return a function that converts examples/rl/group.yaml from the folder that contains
    examples.
    """
    monkeypatch.chdir(tmp_path)

    def run(fields, files, *options):
        group = {"examples/rl/group.yaml": HEADER + fields + "\n"}
        written(Path(), {path: path for path in files} | group)
        values, lines = convert_file("examples/rl/group.yaml", *options)
        texts = values and {
            each["text"] for files in values["files"].values() for each in files.values()
        }
        return texts, lines

    return run


def test_a_path_from_the_group_file_is_found(convert):
    files, lines = convert("workdir: code", ["examples/rl/code/a.py"])
    assert files == {"examples/rl/code/a.py"}
    assert [brief(line).split()[-1] for line in lines] == ["embedded"]


def test_of_two_paths_the_one_next_to_the_group_file_is_taken_with_a_note(convert):
    both = ["examples/rl/code/a.py", "code/a.py"]
    files, lines = convert("workdir: code", both)
    assert files == {"examples/rl/code/a.py"}
    (line,) = [line for line in lines if "[honoured-differently]" in line]
    assert "--folder ." in line
    files, lines = convert("workdir: code", both, "--folder", ".")
    assert files == {"code/a.py"} and len(lines) == 1


def test_folder_is_the_only_base(convert):
    assert convert("workdir: code", ["other/code/a.py"], "--folder", "other")[0] == {
        "other/code/a.py"
    }
    files, (line,) = convert("workdir: lib", ["examples/rl/lib/a.py"], "--folder", "other")
    assert files is None and brief(line) == "5:10 $.workdir file-missing" and '"other"' in line


@pytest.mark.parametrize("path", ["~/wheels", "/nonexistent/wheels"])
def test_a_path_that_depends_on_no_folder_is_missing_without_one(
    convert, path, monkeypatch, tmp_path
):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    files, (line,) = convert(f"file_mounts: {{/w: {path}}}", [])
    assert files is None and brief(line).endswith("file-missing") and path in line
    assert "folder" not in line


def test_a_path_of_the_home_folder_needs_a_confirmation(convert, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path.parent / "home"))
    (tmp_path.parent / "home/wheels").mkdir(parents=True)
    (tmp_path.parent / "home/wheels/a.whl").write_text("wheel")
    files, (line,) = convert("file_mounts: {/w: ~/wheels}", [])
    assert files is None and brief(line).endswith("file-outside") and "--allow-outside" in line
    assert convert("file_mounts: {/w: ~/wheels}", [], "--allow-outside")[0] == {"wheel"}


def test_an_error_says_that_the_path_exists_from_here(convert):
    Path("other").mkdir()
    _, (line,) = convert("workdir: code", ["code/a.py"], "--folder", "other")
    assert brief(line) == "5:10 $.workdir file-missing" and "--folder ." in line


def test_a_folder_that_does_not_exist_is_a_usage_error(jobgen):
    result = jobgen("to-values", "--folder", "no-such-folder", "-", stdin=HEADER)
    assert result.exit_code == 2 and "no-such-folder" in result.stderr
