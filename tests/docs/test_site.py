"""The site is built strictly, asks nothing of a network, and fits a phone and a screen, as Chromium shows it."""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIDTHS = (390, 1280)  # CSS pixels: a phone, a laptop

pytest.importorskip("mkdocs", reason="needs pip install 'paretorch[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


class _Loaded(HTMLParser):
    """The addresses that a browser loads to show a page, without being asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        names = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "use": "href"}
        address = given.get(names.get(tag, ""))
        if address and not (tag == "link" and given.get("rel") in ("canonical", "prev", "next")):
            self.found.append(address)


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        parser = _Loaded()
        parser.feed(page.read_text(encoding="utf-8"))
        assert parser.found, page
        assert [one for one in parser.found if re.match(r"(\w+:)?//", one)] == [], page
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert re.findall(r"(?:url\(|@import\s*)['\"]?(?:\w+:)?//", text) == [], style


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    import paretorch

    ids = {
        found.rpartition(".")[2]
        for page in (site / "reference").glob("*.html")
        for found in re.findall(r'id="(paretorch\.[\w.]+)"', page.read_text(encoding="utf-8"))
    }
    assert set(paretorch.__all__) <= ids


def test_every_page_of_the_menu_has_text(site: Path) -> None:
    pages = re.findall(r": ([\w/-]+\.md)$|^ +- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(pages) > 30
    for name in (a or b for a, b in pages):
        page = (site / name).with_suffix(".html")
        if name.endswith("/index.md"):
            page = site / name.replace("index.md", "index.html")
        (article,) = re.findall(r"<article.*?</article>", page.read_text(encoding="utf-8"), re.DOTALL)
        assert len(re.sub(r"<[^>]*>", "", article).split()) > 80, name


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(_Silent, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


_SCRIPT = """
addEventListener("load", () => {
  const found = [];
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, loaded = frame.contentWindow.performance.getEntriesByType("resource");
    found.push({page: frame.getAttribute("src"), width: frame.clientWidth, scroll: page.documentElement.scrollWidth,
      title: page.title, outside: loaded.map(one => one.name).filter(one => !one.startsWith(location.origin))});
  }
  document.querySelector("pre").textContent = JSON.stringify(found);
});
"""


def shown(site: Path, address: str, pages: list[str], profile: Path) -> list[dict[str, object]]:
    """Each page as Chromium lays it out at each width: how wide it gets, and what it loads from elsewhere."""
    frames = "".join(
        f'<iframe src="{page}" width="{width}" height="800" style="border:0"></iframe>'
        for page in pages
        for width in WIDTHS
    )
    around = site / f"around-{profile.name}.html"
    around.write_text(f"<!doctype html><title>x</title><pre></pre>{frames}<script>{_SCRIPT}</script>")
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={profile}",
         "--window-size=1400,900", "--virtual-time-budget=20000", "--dump-dom", f"{address}/{around.name}"],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )  # fmt: skip
    around.unlink()
    (text,) = re.findall(r"<pre>(.+?)</pre>", done.stdout, re.DOTALL)
    found: list[dict[str, object]] = json.loads(unescape(text))
    assert len(found) == len(pages) * len(WIDTHS)
    return found


needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
PAGES = [
    "index.html",
    "start.html",
    "results.html",
    "measured.html",
    "which-tool.html",
    "tutorials/vision.html",
    "reference/plan.html",
]


@needs_chromium
def test_pages_fit_and_load_nothing_from_elsewhere(site: Path, address: str, tmp_path: Path) -> None:
    for one in shown(site, address, PAGES, tmp_path / "profile"):
        assert one["width"] in WIDTHS
        assert "paretorch" in str(one["title"])
        assert int(str(one["scroll"])) <= int(str(one["width"])), one
        assert one["outside"] == [], one


@needs_chromium
def test_the_check_finds_a_wide_page_and_a_request(site: Path, address: str, tmp_path: Path) -> None:
    bait = '<div style="width:2000px">wide</div><img src="http://example.invalid/x.png"></body>'
    baited = site / "baited.html"
    baited.write_text((site / "index.html").read_text(encoding="utf-8").replace("</body>", bait), encoding="utf-8")
    for one in shown(site, address, [baited.name], tmp_path / "profile"):
        assert int(str(one["scroll"])) >= 2000
        assert one["outside"] == ["http://example.invalid/x.png"]
    baited.unlink()


@needs_chromium
def test_the_search_works_without_a_server(site: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={tmp_path}",
         "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=15000", "--dump-dom",
         f"{(site / 'index.html').as_uri()}?q=budget"],
        capture_output=True, text=True, timeout=180, check=True,
    )  # fmt: skip
    assert re.search(r"\d+ matching documents", done.stdout)
    assert "post-training.html?h=budget" in done.stdout
