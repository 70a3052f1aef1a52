"""The configuration in effect, and its replacement while the service runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog

from compactord.config.load import LoadedConfig
from compactord.config.model import ServiceConfig
from compactord.config.policy import cold_differences
from compactord.errors import CompactordError
from compactord.service.view import ConfigView

_log = structlog.get_logger()


class Settings:
    """Used by the loop alone, but for `loaded` and `read_again`: any thread may ask for these.

    `read` raises `UsageError` for a configuration that cannot be used.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        *,
        read: Callable[[], LoadedConfig],
        apply_logs: Callable[[LoadedConfig], None],
        now_ms: int,
    ) -> None:
        self.loaded = loaded
        self.view = ConfigView(path=loaded.path, last_reload_success_ms=now_ms)
        self._read = read
        self._apply_logs = apply_logs

    @property
    def config(self) -> ServiceConfig:
        return self.loaded.config

    def read_again(self) -> LoadedConfig | CompactordError:
        try:
            return self._read()
        except CompactordError as error:
            return error

    def take_in(self, result: LoadedConfig | CompactordError, *, asked: bool, now_ms: int) -> bool:
        """Apply a configuration; returns whether it is now in effect: valid, and new or requested.

        Only values that can change at run time are applied; others take effect after a restart.
        """
        if isinstance(result, CompactordError):
            if self.view.error != str(result) or asked:
                _log.error("config_reload_failed", path=self.loaded.path, error=str(result))
            self.view = replace(self.view, last_reload_successful=False, error=str(result))
            return False
        self.view = replace(self.view, last_reload_successful=True, error="")
        if result.digest == self.loaded.digest and not asked:
            return False
        old = self.config
        required = cold_differences(old, result.config)
        # Options of catalogs whose references have other values now. Credentials are not among
        # them: they are read again once they are refused.
        before = self.loaded.late
        others = (key for key, value in result.late.items() if before.get(key, value) != value)
        required += tuple(key for key in others if key not in required)
        self.view = replace(self.view, last_reload_success_ms=now_ms, restart_required=required)
        keep = {"service": old.service, "spark": old.spark, "catalogs": old.catalogs}
        config = result.config.model_copy(update=keep)
        # Catalogs have the values that they were opened with.
        self.loaded = replace(result, config=config, late=self.loaded.late)
        if self.config.log != old.log:
            self._apply_logs(self.loaded)
        if required:
            _log.warning("config_restart_required", keys=list(required))
        _log.info("config_loaded", path=result.path)
        return True
