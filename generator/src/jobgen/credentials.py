"""Recognition of credentials: by the name of a variable, the name of a file, or the format of a text.

Values are committed and stored in ConfigMaps, so a credential never belongs into them. The formats are those that
services issue; a text without such a format is found by its name only.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from functools import cache

HIDDEN = "***"
_SHORTEST = 4  # characters; shorter known values are part of ordinary words

_VARIABLE = re.compile(r"(?<!PUBLIC)(?:^|_)(?:KEY|TOKEN|SECRET)$|PASSWORD|PASSWD|PASSPHRASE", re.IGNORECASE)
# Not a secret under any name: a reference to a variable, and the special tokens of a tokenizer.
_HARMLESS = re.compile(r"\$\{?\w+\}?|<[^>]*>|\[[A-Z]+\]|")

_FILE = r"""
    id_(?:rsa|dsa|ecdsa|ed25519)[^.]* | .+\.(?:pem|key|p12|pfx|jks|keystore|ppk|kdbx|kubeconfig|tfstate)
    | \.env(?:rc)? | \.env\.(?!example$|sample$|template$|dist$).+ | .+\.env
    | [._]netrc | \.pgpass | \.my\.cnf | \.git-credentials | \.htpasswd | \.vault-token | \.boto | \.s3cfg | \.pypirc
    | \.dockercfg | \.dockerconfigjson | kubeconfig.* | credentials(?:\.\w+)? | client_secret.*\.json
    | application_default_credentials\.json | (?:.*[-_.])?service[-_]?account.*\.json | rclone\.conf
    | secrets?\.(?:env|toml|ini|json|ya?ml)
"""
_PATH = r"(?:.*/)?(?:\.kube/config|\.docker/config\.json|\.aws/config|\.ssh/config|\.?huggingface/token)"

# Each alternative starts at a word, and its repeats are bounded, so that the search takes linear time.
_FORMAT = r"""
    -----BEGIN\ [A-Z ]{0,30}PRIVATE\ KEY.*
    | (?<![\w-])(?:
        gh[opsur]_[A-Za-z0-9]{30,} | github_pat_\w{30,} | glpat-[\w-]{20,} | hf_[A-Za-z0-9]{20,} | nvapi-[\w-]{20,}
        | sk-(?:ant|proj|or|svcacct)-[\w-]{20,} | sk-[A-Za-z0-9]{32,} | xox[abeoprs]-[\w-]{10,} | AIza[\w-]{35}
        | ya29\.[\w-]{20,} | npm_[A-Za-z0-9]{36} | pypi-[\w-]{50,} | dckr_pat_[\w-]{20,} | hvs\.[\w-]{20,}
        | (?:AKIA|ASIA)[A-Z0-9]{16} | r8_[A-Za-z0-9]{30,} | AGE-SECRET-KEY-1[0-9A-Z]{50,}
        | eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}
        | (?:[A-Z0-9_]{0,60}_)?(?:KEY|TOKEN|SECRET|PASSWORD)=["']?
            (?!(?i:your|xxx|change|example|placeholder|dummy))[^\s"'$<>(){}\[\]]{8,}
        | aws_secret_access_key["']?\s{0,9}[=:]\s{0,9}[^\s$<]+ | "?private_key"?:\s{0,9}"[^"]+
        | client-key-data:\s{0,9}\S+ | "auth":\s{0,9}"[A-Za-z0-9+/=]{8,} | _authToken=[^\s$]+ | current-context:
        | machine\s{1,9}\S{1,200}\s{1,9}login\s{1,9}\S{1,200}\s{1,9}password\s{1,9}\S+
        | [Aa]uthorization["']?:\s{0,9}["']?(?:[Bb]earer|[Bb]asic)\s{1,9}[\w.~+/=-]{16,}
        | AccountKey=[A-Za-z0-9+/=]{20,} | X-Amz-Signature=\w+ | sig=[\w%]{20,}
        | [\w.-]{1,60}:[^\s/@:'"$<{]{3,200}@(?!sha\d)[\w-]{1,99}\.[\w.-]{1,200}/
        | [A-Za-z][A-Za-z0-9+.]{1,20}://[^\s/@:'"$<{]{0,200}:[^\s/@'"$<{*]{1,200}@
        | https?://[^\s/@:'"$<{]{16,200}@
    )
"""


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.VERBOSE | re.DOTALL)


def is_named(name: str, value: object) -> bool:
    """Whether the variable `name` is one for credentials, and `value` may be one."""
    if value is None or isinstance(value, bool) or not _VARIABLE.search(name):
        return False
    return not _HARMLESS.fullmatch(str(value))


def contains(text: str, known: Iterable[str] = ()) -> bool:
    """Whether `text` contains the format of a credential, or one of the `known` ones."""
    return any(len(each) >= _SHORTEST and each in text for each in known) or bool(_compiled(_FORMAT).search(text))


def is_file(path: str) -> bool:
    """Whether a file of this path holds credentials, as far as its name shows it."""
    name = posixpath.basename(path).lower()
    return bool(_compiled(_FILE).fullmatch(name) or _compiled(_PATH).fullmatch(path.lower()))


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return the text without the credentials that `contains` finds."""
    for each in known:
        if len(each) >= _SHORTEST:
            text = text.replace(each, HIDDEN)
    return _compiled(_FORMAT).sub(HIDDEN, text)
