"""A headless browser for tests of pages; its pages cannot reach other machines.

Use the fixture `browser` (a test folder's conftest imports it), and in a test:

    with browser.open(url) as tab:
        tab.page.get_by_role("button", name="Pause").click()
        assert tab.errors == []

Starting takes about half a second, a tab some hundredths. The fixture lives for one module: while
Playwright runs, the thread cannot run another asyncio loop.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import pytest

from tests.tools.obtain import tool_path
from tests.tools.workbench import ToolError

# Only `make tools` installs it; tests are collected without it as well.
if TYPE_CHECKING:
    import playwright.sync_api

TIMEOUT_MS = 60_000
# Chromium contacts its maker for updates, lists and time as soon as it starts. Only names of this
# machine resolve, including addresses; neither a proxy of the environment nor UDP is used.
QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-pings",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1, EXCLUDE [::1]",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-gpu",
    # The same pixels on every machine.
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A page and its errors so far.

    `errors` are uncaught exceptions and console messages of level error, including resources that
    could not be loaded. `foreign` are the addresses on other machines that it requested in vain;
    our pages request none.
    """

    page: playwright.sync_api.Page
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


class Browser:
    """One running Chromium; every tab has cookies, storage and cache of its own."""

    def __init__(self, chromium: playwright.sync_api.Browser) -> None:
        self._chromium = chromium

    @contextlib.contextmanager
    def open(
        self,
        url: str | None = None,
        *,
        width: int = 1280,
        height: int = 800,
        color_scheme: Literal["light", "dark"] = "light",
        **options: Any,
    ) -> Iterator[Tab]:
        """A new tab, closed at the end; sizes in CSS pixels.

        `options` are passed to Playwright's `Browser.new_context`. By default time is UTC, the
        language English, and animations are off. Waiting in a test may take a minute.
        """
        quiet = {"timezone_id": "UTC", "locale": "en-GB", "reduced_motion": "reduce"}
        context = self._chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme=color_scheme,
            **{**quiet, **options},
        )
        try:
            context.set_default_timeout(TIMEOUT_MS)
            tab = Tab(page=context.new_page())
            _listen(tab)
            if url is not None:
                tab.page.goto(url)
            yield tab
        finally:
            context.close()


# Functions, not methods: Playwright leaves a mark on the object whose method it is given.
def _listen(tab: Tab) -> None:
    def heard(message: playwright.sync_api.ConsoleMessage) -> None:
        if message.type == "error":
            where = message.location
            tab.errors.append(f"{message.text} ({where['url']}:{where['lineNumber']})")

    def thrown(error: playwright.sync_api.Error) -> None:
        tab.errors.append(f"uncaught: {error.stack or error.message}")

    def asked(request: playwright.sync_api.Request | playwright.sync_api.WebSocket) -> None:
        if not _is_local(request.url):
            tab.foreign.append(request.url)

    tab.page.on("console", heard)
    tab.page.on("pageerror", thrown)
    tab.page.on("request", asked)
    tab.page.on("websocket", asked)


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    """A Chromium of its own; raises ToolError when `make tools` has not been run."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise ToolError("playwright is missing: run `make tools`") from error
    chromium = tool_path("chromium")
    with _node_of_tools(), sync_playwright() as driver:
        # The sandbox needs a privilege that neither root nor a container grants.
        started = driver.chromium.launch(
            executable_path=chromium,
            args=list(QUIET),
            chromium_sandbox=False,
            timeout=3 * TIMEOUT_MS,
        )
        try:
            yield Browser(started)
        finally:
            started.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as started:
        yield started


@contextlib.contextmanager
def _node_of_tools() -> Iterator[None]:
    """The Node that Playwright ships needs a library (libatomic) that a bare Debian lacks."""
    before = os.environ.get("PLAYWRIGHT_NODEJS_PATH")
    os.environ["PLAYWRIGHT_NODEJS_PATH"] = str(tool_path("node"))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PLAYWRIGHT_NODEJS_PATH"]
        else:
            os.environ["PLAYWRIGHT_NODEJS_PATH"] = before


def _is_local(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https", "ws", "wss"}:
        return True  # data:, blob: and about: are the page's own
    if parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
