"""The live page in a real browser: what it shows is what happened, and it asks for nothing from elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from sluicegate.simulator.report.page import Tile
from sluicegate.simulator.report.page import page as report_page
from sluicegate.sluice.settings.endpoint_settings import WebSettings
from sluicegate.stages.fronts.live.live_page import WebStage
from sluicegate.streams import connect
from tests.harness import PATIENCE_S, PIXELS, ROLES, Running, running, settings_for, toy_catalogue
from tests.outside.browser import browser

NASTY = "<img src=x onerror=\"document.title='owned'\">"


LENGTHENED = """() => {
  const notes = [...document.querySelectorAll(".tile em, .hosted span:first-child")];
  for (const note of notes) note.textContent = "promised at most 1 in 1000 late; the least of 10 s " + "x".repeat(60);
  document.querySelector("#accuracy-legend").style.height = "90px";
  const cut = notes.filter((note) => note.scrollWidth > note.clientWidth + 1 && note.clientWidth > 0
    || getComputedStyle(note).textOverflow === "ellipsis").map((note) => note.textContent);
  const [flow, accuracy] = ["#flow", "#accuracy"].map((id) => document.querySelector(id).getBoundingClientRect());
  return [cut, Math.abs(flow.bottom - accuracy.bottom) < 1];
}"""
"""Long notes and a legend of several lines; what of them is cut, and whether charts beside each other stay level."""


@asynccontextmanager
async def watched(folder: Path, **web: Any) -> AsyncIterator[tuple[Running, str]]:
    """A system of two apps with its page; the page's address."""
    settings = settings_for("memory://", folder, web=WebSettings(port=0, **web))
    catalogue = toy_catalogue(apps=("sight", "sound"), slo=1.0)
    async with running(settings, connect("memory://"), catalogue=catalogue, roles=(*ROLES, "web")) as run:
        page = next(s for s in run.stages if isinstance(s, WebStage))
        await page.bound.wait()
        await run.planned()
        yield run, page.address


async def asked(run: Running, seconds: float) -> None:
    for i in range(int(seconds * 20)):
        await run.ask(app="sight" if i % 2 else "sound")
        await asyncio.sleep(0.05)


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await true():
            await asyncio.sleep(0.2)


async def state(address: str, token: str | None = None) -> tuple[int, Any]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{address}/state") as answer:
        return answer.status, await answer.json()


async def test_the_page_shows_what_happens(tmp_path: Path) -> None:
    async with watched(tmp_path) as (run, address), browser() as chrome:
        page = await chrome.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        wrong: list[str] = []
        asked_for: list[str] = []
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked_for.append(request.url))
        await page.goto(address)
        await asked(run, 4.0)
        await run.ask(NASTY, app="sight", parameters={"latency_ms": 0.001})

        tiles = page.locator("#tiles .tile")
        shown = [await tiles.nth(i).inner_text() for i in range(await tiles.count())]
        assert [text.split("\n")[0] for text in shown] == [
            "Demand", "Goodput", "Violations", "Accuracy", "p99 latency", "Devices",
        ]  # fmt: skip
        assert float(shown[1].split("\n")[1].removesuffix("queries/s")) > 0
        assert "2" in shown[5] and "of 2" in shown[5]
        assert await page.locator("#devices article").count() == 2
        assert "sight: sight-v2" in await page.inner_text("#devices")
        assert "plan 1." in await page.inner_text("#decisions")
        assert await page.locator("#flow path.f-good").count() == 1

        await until(lambda: contains(page, "#misses", NASTY))
        assert await page.title() == "Sluicegate"
        assert not await page.locator("#misses img").count()
        assert not wrong
        assert {url.startswith((address, "data:")) for url in asked_for} == {True}


async def contains(page: Any, place: str, text: str) -> bool:
    return text in await page.inner_text(place)


async def test_demand_and_answers_are_drawn_in_rows(tmp_path: Path) -> None:
    async with watched(tmp_path) as (run, address), browser() as chrome:
        page = await chrome.new_page(viewport={"width": 1280, "height": 900})
        await page.goto(address)
        await page.wait_for_selector("#tiles .tile")
        await run.ask(app="sight", values=(0.0,) * (8 * PIXELS))
        await until(lambda: shows(page, "demand", 8))
        await until(lambda: shows(page, "good_rows", 8))
        units = await page.locator("#tiles .tile small").all_inner_texts()
        assert units[:2] == ["rows/s", "queries/s"]
        assert (await page.inner_text(".chart h2 small")).startswith("rows a second")
        await page.hover("#flow")
        assert (await page.inner_text("#flow .tip")).split("\n")[1] == "rows a second"


