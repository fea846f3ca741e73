"""Marks on nodes: what tests change there. `decide` is pure: what is known goes in, patches come
out.

All that a later collector needs is in the annotation STATE of the node. Each patch changes it
together with the mark, so a collector that ends between two patches loses nothing.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpuworker.judgement.kinds import KINDS, Danger
from gpuworker.judgement.report import FAIL, PASS

STATE, HOLD, UNFIT = "gpu-accept/state", "gpu-accept/hold", "gpu-accept/unfit"
RECENT = "gpu-accept/recent"  # label, by which a patrol takes the longest untested nodes first
CONDITION = "GpuAccepted"
RECORD, LABEL, SET_CONDITION, TAINT = ACTIONS = ("record", "label", "condition", "taint")
HOUR_S = 3600.0
DEPTHS = ("prolog", "quick", "full", "burn-in")  # of tests
SKEW_S = 300  # between the clocks of nodes
SHARE = 0.05  # of the tested nodes, at least one, that are marked in an hour
# why a node is neither marked nor released now
FOREIGN, HELD, SHARED, BOUND = "foreign", "held", "shared", "bound"


class Rules(NamedTuple):
    """`owner`: this installation; it changes no mark of another one. `hour_s`: less in tests."""

    action: str
    owner: str
    hour_s: float = HOUR_S
    patrol: bool = False


class Result(NamedTuple):
    """Of the last test of a node. `kind`: of the worst proven fault, "" if none marks a node."""

    at: float  # its start
    verdict: str
    level: str
    gpus: str  # UUIDs
    kind: str


@dataclass(frozen=True)
class State:
    """What a node's annotation says. `action`: the mark that it has, "" for none."""

    owner: str = ""
    tested: float = 0.0  # start of the last test that counted
    strikes: int = 0  # tests that failed since one passed
    kind: str = ""  # of the last that failed, as boot and level
    boot: str = ""
    level: str = ""
    gpus: str = ""  # all that were seen
    passed: float = 0.0  # start of the first test that passed after it
    action: str = ""
    marked: float = 0.0  # when; kept after the release


class Step(NamedTuple):
    """A patch of a node. `action`: the mark that it then has; `turns`: not the one before."""

    node: str
    action: str
    turns: bool
    patch: dict


