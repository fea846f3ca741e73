"""jobgen's reader of dotenv files against python-dotenv, which SkyPilot uses."""

from __future__ import annotations

import json
import os
import random
import subprocess

from hack.deps.venv import SKYPILOT
from jobgen import dotenv

PROGRAM = """
import io, json, sys
from dotenv import dotenv_values
json.dump([dotenv_values(stream=io.StringIO(text)) for text in json.load(sys.stdin)], sys.stdout)
"""
PARTS = [
    "A=1",
    "export B=x y",
    "C='a b'",
    'D="a\\nb"',
    "E=",
    "F=x # note",
    "G=x#y",
    "# note",
    "",
    "H='it\\'s'",
    "I=${A}",
]
PARTS += ['J="${A} ${NO:-other} ${NO}"', "K = v ", 'L="two\nlines"', 'M="a\\"b" # note', "N='${A}'", "O=$A", "P=a'b'"]
PARTS += ["Q='two\nlines'", 'R="\\t\\\\ \\x"', "S=é", "A=2", "T=a\\nb", "U='a\\nb\\\\'", "HOME=${HOME}x", "V=\t w\t"]


def test_the_same_variables_are_read():
    chance = random.Random("dotenv")
    texts = ["\n".join(chance.sample(PARTS, chance.randint(1, 8))) + chance.choice(["", "\n"]) for _ in range(2000)]
    done = subprocess.run(
        [SKYPILOT / "bin" / "python", "-c", PROGRAM], input=json.dumps(texts).encode(), capture_output=True, check=True
    )
    for text, theirs in zip(texts, json.loads(done.stdout), strict=True):
        assert dotenv.parse(text, os.environ) == theirs, text
