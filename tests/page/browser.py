"""Looks at a page with Chromium; run by test_browser.py, in an environment with playwright alone.

python browser.py ADDRESS SERVER WORKDIR PICTURES             # the run that test_browser.py writes
python browser.py ADDRESS SERVER WORKDIR PICTURES STEP LEASE  # any other run: takes pictures alone

SERVER is the number of the process that serves the page.
"""

import json
import os
import re
import sys
import time
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
VIEWS = (
    "",
    "curves?x=seconds&smooth=0.6",
    "rollouts",
    "group?step={}&lease={}",
    "timeline",
    "flow",
    "settings",
    "logs",
)
QUICK_SECS = 1.0
CONNECTED = re.compile("live|finished|stopped|failed|no record")
CUT = """[...document.querySelectorAll("nav a, td, th")]
    .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
    .map((one) => one.innerText)"""
BOTTOM = "Math.ceil(document.querySelector('main').getBoundingClientRect().bottom)"


def main(address: str, server: str, workdir: str, pictures: str, *group: str) -> None:
    expect.set_options(timeout=30_000)  # On a busy machine.
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        errors: list[str] = []
        first = browser.new_page()
        first.goto(address)  # The server reads the files, and Chromium starts.
        first.goto(address + "rollouts")
        for scheme, width in (("light", 1280), ("dark", 390)):
            context = browser.new_context(
                color_scheme=scheme, viewport={"width": width, "height": 900}
            )
            page = context.new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda said: errors.append(said.text))
            for name in VIEWS:
                view = name.format(*group or ("2", "4"))
                before = cpu_secs(int(server))
                page.goto(address + view)
                expect(page.locator("#live")).to_have_text(CONNECTED)
                assert cpu_secs(int(server)) - before < QUICK_SECS, view
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{view} is {wide} px wide"
                assert page.evaluate(CUT) == [], f"{view} hides cells at {width} px"
                if view == "timeline":
                    expect(page.locator("#timeline svg")).to_be_visible()
                if view.startswith("group"):
                    page.click("button[data-colour=ratio]")
                page.wait_for_timeout(300)
                parts = ["page", view.partition("?")[0], scheme.replace("light", "")]
                used = page.evaluate(BOTTOM)
                page.screenshot(
                    path=f"{pictures}/{'-'.join(filter(None, parts))}.png",
                    clip={"x": 0, "y": 0, "width": width, "height": min(900, used)},
                )
        if not group:
            check(page, address, Path(workdir))
        assert not errors, errors
        browser.close()


def cpu_secs(process: int) -> float:
    """Returns the seconds that a process has computed: those of a clock tell of other work, too."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check(page, address: str, workdir: Path) -> None:
    # The overview follows the run.
    page.goto(address)
    expect(page.locator("#step0")).to_have_text("1000")
    line = {"phase": "rl", "step": 1001, "time": time.time(), "reward_mean": 0.5}
    with open(workdir / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    expect(page.locator("#step0")).to_have_text("1001", timeout=8000)
    expect(page.locator("#live.on")).to_have_text("● live")
    # The table is filtered without a reload.
    page.goto(address + "rollouts")
    page.fill("[name=text]", "2000+1")
    page.click("text=Show")
    expect(page.locator("table.rows tbody tr")).to_have_count(2)
    # Tokens change their colours.
    page.goto(address + "group?step=2&lease=4")
    unlikely = page.locator(".tokens .l8").first
    colour = "one => getComputedStyle(one).backgroundColor"
    by_logprob = unlikely.evaluate(colour)
    page.click("button[data-colour=version]")
    assert unlikely.evaluate(colour) != by_logprob
    token = page.locator(".tokens span").first
    found = set()
    for name, classes in (("ratio", "u3"), ("entropy", "e4"), ("advantage", "g2")):
        page.click(f"button[data-colour={name}]")
        expect(page.locator(f".key.{name}")).to_be_visible()
        assert classes in token.get_attribute("class").split()
        found.add(token.evaluate(colour))
    page.click("button[data-colour=nothing]")
    assert token.evaluate(colour) not in found
    # The timeline is drawn, and zooms.
    page.goto(address + "timeline")
    picture, shown = page.locator("#timeline"), page.locator("#window")
    expect(picture.locator("svg")).to_be_visible()
    for _ in range(6):
        before = shown.inner_text()
        with page.expect_response(re.compile("start=")):
            picture.press("+")
        assert shown.inner_text() != before
    expect(picture.locator("svg")).to_have_css("transform", "none")
    train = picture.locator("[id^='train t']").first
    expect(train).to_be_visible()
    fill = "one => getComputedStyle(one).fill"
    assert train.locator("path").evaluate(fill) == "rgb(87, 167, 115)"
    train.hover()
    expect(page.locator("#block")).to_contain_text(" s long")


if __name__ == "__main__":
    main(*sys.argv[1:])
