"""The board of a team in a real browser, from a disk: light, dark, on a phone, searched, sorted, without a script;
and what a store does to it that is written meanwhile, shared by a group, or read by two at once.

PICTURES=folder keeps each page as a picture.
"""

import os
import re
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from lab import browser_page as open_page
from playwright.sync_api import expect
from team_store import make_team
from test_cli import FSDL, PATIENCE

from fsdl_dev.board.settings import read_board
from fsdl_dev.board.write import Board
from fsdl_dev.core.job import Job
from fsdl_dev.core.rundir import RunDir, create_run_dir
from fsdl_dev.core.settings import Project
from fsdl_dev.records.lineage import keep_summary
from fsdl_dev.records.table import RunRow

PICTURES = os.environ.get("PICTURES")


@pytest.fixture(autouse=True)
def own_store(isolation, tmp_path, monkeypatch):
    monkeypatch.setenv("FSDL_STORE", str(tmp_path / ".fsdl"))


def board_of(root: Path, folder: str = "board", **settings) -> Board:
    project = Project(root, "digits", config={"store": str(root / ".fsdl"), "board": settings})
    return Board(project, root / folder, read_board(project.config))


def summary(root: Path, number: int, **values) -> str:
    "A run that has ended, as its summary has it; its name."
    name = f"2026112{number // 10000}-1015{number % 10000:05}-otter-{number}"
    run = RunDir(root / ".fsdl" / "runs" / name)
    run.path.mkdir(parents=True)
    row = RunRow(
        name, "succeeded", "exit code 0", "script", "train.py", job="train.py", seconds=60.0, **values
    )
    keep_summary(run, asdict(row) | {"start": 0.0, "links": []})
    return name


