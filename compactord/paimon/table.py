"""A table, or a branch of one, by name, place and identity."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compactord.paimon.paths import MAIN_BRANCH, branch_root

# Between the names of a table and of its branch.
BRANCH_MARK = "$branch_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRef:
    """A table by name, and the URL-like path of its root (without a slash at the end).

    A branch has a name of its own, `t$branch_b`, as in Java (catalog/Identifier.java, object name),
    and the table's location.
    `identity` is what a catalog tells a table by from another of its name and place (a uuid, the
    time of its creation); empty where the catalog keeps none.
    """

    database: str
    name: str
    location: str
    branch: str = MAIN_BRANCH
    identity: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.name}"

    @property
    def root(self) -> str:
        """Where the branch keeps its schemas, snapshots, tags, consumers and changelogs.

        Manifests, data, index files and statistics are the table's, below `location`.
        """
        return branch_root(self.location, self.branch)


def branch_of(table: TableRef, branch: str) -> TableRef:
    """A branch of the table whose main branch `table` is; main is the table itself."""
    if branch == MAIN_BRANCH:
        return table
    return replace(table, name=f"{table.name}{BRANCH_MARK}{branch}", branch=branch)
