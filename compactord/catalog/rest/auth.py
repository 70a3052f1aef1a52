"""How requests to the server say who asks (rest/auth)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from compactord.clock import Clock
from compactord.errors import CatalogOptionInvalid, UsageError
from compactord.references import LateValues

_PROVIDERS = "bear or dlf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is signed: the path below the server's address, as it is sent; `query` unescaped."""

    method: str
    path: str
    query: Mapping[str, str]
    body: str


class Auth(Protocol):
    """Any number of threads may ask."""

    def headers(self, request: Request) -> Mapping[str, str]:
        """What a request is sent with. Raises `StorageError` where a credential cannot be had."""
        ...

    def is_renewed(self) -> bool:
        """Whether the credential that was just refused has been replaced: worth another try."""
        ...


class BearerAuth:
    """A token, which is read again where it is a reference and was refused."""

    def __init__(self, late: LateValues, clock: Clock) -> None:
        self._late = late
        self._clock = clock
        self._token = late.read()["token"]

    def headers(self, request: Request) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._token}"}

    def is_renewed(self) -> bool:
        if not self._late.have_changed(self._clock.monotonic_s()):
            return False
        try:
            self._token = self._late.read()["token"]
        except UsageError:
            return False
        return True


def auth_of(values: Mapping[str, str], late: LateValues, clock: Clock) -> Auth:
    """What the options ask for; `late` has the same ones. Raises `CatalogOptionInvalid`."""
    provider = values.get("token.provider")
    if provider == "bear":
        if not values.get("token"):
            raise CatalogOptionInvalid("token", "the token that the server knows")
        return BearerAuth(late, clock)
    raise CatalogOptionInvalid("token.provider", _PROVIDERS)
