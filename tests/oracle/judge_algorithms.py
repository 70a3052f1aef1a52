"""Java Paimon's algorithms, asked about cases: no table is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.oracle.judge_jvm import JudgeJvm, Row, TypeName, Value


class Algorithms:
    """Every question is a list of cases and has one answer for each."""

    def __init__(self, jvm: JudgeJvm) -> None:
        self._jvm = jvm

    def pick_universal(self, cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        """Java's minor pick for each case: {"files", "output_level", "file_rewrite"} or None.

        A case holds either "runs", newest first, each {"level", "size"} or {"level", "files"}, or
        "files", from which Java's Levels builds the runs. A file is {"name", "level", "size",
        "min", "max" (INT keys), "min_seq", "max_seq", "rows", "deletes", "creation" (millis)}; all
        have defaults, the name of an unnamed one is its position in the case. Settings and their
        defaults: num_levels 6 (with "files": at least), max_size_amp 200, size_ratio 1, trigger 5,
        force_up_level0 False, gentle_interval None with calls 1 (the answer is that of the last
        call), off_peak_ratio None (a number means now is off-peak), optimization_interval,
        total_size_threshold, incremental_size_threshold None, last_full and now None (millis).
        The pick is raw: the manager's filters (empty unit, one file already there) come later.
        """
        return self._plan("pickUniversal", cases)

    def pick_full(self, cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        """Java's full pick; cases as of `pick_universal`, with num_levels, force_rewrite_all_files
        and deletion_vectors (a list of file names, None where they are off)."""
        return self._plan("pickFull", cases)

    def off_peak(self, cases: Sequence[tuple[int, int, int, int]]) -> list[int]:
        """Ratio to add for each (start hour, end hour, ratio, hour of now)."""
        return self._plan("offPeak", [list(case) for case in cases])

    def sorted_runs(self, cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Java's Levels over "files": {"runs": [[level, [name]]], "num_levels", "highest"}, where
        highest is the highest level that holds a file, -1 for none; {"error"} if it refuses."""
        return self._plan("sortedRuns", cases)

    def interval_partition(
        self, cases: Sequence[Sequence[Mapping[str, Any]]]
    ) -> list[list[list[list[str]]]]:
        """Each case is a list of files; the answer its sections, their runs, their file names."""
        return self._plan("intervalPartition", cases)

    def pack_append(self, cases: Sequence[Mapping[str, Any]]) -> list[list[list[str]]]:
        """Groups that one planning round of the append coordinator makes of "files".

        Settings: target_file_size 256 MB, small_file_ratio 0.7, open_file_cost 4 MB,
        min_file_num 5. "rounds" n asks n times on and answers with the last: from the sixth empty
        round on, files that are left are packed whatever their number. Files of one size come in
        an order that nobody can rely on.
        """
        return self._plan("packAppend", cases)

    def pick_bucketed_append(self, cases: Sequence[Mapping[str, Any]]) -> list[list[str] | None]:
        """Files that one compaction of a bucket of an append table rewrites, None for no rewrite.

        Settings: full False, min_file_num 5, target_file_size 256 MB, small_file_ratio 0.7,
        force_rewrite_all_files False, deletion_vectors None (or the names of files that have one).
        """
        return self._plan("pickBucketedAppend", cases)

    def merge_order(
        self, cases: Sequence[Mapping[str, Any]]
    ) -> list[list[tuple[int, list[list[int]]]]]:
        """In which order the merge reader feeds the records of each key to the merge function.

        A case: "readers", each a list of [key, user sequence or None, sequence], keys ascending
        and unique; user_sequence (True if that field counts, default False), descending (False),
        min_heap (False: the loser tree, as Java does by default). The answer: per key (key,
        [[reader, position in reader]]), the winner of a deduplicate last.
        """
        answers = self._plan("mergeOrder", cases)
        return [[(key, records) for key, records in answer] for answer in answers]

    def binary_rows(
        self,
        types: Sequence[TypeName],
        rows: Sequence[Row],
        *,
        num_buckets: int | None = None,
        bucket_function: str = "default",
    ) -> list[tuple[str, int, int | None]]:
        """(hex with arity prefix, hash, bucket) per row; function is default, mod or hive."""
        arguments = {
            "types": list(types),
            "rows": [list(row) for row in rows],
            "num_buckets": num_buckets,
            "bucket_function": bucket_function,
        }
        return [tuple(answer) for answer in self._ask("binaryRows", arguments)]

    def binary_row(
        self, types: Sequence[TypeName], values: Row, *, num_buckets: int | None = None
    ) -> tuple[str, int, int | None]:
        return self.binary_rows(types, [values], num_buckets=num_buckets)[0]

    def murmur_bucket(self, types: Sequence[TypeName], values: Row, num_buckets: int) -> int:
        bucket = self.binary_row(types, values, num_buckets=num_buckets)[2]
        assert bucket is not None
        return bucket

    def decode_rows(
        self, types: Sequence[TypeName], rows: Sequence[str]
    ) -> list[tuple[Value, ...]]:
        """Values of serialised rows, given as hex with arity prefix."""
        arguments = {"types": list(types), "rows": list(rows)}
        return [tuple(row) for row in self._ask("decodeRows", arguments)]

    def casts(
        self, cases: Sequence[tuple[TypeName, TypeName, Sequence[Value]]], *, zone: str = "UTC"
    ) -> list[list[list[Value] | str] | None]:
        """Values cast from the first type to the second, with `zone` as Java's default time zone.

        None for a case without a rule; else for each value [result], or the text of the error.
        """
        arguments = {"zone": zone, "cases": [list(case) for case in cases]}
        return self._jvm.ask("Casts", "casts", arguments)

    def sort_rows(self, types: Sequence[TypeName], rows: Sequence[Row]) -> list[int]:
        """Positions of the rows in Java's ascending (stable) order: nulls, NaN, bytes, all."""
        arguments = {"types": list(types), "rows": [list(row) for row in rows]}
        return self._ask("sortRows", arguments)

    def _plan(self, method: str, cases: Sequence[Any]) -> Any:
        return self._ask(method, list(cases))

    def _ask(self, method: str, arguments: Any) -> Any:
        return self._jvm.ask("Planner", method, arguments)