async def shows(page: Any, name: str, most: int) -> bool:
    """Whether that is the most that ``name`` comes to in a second."""
    return bool(await page.evaluate(f"Math.max(...series('{name}'))") == most)


WITHOUT_A_PLAN = """() => {
  const none = Array(shown.span).fill(null);
  for (const one of Object.values(shown.series)) Object.assign(one, { capacity: none, best_only: none });
  render();
  return ["#flow", "#accuracy"].map((id) => [...document.querySelectorAll(`${id} text`)].map((t) => t.textContent));
}"""
"""Labels of two charts where nothing was asked yet and it isn't known what is carried."""


async def test_labels_of_axes_are_the_values_of_their_lines(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, address), browser() as chrome:
        page = await chrome.new_page(viewport={"width": 1280, "height": 900})
        await page.goto(address)
        await page.wait_for_selector("#flow text")
        flow, accuracy = await page.evaluate(WITHOUT_A_PLAN)
        assert flow[:5] == ["0", "2.5", "5", "7.5", "10"]
        assert accuracy[:3] == ["50 %", "70 %", "90 %"]


async def test_one_app_is_chosen_and_a_point_in_time_is_told(tmp_path: Path) -> None:
    async with watched(tmp_path) as (run, address), browser() as chrome:
        page = await chrome.new_page(viewport={"width": 1280, "height": 900})
        await page.goto(address)
        await asked(run, 2.0)
        await page.wait_for_selector("#accuracy-legend li:nth-child(2)")
        await page.select_option("#app", "sound")
        assert await page.inner_text("#accuracy-legend") == "sound"
        await page.hover("#flow")
        assert "demand" in await page.inner_text("#flow .tip")


MANY_APPS = """() => {
  const [name, one] = Object.entries(shown.series)[0];
  for (let i = 0; i < 18; i += 1)
    shown.series[`${name}${i}`] = { ...one, accuracy: one.accuracy.map(() => 0.6 + i / 50) };
  shown.apps = Object.keys(shown.series).map((name) => ({ ...shown.apps[0], name }));
  render();
  const looks = (place) => [...document.querySelectorAll(`${place} path`)]
    .map((line) => (({ stroke, strokeDasharray }) => `${stroke} ${strokeDasharray}`)(getComputedStyle(line)));
  const [lines, legend] = [looks("#accuracy"), looks("#accuracy-legend")];
  $("app").value = `${name}7`;
  render();
  return [lines, legend, Object.keys(shown.series).indexOf(`${name}7`), looks("#accuracy")];
}"""
"""How lines of twenty apps look in the chart and beside their names; which of them one is, and how it looks alone."""


async def test_no_two_of_twenty_apps_look_the_same_and_each_keeps_its_look(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, address), browser() as chrome:
        page = await chrome.new_page(viewport={"width": 1280, "height": 900})
        await page.goto(address)
        await page.wait_for_selector("#accuracy text")
        lines, legend, which, alone = await page.evaluate(MANY_APPS)
        assert len(set(lines)) == 20
        assert legend == lines
        assert alone == [lines[which]]


LONG_WATCHED = """() => {
  for (const one of shown.devices) one.queue = Array.from({ length: shown.span }, (_, i) => i % 7);
  render();
  return [...document.querySelectorAll("#devices .spark svg")].map((svg) => svg.children.length);
}"""
"""Elements that each device's queue is drawn with where two minutes of it are known."""


async def test_a_device_is_drawn_with_as_few_elements_however_long_it_was_watched(tmp_path: Path) -> None:
    async with watched(tmp_path) as (run, address), browser() as chrome:
        page = await chrome.new_page(viewport={"width": 1280, "height": 900})
        await page.goto(address)
        await asked(run, 1.0)
        await page.wait_for_selector("#devices article:nth-child(2)")
        assert await page.evaluate(LONG_WATCHED) == [1, 1]


