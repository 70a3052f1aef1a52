"""A configuration that is read again: when it holds, and what of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.config.load import LoadedConfig
from compactord.errors import UsageError
from compactord.service.settings import Settings
from tests.builders import NOW_MS
from tests.unit.config.files import load

LATER_MS = NOW_MS + 5_000


class Stage:
    """`applied` are the levels of the logs, as often as they were set."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.applied: list[str] = []
        self.next: LoadedConfig | UsageError = UsageError("unread")
        self.settings = Settings(
            load(folder),
            read=self._read,
            apply_logs=lambda loaded: self.applied.append(loaded.config.log.level.value),
            now_ms=NOW_MS,
        )

    def _read(self) -> LoadedConfig:
        if isinstance(self.next, UsageError):
            raise self.next
        return self.next

    def reads(self, text: str | UsageError = "", *, asked: bool = False) -> bool:
        """Whether what is read holds."""
        self.next = text if isinstance(text, UsageError) else load(self.folder, text)
        return self.settings.take_in(
            self.settings.read_again(), is_requested=asked, now_ms=LATER_MS
        )


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_the_same_file_holds_anew_only_when_somebody_asked(stage: Stage) -> None:
    assert not stage.reads()
    assert stage.settings.view.last_reload_success_ms == NOW_MS
    assert stage.reads(asked=True)
    assert stage.settings.view.last_reload_success_ms == LATER_MS
    assert stage.applied == []


def test_another_file_holds_at_once(stage: Stage) -> None:
    assert stage.reads("log: {level: debug}\nmetrics: {top_n: 3}\n")
    assert stage.settings.config.metrics.top_n == 3
    assert stage.applied == ["debug"]
    assert not stage.reads("log: {level: debug}\nmetrics: {top_n: 3}\n")


def test_what_cannot_change_while_running_stays_and_is_named(stage: Stage) -> None:
    before = stage.settings.config
    assert stage.reads("spark: {master: 'local[7]'}\nmetrics: {top_n: 3}\n")
    assert stage.settings.config.spark == before.spark
    assert stage.settings.config.metrics.top_n == 3
    assert stage.settings.view.restart_required == ("spark.master",)


def test_another_address_behind_a_reference_needs_a_restart_and_no_other_key(
    tmp_path: Path,
) -> None:
    password = tmp_path / "password"
    text = f"""\
        catalogs:
          lake:
            warehouse: /wh
            metastore: jdbc
            options:
              uri: "${{file:{password}}}"
              jdbc.user: "${{file:{password}}}"
              jdbc.password: "${{file:{password}}}"
              s3.session.token: "${{file:{password}}}"
        """

    def read() -> LoadedConfig:
        return load(tmp_path, text, whole=True)

    password.write_text("first")
    settings = Settings(read(), read=read, apply_logs=lambda _: None, now_ms=NOW_MS)
    for content, required in (
        ("first", ()),
        ("second", ("catalogs.lake.options.uri",)),
        ("first", ()),
    ):
        password.write_text(content)
        assert settings.take_in(settings.read_again(), is_requested=True, now_ms=LATER_MS)
        assert settings.view.restart_required == required
    assert "first" not in repr(settings.loaded)


def test_a_file_that_cannot_be_used_changes_nothing_and_is_said_until_one_can(
    stage: Stage,
) -> None:
    before = stage.settings.loaded
    for asked in (False, True):
        assert not stage.reads(UsageError("line 3: no"), asked=asked)
    view = stage.settings.view
    assert (view.last_reload_successful, view.error) == (False, "line 3: no")
    assert (stage.settings.loaded, view.last_reload_success_ms) == (before, NOW_MS)
    # The file as it was: nothing new, and no trouble any more.
    assert not stage.reads()
    assert (stage.settings.view.last_reload_successful, stage.settings.view.error) == (True, "")
