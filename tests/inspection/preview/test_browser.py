"""Previews in a real browser: visible content, executed scripts, network requests, and filters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import streamvid as sv
from streamvid.inspection.preview.preview import preview
from tests.support.browser import PROGRAMS, Browser, Tab, chromium, find_chromium
from tests.support.previews import HOSTILE, SCRIPT, hostile_dataset, multiplied
from tests.support.tables import dataset_of

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="there is no Chromium: apt-get install chromium-headless-shell"
)

LOADED = "[...document.images].every((one) => one.complete && one.naturalWidth > 0)"
VISIBLE = "[...document.querySelectorAll('.clip')].filter((one) => one.checkVisibility()).length"
TITLES = (
    "[...document.querySelectorAll('.clip')].filter((e) => !e.hidden).map((e) => e.querySelector('h3').textContent)"
)
ROWS = "[...document.querySelectorAll('tbody tr')].map((row) => row.cells[0].innerText)"
CONTRAST = """(() => {
  const style = getComputedStyle(document.body);
  const light = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).map((value) => value / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, n) => sum + value * [0.2126, 0.7152, 0.0722][n], 0);
  const note = getComputedStyle(document.querySelector('.note'));
  return [style.color, note.color].map((colour) => {
    const [low, high] = [light(colour), light(style.backgroundColor)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  });
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_dataset(tmp_path_factory.mktemp("ten"))


@pytest.fixture(scope="module")
def page(ten: Path) -> Path:
    out = ten.parent / "page.html"
    preview(ten, out, sampling=sv.Window(8, fps=15))
    return out


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    with contextlib.closing(Tab(browser)) as opened:
        yield opened


def legend(name: str) -> str:
    """JavaScript: the filter of a column."""
    return f"[...document.querySelectorAll('fieldset')].find((one) => one.innerText.startsWith('{name}'))"


def focus(tab: Tab, name: str, number: int = 0) -> None:
    tab.run(f"{legend(name)}.querySelectorAll('input')[{number}].focus()")


def test_ten_clips_of_hostile_text(tab: Tab, page: Path, tmp_path: Path) -> None:
    tab.open(page)
    assert tab.run("document.title") == "set: streamvid preview"
    assert tab.run(VISIBLE) == 10
    tab.run("document.querySelectorAll('img').forEach((one) => { one.loading = 'eager'; })")
    assert tab.run(f"new Promise((done) => setTimeout(() => done({LOADED}), 200))")
    assert tab.run("document.querySelectorAll('.clip img').length") == 80
    assert tab.run("document.querySelectorAll('script').length") == 2  # the page's own, and its data
    assert tab.run("document.querySelectorAll('.clip script, svg script, img:not(.strip img), b').length") == 0
    for text in (SCRIPT, HOSTILE[1], HOSTILE[3], HOSTILE[4], HOSTILE[7]):
        assert text in tab.run("document.querySelector('main').textContent")
    assert not set("\u202e\u2066\x00\x07\x1b\u2028") & set(tab.run("document.body.textContent"))
    tab.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    tab.screenshot(tmp_path / "page.png", whole=True)
    assert (tmp_path / "page.png").stat().st_size > 20_000
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith("data:")] == [page.as_uri()]


def test_hostile_keys(tab: Tab, tmp_path: Path) -> None:
    """A dataset refuses them, and a page does not rely on that. All clips are bad: there is no shard."""
    keys = [text for text in HOSTILE if text and len(text) < 100]
    classes = [f"{SCRIPT}{n}" for n in range(2)]
    dataset = dataset_of(
        [{SCRIPT: SCRIPT}] * len(keys), keys=keys, labels=[0] * len(keys), classes=classes, name=SCRIPT
    )
    report = preview(dataset, tmp_path / "page.html", sampling=sv.Uniform(2))
    assert report.bad == len(keys)
    tab.open(tmp_path / "page.html")
    assert tab.run("document.title") == f"{SCRIPT}: streamvid preview"
    assert tab.run("document.querySelector('h1').textContent") == SCRIPT
    assert SCRIPT in tab.run(TITLES)
    assert SCRIPT in tab.run(ROWS)
    assert tab.run("document.querySelectorAll('script').length") == 2
    assert tab.run("document.querySelectorAll('.bad').length") == len(keys)
    assert tab.complaints == []