# --- in a browser --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def team(tmp_path_factory) -> Path:
    "The front page of a team's board, by the command."
    root = tmp_path_factory.mktemp("team").resolve() / "digits"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FSDL_STATE", str(tmp_path_factory.mktemp("state")))
        patch.delenv("FSDL_STORE", raising=False)
        make_team(root)
        done = subprocess.run([*FSDL, "board"], cwd=root, text=True, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "16 runs, 16 with a page of their own" in done.stdout
    return root / ".fsdl" / "board" / "index.html"


@pytest.fixture(scope="module")
def browser(chromium) -> Iterator:
    with open_page(1180, 900) as page:
        yield page


@pytest.fixture
def page(browser, team):
    "The front page, opened from the disk; at the end the console has no complaint."
    browser.set_viewport_size({"width": 1180, "height": 900})
    browser.goto(team.as_uri())
    yield browser
    assert not browser.said, browser.said


@pytest.mark.slow
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_labels_and_contrast(page, team, colours):
    page.emulate_media(color_scheme=colours)
    for name in ("index.html", "runs.html", "view-good.html"):
        page.goto((team.parent / name).as_uri())
        if PICTURES:
            page.screenshot(path=Path(PICTURES, f"board-{name[:-5]}-{colours}.png"), full_page=True)
        found = Axe().run(page)
        wrong = [
            (rule["id"], node["html"][:200])
            for rule in found.response["violations"]
            for node in rule["nodes"]
        ]
        assert not wrong, (name, wrong)


@pytest.mark.slow
def test_a_phone(page, team):
    "420 pixels: nothing is wider than the window but tables, which scroll by themselves."
    page.set_viewport_size({"width": 420, "height": 900})
    for name in ("index.html", "runs.html"):
        page.goto((team.parent / name).as_uri())
        if PICTURES:
            page.screenshot(path=Path(PICTURES, f"board-{name[:-5]}-420.png"), full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        assert page.locator("tbody th").first.bounding_box()["width"] < 300


@pytest.mark.slow
def test_what_a_team_sees(page):
    "Production first, candidates beside it; what was reported better and measured worse; what fixed what."
    beside = page.locator("#baselines tbody tr")
    expect(beside.nth(0)).to_contain_text("digits@production")
    expect(beside.nth(1)).to_contain_text("baseline")
    best = beside.filter(has_text="0.931")
    expect(best).to_contain_text("+0.0397 better")
    expect(best).to_contain_text("-0.014 worse")
    page.locator("#models summary").first.click()
    expect(page.locator("#models")).to_contain_text("12 passed")
    oom = page.locator("#failures tr").filter(has_text="out of memory")
    expect(oom).to_contain_text("2")
    expect(oom).to_contain_text("width 2048 → 64")
    expect(page.locator("#failures tr").filter(has_text="64 columns")).to_contain_text("not yet")
    expect(page.locator("#sweeps tbody tr")).to_contain_text("4 succeeded")
    expect(page.locator("#budgets tbody tr")).to_contain_text("100.00 USD")
    expect(page.locator("#machines tbody tr")).to_contain_text("lab")
    expect(page.locator("#going tbody tr")).to_have_count(2)


@pytest.mark.slow
def test_search_and_sort(page):
    "The search finds words in any order, here or among all runs; a click sorts by numbers."
    box, said = page.get_by_label("Search"), page.get_by_role("status")
    box.fill("train lr=0.08")
    expect(said).to_contain_text("of")
    expect(page.locator("#newest tbody tr")).to_have_count(1)
    expect(page.locator("#machines")).to_be_hidden()
    page.get_by_text("search all runs").click()
    expect(page).to_have_url(re.compile("runs.html#q=train"))
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Search").fill("")
    expect(page.locator("tbody tr")).to_have_count(16)
    page.get_by_role("button", name="reported").click()
    numbers = page.locator("tbody tr td:nth-child(8)").all_inner_texts()
    values = [float(text.split()[1]) for text in numbers if text]
    assert values == sorted(values, reverse=True) and not any(numbers[len(values) :])
    page.get_by_role("button", name="reported").click()
    numbers = page.locator("tbody tr td:nth-child(8)").all_inner_texts()
    assert [float(text.split()[1]) for text in numbers if text] == sorted(values)


@pytest.mark.slow
def test_to_a_run_and_back(page):
    "A run's page is the one of fsdl share, with its curves; it links to its baseline's page and to the board."
    page.locator("#baselines tbody tr").nth(3).get_by_role("link").click()
    expect(page.locator("body")).to_contain_text("How to repeat it")
    page.get_by_role("link", name="dainty").or_(page.locator("section a").first).first.click()
    expect(page.locator("body")).to_contain_text("How to repeat it")
    page.get_by_role("link", name="Board of digits").click()
    expect(page.locator("h1")).to_have_text("Board of digits")
    page.get_by_role("link", name="good").first.click()
    expect(page.locator("#runs")).to_contain_text("val_acc > 0.95")


@pytest.mark.slow
def test_without_a_script(browser, team):
    "Everything stands in the page; nothing is offered that would not work."
    context = browser.context.browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    plain.goto(team.as_uri())
    assert plain.locator("#newest tbody tr").count() == 16
    assert not plain.locator("#search").is_visible() and not plain.locator("th button").count()
    context.close()


@pytest.mark.slow
def test_a_thousand_runs(browser, tmp_path):
    "The first 500 stand in the table; the script finds the others, whose names and values are texts and no markup."
    for number in range(1203):
        hostile = {"note": "<img src=x onerror=alert(1)></script>"} if number == 7 else {}
        summary(tmp_path, number, params={"lr": number / 1000, **hostile}, best=("acc", number / 2000, 9))
    start(tmp_path, lr=5)
    made = board_of(tmp_path, pages=1).write()
    assert made.pages == 1 and sorted(made.folder.glob("runs-*.html"))[-1].name == "runs-0003.html"
    browser.goto((made.folder / "runs.html").as_uri())
    expect(browser.locator("tbody tr")).to_have_count(500)
    expect(browser.get_by_role("status")).to_contain_text("1,204 of 1,204 rows, the first 500 are shown")
    browser.get_by_label("Search").fill("onerror")
    expect(browser.locator("tbody tr")).to_have_count(1)
    expect(browser.locator("tbody tr")).to_contain_text("<img src=x onerror=alert(1)></script>")
    browser.get_by_label("Search").fill("")
    browser.get_by_role("button", name="reported").click()
    expect(browser.locator("tbody th").first).to_have_text("otter-1202")
    browser.goto((made.folder / "runs-0001.html").as_uri())
    expect(browser.locator("tbody tr")).to_have_count(500)
    assert not browser.said, browser.said


# --- a store that lives ----------------------------------------------------------------------------------


def start(root: Path, **params) -> RunDir:
    run = create_run_dir(root / ".fsdl", Job("script", "train.py", script="train.py", params=params))
    writer = run.writer("worker")
    for state in ("queued", "starting", "running"):
        run.set_state(writer, state, "example")
    return run


def test_a_store_that_is_written(tmp_path):
    "Runs that are made, end and go away while the board is written: each board is whole, and the last one is right."
    stop = threading.Event()

    def churn() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            run = start(tmp_path, lr=number)
            if number % 3 == 0:
                shutil.rmtree(run.path)
            elif number % 5:
                run.set_state(run.writer("worker"), "succeeded", "done")
            half = tmp_path / ".fsdl" / "runs" / f"20261129-10150000{number % 10}-half-made"
            half.mkdir(exist_ok=True)
            stop.wait(0.1)

    start(tmp_path, lr=0)
    writer = threading.Thread(target=churn)
    writer.start()
    try:
        board = board_of(tmp_path)
        for _ in range(4):
            made = board.write()
            assert made.index.read_text().endswith("</html>\n")
    finally:
        stop.set()
        writer.join()
    made = board.write()
    there = {path.name for path in (tmp_path / ".fsdl" / "runs").iterdir() if (path / "job.json").exists()}
    assert made.runs == len(there) and {path.stem for path in (made.folder / "runs").iterdir()} == there
    assert not made.failed


def test_two_at_once(tmp_path):
    "Two boards of one folder are written one after the other: the pages are those of the whole store."
    for number in range(30):
        summary(tmp_path, number)
    failures = []

    def write(number: int) -> None:
        try:
            for step in range(3):
                summary(tmp_path, 100 + 10 * number + step)
                board_of(tmp_path, pages=0).write()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    [one.start() for one in threads]
    [one.join() for one in threads]
    assert not failures, failures
    made = board_of(tmp_path, pages=0).write()
    assert made.runs == 36 and made.index.read_text().count("otter-") >= 25
    assert "36 runs" in made.index.read_text() and not [*made.folder.glob(".*.html*")]


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
@pytest.mark.parametrize("mode, wanted", [(0o700, 0o600), (0o2770, 0o660), (0o755, 0o644)])
def test_permissions_follow_the_store(tmp_path, mode, wanted):
    start(tmp_path, lr=1)
    (tmp_path / ".fsdl").chmod(mode)
    before = os.umask(0o077)
    try:
        made = board_of(tmp_path).write()
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in made.folder.rglob("*.html")}
    assert modes == {wanted}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (made.folder, made.folder / "runs")} == {mode}


