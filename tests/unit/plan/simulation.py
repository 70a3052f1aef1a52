"""A bucket whose compactions happen on paper, and the loop of a command around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from compactord.model import Compaction, Concat, Rewrite, Upgrade
from compactord.paimon.data_file import DataFile, FileSource
from compactord.paimon.deletion_vectors import VectorRef
from compactord.plan.table import PlanRequest
from compactord.table.planner import final_files
from tests.unit.plan.builders import bucket_of, data_file, decisions, key_of

A_VECTOR = VectorRef(path="index-a", offset=1, length=9, cardinality=1)


@dataclass(slots=True)
class PaperBucket:
    """Live files by name. A full output has `roll_size` bytes.

    No rows are modelled: outputs have the bytes of inputs also where these have `vectors`, and each
    file in which rows are looked up gets one.
    """

    files: dict[str, DataFile]
    roll_size: int
    vectors: dict[str, VectorRef] = field(default_factory=dict)
    made: int = 0
    final: set[str] = field(default_factory=set)

    def plan(self, request: PlanRequest) -> list[Compaction]:
        request = replace(
            request, final=frozenset(self.final), vectors_of=lambda bucket: dict(self.vectors)
        )
        return list(decisions([bucket_of(self.files.values())], request))

    def publish(self, compaction: Compaction, now_ms: int, *, all_deleted: bool) -> None:
        for file in compaction.inputs:
            assert self.files.pop(file.file_name) == file, "an input that is not live"
        match compaction:
            case Compaction(actions=(Concat(files=files),)):
                self._rewritten(files)
                after = self._outputs(files, 0, now_ms)
            case Compaction(output_level=level):
                after = []
                for action in compaction.actions:
                    if action.marks:
                        above = (file.file_name for run in action.above for file in run.files)
                        self.vectors.update(dict.fromkeys(above, A_VECTOR))
                    match action:
                        case Upgrade(file=file):
                            assert level > file.level
                            after.append(replace(file, level=level))
                        case Rewrite(sections=sections):
                            inputs = [f for s in sections for r in s.runs for f in r.files]
                            self._rewritten(inputs)
                            if not (all_deleted and compaction.drop_deletes):
                                after += self._outputs(inputs, level, now_ms)
        self.files.update((file.file_name, file) for file in after)
        self.final |= final_files(compaction, after)

    def _rewritten(self, inputs: Sequence[DataFile]) -> None:
        for file in inputs:
            self.vectors.pop(file.file_name, None)

    def _outputs(self, inputs: Sequence[DataFile], level: int, now_ms: int) -> list[DataFile]:
        size = sum(file.file_size for file in inputs)
        low = min(key_of(file.min_key)[0] for file in inputs)
        high = max(key_of(file.max_key)[0] for file in inputs)
        count = -(-size // self.roll_size)
        if level:
            # A file holds one key at least.
            count = min(count, high - low + 1)
        sequence = min(file.min_sequence_number for file in inputs)
        outputs = []
        for part in range(count):
            self.made += 1
            is_last = part == count - 1
            outputs.append(
                data_file(
                    f"made-{self.made}",
                    level=level,
                    size=size - part * self.roll_size if is_last else self.roll_size,
                    keys=(low + part, high if is_last else low + part),
                    sequences=(sequence + part, sequence + part),
                    created_ms=now_ms,
                    source=FileSource.COMPACT,
                )
            )
        return outputs


def run_command(bucket: PaperBucket, request: PlanRequest, *, all_deleted: bool = False) -> int:
    """Plan, execute and commit until the plan is empty; how many rounds that took.

    Fails when there are more rounds than files.
    """
    limit = len(bucket.files) + 2
    for rounds in range(limit + 1):
        decisions = bucket.plan(request)
        if not decisions:
            return rounds
        for decision in decisions:
            bucket.publish(decision, request.now_local_ms, all_deleted=all_deleted)
    raise AssertionError(f"no end after {limit} rounds: {decisions}")