def test_padding_is_dark_and_times_are_below(tab: Tab, ten: Path, page: Path) -> None:
    tab.open(page)
    tab.run("document.querySelectorAll('.clip').forEach((one) => { one.style.contentVisibility = 'visible'; })")
    pictures = "[...document.querySelectorAll('.clip')].map((clip) => [...clip.querySelectorAll('img')]"
    dark = tab.run(pictures + ".map((one) => getComputedStyle(one).filter !== 'none'))")
    below = tab.run(pictures + ".map((one) => { const words = one.parentElement.querySelector('figcaption');"
                    "return [words.innerText, words.getBoundingClientRect().top >= one.getBoundingClientRect().bottom];"
                    "}))")  # fmt: skip
    clips = sv.ClipDataset(ten, sampling=sv.Window(8, fps=15))
    for row, masked in enumerate(dark):
        sample = clips[row]
        assert masked == (~sample["mask"]).tolist()
        for (words, under), seconds, padding in zip(below[row], sample["pts"].tolist(), masked, strict=True):
            assert words.startswith(f"{seconds:.2f} s")
            assert ("padding" in words) == padding
            assert under
    assert 0 < sum(map(sum, dark)) < 80


def test_filters_of_each_kind(tab: Tab, page: Path) -> None:
    tab.open(page)
    assert len(tab.run(ROWS)) == 10
    tab.click("fieldset:nth-of-type(1) input")  # key
    tab.type("IMG")
    everything = tab.run(ROWS)
    assert everything == [] or all("img" in key.lower() for key in everything)
    tab.run(f"{legend('key')}.querySelector('input').value = ''")
    tab.press("Backspace")
    tab.run(f"{legend('key')}.dispatchEvent(new Event('input'))")
    assert tab.run(VISIBLE) == len(tab.run(ROWS)) == 10
    focus(tab, "codec", 1)
    tab.press("Space")  # mjpeg, by the keyboard
    assert tab.run(VISIBLE) == len(tab.run(ROWS)) == 3
    focus(tab, "seconds")
    tab.type("0.3")
    assert tab.run(VISIBLE) == len(tab.run(ROWS)) == 2  # of 8, 11 and 14 frames
    focus(tab, "seconds", 1)
    tab.type("0.4")
    assert tab.run(VISIBLE) == len(tab.run(ROWS)) == 1
    assert "1 of 10 clips" in tab.run("document.querySelector('#count').innerText")
    tab.click("#clear")
    assert tab.run(VISIBLE) == len(tab.run(ROWS)) == 10
    # A column that is not there at first; infinities and missing values.
    tab.run("(() => { const add = document.querySelector('#add'); add.value = [...add.options].find("
            "(one) => one.text === 'score').value; add.dispatchEvent(new Event('change')); })()")  # fmt: skip
    tab.type("1")
    assert len(tab.run(ROWS)) == 4  # infinity, 1e300, 7 and 8
    assert tab.complaints == []


def test_sorting_and_columns(tab: Tab, page: Path) -> None:
    tab.open(page)
    by_frames = "[...document.querySelectorAll('th button')].find((one) => one.innerText.startsWith('frames'))"
    column = f"[...document.querySelectorAll('th')].indexOf({by_frames}.parentElement)"
    for _, sign in enumerate((1, -1)):
        tab.run(f"{by_frames}.click()")
        frames = tab.run(f"[...document.querySelectorAll('tbody tr')].map((row) => +row.cells[{column}].innerText)")
        assert frames == sorted(range(6, 16), reverse=sign < 0)
    assert tab.run(f"{by_frames}.parentElement.ariaSort") == "descending"
    tab.click("#choose summary")
    before = tab.run("document.querySelectorAll('th').length")
    tab.run("new Promise((done) => setTimeout(done, 100))")
    tab.click("#choices label:last-child input")
    assert tab.run("document.querySelectorAll('th').length") == before + 1
    assert tab.complaints == []


def test_ten_thousand_clips(tab: Tab, ten: Path, tmp_path: Path) -> None:
    captions = [f"{SCRIPT} {n}" for n in range(10_000)]
    many = multiplied(ten, tmp_path / "many", 10_000, number=list(range(10_000)), caption=captions)
    report = preview(many, tmp_path / "many.html", sampling=sv.Uniform(4), clips=40)
    assert (report.clips, report.strips, report.bad) == (10_000, 40, 0)
    tab.open(tmp_path / "many.html")
    assert tab.run(VISIBLE) == 40
    assert len(tab.run(ROWS)) == 50
    assert "page 1 of 200" in tab.run("document.querySelector('#page').innerText")
    assert "10,000 clips" in tab.run("document.querySelector('svg title').parentElement.closest('main').innerText")
    tab.click("#next")
    assert tab.run(ROWS)[0] == "clip00050"
    focus(tab, "key")
    tab.type("clip0999")
    assert tab.run(ROWS) == [f"clip{n:05}" for n in range(9990, 10_000)]
    shown = tab.run(TITLES)
    assert all(title.startswith("clip0999") for title in shown)
    assert len(shown) == tab.run(VISIBLE)
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith("data:")] == [(tmp_path / "many.html").as_uri()]


