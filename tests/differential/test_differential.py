"""jobgen against SkyPilot: DIFFERENTIAL_GROUPS generated groups (default 1,000), the seeds and the
table's examples.
"""

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.differential import groups, table
from tests.differential.cases import Case, compare

SEEDS = Path(__file__).parent.parent / "generator" / "seeds"
GENERATED = int(os.environ.get("DIFFERENTIAL_GROUPS", "1000"))
SEED = os.environ.get("DIFFERENTIAL_SEED", "run")  # another seed generates other groups


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> dict[str, Case]:
    texts = {f"seed {file.name}": file.read_text() for file in sorted(SEEDS.glob("*.yaml"))}
    texts |= {f"example {number}": entry.text for number, entry in enumerate(table.TABLE)}
    texts |= {f"generated {number}": groups.make(f"{SEED}-{number}") for number in range(GENERATED)}
    return {
        case.name: case for case in compare(texts, tmp_path_factory.mktemp("groups") / "folder")
    }


def test_every_difference_is_in_the_table(cases):
    unexplained = [
        f"{case.name}: {difference}"
        for case in cases.values()
        for difference in case.differences
        if not any(entry.explains(difference) for entry in table.TABLE)
    ]
    assert not unexplained, "\n".join(
        [f"{len(unexplained)} differences are not in the table", *unexplained[:40]]
    )


@pytest.mark.parametrize(
    "number", range(len(table.TABLE)), ids=[entry.what for entry in table.TABLE]
)
def test_each_entry_is_shown_by_its_example(cases, number):
    about_defaults = table.TABLE[number].field.startswith("default ")
    found = cases[f"example {number}"].differences
    # Nearly all examples name no sizes.
    found = [each for each in found if each.field.startswith("default ") == about_defaults]
    assert found, "jobgen and SkyPilot agree on the example"
    assert all(table.TABLE[number].explains(difference) for difference in found), list(
        map(str, found)
    )


def test_the_generated_groups_are_worth_comparing(cases):
    """Both accept more than a third, so that fields are compared, and both refuse more than a
    fifth.
    """
    verdicts = Counter(
        (case.result.text is not None, case.answer["accepted"]) for case in cases.values()
    )
    print(f"{len(cases)} groups; (jobgen accepts, SkyPilot accepts): {dict(verdicts)}")
    assert verdicts[True, True] > len(cases) / 3
    assert verdicts[False, False] > len(cases) / 5


def test_the_seeds_are_accepted_as_skypilot_accepts_them(cases):
    seeds = [case for name, case in cases.items() if name.startswith("seed ")]
    assert len(seeds) >= 5
    assert [case.result.text is not None for case in seeds] == [
        case.answer["accepted"] for case in seeds
    ]
