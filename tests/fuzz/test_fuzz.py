"""Any bytes get one result, in bounded time and memory: from jobgen, and from what the worker reads
of other pods.

FUZZ_SECONDS (default: 20) sets how long the coverage-guided fuzzer runs on jobgen, and then on the
worker.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hack.gen.diagnostic_codes import CODES
from hack.paths import CACHE, REPO
from tests.differential import groups
from tests.differential.table import TABLE
from tests.fuzz.check import jobgen

SEEDS = REPO / "tests/generator/seeds"
WORKER = ("launch", "group", "reports")
SECONDS = int(os.environ.get("FUZZ_SECONDS", "20"))
MIB = 1 << 20


def run(*command: object, seconds: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=seconds + 120,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def corpus(target: str, folder: Path) -> Path:
    """Inputs that reach most of a target, one file each. In the worker's, a letter is the byte of
    its number.
    """
    if target == "jobgen":
        texts = [file.read_text() for file in SEEDS.glob("*.yaml")]
        texts += [each.source for each in CODES.values()] + [each.text for each in TABLE]
        found = [text.encode() for text in texts]
    else:
        stored = Path(__file__).with_name("corpus_worker") / f"{target}.json"
        found = [text.encode("latin-1") for text in json.loads(stored.read_text())]
    folder.mkdir()
    for number, content in enumerate(found):
        (folder / str(number)).write_bytes(content)
    return folder


@pytest.mark.parametrize("target", ["jobgen", *WORKER])
def test_coverage_guided_fuzzing_finds_no_failure(target, tmp_path):
    """It goes on from what earlier runs found, which the cache keeps, as it keeps an input that
    fails.
    """
    grown, found = CACHE / "fuzz" / target, CACHE / "fuzz/found"
    for folder in (grown, found):
        folder.mkdir(parents=True, exist_ok=True)
    seconds = SECONDS if target == "jobgen" else max(1, SECONDS // len(WORKER))
    limits = ["-max_len=4000", f"-max_total_time={seconds}", "-timeout=60", "-print_final_stats=1"]
    folders = [f"-artifact_prefix={found}/", grown, corpus(target, tmp_path / "corpus")]
    output = run("tests.fuzz.harness", target, *limits, *folders, seconds=seconds)
    executed = int(output.partition("stat::number_of_executed_units:")[2].split()[0])
    print(f"{executed} inputs")
    assert executed > 20  # on a machine with much other load, too; each starts from the corpus


GROUP = b"name: a\nexecution: parallel\n---\nname: a\n"


def numbered(line: bytes, count: int) -> bytes:
    """Repeat the line; <n> becomes the line's number, <m> the number before it."""
    return b"".join(
        line.replace(b"<n>", b"%d" % n).replace(b"<m>", b"%d" % (n - 1)) for n in range(1, count)
    )


