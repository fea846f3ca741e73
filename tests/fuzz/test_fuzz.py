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


GROUP = "name: a\nexecution: parallel\n---\nname: a\n"


def numbered(line: str, count: int) -> str:
    """Repeat the line; <n> becomes the line's number, <m> the number before it."""
    lines = (line.replace("<n>", str(n)).replace("<m>", str(n - 1)) for n in range(1, count))
    return "".join(lines)


HOSTILE = {
    "anchors that explode": "a0: &a0 [x, x]\n" + numbered("a<n>: &a<n> [*a<m>, *a<m>]\n", 60),
    "merges that explode": "a0: &a0 {k: v}\n"
    + numbered("a<n>: &a<n> {<<: [*a<m>, *a<m>], k<n>: v}\n", 60),
    "an anchor in itself": "&a [*a, *a]\n",
    "deep lists": "[" * 100_000,
    "deep maps": "{a: " * 100_000,
    "deep indentation": "".join(" " * n + "a:\n" for n in range(3_000)),
    "many documents": "---\nname: a\n" * 200_000,
    "many keys": numbered("key<n>: 1\n", 300_000),
    "one key again and again": "a: 1\n" * 500_000,
    "many tasks of one name": "name: a\nexecution: parallel\n" + "---\nname: a\n" * 20_000,
    "a long key": f"{'a' * 10 * MIB}: 1\n",
    "a long line of blanks": f"name: a{' ' * 10 * MIB}\n",
    "a long duration": GROUP.replace("\n---", f"\ntermination_delay: '{'1' * MIB}x'\n---"),
    "many unknown tasks": GROUP.replace("\n---", f"\nprimary_tasks: [{'x, ' * 50_000}]\n---")
    + numbered("---\nname: t<n>\n", 5000),
    "zeros": "\0" * 16 * MIB,
    "more than is read": f"# {'x' * 20 * MIB}",
}
OF_A_TASK = {
    "many diagnostics": numbered("key<n>: 1\n", 100_000),
    "many envs": "envs:\n" + numbered("  A<n>: x\n", 100_000),
    "many anchors": "envs:\n" + numbered("  A<n>: &a<n> x\n", 50_000),
    "a long text": f"run: '{'a' * 10 * MIB}'",
    "a long number": f"num_nodes: {'9' * MIB}",
    "a long hexadecimal number": f"envs: {{A: 0x{'f' * MIB}}}",
    "a long binary number": f"envs: {{A: 0b{'1' * MIB}}}",
    "a long octal number": f"num_nodes: 0{'7' * MIB}",
    "a long sexagesimal number": f"envs: {{A: 1{':59' * 100_000}}}",
    "a long sexagesimal fraction": f"envs: {{A: 1{':59' * 100_000}.5}}",
    "a long fraction": f"envs: {{A: 1.{'1' * MIB}e+999999999}}",
    "a long accelerator": f"resources: {{accelerators: '{'a' * MIB}:'}}",
    "a long image": f"resources: {{image_id: '{'docker:' * 100_000} '}}",
    "a long label": f"resources: {{labels: {{'{'a.' * MIB}/': x}}}}",
    "a long amount": f"resources: {{memory: '{'1' * MIB}x', cpus: '{'0' * MIB}'}}",
    "a long infra": f"resources: {{infra: '{' ' * MIB}k8s/{'/' * MIB}'}}",
    "a long address": f"workdir: {{url: 'https://{'a:' * MIB}'}}",
    "many variables in a path": f"envs: {{A: '$A$A'}}\nfile_mounts: {{'/{'$A' * 100_000}': x}}",
    "a text again and again": f"envs:\n  A: &a {'x' * MIB}\n" + numbered("  B<n>: *a\n", 5000),
    "a path that goes up and up": f"volumes: {{'/a{'/..' * 600_000}': b}}",
}
HOSTILE |= {name: f"{GROUP}{fields}\n" for name, fields in OF_A_TASK.items()}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_answered_in_bounded_time_and_memory(name, tmp_path):
    (tmp_path / "input").write_text(HOSTILE[name])
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
