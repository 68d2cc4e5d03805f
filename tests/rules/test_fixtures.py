"""The shared fixtures do what the other tests rely on."""

import subprocess
import sys

import pytest


def call(project, python=sys.executable):
    code = "from smallproj.core import double; print(double(21))"
    return subprocess.run(
        [str(python), "-c", code], cwd=project, text=True, capture_output=True
    ).stdout.strip()


def test_nbdev2_project_is_exported_and_committed(make_project):
    project = make_project()
    assert call(project) == "42"
    status = subprocess.run(["git", "status", "--porcelain"], cwd=project, text=True, capture_output=True)
    assert status.returncode == 0 and status.stdout == ""


def test_folder_without_nbdev(make_project):
    project = make_project(nbdev=0, git=False)
    assert not (project / "settings.ini").exists() and not (project / ".git").exists()


@pytest.mark.tier("long")
@pytest.mark.slow
def test_nbdev3_project_is_exported_by_its_own_nbdev(make_project, nbdev3_python):
    project = make_project(nbdev=3, python=nbdev3_python)
    assert not (project / "settings.ini").exists()
    assert call(project) == "42"


def test_each_test_has_its_own_store(tmp_path):
    import os

    assert os.environ["FSDL_STORE"].startswith(str(tmp_path))
    assert "IN_TEST" not in os.environ


def test_browser_reports_what_goes_wrong(browser_page):
    browser_page.goto("data:text/html,<h1>here</h1><script>throw Error('broken')</script>")
    assert browser_page.locator("h1").inner_text() == "here"
    assert any("broken" in complaint for complaint in browser_page.said)
