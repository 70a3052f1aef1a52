"""Stores for tests, around a real one: they watch, fail, or wait at each call.

All but `MemoryStorage` wrap another store. A call is counted when it is made; a file that is
written through a stream counts twice, when it is opened (`open_output`) and when it is closed
(`close_output`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import pyarrow as pa

from compactord.errors import ObjectNotFound, StorageError
from compactord.storage.base import (
    Capabilities,
    Creation,
    ObjectStatus,
    Storage,
    StorageSpec,
    UnfinishedUpload,
)
from compactord.storage.local import named_errors

T = TypeVar("T")
MUTATIONS = frozenset(
    {
        "open_output",
        "close_output",
        "create_if_absent",
        "write_new",
        "overwrite",
        "delete",
        "remove_empty_folder",
        "abort_upload",
    }
)


class Call(NamedTuple):
    """`number` counts from 1."""

    number: int
    method: str
    path: str

    @property
    def is_mutation(self) -> bool:
        return self.method in MUTATIONS


class WatchedStorage:
    """Every call goes through `around`, which may act before and after its effect or prevent it.

    Calls of several threads come one after the other, so that each has a number and a moment.
    """

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.calls = 0
        self._one_at_a_time = threading.RLock()

    @property
    def spec(self) -> StorageSpec:
        """Itself: what runs in this process shares the store."""
        return self

    def open(self) -> Storage:
        return self

    def around(self, call: Call, effect: Callable[[], T]) -> T:
        return effect()

    def _watch(self, method: str, path: str, effect: Callable[[], T]) -> T:
        with self._one_at_a_time:
            self.calls += 1
            return self.around(Call(self.calls, method, path), effect)

    def read(self, path: str) -> bytes:
        return self._watch("read", path, lambda: self.inner.read(path))

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def read_range(self, path: str, start: int, size: int) -> bytes:
        return self._watch("read_range", path, lambda: self.inner.read_range(path, start, size))

    def open_input(self, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        return self._watch("open_input", path, lambda: self.inner.open_input(path, size_bytes))

    @contextlib.contextmanager
    def open_output(self, path: str) -> Iterator[pa.NativeFile]:
        context = self.inner.open_output(path)
        # Once the inner context is entered it must be left, or its file would be neither kept
        # nor removed.
        with contextlib.ExitStack() as entered:
            stream = self._watch("open_output", path, lambda: entered.enter_context(context))
            yield stream
            self._watch("close_output", path, entered.close)

    # What is not there has no status, no files and need not be deleted: a disk says no more.

    def status(self, path: str) -> ObjectStatus | None:
        try:
            return self._watch("status", path, lambda: self.inner.status(path))
        except ObjectNotFound:
            return None

    def folder_exists(self, path: str) -> bool:
        return self._watch("folder_exists", path, lambda: self.inner.folder_exists(path))

    def real_folder(self, path: str) -> str:
        return self.inner.real_folder(path)

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        try:
            return iter(self._watch("list", folder, lambda: tuple(self.inner.list(folder))))
        except ObjectNotFound:
            return iter(())

    def list_some(self, folder: str, is_wanted: Callable[[str], bool]) -> Iterator[ObjectStatus]:
        return (status for status in self.list(folder) if is_wanted(status.name))

    def create_if_absent(self, path: str, data: bytes, *, temporary: str) -> Creation:
        return self._watch(
            "create_if_absent",
            path,
            lambda: self.inner.create_if_absent(path, data, temporary=temporary),
        )

    def write_new(self, path: str, data: bytes) -> None:
        self._watch("write_new", path, lambda: self.inner.write_new(path, data))

    def overwrite(self, path: str, data: bytes) -> None:
        self._watch("overwrite", path, lambda: self.inner.overwrite(path, data))

    def delete(self, path: str) -> None:
        with contextlib.suppress(ObjectNotFound):
            self._watch("delete", path, lambda: self.inner.delete(path))

    def remove_empty_folder(self, path: str) -> bool:
        return self._watch(
            "remove_empty_folder", path, lambda: self.inner.remove_empty_folder(path)
        )

    def unfinished_uploads(self, folder: str) -> Iterator[UnfinishedUpload]:
        found = self._watch(
            "unfinished_uploads", folder, lambda: tuple(self.inner.unfinished_uploads(folder))
        )
        return iter(found)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self._watch("abort_upload", upload.path, lambda: self.inner.abort_upload(upload))

    def may_write(self, folder: str) -> bool | None:
        return self._watch("may_write", folder, lambda: self.inner.may_write(folder))


class RecordingStorage(WatchedStorage):
    """Remembers the calls."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.log: list[Call] = []

    def around(self, call: Call, effect: Callable[[], T]) -> T:
        self.log.append(call)
        return effect()