def test_without_script_it_can_be_read(tab: Tab, page: Path) -> None:
    tab.open(page, script=False)
    root = tab.send("DOM.getDocument")["root"]["nodeId"]

    def shown(selector: str) -> int:
        found = tab.send("DOM.querySelectorAll", {"nodeId": root, "selector": selector})["nodeIds"]
        return sum(bool(_has_box(tab, node)) for node in found)

    assert shown(".clip") == 10
    assert shown(".chart") >= 7
    assert shown("noscript p") == 1
    assert shown("table") == shown("form") == 0


def _has_box(tab: Tab, node: int) -> bool:
    try:
        return bool(tab.send("DOM.getBoxModel", {"nodeId": node}))
    except AssertionError:
        return False


def test_the_policy_holds(tab: Tab, page: Path) -> None:
    """What would be injected is not executed, and nothing is loaded."""
    tab.open(page)
    tab.run("document.body.append(Object.assign(document.createElement('script'), {textContent: 'self.ran = 1'}))")
    picture = '<img src="http://127.0.0.1:9/x.png" onerror="self.ran = 2">'
    tab.run(f"document.body.insertAdjacentHTML('beforeend', '{picture}')")
    tab.run("document.body.append(Object.assign(document.createElement('script'), {src: 'http://127.0.0.1:9/x.js'}))")
    assert tab.run("fetch('http://127.0.0.1:9/').then(() => 'loaded', (error) => error.name)") == "TypeError"
    assert tab.run("self.ran === undefined")
    assert len([text for text in tab.complaints if "Content Security Policy" in text]) >= 4
    assert all(url.startswith(("file:", "data:")) or "127.0.0.1:9" in url for url in tab.requests)


@pytest.mark.parametrize("dark", [False, True])
def test_it_is_readable(tab: Tab, page: Path, dark: bool) -> None:
    tab.open(page, dark=dark)
    assert min(tab.run(CONTRAST)) >= 4.5  # WCAG 2.2, success criterion 1.4.3
    paper = "rgb(23, 23, 27)" if dark else "rgb(255, 255, 255)"
    assert tab.run("getComputedStyle(document.body).backgroundColor") == paper
    assert tab.run("[...document.images].every((one) => one.alt)")
    named = "(one) => one.ariaLabel || one.labels?.length || one.innerText"
    assert tab.run(f"[...document.querySelectorAll('input, select, button')].every({named})")
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")


def test_a_batch_as_page_and_in_a_notebook(tab: Tab, ten: Path, tmp_path: Path) -> None:
    transform = sv.Transform(resize=64, crop=64, mean=0.5, std=0.25)
    loader = sv.StreamLoader(ten, batch_size=4, sampling=sv.Window(6, fps=15), transform=transform, columns=["caption"])
    with loader:
        batch = dict(next(iter(loader)))
    batch["key"] = [SCRIPT, *batch["key"][1:]]
    shown = sv.show(batch, transform=transform)
    shown.save(tmp_path / "batch.html")
    tab.open(tmp_path / "batch.html")
    assert tab.run(TITLES) == batch["key"]
    assert tab.run("[...document.querySelectorAll('.padding')].length") == int((~batch["mask"]).sum())
    assert tab.run("document.title") == "streamvid batch"
    fragment = shown._repr_html_()
    assert "<script" not in fragment
    notebook = f"<!doctype html><title>notebook</title><h3 id=own>own</h3>{fragment}"
    (tmp_path / "notebook.html").write_text(notebook, encoding="utf-8")
    tab.open(tmp_path / "notebook.html")
    assert tab.run(TITLES) == batch["key"]
    assert tab.run("document.title") == "notebook"
    # The style holds within the picture alone.
    assert tab.run("getComputedStyle(document.querySelector('#own')).marginTop") != "0px"
    assert tab.run("getComputedStyle(document.querySelector('.clip h3')).marginTop") == "0px"
    assert tab.complaints == []
    assert isinstance(batch["video"], torch.Tensor)


def test_ci_has_a_browser() -> None:
    """Elsewhere the tests above may skip."""
    assert f"install -q -y --no-install-recommends {PROGRAMS[0]}" in (Path(__file__).parents[3] / ".ci/run").read_text()
