"""The account of a model file: every key and every tensor is used, neutral, or refused by name.

Nothing of a file may be overlooked: what the loader does not ask for and no
table declares harmless changes the model in a way anex does not compute.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal as OneOf

from anex.errors import UnsupportedError
from anex.formats.gguf import quoted

What = OneOf["key", "tensor"]
Status = OneOf["used", "neutral"]


@dataclass(frozen=True, slots=True)
class Account:
    """What became of one key or tensor.

    Attributes:
        note: For `used` what it became, for `neutral` why it does not matter.
    """

    name: str
    what: What
    status: Status
    note: str


class Ledger:
    """Collects the accounts of one file.

    Args:
        where: The file, for messages.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._accounts: dict[tuple[What, str], Account] = {}

    def used(self, what: What, name: str, note: str) -> None:
        """`name` takes part in the result, as `note` says."""
        self._accounts[what, name] = Account(name, what, "used", note)

    def neutral(self, what: What, name: str, note: str) -> None:
        """`name` cannot change the result, because `note`."""
        self._accounts[what, name] = Account(name, what, "neutral", note)

    def knows(self, what: What, name: str) -> bool:
        """Whether a name has an account."""
        return (what, name) in self._accounts

    @property
    def accounts(self) -> tuple[Account, ...]:
        """Every account in the order in which it was settled."""
        return tuple(self._accounts.values())

    def close(self, what: What, names: Iterable[str]) -> None:
        """Check that every name has an account.

        Raises:
            UnsupportedError: Names the first few that have none.
        """
        left = [name for name in names if (what, name) not in self._accounts]
        if not left:
            return
        shown = ", ".join(map(quoted, left[:3]))
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        noun = "metadata key" if what == "key" else "tensor"
        raise UnsupportedError(
            f"{noun} {shown}{more}",
            where=self.where,
            hint="anex does not know what this does to the model, so it does not run it",
        )
