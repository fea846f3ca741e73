"""The entry script without an agent, in every installed POSIX shell."""

import base64
import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.git_server import Repository, served
from tests.helpers.group_agents import ENTRY, Group
from tests.helpers.processes import ran

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]


@pytest.fixture(params=SHELLS)
def run(request, group):
    """run(SCRIPT, …) returns exit code, output and folder of one rank without an agent."""

    def once(
        script,
        content=None,
        git="",
        node_test=0,
        **settings,
    ):
        rank = group.new_rank("a-0")
        (rank.root / "programs").mkdir()
        (rank.root / "programs/accept-node").write_text(NODE_TEST.replace("CODE", str(node_test)))
        (rank.root / "files").mkdir()
        for key, data in (content or {}).items():
            (rank.root / "files" / key).write_bytes(data)
        if git:
            (rank.root / "scripts/git").write_text(git)
            shutil.copy(ENTRY.with_name("askpass.sh"), rank.root / "scripts/askpass")
            (rank.root / "scripts/askpass").chmod(0o555)
        rank.start_task(script, shell=request.param, GPU_CHARTS_AGENT="", **settings)
        return rank.wait(), rank.output(), rank.root

    return once


QUEUE = {"GPU_CHARTS_QUEUE": "team-a"}
# Kueue admitted a Job that it did not hold alone, so the group would hold nodes in part.
NOT_HELD = "[FATAL] node=a-0 exit_code=2"


@pytest.mark.parametrize(
    ("script", "settings", "code", "shown"),
    [
        ("echo two", {"setup": "echo one"}, 0, "\none\ntwo\n"),
        ("echo two", {"setup": "exit 7"}, 7, "[FATAL] node=a-0 step=setup exit_code=7"),
        ("", {}, 0, ""),
        ("echo two", QUEUE | {"GPU_CHARTS_HELD": "true"}, 0, "\ntwo\n"),
        ("echo two", QUEUE | {"GPU_CHARTS_HELD": ""}, 2, NOT_HELD),
        ("echo two", QUEUE | {"GPU_CHARTS_HELD": "false", "setup": "echo two"}, 2, NOT_HELD),
        ("kill -s SEGV $$", {}, 139, "exit_code=139 signal=11"),
        ("exit 143", {}, 1, "exit_code=143"),  # 143 is kept for pods that are stopped from outside
        ("exit 2", {"GPU_CHARTS_RECOVER_CODES": "29 12"}, 2, "exit_code=2"),
    ],
)
def test_the_code_and_the_cause_of_a_task(run, script, settings, code, shown):
    found, output, _ = run(script, **settings)
    assert found == code and shown in output, output
    assert ("two" in output.splitlines()) == (script == "echo two" and code == 0)


@pytest.mark.parametrize("reason", ["71", "75", "143"])
def test_a_launcher_that_ended_for_another_pod_has_its_pod_replaced(run, reason):
    """Another pod of the task was lost or stopped. Without the launcher, the codes are those of the
    program.
    """
    assert run(f"exit {reason}", GPU_CHARTS_LAUNCHER="--grace-period=20")[0] == 143
    assert run(f"exit {reason}")[0] == (1 if reason == "143" else int(reason))


@pytest.mark.parametrize("shell", SHELLS)
def test_a_full_disk_of_the_node_is_named(tmp_path, shell):
    """The answer of the agent has no place. With 143 the pod would be replaced without end, and
    without a reason.
    """
    rank = Group(tmp_path).new_rank("a-0")
    (rank.root / "state/reply").mkdir()
    for pipe in ("start", "events"):
        os.mkfifo(rank.root / "state" / pipe)
    start, events = (
        os.open(rank.root / "state" / pipe, os.O_RDWR | os.O_NONBLOCK)
        for pipe in ("start", "events")
    )
    os.write(start, b"run\n")
    code = rank.start_task("echo ran", shell=shell).wait()
    os.close(start)
    os.close(events)
    assert code == 1 and "\nran" not in rank.output()
    assert "[FATAL] node=a-0 exit_code=1 " in rank.output() and "reply" in rank.output()


def test_listed_codes_restart_the_task_and_do_not_count(run):
    script = 'n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) >n; echo "try $n"; [ "$n" -ge 2 ] || exit 29'
    code, output, _ = run(script, GPU_CHARTS_RECOVER_CODES="7 29")
    assert code == 0
    assert "try 0" in output and "try 2" in output
    assert output.count("exit_code=29 restarts_in_s") == 2
    assert "errors=0" in output


def test_other_codes_restart_the_task_up_to_the_limit(run):
    code, output, _ = run(
        "echo try; exit 5",
        setup="echo once",
        GPU_CHARTS_MAX_RESTARTS=2,
        GPU_CHARTS_RECOVER_CODES="29",
    )
    assert code == 5
    assert output.count("\ntry\n") == 3
    assert output.count("\nonce\n") == 1
    assert "exit_code=5 errors=2 of=2" in output


