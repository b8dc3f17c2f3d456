"""Pictures of the live page for the guide: a system on emulated devices under a wave, photographed in Chromium.

Run from the root of a checkout with the development extras and Chromium: `python docs/figures/shoot.py [seconds]`.
"""

import asyncio
import math
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from playwright.async_api import async_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sluicegate.domain.models.profile import BatchLatency
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.settings.endpoint_settings import WebSettings
from sluicegate.sluice.settings.settings import DeviceSettings, PromiseSettings, Settings
from sluicegate.sluice.system.process_stages import stages_of
from sluicegate.sluice.system.system import System
from sluicegate.stages.fronts.live.live_page import WebStage
from sluicegate.stages.runtime.supervisor import run_stages
from sluicegate.streams import connect
from tests.harness import ROLES, Running, toy_catalogue
from tests.outside.browser import chromium

HERE = Path(__file__).parent
CARE = "care"


SLOWER = 4.0
"""Than the tests' variants: so many times fewer queries overload the best ones."""
SLO = 0.6


def qps(second: float, whole: float) -> float:
    """Calm, a wave above what the best variants can do, calm again."""
    return 40.0 + 380.0 * max(0.0, math.sin(math.pi * (second / whole - 0.2) / 0.6)) ** 2


def slowed(catalogue: Catalogue) -> Catalogue:
    """The same, each batch ``SLOWER`` times as long."""
    profiles = (
        replace(
            profile,
            points=tuple(BatchLatency(p.batch, SLOWER * p.median, SLOWER * p.p95) for p in profile.points),
        )
        for profile in catalogue.profiles.values()
    )
    return Catalogue.of(catalogue.apps.values(), catalogue.variants.values(), profiles)


async def load(run: Running, seconds: float) -> None:
    """Queries of both apps."""
    started = time.monotonic()
    sent = 0.0
    while (at := time.monotonic() - started) < seconds:
        sent += qps(at, seconds) * 0.02
        while sent >= 1.0:
            sent -= 1.0
            await run.ask(app="vision" if run.sent % 3 else CARE, parameters={"latency_ms": 1e3 * SLO})
        await asyncio.sleep(0.02)


async def main(seconds: float) -> None:
    """Serve, load, photograph."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            home=Path(folder),
            devices=tuple(DeviceSettings(name=name) for name in ("edge-0", "edge-1", "edge-2")),
            worker={"executor": "emulated", "batching": "adaptive"},
            planner={"period_s": 5.0},
            promises={CARE: PromiseSettings(max_consecutive=2, weakly_hard=((4, 10),))},
            web=WebSettings(port=0),
        )
        broker = connect("memory://")
        producer = broker.producer()
        await producer.start()
        catalogue = slowed(toy_catalogue(apps=("vision", CARE), slo=SLO))
        system = System(settings, catalogue, Path(folder), broker, producer, Path(folder))
        await system.create_topics()
        stop = asyncio.Event()
        stages = stages_of(system, (*ROLES, "web"))
        task = asyncio.create_task(run_stages(stages, stop))
        run = Running(system, stop, task)
        page_stage = next(s for s in stages if isinstance(s, WebStage))
        await page_stage.bound.wait()
        loading = asyncio.create_task(load(run, seconds))
        await asyncio.sleep(0.75 * seconds)
        await photograph(page_stage.address)
        await loading
        stop.set()
        await task


async def photograph(address: str) -> None:
    """Light and dark, wide; light, narrow."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=str(chromium()), args=["--no-sandbox"])
        for name, theme, width in (
            ("live-light", "light", 1280),
            ("live-dark", "dark", 1280),
            ("live-narrow", "dark", 420),
        ):
            page = await browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
            await page.goto(address)
            await page.wait_for_selector("#tiles b")
            await page.wait_for_timeout(1500)
            await page.screenshot(path=HERE / f"{name}.png", full_page=True)
            await page.close()
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0))
