"""Texts without credentials. Errors of HTTP clients contain addresses with passwords, and headers."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
from collections.abc import Mapping
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "…"
# Names of variables with credentials: PLUTO_API_KEY, MLFLOW_TRACKING_TOKEN, AWS_SECRET_ACCESS_KEY, …
NAMED = re.compile(r"(TOKEN|PASSWORD|PASSWD|SECRET|KEY|KEY_ID|CREDENTIALS?|CONNECTION_STRING)$", re.IGNORECASE)
# Up to the last @: a password may contain the characters that should have been quoted.
USER_IN_URL = re.compile(r"(?<=://)[^\s\"'<>]*@")
HEADER = re.compile(r"\b(Basic|Bearer)(\s+)[A-Za-z0-9+/=._~-]{8,}", re.IGNORECASE)
SHORT = 4  # a shorter value is hidden only where it is a whole word, because it occurs in many words


def is_credential(name: str) -> bool:
    return bool(NAMED.search(name))


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text without the passwords of URLs and the values of credential variables, as they are or encoded."""
    environment = os.environ if environment is None else environment
    text = USER_IN_URL.sub(f"{HIDDEN}@", text)
    if pattern := pattern_of(frozenset(secrets(environment))):
        text = pattern.sub(HIDDEN, text)
    return HEADER.sub(rf"\1\2{HIDDEN}", text)


def secrets(environment: Mapping[str, str]) -> set[str]:
    """Credentials in the values of variables, and what the Basic scheme makes of them."""
    found, pairs = set(), set()
    user = environment.get("MLFLOW_TRACKING_USERNAME", "").strip()
    for name, value in environment.items():
        if is_credential(name):
            found |= {value, value.strip()}
            pairs.add(f"{user}:{value.strip()}")
        elif match := re.search(r"://([^\s]*)@", value):
            name, _, password = match[1].partition(":")
            found |= {match[1], password or name}
            pairs |= {match[1], f"{unquote(name)}:{unquote(password)}"}
    return {*found, *map(unquote, found), *map(encoded, pairs), *map(encoded, found)} - {""}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode(errors="replace")).decode()


@functools.lru_cache(maxsize=4)
def pattern_of(values: frozenset[str]) -> re.Pattern[str] | None:
    """Pattern of these values in each form in which a message may contain them."""
    forms = {form for value in values for form in forms_of(value)} - {""}
    longest_first = sorted(forms, key=lambda form: (-len(form), form))
    words = [re.escape(form) if len(form) >= SHORT else rf"(?<!\w){re.escape(form)}(?!\w)" for form in longest_first]
    return re.compile("|".join(words), re.IGNORECASE) if words else None


def forms_of(value: str) -> set[str]:
    """The value as it is, quoted for a URL, escaped by repr and JSON, and on one line."""
    plain = {value, repr(value)[1:-1], repr(value.encode(errors="replace"))[2:-1], json.dumps(value)[1:-1]}
    plain |= {" ".join(value.split()), value.translate(str.maketrans("+/", "-_"))}
    return plain | {quote(value, safe=""), quote(value), quote_plus(value)}
