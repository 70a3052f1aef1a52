from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactord import ids
from compactord.errors import UsageError

owners = st.builds(
    ids.Owner,
    host=st.integers(0, 2**24 - 1),
    start_ticks=st.integers(0, 2**28 - 1),
    pid=st.integers(0, 2**22 - 1),
)


@given(owners)
def test_a_name_tells_its_owner(owner: ids.Owner) -> None:
    assert ids.owner_of(f"data-{owner.unique_name()}-17.zst.parquet") == owner


@given(owners)
def test_the_mark_makes_a_valid_version_8_uuid(owner: ids.Owner) -> None:
    parsed = uuid.UUID(owner.unique_name()[:36])
    assert (parsed.version, parsed.variant) == (8, uuid.RFC_4122)


def test_names_of_one_owner_never_meet() -> None:
    owner = ids.this_process()
    assert len({owner.unique_name() for _ in range(20_000)}) == 20_000


def test_files_of_others_have_no_owner() -> None:
    for _ in range(1000):
        assert ids.owner_of(f"data-{uuid.uuid4()}-0.parquet") is None
    foreign_v8 = "01234567-89ab-8def-8123-456789abcdef"
    assert ids.owner_of(f"data-{foreign_v8}-0.parquet") is None
    assert ids.owner_of("LATEST") is None


def test_the_running_process_is_not_dead_and_an_ended_one_is() -> None:
    me = ids.this_process()
    assert ids.liveness(me) is ids.Liveness.ALIVE
    code = "from compactord import ids; print(ids.this_process().unique_name(), flush=True)"
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=os.getcwd()
    )
    owner = ids.owner_of(child.stdout)
    assert owner is not None
    assert owner.host == me.host
    assert ids.liveness(owner) is ids.Liveness.DEAD


def test_a_process_that_is_not_shown_to_us_is_not_taken_for_dead(tmp_path: Path) -> None:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as child:
        hidden = replace(ids.this_process(), pid=child.pid)
        assert ids.liveness(hidden, proc=tmp_path) is ids.Liveness.UNKNOWN
        child.communicate()
    assert ids.liveness(hidden, proc=tmp_path) is ids.Liveness.DEAD


def test_a_reused_process_id_does_not_bring_an_owner_back() -> None:
    me = ids.this_process()
    earlier = ids.Owner(host=me.host, start_ticks=(me.start_ticks - 1) % 2**28, pid=me.pid)
    assert ids.liveness(earlier) is ids.Liveness.DEAD


@pytest.mark.parametrize("boot_id", [None, ""])
def test_nothing_is_proved_of_a_process_whose_boot_cannot_be_told(
    boot_id: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "boot_id"
    if boot_id is not None:
        path.write_text(boot_id)
    nameless = ids.this_process(boot_id=path)
    assert nameless == ids.this_process(boot_id=path)
    assert nameless.host != ids.this_process().host
    gone = replace(nameless, start_ticks=(nameless.start_ticks - 1) % 2**28)
    assert ids.liveness(gone) is ids.Liveness.UNKNOWN


def test_nothing_is_known_of_an_owner_on_another_host() -> None:
    me = ids.this_process()
    stranger = ids.Owner(host=me.host ^ 1, start_ticks=0, pid=1)
    assert ids.liveness(stranger) is ids.Liveness.UNKNOWN


def test_without_proc_the_error_names_the_system(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"Linux only: {tmp_path} does not show this process"):
        ids.this_process(proc=tmp_path)
