"""The storage check: what comes back is compared, a full or read-only volume is named, nothing is
left behind.
"""

import errno
import resource
from pathlib import Path

import pytest

from gpuworker.accept.checks import storage as check
from gpuworker.accept.distributed import local_world
from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.report import FAIL, INCOMPLETE
from tests.helpers.cpu_worlds import measured, verdict_on
from tests.helpers.evidence import failures, not_measured

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """A plan with one volume."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    for name in ("scratch", "out"):
        (tmp_path / name).mkdir()
    return lambda **fields: Plan(
        "cpu",
        0,
        **{"scratch": tmp_path / "scratch", "volumes": {"outputs": tmp_path / "out"}, **fields},
    )


def test_a_good_volume_is_measured_and_left_empty(plan, tmp_path):
    found = measured(check, plan())
    assert (failures(found), not_measured(found), found.inapplicable) == ([], [], {})
    numbers = {(measurement.name, measurement.device) for measurement in found.measurements}
    assert numbers == {(name, "outputs") for name in check.SPEC.measures}
    assert all(measurement.value > 0 for measurement in found.measurements)
    assert list((tmp_path / "out").iterdir()) == []


def test_without_volumes_the_scratch_folder_is_tested_and_noted(plan):
    found = measured(check, plan(volumes={}))
    assert "scratch folder" in found.facts["note"]
    assert {measurement.device for measurement in found.measurements} == {"scratch"}


def test_a_volume_that_runs_full_is_named(plan, tmp_path):
    found = measured(check, plan(inject="full-volume"))
    (problem,) = found.problems
    assert (problem.verdict, problem.kind, problem.parts) == (FAIL, "volume-full", ["rank 1"])


def test_a_damaged_file_is_found_by_the_rank_that_reads_it(plan):
    found = measured(check, plan(inject="damaged-file"))
    (problem,) = found.problems
    assert (problem.verdict, problem.kind, problem.parts) == (FAIL, "volume-bytes", ["rank 0"])
    assert "shard-1" in problem.reason and "byte 524288" in problem.reason


def read_only(context, plan) -> dict:
    """Root may write everywhere, so the refusal of a read-only mount is put in at mkdir."""

    def refused(self, **_):
        raise OSError(errno.EROFS, "Read-only file system")

    Path.mkdir = refused  # in the forked rank alone
    return check.run(context, plan)


@pytest.mark.parametrize("files", [3, 0])
def test_of_a_read_only_volume_the_files_are_read(plan, tmp_path, files):
    for number in range(files):
        (tmp_path / "out" / f"shard-{number}.bin").write_bytes(bytes(2 << 20))
    its_plan = plan(volumes={"data": tmp_path / "out"})
    found = check.evidence(local_world.run(its_plan, read_only, plan=its_plan), its_plan, 1)
    numbers = {measurement.name for measurement in found.measurements}
    assert set(found.inapplicable) == {"storage_write"}
    assert numbers == ({"storage_read", "storage_read_p99"} if files else set())
    assert verdict_on(check, found, its_plan).verdict == ("PASS" if files else INCOMPLETE)


@pytest.mark.parametrize(
    ("volumes_of_job", "verdict"), [(False, INCOMPLETE), (True, FAIL)], ids=["scratch", "volume"]
)
def test_a_scratch_folder_that_is_too_small_is_no_fault_of_the_node(plan, volumes_of_job, verdict):
    """A limit on the size of files stands for a small /tmp. A volume of the job that is full is a
    fault.
    """
    its_plan = plan() if volumes_of_job else plan(volumes={})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, before[1]))
    try:
        found = measured(check, its_plan)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    judged = verdict_on(check, found, its_plan)
    assert judged.verdict == verdict, judged.reason