HOSTILE = {
    "anchors that explode": b"a0: &a0 [x, x]\n" + numbered(b"a<n>: &a<n> [*a<m>, *a<m>]\n", 60),
    "merges that explode": b"a0: &a0 {k: v}\n"
    + numbered(b"a<n>: &a<n> {<<: [*a<m>, *a<m>], k<n>: v}\n", 60),
    "an anchor in itself": b"&a [*a, *a]\n",
    "deep lists": b"[" * 100_000,
    "deep maps": b"{a: " * 100_000,
    "deep indentation": b"".join(b" " * n + b"a:\n" for n in range(3_000)),
    "many documents": b"---\nname: a\n" * 200_000,
    "many keys": numbered(b"key<n>: 1\n", 300_000),
    "many diagnostics": GROUP + numbered(b"key<n>: 1\n", 100_000),
    "one key again and again": b"a: 1\n" * 500_000,
    "many tasks of one name": b"name: a\nexecution: parallel\n" + b"---\nname: a\n" * 20_000,
    "many envs": GROUP + b"envs:\n" + numbered(b"  A<n>: x\n", 100_000),
    "many anchors": GROUP + b"envs:\n" + numbered(b"  A<n>: &a<n> x\n", 50_000),
    "a long key": b"a" * 10 * MIB + b": 1\n",
    "a long text": GROUP + b"run: '" + b"a" * 10 * MIB + b"'\n",
    "a long line of blanks": b"name: a" + b" " * 10 * MIB + b"\n",
    "a long number": GROUP + b"num_nodes: " + b"9" * MIB + b"\n",
    "a long hexadecimal number": GROUP + b"envs: {A: 0x" + b"f" * MIB + b"}\n",
    "a long binary number": GROUP + b"envs: {A: 0b" + b"1" * MIB + b"}\n",
    "a long octal number": GROUP + b"num_nodes: 0" + b"7" * MIB + b"\n",
    "a long sexagesimal number": GROUP + b"envs: {A: 1" + b":59" * 100_000 + b"}\n",
    "a long sexagesimal fraction": GROUP + b"envs: {A: 1" + b":59" * 100_000 + b".5}\n",
    "a long fraction": GROUP + b"envs: {A: 1." + b"1" * MIB + b"e+999999999}\n",
    "a long accelerator": GROUP + b"resources: {accelerators: '" + b"a" * MIB + b":'}\n",
    "a long duration": b"name: a\nexecution: parallel\ntermination_delay: '"
    + b"1" * MIB
    + b"x'\n---\nname: a\n",
    "a long image": GROUP + b"resources: {image_id: '" + b"docker:" * 100_000 + b" '}\n",
    "a long label": GROUP + b"resources: {labels: {'" + b"a." * MIB + b"/': x}}\n",
    "a long amount": GROUP
    + b"resources: {memory: '"
    + b"1" * MIB
    + b"x', cpus: '"
    + b"0" * MIB
    + b"'}\n",
    "a long infra": GROUP + b"resources: {infra: '" + b" " * MIB + b"k8s/" + b"/" * MIB + b"'}\n",
    "a long address": GROUP + b"workdir: {url: 'https://" + b"a:" * MIB + b"'}\n",
    "many variables in a path": GROUP
    + b"envs: {A: '$A$A'}\nfile_mounts: {'/"
    + b"$A" * 100_000
    + b"': x}\n",
    "a text again and again": GROUP
    + b"envs:\n  A: &a "
    + b"x" * MIB
    + b"\n"
    + numbered(b"  B<n>: *a\n", 5000),
    "many unknown tasks": b"name: a\nexecution: parallel\nprimary_tasks: ["
    + b"x, " * 50_000
    + b"]\n"
    + numbered(b"---\nname: t<n>\n", 5000),
    "a path that goes up and up": GROUP + b"volumes: {'/a" + b"/.." * 600_000 + b"': b}\n",
    "zeros": b"\0" * 16 * MIB,
    "more than is read": b"# " + b"x" * 20 * MIB,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_answered_in_bounded_time_and_memory(name, tmp_path):
    (tmp_path / "input").write_bytes(HOSTILE[name])
    assert run("tests.fuzz.replay", tmp_path) == "1 files, 0 failed\n"


TOKENS = b"\t|\n|: |- |{|]|&a |*a|!!|\xef\xbb\xbf|\xff|'|\"|<<: |$|..|/|#|\0|\r|---\n".split(b"|")
EDITS = st.lists(
    st.tuples(
        st.integers(0, 5000), st.integers(0, 5), st.sampled_from(TOKENS) | st.binary(max_size=3)
    )
)


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(number=st.integers(0, 10**6), edits=EDITS)
def test_damaged_groups_hold_every_invariant(number, edits):
    text = bytearray(groups.make(f"damaged-{number}").encode("utf-8", "surrogatepass"))
    for place, length, new in edits:
        at = place % (len(text) + 1)
        text[at : at + length] = new
    jobgen(bytes(text))
