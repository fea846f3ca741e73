"""Formats of credentials in a text: those that services issue, and values that follow a name, an
option or a command.

Own patterns, not the library detect-secrets (1.5.0): it imports requests, which takes longer than
jobgen may take to start; its result is a line, and `redact` needs the exact text; and it has none
for the tokens of Hugging Face, NVIDIA, Weights & Biases, Anthropic and Google.

The repeats are bounded, so that a search takes linear time.
"""

# A text that follows a name: with a digit, as nearly every random text has one and most
# placeholders have none.
_EXAMPLE = r"""(?!(?i:your|xxx|change|example|placeholder|dummy))"""
_DIGIT = rf"""(?=[^\s"'<>]{{0,200}}?[0-9]){_EXAMPLE}"""
# In quotes; or without, and then not a name of a program, nor a part of an expression:
# config.password, password(1).
_NO_MORE = r"""(?![\w.(\[{$])"""
_PASSWORD = rf"""{_DIGIT}(?:(?<=["'])[^\s"'$<>(){{}}\[\]]{{8,}}(?=["'])|[A-Za-z0-9+/=!@\#%^*-]{{10,}}+{_NO_MORE})"""
_RANDOM = rf"""{_DIGIT}[A-Za-z0-9+/=-]{{20,}}+{_NO_MORE}"""
_IS = r"""\\?["']?\]?\s{0,9}[=:]\s{0,9}\\?["']?"""
_IN_COMMAND = r"""[^\n;&|]{0,200}?"""

TEXT = rf"""
    -----BEGIN\ [A-Z ]{{0,30}}PRIVATE\ KEY.*
    | (?<![\w-])(?:
        gh[opsur]_[A-Za-z0-9]{{30,}} | github_pat_\w{{30,}} | glpat-[\w-]{{20,}}
        | hf_[A-Za-z0-9]{{20,}}
        | nvapi-[\w-]{{20,}}
        | sk-(?:ant|proj|or|svcacct)-[\w-]{{20,}} | sk-[A-Za-z0-9]{{32,}}
        | xox[abeoprs]-[\w-]{{10,}} | AIza[\w-]{{35}}
        | ya29\.[\w-]{{20,}} | npm_[A-Za-z0-9]{{36}} | pypi-[\w-]{{50,}} | dckr_pat_[\w-]{{20,}}
        | hvs\.[\w-]{{20,}}
        | (?:AKIA|ASIA)[A-Z0-9]{{16}} | r8_[A-Za-z0-9]{{30,}} | AGE-SECRET-KEY-1[0-9A-Z]{{50,}}
        | dapi[0-9a-f]{{32}} | dop_v1_[0-9a-f]{{64}}
        | wandb_v1_[\w-]{{20,}} | [rs]k_(?:live|test)_[A-Za-z0-9]{{16,}} | k8s-aws-v1\.[\w-]{{20,}}
        | hooks\.slack\.com/(?:services|workflows|triggers)/\w[\w/]{{20,}}
        | discord(?:app)?\.com/api/webhooks/\d{{1,30}}/[\w-]{{20,}}
        | eyJ[\w-]{{10,}}\.eyJ[\w-]{{10,}}\.[\w-]{{10,}}
        | (?:[A-Z0-9_]{{0,60}}_)?(?:(?:API)?KEY|TOKEN|SECRET|PASSWORD)(?:_?[0-9]{{1,3}})?=(?:\\\n\s{{0,9}})?["']?
            {_EXAMPLE}[^\s"'$<>(){{}}\[\]]{{8,}}
        | [A-Z0-9_]{{0,60}}_(?:PASS|PAT)=["']?{_DIGIT}[^\s"'$<>(){{}}\[\]*]{{8,}}
        | aws_secret_access_key\s{{1,9}}["']?[A-Za-z0-9/+]{{40}}
        | aws_secret_access_key["']?\s{{0,9}}[=:]\s{{0,9}}[^\s$<]+ | "?private_key"?:\s{{0,9}}"[^"]+
        | client-key-data:\s{{0,9}}\S+ | "auth":\s{{0,9}}"[A-Za-z0-9+/=]{{8,}}
        | _authToken=[^\s$]+ | current-context:
        | machine\s{{1,9}}\S{{1,200}}\s{{1,9}}login\s{{1,9}}\S{{1,200}}\s{{1,9}}password\s{{1,9}}\S+
        | [Aa]uthorization["']?:\s{{0,9}}["']?(?:[Bb]earer|[Bb]asic)\s{{1,9}}[\w.~+/=-]{{16,}}
        | AccountKey=[A-Za-z0-9+/=]{{20,}} | X-Amz-Signature=\w+ | sig=[\w%]{{20,}}
        | [\w.-]{{1,60}}:[^\s/@:'"$<{{]{{3,200}}@(?!sha\d)[\w-]{{1,99}}\.[\w.-]{{1,200}}/
        | [A-Za-z][A-Za-z0-9+.]{{1,20}}://[^\s/@:'"$<{{]{{0,200}}:[^\s/@'"$<{{*]{{1,200}}@
        | https?://[^\s/@:'"$<{{]{{16,200}}@
        | wandb\s{{1,9}}login\s{_IN_COMMAND}["']?\b[0-9a-f]{{40}}\b
        | wandb\.login\([^()]{{0,200}}?["'][0-9a-f]{{40}}["']
        | curl\b{_IN_COMMAND}\s(?:-u|--user)[\s=]{{1,3}}["']?[^\s:"'$<]{{1,100}}:[^\s"'$<]{{3,}}
        | (?:docker|podman|registry)\s{{1,9}}login\s{_IN_COMMAND}(?:-p|--password)[\s=]["']?[^\s"'$<-][^\s"'$<]{{2,}}
    )
    | (?i:api[_-]?key|access[_-]?key|secret[_-]?key|client[_-]?secret|auth[_-]?token|access[_-]?token
        |password|passwd|passphrase){_IS}{_PASSWORD}
    | (?:KEY|TOKEN|SECRET|\b[Tt]oken){_IS}{_RANDOM}
    | "key"\s{{0,9}}:\s{{0,9}}"[0-9a-f]{{32}}"
    | [?&](?:token|(?:access|auth|private)_token|api_?key|secret|password)=(?=[^\s&"']{{0,200}}?[0-9])[\w%.~+/-]{{8,}}
    | --(?:[a-z]{{1,20}}-){{0,3}}(?:api-?key|access-key|password|passwd|token|secret)["']?[\s=,]{{1,3}}["']?
        (?=[^\s"'<>]{{0,200}}?[A-Za-z]){_DIGIT}[\w+/.!@\#%^*-]{{8,}}
"""
