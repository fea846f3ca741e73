"""Written values read back unchanged, for every content of scripts and variables."""

import pytest

from jobgen.yaml_writer import dump

# Words that a parser of YAML 1.1 or 1.2, Python's or Helm's, may not read as text.
AMBIGUOUS = [
    "2",
    "yes",
    "y",
    "N",
    "on",
    "null",
    "~",
    "",
    "1e3",
    "1_000",
    "0x1f",
    "0o17",
    "12:30",
    "2026-01-02",
    ".5",
    "=",
]
SCRIPTS = [
    "echo hi",
    "echo hi\n",
    "echo hi\n\n\n",
    "\n\necho hi\n",
    "  indented first\nthen not\n",
    "\ttab first\n",
    "if a; then\n\tb\nfi\n",
    "trailing spaces  \nnext\n",
    "cat <<EOF\n---\nkey: value # no comment\nEOF\n",
    "no newline but blanks  ",
    "a\r\nb",
    "größe 🎉\n",
    "line\u2028separator\n",
    "x" * 500 + " " + "y" * 500 + "\n",
]


def dumped(task: dict) -> str:
    return dump({"schemaVersion": 1, "name": "g", "tasks": {"t": task}}, b"")


def test_ambiguous_keys_are_quoted():
    text = dumped({"env": {"Y": "a", "ON": "b", "PLAIN": "c"}})
    assert all(line in text for line in ('"Y": a', '"ON": b', " PLAIN: c"))


@pytest.mark.parametrize(
    "script",
    ["echo hi\n", "if a; then\n\tb\nfi\n", "blanks  \nnext\n", "x" * 500 + "\n", "größe 🎉\n"],
)
def test_scripts_are_written_as_blocks(script):
    assert "    run: |\n" + "".join(f"      {line}\n" for line in script.splitlines()) in dumped(
        {"run": script}
    )


def test_order_of_keys_is_kept():
    text = dumped({"env": {"Z": "1", "A": "2"}})
    assert text.index("Z:") < text.index("A:")
