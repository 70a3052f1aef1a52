"""All that is wrong with a table on disk."""

from __future__ import annotations

from random import Random

from compactord.catalog.access import table_in_folder
from compactord.paimon.schema import TableRef
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from compactord.verify.rules import FileRules
from compactord.verify.verify import Verified, Wanted, verify_table


def verified(table: TableRef) -> Verified:
    """Of every snapshot, tag, branch and changelog; no data file's footer is read."""
    storage = LocalStorage()
    opened = open_table(table_in_folder(storage, table), {})
    rules = FileRules(
        bucket_folder=opened.bucket_folder,
        check_levels=None,
        read_footer=lambda path, file: True,
        sample=0,
        random=Random(1),
    )
    return verify_table(
        storage, table, Wanted(is_all=True), rules, progress=lambda text: None, pause=lambda: None
    )
