"""Why a connection could not be made: who has to act, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import FAILED, REFUSED, UNREACHABLE, WRONG_USAGE

_COPY = "a copy of the server's token file with --token-file FILE or TORCH_REMOTE_TOKEN_FILE"
# What client and server say of a token, and what to do in a command, which has --token-file.
_OF_TOKENS = (
    (r"wants a token", f"name {_COPY}"),
    (r"does not know this token|token is wrong", f"name {_COPY}; compare the addresses"),
    (
        r"does not prove that it knows the token",
        "leave out --token-file and unset TORCH_REMOTE_TOKEN_FILE and TORCH_REMOTE_TOKEN, or start "
        "the server with --token-file",
    ),
)
_NO_TOKEN = "there is no token in"
_FILL = "put the server's token there, or name another file by --token-file"
_WHAT_TO_DO = ". What to do: "


@dataclass(frozen=True)
class Trouble:
    """`remedy` is empty where the text says all that is known."""

    text: str
    remedy: str
    status: int

    def sentence(self) -> str:
        return self.text.removesuffix(".") + _WHAT_TO_DO + self.remedy if self.remedy else self.text


def no_token(text: str) -> Trouble:
    """`text` says which file has none."""
    return Trouble(text, _FILL, FAILED)


def trouble_of(error: Exception) -> Trouble:
    """Of an exception of torch_remote.connect()."""
    message = str(error)
    text, _, remedy = message.partition(_WHAT_TO_DO)
    for pattern, advice in _OF_TOKENS:
        if re.search(pattern, text):
            return Trouble(text.partition("; ")[0], advice, REFUSED)
    if _NO_TOKEN in text:
        return no_token(text)
    is_of_variable = re.search(r"\bTORCH_REMOTE_(?!TOKEN)\w+: ", text) is not None
    if isinstance(error, ValueError) or is_of_variable:
        correct = "correct it: docs/settings.md and docs/providers.md say what can be written there"
        return Trouble(text, remedy or correct, WRONG_USAGE)
    if re.search(r"token.?file", text, re.IGNORECASE):  # of this machine: nobody was asked
        return Trouble(text, remedy, FAILED)
    return Trouble(text, remedy, UNREACHABLE)
