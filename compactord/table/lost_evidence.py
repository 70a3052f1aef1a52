"""Reads what is to be proved of a lost snapshot: what it changed, and every step since its base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compactord.commit.recommit import LostChanges, is_committed_again, users_of
from compactord.errors import FormatError, ObjectNotFound, UnsupportedTable
from compactord.paimon.snapshot import Snapshot
from compactord.state.ancestry import Ancestry, Contained, Step
from compactord.state.table_state import TableState
from compactord.storage.base import Storage

# How many snapshots the first look back reads, and how many below a lost one for its user.
LOOKED_BACK = 50
# With more snapshots since it was lost, nothing is proved.
_STEPS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A snapshot that the newest one does not descend from; `above` is the next one that it does.

    Not `is_certain`: it may be in the table after all. `damage`: why it cannot be read.
    """

    snapshot: Snapshot
    above: Snapshot
    is_certain: bool
    damage: str = ""


def changes_since(
    storage: Storage,
    state: TableState,
    lost: Mapping[int, Lost],
    key: int,
    known: Mapping[int, Snapshot],
) -> LostChanges | str:
    """What the proof needs of snapshot `key`, read anew; or why there is no proof.

    `lost` are all that are lost, `known` what this process published, by id. Raises
    `TransientStorageError`.
    """
    each, newest = lost[key], state.snapshot
    assert newest is not None, "it has snapshots above the lost one"
    if each.damage:
        return each.damage
    if not each.is_certain:
        return "manifests were merged since, so that it is not known what became of its files"
    ancestry = Ancestry(storage, state.table)
    try:
        if ancestry.snapshot(key).identity != each.snapshot.identity:
            return "another snapshot has its id now"
        steps = _steps(ancestry, lost, key, newest, known)
        if isinstance(steps, str):
            return steps
        others = {}
        for number in range(max(1, key - LOOKED_BACK), newest.id + 1):
            if number in lost:
                continue
            try:
                others[number] = ancestry.snapshot(number)
            except ObjectNotFound:
                if number > key:
                    raise
        return LostChanges(
            snapshot=each.snapshot,
            entries=ancestry.entries(ancestry.delta(each.snapshot)),
            # An index manifest that is still the newest one was not made by a lost snapshot.
            index_before=others.get(key - 1, newest).index_manifest,
            since=steps,
            others=users_of(others, each.snapshot),
        )
    except (ObjectNotFound, FormatError, UnsupportedTable) as error:
        return str(error)


def is_there_anyway(
    storage: Storage, state: TableState, lost: Mapping[int, Lost], key: int
) -> bool:
    """Whether the files of snapshot `key` are in the table, although nothing else is proved of it.

    A process that starts does not know what the lost snapshot replaced, but sees what was committed
    again later. Raises `TransientStorageError`.
    """
    each, newest = lost[key], state.snapshot
    assert newest is not None, "it has snapshots above the lost one"
    if newest.id - key > _STEPS_MAX:
        return False
    ancestry = Ancestry(storage, state.table)
    try:
        changes = LostChanges(
            snapshot=each.snapshot,
            entries=ancestry.entries(ancestry.delta(each.snapshot)),
            index_before=None,
            since=_last_steps(ancestry, lost, key, newest),
            others=(),
        )
    except (ObjectNotFound, FormatError, UnsupportedTable):
        return False
    return is_committed_again(changes, state)


def _last_steps(
    ancestry: Ancestry, lost: Mapping[int, Lost], key: int, newest: Snapshot
) -> tuple[Step, ...]:
    """The steps above `key` to the newest snapshot, as far down as each is in the next one."""
    steps, above = [ancestry.step(newest)], newest
    for number in range(newest.id - 1, key, -1):
        if number in lost:
            continue
        snapshot = ancestry.snapshot(number)
        if ancestry.contained(snapshot, above) is not Contained.YES:
            break
        steps.append(ancestry.step(snapshot))
        above = snapshot
    return tuple(steps)


def _steps(
    ancestry: Ancestry,
    lost: Mapping[int, Lost],
    key: int,
    newest: Snapshot,
    known: Mapping[int, Snapshot],
) -> tuple[Step, ...] | str:
    """What led from the base of the lost snapshot to the newest one, every step proved."""
    first, above = lost[key].snapshot, lost[key].above
    now = newest if above.id == newest.id else ancestry.snapshot(above.id)
    if above.id > newest.id or now.identity != above.identity:
        return f"snapshot {above.id} was rolled back"
    if newest.id - key > _STEPS_MAX:
        return f"{newest.id - key} snapshots came since"
    steps: list[Step] = []
    while True:
        replaced = ancestry.between(first, above, known)
        if replaced is None:
            return f"it is not known what snapshot {above.id} was built on"
        steps += [*replaced, ancestry.step(above)]
        while above.id < newest.id:
            number = above.id + 1
            if number in lost:
                break
            following = newest if number == newest.id else ancestry.snapshot(number)
            if ancestry.contained(above, following) is not Contained.YES:
                return f"snapshot {number} was not built on {above.id}"
            steps.append(ancestry.step(following))
            above = following
        else:
            return tuple(steps)
        first = lost[above.id + 1].snapshot
        if ancestry.contained(above, first) is not Contained.YES:
            return f"lost snapshot {first.id} was not built on {above.id}"
        above = lost[first.id].above
