"""Divides the memory of a subcompaction between readers, merge windows and row groups.

With R runs that are merged or looked up in, and w bytes of a decoded row, the memory of a
subcompaction is, in bytes,

  readers      R x min(open bytes, 3 x the largest file)      buffers and pages of open files
+ vectors      R x rows of the largest file that has one / 4  as it is stored, and a bit each row
+ decoded      R x batch x w x (2 with decode-ahead, else 1)
+ window       4 x window x w      buffered, one merged, one column's copies, codes and order;
                                   5 where the merge function needs all records: sorted as well;
                                   3 more with a changelog: rows before, rows written, their copy
                                   2 more where rows are looked up: these, and with the window
+ row groups   3 x group x w       filling, being encoded, encoded pages; of each kind of output
+ fetched      R x held            of files in object stores: fetched and not read yet
+ uploads                          to object stores: parts that are being sent

in addition to the idle worker (interpreter, numpy, pyarrow: about 90 MB, not counted). `budget`
chooses window, batch and row group as large as is useful, otherwise as large as the memory allows.
If the memory is too small for the smallest useful sizes, a section is merged in several passes; if
not even two runs fit, the subcompaction fails.

With rows of more than 32 KiB, a batch, window or group has as few rows as take 2 MiB, at least one,
and half of its size is planned in addition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compactord.errors import SubcompactionError

# Speed hardly changes within these ranges, memory does (tests/bench/bench_rewrite.py).
MAX_WINDOW_ROWS = 128 << 10
MIN_WINDOW_ROWS = 4_096
MAX_BATCH_ROWS = 32_768
MIN_BATCH_ROWS = 64
MAX_GROUP_ROWS = 256 << 10
MIN_GROUP_ROWS = 4_096
# Batches, windows and groups of wide rows need no more rows than take this many bytes.
_ENOUGH_BYTES = 2 << 20
# The most open files of a section; more runs are merged in several passes.
MAX_RUNS = 400
# A window must stay below the limit of Arrow's 32-bit offsets, however large the memory is.
MAX_WINDOW_BYTES = 512 << 20
_WINDOW_COPIES = 4
_SORTED_COPIES = 1
_CHANGELOG_COPIES = 3
_LOOKUP_COPIES = 2
_GROUP_COPIES = 3
# For wide rows: Arrow doubles the buffer into which it decodes, and the allocator keeps large
# blocks for a while after they are freed (docs/limits.md has what was measured).
_WIDE_FACTOR = 1.5
_MIN_ROW_BYTES = 8.0
# The part of the memory that fetched bytes may take before anything else.
_HELD_SHARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Rows per decoded batch and run, per merge window, per row group; bytes of window and group.

    `fan_in`: how many runs can be merged at once. `held_bytes`: fetched bytes of an open file.
    """

    batch_rows: int
    window_rows: int
    window_bytes: int
    group_rows: int
    group_bytes: int
    fan_in: int
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The demand of a section. `largest_file`: bytes on disk; `runs`: at least 1.

    `open_bytes`: bytes of an open file besides its decoded rows. `needs_all`: the function needs
    all records of a key. `has_changelog`: the section also writes a changelog. `above`: runs in
    which rows are looked up. `held_bytes`: fetched bytes of an open file, at least and at most.
    `upload_bytes`: parts that are being sent, of the outputs of one kind. `vector_rows`: rows of
    the largest file that has a deletion vector.
    """

    runs: int
    row_bytes: float
    open_bytes: int
    largest_file: int
    decodes_ahead: bool
    needs_all: bool
    has_changelog: bool = False
    above: int = 0
    held_bytes: tuple[int, int] = (0, 0)
    upload_bytes: int = 0
    vector_rows: int = 0


def budget(memory_bytes: int, load: Load) -> Budget:
    """The sizes for one section. Raises `SubcompactionError` if two runs do not fit into the
    memory.
    """
    row = max(load.row_bytes, _MIN_ROW_BYTES)
    fan_in = min(load.runs, MAX_RUNS)
    while _needed(load, fan_in, row, 0.0) > memory_bytes:
        if fan_in <= min(2, load.runs):
            raise SubcompactionError(
                f"a merge of {load.runs} runs with rows of {row:.0f} bytes needs at least"
                f" {_needed(load, fan_in, row, 0.0):,} bytes of memory and has {memory_bytes:,}:"
                " raise --memory (spark.task_memory)"
            )
        fan_in = max(2, fan_in // 2)
    most = load.held_bytes[1]
    if fan_in * most <= memory_bytes // _HELD_SHARE:
        # Fewer bytes of a file would mean more requests, and smaller windows cost less.
        held = replace(load, held_bytes=(most, most))
        load = held if _needed(held, fan_in, row, 0.0) <= memory_bytes else load
    low, high = 0.0, 1.0
    if _needed(load, fan_in, row, high) <= memory_bytes:
        low = high
    for _ in range(12):
        middle = (low + high) / 2
        if _needed(load, fan_in, row, middle) <= memory_bytes:
            low = middle
        else:
            high = middle
    batch, window, group = _sizes(fan_in, row, low)
    return Budget(
        batch_rows=batch,
        window_rows=window,
        # Rows may be wider than in the sample, so bytes are limited in addition to rows.
        window_bytes=min(MAX_WINDOW_BYTES, max(1 << 20, int(2 * window * row))),
        group_rows=group,
        group_bytes=max(1 << 20, int(2 * group * row)),
        fan_in=fan_in,
        held_bytes=_held(load, low),
    )


def _sizes(runs: int, row: float, share: float) -> tuple[int, int, int]:
    """Rows of batch, window and group at a share (0 to 1) of the largest useful sizes."""
    enough = _enough(row)

    def between(low: int, high: int) -> int:
        least = min(low, enough)
        if enough < MIN_BATCH_ROWS:
            # The share is found in steps of 1/4096, which must not be many of these rows.
            high = min(high, max(least, int(MAX_WINDOW_BYTES / row)))
        return int(least + share * (high - least))

    window = between(MIN_WINDOW_ROWS, MAX_WINDOW_ROWS)
    # Half of a run's last batch goes beyond a window: larger ones would only take memory.
    batch = min(MAX_BATCH_ROWS, max(min(MIN_BATCH_ROWS, enough), 2 * window // (runs + 2)))
    return batch, window, between(MIN_GROUP_ROWS, MAX_GROUP_ROWS)


def _enough(row: float) -> int:
    return max(1, int(_ENOUGH_BYTES / row))


def _held(load: Load, share: float) -> int:
    least, most = load.held_bytes
    return int(least + share * (most - least))


def _needed(load: Load, runs: int, row: float, share: float) -> int:
    batch, window, group = _sizes(runs, row, share)
    if _enough(row) < MIN_BATCH_ROWS:
        row *= _WIDE_FACTOR
    reader = min(load.open_bytes, 3 * load.largest_file) + _held(load, share)
    reader += load.vector_rows // 4
    runs += load.above
    decoded = runs * batch * row * (2 if load.decodes_ahead else 1)
    copies = _WINDOW_COPIES + (_SORTED_COPIES if load.needs_all else 0)
    copies += _CHANGELOG_COPIES if load.has_changelog else 0
    copies += _LOOKUP_COPIES if load.above else 0
    merges = load.runs > 1 or load.has_changelog or load.above
    merging = copies * window * row if merges else 0
    groups = (_GROUP_COPIES * group * row + load.upload_bytes) * (1 + load.has_changelog)
    return int(runs * reader + decoded + merging + groups)
