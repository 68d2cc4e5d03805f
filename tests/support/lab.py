"""JupyterLab and Chromium for tests: an isolated server on loopback and a small driver of its pages.

Nothing but loopback is reachable from the page, the server's home is a throwaway folder, and both end with the
`with` block.
"""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

from network import steady_addresses
from ports import free_port

PATIENCE = int(os.environ.get("PATIENCE", 240))  # seconds; a page or a kernel that needs more has failed
CHROMIUM = (
    os.environ.get("CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
    or next(
        map(str, Path("~/.cache/ms-playwright").expanduser().glob("chromium-*/chrome-linux*/chrome")), None
    )
)
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--no-default-browser-check",
    "--force-color-profile=srgb",
    # not by a route of Playwright's: that asks Python for each request and turns the cache off
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost",
]
# the page's own idle mark is true before the session is, and Run All then silently does nothing
IDLE = """() => { const w = window.jupyterapp?.shell.currentWidget, s = w?.sessionContext, k = s?.session?.kernel;
  return !!s?.isReady && k?.connectionStatus === 'connected' && k?.status === 'idle'
    && s?.kernelDisplayStatus === 'idle' }"""


def _settings(home: Path) -> None:
    "No news, no autosave, every cell in the page."
    wanted = {
        "apputils-extension/notification": {
            "fetchNews": "false",
            "checkForUpdates": False,
            "doNotDisturbMode": True,
        },
        "notebook-extension/tracker": {"windowingMode": "none", "kernelShutdown": True},
        "docmanager-extension/plugin": {"autosave": False},
    }
    for name, values in wanted.items():
        file = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))


@contextmanager
def jupyterlab(root: Path, home: Path, python: str | Path = sys.executable, **surroundings: str):
    "A JupyterLab on the folder `root`: (address, token). `python`: one that has more extensions."
    _settings(home)
    port, token = free_port(), secrets.token_hex(16)
    places = {
        "HOME": "",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "IPYTHONDIR": "ipython",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    }
    environment = {
        **os.environ,
        **{name: str(home / folder) for name, folder in places.items()},
        "PYTHONUNBUFFERED": "1",
        "JUPYTER_PLATFORM_DIRS": "1",
        **surroundings,
    }
    environment.pop("IN_TEST", None)
    command = [
        str(python),
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={root}",
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.extension_manager=readonly",
        "--ServerApp.terminals_enabled=False",
        "--LanguageServerManager.autodetect=False",
    ]
    address = f"http://127.0.0.1:{port}"
    with open(home / "lab.log", "w") as log:
        server = subprocess.Popen(
            command, cwd=home, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        end = time.monotonic() + PATIENCE
        while True:
            if server.poll() is not None:
                raise RuntimeError((home / "lab.log").read_text()[-3000:])
            with suppress(OSError):
                urllib.request.urlopen(f"{address}/api/status?token={token}", timeout=20).read()
                break
            if time.monotonic() > end:
                raise TimeoutError((home / "lab.log").read_text()[-3000:])
            time.sleep(0.25)
        yield address, token
    finally:
        with suppress(OSError):
            urllib.request.urlopen(
                urllib.request.Request(f"{address}/api/shutdown?token={token}", method="POST"), timeout=20
            )
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(60)


@contextmanager
def browser_page(width: int = 1300, height: int = 1000, scale: float = 1.0):
    "A page that reaches loopback only; `page.said` collects what the console and the network complain about."
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE * 1000)
    with steady_addresses(), sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=QUIET, timeout=PATIENCE * 1000
        )
        context = browser.new_context(viewport={"width": width, "height": height}, device_scale_factor=scale)
        context.set_default_timeout(PATIENCE * 1000)  # only a page that fails needs so long
        page = context.new_page()
        page.said = said = []

        def failed(request) -> None:
            if not request.url.startswith(("http://127.0.0.1", "http://localhost")):
                said.append(f"asked for {request.url}, which is not on this machine")

        page.on("requestfailed", failed)

        def heard(message) -> None:
            # Chromium asks for /favicon.ico by itself, where a page is left before its icon was read
            if message.type == "error" and not message.location.get("url", "").endswith("/favicon.ico"):
                said.append(message.text)

        page.on("console", heard)
        page.on("pageerror", lambda error: said.append(f"error in the page: {error}"))
        page.on(
            "response",
            lambda got: said.append(f"HTTP {got.status}: {got.url}") if got.status >= 400 else None,
        )
        try:
            yield page
        finally:
            context.close()
            browser.close()


class LabPage:
    "One notebook in a JupyterLab page."

    def __init__(self, page, address: str, token: str):
        self.page, self.address, self.token = page, address, token

    def open(self, path: str, workspace: str = "test", kernel: bool = True):
        "Open a notebook and wait for its kernel."
        self.page.goto(f"{self.address}/lab/workspaces/{workspace}/tree/{path}?reset&token={self.token}")
        self.panel = self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
        self.panel.wait_for(state="visible")
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")
        if kernel:
            self.idle()
        return self

    def idle(self) -> None:
        "Wait until the kernel is attached, connected and idle."
        self.page.wait_for_function(IDLE)

    def cell(self, index: int):
        return self.panel.locator(".jp-Cell").nth(index)

    def command(self, name: str, **arguments):
        "Run one of JupyterLab's commands."
        return self.page.evaluate(
            "([id, a]) => window.jupyterapp.commands.execute(id, a).then(() => null)", [name, arguments]
        )

    def start_cell(self, index: int) -> None:
        "Run one cell without waiting for it."
        self.cell(index).locator(".jp-InputPrompt").click()
        self.page.keyboard.press("Control+Enter")

    def save(self) -> None:
        self.command("docmanager:save")

    def no_broken_widgets(self) -> None:
        from playwright.sync_api import expect

        expect(self.panel.get_by_text("Loading widget")).to_have_count(0)
        broken = self.panel.get_by_text(re.compile("Error displaying widget|model not found"))
        assert broken.count() == 0, broken.all_inner_texts()