def fsdl(root: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*FSDL, "board", *words], cwd=root, text=True, capture_output=True, timeout=PATIENCE
    )


def test_what_the_command_refuses(tmp_path):
    "A folder of something else, a wrong view, a wrong setting: what, where, and the way out."
    settings = tmp_path / "pyproject.toml"
    settings.write_text("[tool.fsdl_dev]\n")
    start(tmp_path, lr=1)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.html").write_text("mine")
    refused = fsdl(tmp_path, "docs")
    assert refused.returncode != 0 and "holds something else than a board: index.html" in refused.stderr
    assert "fsdl board" in refused.stderr and (tmp_path / "docs" / "index.html").read_text() == "mine"
    settings.write_text('[tool.fsdl_dev.board.views]\ngood = "val/acc > 0.9"\n')
    refused = fsdl(tmp_path)
    assert refused.returncode != 0 and not (tmp_path / ".fsdl" / "board" / "index.html").exists()
    for said in (
        "[tool.fsdl_dev.board.views] good in pyproject.toml",
        "val/acc > 0.9",
        "No run has",
        "fsdl runs --names",
    ):
        assert said in refused.stderr, refused.stderr
    settings.write_text("[tool.fsdl_dev.board]\nviwes = {}\n")
    assert "Did you mean" in fsdl(tmp_path).stderr


def test_watch(tmp_path):
    "The board follows the store until Ctrl-C."
    (tmp_path / "pyproject.toml").write_text("[tool.fsdl_dev]\n")
    start(tmp_path, lr=1)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [*FSDL, "board", "--watch"], cwd=tmp_path, text=True, stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout
    try:
        assert "1 run," in process.stdout.readline()
        start(tmp_path, lr=2)
        while "2 runs," not in process.stdout.readline():
            assert process.poll() is None
    finally:
        process.send_signal(2)
        code = process.wait(PATIENCE)
    assert code == 130 and "2 runs" in (tmp_path / ".fsdl" / "board" / "index.html").read_text()
