"""No text that a tracker writes contains a credential, in whatever form a client's error has it."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import pytest

from gpuworker.train.trackers import SettingsError, TrackerError, settings
from gpuworker.train.trackers.redact import redact

SECRET = 'h"unter2\n/@é\\'
FORMS = {
    "plain": SECRET,
    "quoted": quote(SECRET, safe=""),
    "quoted as a path": quote(SECRET),
    "quoted as a form": quote_plus(SECRET),
    "repr": repr(SECRET),
    "repr of bytes": repr(SECRET.encode()),
    "JSON": json.dumps(SECRET),
    "on one line": " ".join(SECRET.split()),
    "base64": base64.b64encode(SECRET.encode()).decode(),
    "a pair in base64": base64.b64encode(f"me:{SECRET}".encode()).decode(),
    "base64 for URLs": base64.urlsafe_b64encode(f"me:{SECRET}".encode()).decode(),
}
VARIABLES = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", *settings.PLUTO_KEYS, "AWS_SECRET_ACCESS_KEY",
             "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "AZURE_STORAGE_CONNECTION_STRING", "HF_TOKEN")  # fmt: skip


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("form", FORMS)
def test_the_value_of_a_credential_variable_is_hidden_in_every_form(name: str, form: str) -> None:
    environment = {"MLFLOW_TRACKING_USERNAME": "me", name: SECRET, "OTHER": "open"}
    text = redact(f"before {FORMS[form]} after open", environment)
    assert "unter2" not in text and FORMS[form].strip("b\"'") not in text
    assert text.startswith("before ") and text.endswith(" after open")


@pytest.mark.parametrize(
    "password", ["hunter2", "hun/ter2", "h@nter2", "hun%2Fter2", "hunter2#x", "hunter2?x"], ids=lambda each: each
)
def test_the_password_of_an_address_is_hidden_in_the_address_and_alone(password: str) -> None:
    environment = {"MLFLOW_TRACKING_URI": f"http://user:{password}@host:5000/x"}
    pair = base64.b64encode(f"user:{password}".encode()).decode()
    given = f"url http://user:{password}@host:5000/x, 'user:{password}@host', {password}, Basic {pair}"
    text = redact(given, environment)
    assert password not in text and pair not in text and "host:5000/x" in text


def test_an_address_that_no_variable_has_is_redacted_too() -> None:
    assert redact("a https://me:secret@host:5000/x b@c", {}) == "a https://…@host:5000/x b@c"
    assert redact("https://token@host", {}) == "https://…@host"


@pytest.mark.parametrize("scheme", ["Basic", "Bearer"])
def test_a_header_is_hidden_although_its_value_is_unknown(scheme: str) -> None:
    assert redact(f"{{'Authorization': '{scheme} dXNlcjpodW50ZXIy'}}", {}) == f"{{'Authorization': '{scheme} …'}}"


def test_other_texts_stay_as_they_are() -> None:
    text = "retry 12 of a connection to 127.0.0.1:5000: Basic check failed, see d@b.c"
    assert redact(text, {"MLFLOW_TRACKING_TOKEN": "", "PLUTO_API_KEY": "tr", "RANK": "12"}) == text


def test_errors_hide_credentials_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "hunter2")
    for kind in (TrackerError, SettingsError):
        assert "hunter2" not in str(kind("refused: hunter2"))


@pytest.mark.parametrize("uri", ["http://user:hun/ter2@host", "http://user:hunter2#@host", "http://user:hunter2?@host"])
def test_an_address_whose_password_must_be_quoted_is_refused_without_it(uri: str) -> None:
    with pytest.raises(SettingsError, match=r"MLFLOW_TRACKING_URI.*quoted") as error:
        settings.check("mlflow", {"MLFLOW_TRACKING_URI": uri})
    assert "ter2" not in str(error.value)


@pytest.mark.parametrize("end", ["\n", " ", "\r\n", "\t"])
def test_white_space_around_a_setting_is_removed(end: str) -> None:
    given = {"MLFLOW_TRACKING_TOKEN": f"tok{end}", "PLUTO_API_KEY": f" key{end}", "MLFLOW_TRACKING_URI": f"http://a{end}",
             "OTHER": f"x{end}"}  # fmt: skip
    assert settings.stripped(given) == {"MLFLOW_TRACKING_TOKEN": "tok", "PLUTO_API_KEY": "key",
                                        "MLFLOW_TRACKING_URI": "http://a", "OTHER": f"x{end}"}  # fmt: skip


@pytest.mark.parametrize("value", ["two\nlines", "two words", "t\u00f6ken"])
@pytest.mark.parametrize("name", ["MLFLOW_TRACKING_TOKEN", "PLUTO_API_KEY"])
def test_a_key_that_no_header_can_contain_is_refused_without_it(name: str, value: str) -> None:
    tracker = "pluto" if "PLUTO" in name else "mlflow"
    with pytest.raises(SettingsError, match=name) as error:
        settings.check(tracker, {"MLFLOW_TRACKING_URI": "http://a", name: value})
    assert value not in str(error.value)