def decide(
    nodes: Iterable[dict], tests: Mapping[str, Result], rules: Rules, now: float
) -> tuple[list[Step], dict[str, str], list[str]]:
    """What to change; for each node its mark, or why it stays as it is; and alerts.

    `nodes`: as Kubernetes lists them; `tests`: of nodes whose name is proven; `now`: seconds since
    1970.
    """
    steps, marks, alerts, wanted, tested = [], {}, [], [], []
    recent: dict[str, set[str]] = defaultdict(set)  # kind -> nodes marked within the hour
    bound = max(1, int(SHARE * len(tests)))
    for node in nodes:
        name, notes = node["metadata"]["name"], node["metadata"].get("annotations") or {}
        state, test = state_of(notes.get(STATE, "{}")), tests.get(name)
        if state:
            if now - state.marked < rules.hour_s:
                recent[state.kind].add(name)
            if state.action:
                marks[name] = state.action
            if at := max(state.tested, test.at if test else 0.0):
                tested.append((at, name, node["metadata"]["labels"].get(RECENT)))
        if not test or test.at > now + SKEW_S:
            continue
        if notes.get(HOLD) == "true":
            marks[name] = HELD
        elif not state or (state.action and state.owner != rules.owner):
            marks[name] = FOREIGN
        elif new := after(state, test, node["status"]["nodeInfo"]["bootID"], rules):
            danger = KINDS[test.kind].danger if test.kind else Danger.UNKNOWN
            if new.strikes >= (1 if danger <= Danger.LOST else 2) and not state.action:
                wanted.append((danger, name, node, state, new))
            else:
                steps.append(step(node, state, new, rules, now))
    marked = set().union(*recent.values())
    for _, name, *_, new in wanted:
        recent[new.kind].add(name)
    for _, name, node, state, new in sorted(wanted, key=lambda each: each[:2]):
        if len(recent[new.kind]) > bound:
            marks[name] = SHARED
        elif len(marked | {name}) > bound:
            marks[name] = BOUND
        else:
            marked.add(name)
            new = dataclasses.replace(new, action=rules.action, marked=now)
            steps.append(step(node, state, new, rules, now))
    for kind, names in sorted(recent.items()):
        if SHARED in map(marks.get, names):
            words = f"{KINDS[kind].title}: {len(names)} nodes, more than the {bound} that an hour"
            alerts.append(f"{words} may mark. None more is marked: look for one cause.")
    patches = {each.node: each.patch["metadata"] for each in steps}
    for place, (_, name, known) in enumerate(sorted(tested) if rules.patrol else ()):
        fifth = str(5 * place // len(tested))  # "4": of those that were tested last
        if fifth != known:
            meta = patches.get(name, {})
            meta.setdefault("labels", {})[RECENT] = fifth
            if name not in patches:
                steps.append(Step(name, marks.get(name, ""), False, {"metadata": meta}))
    return steps, marks, alerts


def after(state: State, test: Result, boot: str, rules: Rules) -> State | None:
    """The state after one more test; None if that says nothing new, as WARN and INCOMPLETE."""
    rank = DEPTHS.index(test.level)
    failed_at = DEPTHS.index(state.level) if state.level else 0
    if test.at <= state.tested:
        return None
    if test.verdict == FAIL and test.kind:
        return dataclasses.replace(
            state, owner=rules.owner, tested=test.at, strikes=state.strikes + 1, kind=test.kind,
            boot=boot, level=DEPTHS[max(rank, failed_at)], passed=0.0,
            gpus=" ".join(sorted({*state.gpus.split(), *test.gpus.split()})),
        )  # fmt: skip
    if test.verdict != PASS or rank < failed_at:
        return None
    other = boot != state.boot or not {*test.gpus.split()} <= {*state.gpus.split()}
    again = state.passed and test.at - state.passed >= rules.hour_s
    if state.action and not (other or again):
        return dataclasses.replace(state, tested=test.at, passed=state.passed or test.at)
    return State(
        rules.owner, test.at, kind=state.kind, boot=boot, gpus=test.gpus, marked=state.marked
    )


def step(node: dict, before: State, new: State, rules: Rules, now: float) -> Step:
    """The patch from one state to the next. It fails if the node was changed in between."""
    how, turns = before.action or rules.action, before.action != new.action
    kept, old = json.dumps(dataclasses.asdict(new)), node["metadata"]
    meta: dict = {"resourceVersion": old["resourceVersion"], "annotations": {STATE: kept}}
    patch: dict = {"metadata": meta}
    if how == LABEL and turns:
        meta["labels"] = {UNFIT: new.kind if new.action else None}
    if how == TAINT and turns:
        own = {"key": UNFIT, "value": new.kind, "effect": "NoSchedule"}
        others = [each for each in node["spec"].get("taints") or () if each["key"] != UNFIT]
        patch["spec"] = {"taints": others + [own] * bool(new.action)}
    if how == SET_CONDITION and (turns or not new.strikes):
        known = node["status"].get("conditions") or ()
        status = "False" if new.action else "True"
        if status not in [each["status"] for each in known if each["type"] == CONDITION]:
            time = datetime.datetime.fromtimestamp(int(now), datetime.timezone.utc).isoformat()
            condition = {"type": CONDITION, "status": status, "lastTransitionTime": time}
            condition["reason"] = "Unfit" if new.action else "Passed"
            patch["status"] = {"conditions": [condition]}
    return Step(old["name"], new.action, turns, patch)


def state_of(text: str) -> State | None:
    """None if somebody else wrote it."""
    try:
        state = State(**json.loads(text))
    except (ValueError, TypeError):
        return None
    typed = all(type(getattr(state, key)) is type(value) for key, value in vars(State()).items())
    return state if typed and state.level in ("", *DEPTHS) else None
