"""Facts of a diagnostic's line without its wording, which docs/jobgen-errors.md shows for each
code.
"""

import re

_PATH = re.compile(r'\$(\.[\w-]+|\[\d+\]|\["([^"\\]|\\.)*"\])*(?=: )')


def brief(line: str) -> str:
    """Position, path and code of a line, as far as it has them, such as "3:12 $.placement
    bad-value".
    """
    position, path = re.match(r"\d+:\d+", line), _PATH.search(line)
    code = re.search(r"(?:error|warning|note)\[([a-z-]+)\]: ", line)
    return " ".join(
        found[1] if found is code else found[0] for found in (position, path, code) if found
    )
