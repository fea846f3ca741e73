"""Generator of group files from a seed: valid, unusual and damaged ones."""

import copy
import random
import re
from pathlib import Path

import yaml

from tests.helpers.values_fuzz import at, places

Choice = dict[str, list]  # usual values, and odd ones

# Pairs of fields of which a sound task has one.
EXCLUSIVE = [("gpus", "accelerators"), ("cloud", "infra")]


class Plain(str):
    """A scalar that is written without quotes."""


class Loader(yaml.SafeLoader):
    pass


class Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _data):
        return True


def _plain(dumper: Dumper, text: Plain) -> yaml.Node:
    # The tag that YAML itself would find, so that no quotes are needed.
    return yaml.ScalarNode(
        dumper.resolve(yaml.ScalarNode, str(text), (True, False)), str(text), style=""
    )


Dumper.add_representer(Plain, _plain)
Loader.add_constructor("!plain", lambda loader, node: Plain(loader.construct_scalar(node)))
GRAMMAR = yaml.load(Path(__file__).with_name("grammar.yaml").read_text("utf-8"), Loader)


def make(seed: str) -> str:
    """Return the group of this seed, which is the same on every machine."""
    return Maker(random.Random(seed)).text()


class Maker:
    def __init__(self, source: random.Random):
        self.random = source
        # Half of all groups are what people write; the others have few odd values, many, or damage.
        self.odd = source.choice([0, 0, 0, 0, 0.06, 0.06, 0.25, 0])
        self.damage = source.choice(["", "", "", "", "", "", "value", "value", "text"])

    def happens(self, chance: float) -> bool:
        return self.random.random() < chance

    def pick(self, choice: Choice) -> object:
        usual, odd = choice.get("usual"), choice.get("odd")
        pool = odd if odd and self.happens(self.odd if usual else 1) else usual
        return copy.deepcopy(self.random.choice(pool))

    def fields(self, choices: dict[str, Choice], chance: float) -> dict:
        """Return some of these fields; those without a usual value appear in odd groups only."""
        return {
            name: self.pick(choice)
            for name, choice in choices.items()
            if self.happens(chance if "usual" in choice else self.odd / 4)
        }

    def text(self) -> str:
        tasks = [self.task(name) for name in self.names()]
        documents = [self.header([task["name"] for task in tasks if "name" in task]), *tasks]
        if self.damage == "value":
            for _ in range(self.random.choice([1, 1, 2])):
                self.damage_value(documents)
        if self.happens(0.05):
            documents.insert(self.random.randint(1, len(documents) or 1), None)
        style = self.random.choice([None, None, None, False, True])
        text = yaml.dump_all(
            documents,
            Dumper=Dumper,
            default_flow_style=style,
            sort_keys=False,
            allow_unicode=self.happens(0.8),
        )
        return self.damage_text(text) if self.damage == "text" else text

    def names(self) -> list:
        names = self.random.sample(GRAMMAR["tasks"]["usual"], self.random.choice([1, 1, 2, 2, 3]))
        if self.happens(self.odd):
            names[-1] = self.random.choice([names[0], *GRAMMAR["names"]["odd"]])
        return names

    def header(self, names: list) -> dict:
        header = {"name": self.pick(GRAMMAR["names"]), "execution": "parallel"}
        if self.happens(self.odd / 2):
            header["execution"] = self.random.choice(["serial", "Parallel", None, "mars", True, 1])
        if self.happens(0.4):
            usual = self.random.sample(names, self.random.randint(0, len(names)))
            odd = [["nobody"], "trainer", [1], None, {}, names * 2, [None], [names]]
            header["primary_tasks"] = self.pick({"usual": [usual], "odd": odd})
        if self.happens(0.5):
            header["termination_delay"] = self.delay(names)
        return {**header, **self.fields(GRAMMAR["header"], 0.15)}

    def delay(self, names: list) -> object:
        if self.happens(0.5):
            return self.pick(GRAMMAR["delays"])
        chosen = self.random.sample(
            ["default", *map(str, names)], self.random.randint(1, 1 + len(names))
        )
        if self.happens(self.odd):
            chosen.append(self.random.choice(["nobody", 1]))
        return {name: self.pick(GRAMMAR["delays"]) for name in chosen}

    def task(self, name: object) -> dict:
        task: dict = {"name": name}
        if self.happens(self.odd / 4):
            del task["name"]
        if self.happens(0.8):
            resources = self.fields(GRAMMAR["resources"], 0.18)
            for first, second in EXCLUSIVE:
                if second in resources and not self.happens(self.odd):
                    resources.pop(first, None)
            task["resources"] = self.pick({"usual": [resources], "odd": [None, [], "x", {}]})
        if self.happens(0.6):
            variables = [self.pick(GRAMMAR["variables"]) for _ in range(self.random.randint(0, 3))]
            envs = {name: self.pick(GRAMMAR["envs"]) for name in variables}
            task["envs"] = self.pick({"usual": [envs], "odd": [None, [], "A=b", envs]})
        task |= self.fields(GRAMMAR["task"], 0.2)
        return task

    def damage_value(self, documents: list):
        """Delete, replace, rename or add something anywhere."""
        *above, key = self.random.choice(places(documents))
        holder = at(documents, above)
        action = self.random.choice(["delete", "replace", "rename", "add", "null"])
        if action == "delete":
            del holder[key]
        elif action == "rename" and isinstance(holder, dict) and isinstance(key, str) and key:
            cut = self.random.randrange(len(key))
            holder[key[:cut] + self.random.choice(["", "x", "_"]) + key[cut + 1 :]] = holder.pop(
                key
            )
        elif action == "add" and isinstance(holder, dict):
            holder[self.random.choice(["x", "command", "gpu", "name", "run"])] = self.random.choice(
                GRAMMAR["anything"]["odd"]
            )
        else:
            holder[key] = (
                None
                if action == "null"
                else copy.deepcopy(self.random.choice(GRAMMAR["anything"]["odd"]))
            )

    def damage_text(self, text: str) -> str:
        lines = text.split("\n")
        at = self.random.randrange(len(lines))
        line = lines[at]
        spaces = len(line) - len(line.lstrip(" "))
        actions = {
            "repeat": [line, line],
            "drop": [],
            "tab": ["\t" + line.lstrip(" ")],
            "indent": [" " + line],
            "outdent": [line[1:] if spaces else line],
            "comment": [" " * spaces + "# a comment", line],
            "null document": [line, "---", "---"],
            "end": [line, "..."],
            "separator": [line, "---"],
            "control": [line + "\x07"],
            "quote": [line + '"'],
            "colon": [line + ": x"],
            "conflict": ["<<<<<<< HEAD", line, "=======", line, ">>>>>>> other"],
            "anchor": [re.sub(r": (?=\S)", ": &a ", line, count=1), " " * spaces + "alias: *a"],
            "merge": [" " * spaces + "<<: {name: merged, num_nodes: 2}", line],
            "tag": [
                re.sub(
                    r": (?=\S)",
                    self.random.choice([": !!str ", ": !!int ", ": !x "]),
                    line,
                    count=1,
                )
            ],
            "directive": ["%YAML 1.2", "---", line],
            "set": [line, " " * spaces + "? key"],
        }
        action = self.random.choice([*actions, "bom", "crlf", "cut", "blank"])
        if action == "bom":
            return "\ufeff" + text
        if action == "crlf":
            return text.replace("\n", "\r\n")
        if action == "cut":
            return text[: self.random.randrange(len(text))]
        if action == "blank":
            return self.random.choice(
                ["", "\n# a comment\n", "---\n", "x", "[]", "- a\n", "{}", "null\n---\nnull\n"]
            )
        lines[at : at + 1] = actions[action]
        return "\n".join(lines)
