"""The versions of a published site: each page names its own, and a select leads to the same page of another."""

import pytest
from docs_preview.site import build
from versions import name_version, publish
from walk import served, walk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True), pytest.mark.usefixtures("chromium")]


def site_of(folder, version: str, *pages: str):
    "A built site with some pages."
    proc = folder / f"proc-{version}"
    (proc / "guides").mkdir(parents=True)
    (proc / "_quarto.yml").write_text("website: {title: Demo}\n")
    (proc / "index.qmd").write_text(f"---\ntitle: Demo\n---\n\nThis is {version}.\n")
    for page in pages:
        (proc / "guides" / f"{page}.qmd").write_text(f"---\ntitle: {page}\n---\n\n{page} of {version}.\n")
    build(proc, folder / f"site-{version}")
    name_version(folder / f"site-{version}", version, f"c0ffee{version[-1]}")
    return folder / f"site-{version}"


def test_a_site_alone_names_its_version(tmp_path, browser_page):
    site = site_of(tmp_path, "0.1.0", "first")
    with served(site) as address:
        browser_page.goto(f"{address}/guides/first.html")
        assert browser_page.locator("label.version").inner_text() == "Version 0.1.0 (c0ffee0)"
        assert browser_page.locator("label.version select").count() == 0
    assert not browser_page.said and not walk(site, tmp_path / "proc-0.1.0")


def test_the_select_leads_to_the_same_page(tmp_path, browser_page):
    folder = tmp_path / "published"
    folder.mkdir()
    assert publish(site_of(tmp_path, "0.9.0", "first"), folder) == ["0.9.0"]
    assert publish(site_of(tmp_path, "0.10.0", "first", "second"), folder) == ["0.10.0", "0.9.0"]
    # an old version that is published again, repaired, does not become the newest
    assert publish(tmp_path / "site-0.9.0", folder) == ["0.10.0", "0.9.0"]
    page = browser_page
    with served(folder) as address:
        page.goto(f"{address}/guides/first.html")
        assert "first of 0.10.0" in page.locator("main").inner_text()
        select = page.get_by_label("Version of the documentation")
        assert select.locator("option").all_inner_texts() == ["0.10.0", "0.9.0"]
        select.select_option("0.9.0")
        page.wait_for_url(f"{address}/v/0.9.0/guides/first.html")
        assert "first of 0.9.0" in page.locator("main").inner_text()
        select.select_option("0.10.0")
        page.wait_for_url(f"{address}/guides/first.html")
        page.goto(f"{address}/guides/second.html")
        select.select_option("0.9.0")  # which has no such page
        page.wait_for_url(f"{address}/v/0.9.0/index.html")
    assert not page.said
    assert not walk(folder, tmp_path)
