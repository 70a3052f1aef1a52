"""Start-up checks of catalogs."""

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

# A healthy store answers within milliseconds.
CHECK_SECONDS_MAX = 10.0


# Waiting does not help against missing objects or permissions.
_LASTING = TableNotFound | StoreMissing | AccessDenied | UnsafeStore | UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTrouble:
    """Why a catalog cannot be used now.

    `advice` concerns an error of the catalog's own service, and is empty for errors of the
    warehouse's store. `may_pass`: the error may be temporary.
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
    """The trouble of each catalog that has any; all are checked concurrently.

    `commits` also checks that snapshots can be published (`check_commits`). A catalog without an
    answer after `seconds_max` counts as temporary trouble. Its thread is abandoned, because a
    hanging store cannot be interrupted.
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
        silent = TransientStorageError(catalog.address, f"no answer within {seconds_max:.0f} s")
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
