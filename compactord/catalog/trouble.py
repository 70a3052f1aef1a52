"""Whether catalogs can be used: checked before anything depends on them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from compactord.catalog.base import Catalog
from compactord.clock import Clock
from compactord.errors import (
    AccessDenied,
    CompactordError,
    StoreMissing,
    TableNotFound,
    TransientStorageError,
    UnsafeStore,
    UsageError,
)

# An answer from a store that works takes milliseconds.
CHECK_SECONDS_MAX = 10.0


# What does not exist and what is forbidden stay so.
_LASTING = TableNotFound | StoreMissing | AccessDenied | UnsafeStore | UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTrouble:
    """Why a catalog cannot be used now.

    `advice` says what to do about an error of the catalog's own service; empty: it is one of the
    warehouse's store. `may_pass`: it may be otherwise in a minute, without anybody changing
    anything here.
    """

    catalog: str
    warehouse: str
    error: CompactordError
    advice: str

    @property
    def may_pass(self) -> bool:
        return not isinstance(self.error, _LASTING)


def check_catalogs(
    catalogs: Mapping[str, Catalog],
    clock: Clock,
    *,
    commits: bool = False,
    seconds_max: float = CHECK_SECONDS_MAX,
) -> tuple[CatalogTrouble, ...]:
    """The trouble of each catalog that has any; all are checked side by side.

    With `commits` it is also tried whether snapshots can be published (`check_commits`). One that
    has not answered after `seconds_max` may heal. Its thread is left behind: a store that hangs
    cannot be interrupted.
    """
    found: dict[str, CompactordError | None] = {}

    def check(name: str, catalog: Catalog) -> None:
        try:
            catalog.check_access()
            if commits:
                catalog.check_commits()
            found[name] = None
        except CompactordError as error:
            found[name] = error

    threads = [
        threading.Thread(target=check, args=item, name=f"check-{item[0]}", daemon=True)
        for item in catalogs.items()
    ]
    deadline = clock.monotonic_s() + seconds_max
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - clock.monotonic_s()))
    troubles = []
    for name, catalog in catalogs.items():
        silent = TransientStorageError(catalog.asked, f"no answer within {seconds_max:.0f} s")
        error = found.get(name, silent)
        if error is not None:
            troubles.append(
                CatalogTrouble(
                    catalog=name,
                    warehouse=catalog.warehouse,
                    error=error,
                    advice=catalog.advice(error),
                )
            )
    return tuple(troubles)