class RequestCounter(RecordingStorage):
    """A store as if it were an object store: each call is a request, as `ObjectStorage` makes it.

    A stream that is written is one request when it is closed: no test writes more than a part.
    """

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    @property
    def requests(self) -> list[Call]:
        return [call for call in self.log if call.method != "open_output"]


class RangeLog(RequestCounter):
    """Remembers which bytes were asked for, and how many of them are asked for at once."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.spans: list[tuple[int, int]] = []

    def read_range(self, path: str, start: int, size: int) -> bytes:
        self.spans.append((start, size))
        return super().read_range(path, start, size)


class HookedStorage(WatchedStorage):
    """Asks `before` before each call takes effect and tells `after` afterwards."""

    def __init__(
        self,
        inner: Storage,
        *,
        before: Callable[[Call], None] = lambda call: None,
        after: Callable[[Call], None] = lambda call: None,
    ) -> None:
        super().__init__(inner)
        self._before = before
        self._after = after

    def around(self, call: Call, effect: Callable[[], T]) -> T:
        self._before(call)
        result = effect()
        self._after(call)
        return result


class LateListings(WatchedStorage):
    """Listings do not have `unlisted` files yet, which can be read."""

    def __init__(self, inner: Storage, unlisted: Collection[str]) -> None:
        super().__init__(inner)
        self._unlisted = unlisted

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        for found in super().list(folder):
            if f"{folder}/{found.name}" not in self._unlisted:
                yield found


class OrderedStorage(WatchedStorage):
    """Of two calls that may be made at once `first` is done before `then`, and `meanwhile` between.

    Calls of several threads do not take turns here. `first` and `then` are method and end of path;
    neither counts until `begins`.
    """

    def __init__(
        self,
        inner: Storage,
        first: tuple[str, str],
        then: tuple[str, str],
        meanwhile: Callable[[], object],
        begins: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(inner)
        self._first, self._then, self._meanwhile, self._begins = first, then, meanwhile, begins
        self._is_done = threading.Event()
        self.happened = False

    def _watch(self, method: str, path: str, effect: Callable[[], T]) -> T:
        is_first = self._is(self._first, method, path)
        if self._is(self._then, method, path) and not self.happened:
            assert self._is_done.wait(180), "the other call is made, too"
            self.happened = True
            self._meanwhile()
        result = effect()
        if is_first:
            self._is_done.set()
        return result

    def _is(self, wanted: tuple[str, str], method: str, path: str) -> bool:
        return method == wanted[0] and path.endswith(wanted[1]) and self._begins()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Fails call `at` (counting from 1 those that it `concerns`), and all later ones if `lasts`.

    Every `at`-th one if it `recurs`. `after_effect`: what was asked for happens, and yet an error
    comes back. An `error` that is a number is the system's, as a disk makes one of ours of it.
    """

    at: int
    error: type[StorageError] | int
    after_effect: bool = False
    lasts: bool = False
    recurs: bool = False
    concerns: Callable[[Call], bool] = field(default=lambda call: True)


class FaultyStorage(WatchedStorage):
    """Fails as told; `failed` are the calls that did."""

    def __init__(self, inner: Storage, fault: Fault) -> None:
        super().__init__(inner)
        self._fault = fault
        self._concerned = 0
        self.failed: list[Call] = []

    def around(self, call: Call, effect: Callable[[], T]) -> T:
        fault = self._fault
        if not fault.concerns(call):
            return effect()
        self._concerned += 1
        hit = self._concerned >= fault.at if fault.lasts else self._concerned == fault.at
        if fault.recurs:
            hit = self._concerned % fault.at == 0
        if not hit:
            return effect()
        self.failed.append(call)
        if fault.after_effect:
            effect()
        if isinstance(fault.error, int):
            with named_errors(call.path, call.method):
                raise OSError(fault.error, os.strerror(fault.error))
        raise fault.error(call.path, f"{call.method} failed (as the test asked)")


