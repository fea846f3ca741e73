"""A credential inside an archive is refused by its name, and an archive that jobgen cannot read stops nothing."""

import bz2
import gzip
import io
import lzma
import random
import tarfile
import time
import zipfile

import pytest
import yaml

from jobgen import archives

KEY = b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"


def tar(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


NAMED, HIDDEN, CLEAN = {"home/id_rsa": b"x"}, {"a.bin": KEY}, {"a.py": b"import os\n", "id_rsa.pub": b"ssh-rsa AAAA"}
PACKED = {
    "code.tar": tar,
    "code.tar.gz": lambda files: gzip.compress(tar(files)),
    "code.tar.bz2": lambda files: bz2.compress(tar(files)),
    "code.tar.xz": lambda files: lzma.compress(tar(files)),
    "code.zip": zipped,
}


def embed(jobgen, name: str, content: bytes, *options: str):
    with open("group.yaml", "w") as file:
        file.write("name: rl\nexecution: parallel\n---\nname: t\nrun: x\nworkdir: code\n")
    with open(f"code/{name}", "wb") as file:
        file.write(content)
    return jobgen("to-values", "group.yaml", *options)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(("files", "inside"), [(NAMED, "home/id_rsa"), (HIDDEN, "a.bin")], ids=["named", "content"])
def test_a_credential_in_an_archive_is_refused_by_its_name(jobgen, name, files, inside):
    result = embed(jobgen, name, PACKED[name](files))
    assert result.exit_code == 1 and "[credential-file]" in result.stderr
    assert f'"code/{name}" (in it "{inside}")' in result.stderr and "BEGIN" not in result.stderr
    assert embed(jobgen, name, PACKED[name](files), "--allow", f"code/{name}").exit_code == 0


@pytest.mark.parametrize("name", PACKED)
def test_an_archive_of_code_is_embedded(jobgen, name):
    result = embed(jobgen, name, PACKED[name](CLEAN))
    assert result.exit_code == 0, result.stderr
    assert list(yaml.safe_load(result.stdout)["files"]["code"]) == [name]


def test_a_compressed_key_is_refused(jobgen):
    assert "[credential-file]" in embed(jobgen, "notes.gz", gzip.compress(KEY)).stderr


def test_what_can_be_read_of_a_broken_archive_counts(jobgen):
    cut = gzip.compress(tar({"a.bin": KEY, "b.bin": random.Random(1).randbytes(100_000)}))[:-20_000]
    assert "[credential-file]" in embed(jobgen, "cut.tar.gz", cut).stderr
    packed = bytearray(zipped({"a.bin": bytes(1000), "b.bin": KEY}))
    packed[40:44] = b"\xff" * 4  # in the first file's compressed bytes
    assert "[credential-file]" in embed(jobgen, "broken.zip", bytes(packed)).stderr


@pytest.mark.parametrize("name", PACKED)
def test_a_broken_archive_is_a_file_like_any_other(jobgen, name):
    packed = PACKED[name](CLEAN)
    for content in (packed[: len(packed) // 2], packed[:20] + b"\xff" * 40 + packed[60:]):
        assert embed(jobgen, name, content).exit_code == 0


def test_an_archive_that_unpacks_to_gigabytes_takes_no_time():
    bomb = gzip.compress(bytes(200_000_000))
    start = time.process_time()
    found = list(archives.files(bomb))
    assert found and sum(len(content) for _, content in found) <= archives.LIMIT
    assert time.process_time() - start < 2
