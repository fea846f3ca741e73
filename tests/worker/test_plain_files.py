"""Regular files alone are opened, and nothing that has their name holds or misleads the reader or
the writer.
"""

import os

import pytest

from gpuworker.runtime.plain_files import open_plain, read_plain, replace_plain
from tests.helpers.hostile_files import KINDS, plant


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_beginning_of_a_regular_file_is_read(tmp_path, kind):
    (tmp_path / "outside").write_text("secret")
    (tmp_path / "in").mkdir()
    plant(tmp_path / "in/file", kind)
    before = len(os.listdir("/proc/self/fd"))
    try:
        assert len(read_plain(tmp_path / "in/file", 4000)) == {"garbage": 999, "huge": 4000}[kind]
    except OSError as error:
        assert kind not in ("garbage", "huge") and error.strerror
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_is_followed_to_a_regular_file_only_where_that_is_wanted(tmp_path):
    (tmp_path / "outside").write_text("report")
    (tmp_path / "in").mkdir()
    plant(tmp_path / "in/file", "outside")
    assert read_plain(tmp_path / "in/file", 99, follow=True) == b"report"
    plant(tmp_path / "in/file", "endless")
    with pytest.raises(OSError, match="not a regular file"):
        read_plain(tmp_path / "in/file", 99, follow=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["file", "file.partial"])
def test_a_file_is_replaced_whatever_has_its_name(tmp_path, name, kind):
    (tmp_path / "outside").write_text("kept")
    (tmp_path / "in").mkdir()
    plant(tmp_path / "in" / name, kind)
    if kind == "folder":
        with pytest.raises(OSError, match="directory"):
            replace_plain(tmp_path / "in/file", b"new")
        return
    replace_plain(tmp_path / "in/file", b"new")
    assert (tmp_path / "in/file").read_bytes() == b"new" and not (tmp_path / "in/file").is_symlink()
    assert (tmp_path / "outside").read_text() == "kept"
    assert not (tmp_path / "in/file.partial").exists()


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_plain(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(OSError, match="not a regular file"):
        open_plain(tmp_path / "file")
