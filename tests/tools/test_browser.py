"""The browser's promises to tests of pages: it renders, reports errors, and stays on this
machine.
"""

from __future__ import annotations

import http.server
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.tools.browser import Browser, browser

__all__ = ["browser"]
pytestmark = pytest.mark.tools

PAGE = """\
<!doctype html><meta charset="utf-8"><title>Page</title><link rel="icon" href="data:,">
<style>body { margin: 0; background: rgb(0, 128, 0) }</style><p id="text"></p>
"""


class _Site(http.server.ThreadingHTTPServer):
    """Serves PAGE on all addresses of this machine; other paths are missing."""

    asked: list[str]

    def url(self, host: str = "127.0.0.1", path: str = "/") -> str:
        return f"http://{host}:{self.server_port}{path}"


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Site)
        self.server.asked.append(self.path)
        self.send_response(200 if self.path == "/" else 404)
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[_Site]:
    with _Site(("0.0.0.0", 0), _Answer) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _outer_address() -> str | None:
    """An address of this machine other than loopback; the look-up sends no packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def test_a_page_is_rendered_in_the_size_asked_for(browser: Browser, site: _Site) -> None:
    with browser.open(site.url(), width=320, height=200) as tab:
        picture = tab.page.screenshot()
        colour = tab.page.evaluate(
            """async bytes => {
                const blob = new Blob([new Uint8Array(bytes)], { type: "image/png" });
                const canvas = new OffscreenCanvas(320, 200).getContext("2d");
                canvas.drawImage(await createImageBitmap(blob), 0, 0);
                return [...canvas.getImageData(160, 150, 1, 1).data];
            }""",
            list(picture),
        )
        assert struct.unpack(">II", picture[16:24]) == (320, 200)
        assert colour == [0, 128, 0, 255]
        assert tab.errors == []
        assert tab.foreign == []


@pytest.mark.parametrize("font", ["monospace", "sans-serif"])
def test_texts_of_pages_have_glyphs(browser: Browser, site: _Site, font: str) -> None:
    with browser.open(site.url()) as tab:
        # Characters without a glyph are drawn as the glyph for the missing, as is a private
        # character.
        blank = tab.page.evaluate(
            """font => {
                const draw = text => {
                    const canvas = new OffscreenCanvas(60, 60).getContext("2d");
                    canvas.font = `32px ${font}`;
                    canvas.fillText(text, 5, 45);
                    return canvas.getImageData(0, 0, 60, 60).data.join();
                };
                return [..."aé→✓×…▁█●"].filter(text => draw(text) === draw("\\uf8ff"));
            }""",
            font,
        )
        assert blank == []


def test_columns_of_monospaced_text_line_up(browser: Browser, site: _Site) -> None:
    with browser.open(site.url()) as tab:
        widths = tab.page.evaluate(
            """() => {
                const canvas = new OffscreenCanvas(1, 1).getContext("2d");
                canvas.font = "16px monospace";
                return ["iii", "WWW"].map(text => canvas.measureText(text).width);
            }"""
        )
        assert widths[0] == widths[1]


def test_what_goes_wrong_on_a_page_is_heard(browser: Browser, site: _Site) -> None:
    with browser.open(site.url()) as tab:
        tab.page.evaluate("console.error('said'); console.warn('warned')")
        with tab.page.expect_event("pageerror"):
            tab.page.evaluate("setTimeout(() => { throw new Error('thrown') })")
        with tab.page.expect_console_message(lambda message: "404" in message.text):
            tab.page.evaluate("fetch('/gone')")
        said, thrown, gone = tab.errors
        assert said.startswith("said")
        assert "thrown" in thrown
        assert site.url(path="/gone") in gone
        assert tab.foreign == []


def test_no_page_reaches_beyond_this_machine(browser: Browser, site: _Site) -> None:
    outer = _outer_address() or pytest.skip("this machine has loopback only")
    reach = "url => fetch(url).then(() => 'reached', () => 'refused')"
    with browser.open(site.url()) as tab:
        assert tab.page.evaluate(reach, site.url("localhost")) == "reached"
        site.asked.clear()
        assert tab.page.evaluate(reach, site.url(outer)) == "refused"
        assert tab.page.evaluate(reach, site.url("compactord.test")) == "refused"
        assert site.asked == []
        assert tab.foreign == [site.url(outer), site.url("compactord.test")]


def test_no_socket_of_a_page_reaches_beyond_this_machine(browser: Browser, site: _Site) -> None:
    reach = "url => new Promise(done => { new WebSocket(url).onerror = () => done('refused') })"
    with browser.open(site.url()) as tab:
        assert tab.page.evaluate(reach, "ws://compactord.test/") == "refused"
        assert tab.foreign == ["ws://compactord.test/"]


def test_tabs_share_nothing(browser: Browser, site: _Site) -> None:
    with browser.open(site.url()) as first:
        first.page.evaluate("localStorage.setItem('theme', 'dark')")
    with browser.open(site.url()) as second:
        assert second.page.evaluate("localStorage.getItem('theme')") is None