def test_a_file_that_cannot_be_written_is_named(run):
    code, output, _ = run(
        "echo ran", files="644 set.0\n/proc/nothing/file\n", content={"set.0": b""}
    )
    assert code == 1
    assert "file=/proc/nothing/file could not be written" in output
    assert "\nran" not in output


def test_a_repository_is_cloned_at_the_ref(run, tmp_path):
    origin = Repository(tmp_path, "origin", 0)
    first, _ = origin.commit({"file": "one"}), origin.commit({"file": "two"})
    ran("git", "-C", origin.bare, "tag", "v1", first, check=True)
    for ref, content in (("", "two"), ("main", "two"), ("v1", "one"), (first, "one")):
        code, output, _ = run("cat file", git=f"file://{origin.bare}\n{ref}\n")
        assert code == 0, output
        assert content in output
    code, output, _ = run("cat file", git=f"file://{origin.bare}\nnothing\n")
    assert code == 1
    assert f"git could not get nothing of file://{origin.bare}" in output


@pytest.mark.parametrize("clones", [True, False])
def test_a_mounted_file_comes_after_the_workdir(run, tmp_path, clones):
    """As in SkyPilot: into the clone, and over a file of the same name."""
    origin = Repository(tmp_path, "origin", 0)
    origin.commit({"config": "of the workdir"})
    content = {"code.0": b"of the workdir", "set.0": b"mounted"}
    files, url = "644 set.0\n~/sky_workdir/config\n", f"file://{origin.bare}\n\n"
    if not clones:
        files, url = "644 code.0\n~/sky_workdir/config\n" + files, ""
    code, output, _ = run("cat config", files=files, content=content, git=url)
    assert code == 0 and output.splitlines()[-1] == "mounted"


@contextlib.contextmanager
def host(folder: Path) -> Iterator[SimpleNamespace]:
    """A host of git that asks for a password, takes any, and keeps the `logins`."""

    def first(request):
        login = request.headers["Authorization"]
        if found.elsewhere:
            return 302, {"Location": found.elsewhere + request.path}, b""
        if not login:
            return 401, {"WWW-Authenticate": "Basic realm=git"}, b""
        found.logins.append(base64.b64decode(login.partition(" ")[2]).decode())
        return None

    found = SimpleNamespace(logins=[], elsewhere="")
    with served(folder, "r", first=first) as (repository,):
        repository.commit({"file": "content of main"})
        found.url = repository.url.removesuffix("/r.git")
        yield found


@pytest.fixture
def hosts(tmp_path, monkeypatch) -> Iterator[list[SimpleNamespace]]:
    """Two hosts with r.git. Git would store every password that it is given."""
    (tmp_path / "config").write_text(f"[credential]\nhelper = store --file={tmp_path}/stored\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_TERMINAL_PROMPT", "0")
    monkeypatch.setenv("GIT_TOKEN", "t0ken")
    with host(tmp_path / "own") as own, host(tmp_path / "other") as other:
        yield [own, other]


def test_the_token_is_for_the_host_of_the_clone_alone(run, hosts, tmp_path):
    own, other = hosts
    ask = "git ls-remote $OTHER/r.git; echo askpass=$GIT_ASKPASS; git fetch -q origin; cat file"
    code, output, _ = run(ask, git=f"{own.url}/r.git\nmain\n", OTHER=other.url)
    assert code == 0 and "content of main" in output, output
    assert set(own.logins) == {"x-access-token:t0ken"}
    assert other.logins == [] and "\naskpass=\n" in output
    assert not (tmp_path / "stored").exists()


def test_the_token_does_not_follow_a_redirect(run, hosts):
    own, other = hosts
    own.elsewhere = other.url
    code, output, _ = run("true", git=f"{own.url}/r.git\nmain\n")
    assert code == 1 and "git could not get main" in output, output
    assert other.logins == []


# -- the test of the node

NODE_TEST = "import sys; print('tested', *sys.argv[1:], flush=True); sys.exit(CODE)"


@pytest.mark.parametrize(
    ("mode", "code", "attempt", "ends"),
    [
        ("gate", 0, 0, 0), ("gate", 72, 0, 72), ("gate", 72, 2, 72), ("gate", 72, 3, 1), ("gate", 2, 0, 2),
        ("report", 72, 0, 0), ("report", 2, 0, 0), ("", 72, 0, 0),
    ],
)  # fmt: skip
def test_an_unfit_node_starts_nothing(run, tmp_path, mode, code, attempt, ends):
    test = {"GPU_CHARTS_NODE_TEST": mode, "ATTEMPT": attempt, "TMPDIR": tmp_path}
    ended, output, _ = run("echo ran", node_test=code, **test)
    assert ended == ends, output
    assert ("\nran\n" in output) == (ends == 0)
    assert ("tested --level=prolog" in output) == bool(mode)


def test_72_is_kept_for_unfit_nodes(run):
    """The JobSet would start the group again, and again."""
    assert run("exit 72")[0] == 72
    assert run("exit 72", node_test=0, GPU_CHARTS_NODE_TEST="gate")[0] == 1