class SwitchedStorage(WatchedStorage):
    """Call `at` (counting from 1) goes to another store; `switched` says which one that was."""

    def __init__(self, inner: Storage, other: Storage, at: int) -> None:
        super().__init__(inner)
        self._stores = inner, other
        self._at = at
        self.switched: list[Call] = []

    def around(self, call: Call, effect: Callable[[], T]) -> T:
        if call.number != self._at:
            return effect()
        self.switched.append(call)
        # The effect asks the inner store as it is then.
        store, self.inner = self._stores
        try:
            return effect()
        finally:
            self.inner = store


class Schedule:
    """Lets one of several actors move at a time; who moves is decided by a list of choices.

    Actors run in threads and stop at `wait`. Beyond the end of `choices` the first that can moves.
    `decisions` afterwards holds (chosen, number of actors that could move) for each step: enough
    to find the next list (`all_schedules`). What actors do after stops of the names in `commuting`
    comes to the same in any order: one after the other they move in the order of their own names.
    """

    def __init__(self, choices: list[int], commuting: Collection[str] = ()) -> None:
        self._choices = choices
        self._commuting = commuting
        self._turn = threading.Condition()
        self._stopped: dict[str, bool] = {}
        self._stops: dict[str, str] = {}
        self._commuted = ""
        self._running = 0
        self.decisions: list[tuple[int, int]] = []
        self.trace: list[str] = []

    def run(self, actors: dict[str, Callable[[], None]]) -> None:
        """Run all actors to their end; re-raises what one of them raised."""
        errors: list[BaseException] = []

        def act(name: str, actor: Callable[[], None]) -> None:
            try:
                self.wait(name, "start")
                actor()
            except BaseException as error:  # noqa: BLE001 - handed to the test's thread
                errors.append(error)
            finally:
                with self._turn:
                    self._running -= 1
                    self._turn.notify_all()

        threads = [threading.Thread(target=act, args=item) for item in actors.items()]
        self._running = len(threads)
        for thread in threads:
            thread.start()
        with self._turn:
            while self._running:
                self._turn.wait_for(lambda: len(self._stopped) == self._running)
                if self._stopped:
                    self._release_one()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def wait(self, name: str, what: str) -> None:
        """Stop here until it is this actor's turn."""
        with self._turn:
            self._stopped[name] = False
            self._stops[name] = what
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._stopped[name])
            del self._stopped[name]
            self.trace.append(f"{name} {what}")

    def _release_one(self) -> None:
        waiting = self._worth_moving()
        step = len(self.decisions)
        chosen = self._choices[step] if step < len(self._choices) else 0
        self.decisions.append((chosen, len(waiting)))
        commutes = self._stops[waiting[chosen]] in self._commuting
        self._commuted = waiting[chosen] if commutes else ""
        self._stopped[waiting[chosen]] = True
        self._turn.notify_all()
        # It has heard: it is on its way, or stands at its next stop already.
        self._turn.wait_for(lambda: not self._stopped.get(waiting[chosen], False))

    def _worth_moving(self) -> list[str]:
        """All that can, but who should have moved before the last one, if anybody else can."""
        waiting = sorted(self._stopped)
        return [
            name
            for name in waiting
            if name >= self._commuted or self._stops[name] not in self._commuting
        ] or waiting


def all_schedules(
    run: Callable[[Schedule], None], commuting: Collection[str] = ()
) -> Iterator[Schedule]:
    """Call `run` once for each way in which its actors can take turns; `commuting` as of those."""
    choices: list[int] = []
    while True:
        schedule = Schedule(choices, commuting)
        run(schedule)
        yield schedule
        decisions = list(schedule.decisions)
        while decisions and decisions[-1][0] == decisions[-1][1] - 1:
            decisions.pop()
        if not decisions:
            return
        choices = [chosen for chosen, _ in decisions]
        choices[-1] += 1


