"""Eight that create the same twenty names at the same time."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tests.fsspec_files  # noqa: F401 - registers exclusive:// in each process
from compactord.storage.base import Creation, Storage, StorageSpec

RACERS, RACED_NAMES = 8, 20
_WAIT_SECONDS = 180


def race_of_processes(spec: StorageSpec, folder: str) -> list[list[int]]:
    """Who created each name; each is a process of its own, with its own connection."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(RACERS), context.Queue()
    processes = [
        context.Process(
            target=_race_in_process,
            args=(spec, folder, number, barrier, answers),
        )
        for number in range(RACERS)
    ]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=_WAIT_SECONDS) for _ in processes)
    for process in processes:
        process.join(_WAIT_SECONDS)
    return _winners(found)


def race_of_threads(storage: Storage, folder: str) -> list[list[int]]:
    """Who created each name, where only threads share a store."""
    barrier = threading.Barrier(RACERS)
    with ThreadPoolExecutor(RACERS) as pool:
        runs = [
            pool.submit(_race, storage, folder, number, barrier.wait) for number in range(RACERS)
        ]
        return _winners({number: run.result() for number, run in enumerate(runs)})


def _race_in_process(
    spec: StorageSpec, folder: str, number: int, barrier: Any, answers: Any
) -> None:
    answers.put((number, _race(spec.open(), folder, number, barrier.wait)))


def _race(storage: Storage, folder: str, number: int, wait: Callable[[], object]) -> list[Creation]:
    outcomes = []
    for name in range(RACED_NAMES):
        path, temporary = f"{folder}/race-{name}", f"{folder}/.race-{name}-{number}"
        wait()
        data = f"{number} ".encode() * 500
        outcomes.append(storage.create_if_absent(path, data, temporary=temporary))
    return outcomes


def _winners(outcomes: dict[int, list[Creation]]) -> list[list[int]]:
    return [
        [number for number, each in sorted(outcomes.items()) if each[name] is Creation.CREATED]
        for name in range(RACED_NAMES)
    ]