async def test_it_is_dark_where_the_reader_is_and_changes_on_demand(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, address), browser() as chrome:
        page = await chrome.new_page(color_scheme="dark")
        await page.goto(address)
        dark = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        told = "getComputedStyle(document.getElementById('most'), '::before').content"
        assert await page.evaluate(told) == '"lightest"'
        await page.click("#theme")
        assert await page.evaluate(told) == '"darkest"'
        light = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert sum(map(int, dark[4:-1].split(", "))) < 120 < 600 < sum(map(int, light[4:-1].split(", ")))
        await page.reload()
        assert await page.evaluate("document.documentElement.dataset.theme") == "light"


async def test_a_phone_needs_no_sideways_scrolling(tmp_path: Path) -> None:
    async with watched(tmp_path) as (run, address), browser() as chrome:
        page = await chrome.new_page(viewport={"width": 390, "height": 800})
        await page.goto(address)
        await asked(run, 1.0)
        await page.wait_for_selector("#devices article")
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390


BEFORE_A_PLAN = """() => {
  shown.plans = []; shown.said = []; shown.host = { ...shown.host, starved: true, detail: "short of cores" };
  shown.apps[0].name = "sight".repeat(40);
  render();
  const [said, list, banner, tiles] = ["#decisions .none", "#decisions", "#starved", "#tiles"]
    .map((id) => document.querySelector(id).getBoundingClientRect());
  return [
    said.width / list.width, banner.left - tiles.left, banner.right - tiles.right, document.documentElement.scrollWidth,
  ];
}"""
"""An app of a long name on a starved host without a plan: how wide is what is said of that, whether the banner stands
above the tiles, and how wide the page is."""


async def test_what_is_said_has_room_before_the_first_plan_on_a_starved_host_for_a_long_name(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, address), browser() as chrome:
        for width in (1280, 390):
            page = await chrome.new_page(viewport={"width": width, "height": 900})
            await page.goto(address)
            await page.wait_for_selector("#devices article")
            await page.evaluate("() => { document.querySelector('#app').replaceChildren(); }")
            assert await page.evaluate(BEFORE_A_PLAN) == [1, 0, 0, width]


async def test_nothing_is_cut_where_names_and_notes_are_long(tmp_path: Path) -> None:
    async with watched(tmp_path) as (run, address), browser() as chrome:
        page = await chrome.new_page(viewport={"width": 1280, "height": 900})
        await page.goto(address)
        await asked(run, 1.0)
        await page.wait_for_selector("#devices .hosted span")
        cut, level = await page.evaluate(LENGTHENED)
        assert not cut
        assert level


async def test_a_token_is_asked_for_and_kept_for_the_session(tmp_path: Path) -> None:
    async with watched(tmp_path, token="open sesame") as (_, address), browser() as chrome:
        assert (await state(address))[0] == 401
        assert (await state(address, "close sesame"))[0] == 401
        assert (await state(address, "open sesame"))[0] == 200
        page = await chrome.new_page()
        await page.goto(address)
        await page.fill("#token", "wrong")
        await page.click("#login button")
        await page.wait_for_function("document.getElementById('refused').textContent !== ''")
        await page.fill("#token", "open sesame")
        await page.click("#login button")
        await page.wait_for_selector("#devices article")
        assert not await page.is_visible("#login")


async def test_when_the_server_goes_the_page_says_so(tmp_path: Path) -> None:
    async with browser() as chrome:
        page = await chrome.new_page()
        async with watched(tmp_path) as (_, address):
            await page.goto(address)
            await page.wait_for_selector("#tiles b")
        await page.wait_for_selector("body.stale", timeout=15_000)
        assert "no answer" in await page.inner_text("#health")


async def test_what_is_not_on_the_page_is_told_where_it_is(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, address), aiohttp.ClientSession() as session:
        async with session.post(f"{address}/v2/models/sight/infer", json={}) as answer:
            assert answer.status == 404
            told = (await answer.json())["error"]
        assert "POST '/v2/models/sight/infer' is not here" in told and "http.port" in told
        async with session.get(address) as answer:
            assert answer.status == 200


async def test_figures_of_reports_stay_with_their_units() -> None:
    tiles = [Tile("85.53 %", "right in time"), Tile("0.062 %", "violations"), Tile("408.8/s", "goodput")] * 4
    async with browser() as chrome:
        for width in (1280, 390):
            shown = await chrome.new_page(viewport={"width": width, "height": 900})
            await shown.set_content(report_page("Simulation", tiles=tiles))
            lines = "[...document.querySelectorAll('.tile b')].map((b) => Math.round(b.offsetHeight / 31.5))"
            assert set(await shown.evaluate(lines)) == {1}