class StoppingStorage(WatchedStorage):
    """One actor's view of a shared store: it stops before each call that `races`.

    Not once it `is_open`: the race is over.
    """

    def __init__(
        self, inner: Storage, name: str, schedule: Schedule, races: Callable[[Call], bool]
    ) -> None:
        super().__init__(inner)
        self._name = name
        self._schedule = schedule
        self._races = races
        self.is_open = False

    def around(self, call: Call, effect: Callable[[], T]) -> T:
        if not self.is_open and self._races(call):
            self._schedule.wait(self._name, f"{call.method} {call.path.rsplit('/', 1)[-1]}")
        return effect()


class MemoryStorage(Storage):
    """Objects in a dict, shared by threads; they changed at 0 unless `now_ms` says more."""

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = dict(objects or {})
        self.uploads: list[UnfinishedUpload] = []
        self.changed_ms: dict[str, int] = {}
        self.now_ms = 0
        self._lock = threading.Lock()

    @property
    def spec(self) -> StorageSpec:
        """Itself: what runs in this process shares the store."""
        return self

    def open(self) -> Storage:
        return self

    def copy(self) -> MemoryStorage:
        other = MemoryStorage(self.objects)
        other.changed_ms, other.now_ms = dict(self.changed_ms), self.now_ms
        return other

    def read(self, path: str) -> bytes:
        try:
            return self.objects[path]
        except KeyError:
            raise ObjectNotFound(path, "read failed (no such object)") from None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    def read_range(self, path: str, start: int, size: int) -> bytes:
        data = self.read(path)[start : start + size]
        if len(data) != size:
            raise StorageError(path, f"read failed ({len(data)} of {size} bytes from {start} on)")
        return data

    def open_input(self, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        return pa.BufferReader(self.read(path))

    @contextlib.contextmanager
    def open_output(self, path: str) -> Iterator[pa.NativeFile]:
        self.write_new(path, b"")
        try:
            with pa.BufferOutputStream() as stream:
                yield stream
                self.overwrite(path, stream.getvalue().to_pybytes())
        except BaseException:
            self.delete(path)
            raise

    def status(self, path: str) -> ObjectStatus | None:
        return self._status(path, path.rsplit("/", 1)[-1]) if path in self.objects else None

    def folder_exists(self, path: str) -> bool:
        return any(other.startswith(path + "/") for other in tuple(self.objects))

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        folders: set[str] = set()
        for path in tuple(self.objects):
            if not path.startswith(folder + "/"):
                continue
            head, slash, _ = path[len(folder) + 1 :].partition("/")
            if not slash:
                yield self._status(path, head)
            elif head not in folders:
                folders.add(head)
                yield ObjectStatus(name=head, is_folder=True, size_bytes=0, changed_ms=0)

    def create_if_absent(self, path: str, data: bytes, *, temporary: str) -> Creation:
        return Creation.CREATED if self._put_new(path, data) else Creation.EXISTS

    def write_new(self, path: str, data: bytes) -> None:
        if not self._put_new(path, data):
            raise StorageError(path, "write failed (exists)")

    def overwrite(self, path: str, data: bytes) -> None:
        self.objects[path] = data
        self.changed_ms[path] = self.now_ms

    def delete(self, path: str) -> None:
        self.objects.pop(path, None)

    def remove_empty_folder(self, path: str) -> bool:
        # Folders are what paths have in common: an empty one is not there.
        return not any(name.startswith(f"{path}/") for name in self.objects)

    def unfinished_uploads(self, folder: str) -> Iterator[UnfinishedUpload]:
        return (each for each in tuple(self.uploads) if each.path.startswith(folder + "/"))

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        with contextlib.suppress(ValueError):
            self.uploads.remove(upload)

    def _put_new(self, path: str, data: bytes) -> bool:
        with self._lock:
            if path in self.objects:
                return False
            self.overwrite(path, data)
            return True

    def _status(self, path: str, name: str) -> ObjectStatus:
        return ObjectStatus(
            name=name,
            is_folder=False,
            size_bytes=len(self.objects.get(path, b"")),
            changed_ms=self.changed_ms.get(path, 0),
        )
