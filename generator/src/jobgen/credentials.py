"""Recognition of credentials: by the name of a variable, the name of a file, or the format of a
text.

Values are committed and stored in ConfigMaps, so a credential never belongs into them. The formats
are those that services issue; a text without such a format is found by its name only.
"""

import posixpath
import re
from collections.abc import Iterable
from functools import cache

from jobgen import credential_formats

HIDDEN = "***"

_VARIABLE = re.compile(
    r"(?<!PUBLIC)(?:^|_)(?:(?:API)?KEY|TOKEN|SECRET)(?:_?\d{1,3})?$|PASSWORD|PASSWD|PASSPHRASE",
    re.IGNORECASE,
)
# Names of credentials and of other things: a count, a pattern, or the path of a file is none.
_AMBIGUOUS = re.compile(r"(?:^|_)(?:PASS|PAT|TOKENS|SECRETS|CREDENTIALS?)$", re.IGNORECASE)
_LONG = re.compile(r"(?![./~$])(?!\d+$)[^\s*<>]{8,}")
# Not a secret under any name: a reference to a variable, and the special tokens of a tokenizer.
_HARMLESS = re.compile(r"\$\{?\w+\}?|<[^>]*>|\[[A-Z]+\]|")

_FILE = r"""
    id_(?:rsa|dsa|ecdsa|ed25519)[^.]*
    | .+\.(?:pem|key|p12|pfx|jks|keystore|ppk|kdbx|kubeconfig|tfstate)
    | \.env(?:rc)? | \.env\.(?!example$|sample$|template$|dist$).+ | .+\.env
    | [._]netrc | \.pgpass | \.my\.cnf | \.git-credentials | \.htpasswd | \.vault-token | \.boto
    | \.s3cfg | \.pypirc
    | \.dockercfg | \.dockerconfigjson | kubeconfig.* | credentials(?:\.\w+)?
    | client_secret.*\.json
    | application_default_credentials\.json | (?:.*[-_.])?service[-_]?account.*\.json | rclone\.conf
    | kaggle\.json | secrets?\.(?:env|toml|ini|json|ya?ml)
"""
_PATH = r"(?:.*/)?(?:\.kube/config|\.docker/config\.json|\.aws/config|\.ssh/config|\.?huggingface/token)"


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.VERBOSE | re.DOTALL | re.ASCII)


def is_named(name: str, value: object) -> bool:
    """Whether the variable `name` is one for credentials, and `value` may be one."""
    if value is None or isinstance(value, bool):
        return False
    if _AMBIGUOUS.search(name):
        return bool(_LONG.fullmatch(str(value)))
    return bool(_VARIABLE.search(name)) and not _HARMLESS.fullmatch(str(value))


def contains(text: str, known: Iterable[str] = ()) -> bool:
    """Whether `text` contains the format of a credential, or one of the `known` ones."""
    if any(each in text for each in known):
        return True
    return bool(_compiled(credential_formats.TEXT).search(text))


def is_content(data: bytes, known: Iterable[str] = ()) -> bool:
    """Whether the content of a file contains a credential, in any encoding that has ASCII in it,
    such as UTF-16.
    """
    text = data.decode("latin-1")
    return contains(text, known) or ("\0" in text and contains(text.replace("\0", ""), known))


def is_file(path: str) -> bool:
    """Whether a file of this path holds credentials, as far as its name shows it."""
    name = posixpath.basename(path).lower()
    return bool(_compiled(_FILE).fullmatch(name) or _compiled(_PATH).fullmatch(path.lower()))


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return the text without the credentials that `contains` finds."""
    for each in known:
        text = text.replace(each, HIDDEN)
    return _compiled(credential_formats.TEXT).sub(HIDDEN, text)
