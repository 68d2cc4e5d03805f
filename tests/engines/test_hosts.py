"""The machines that tests make, beside the browsers of other tests."""

import subprocess
import sys
from contextlib import suppress

import pytest
from hosts import machines, why_no_namespaces
from repository import ROOT

# a page whose requests wait for a connection, six of them at a time
BUSY = "<script>for (let i = 0; i < 30; i++) (async () => { for (;;) await fetch('/?' + Math.random()) })()</script>"
PAGE = """
import http.server, sys, threading
from lab import browser_page

class Busy(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        threading.Event().wait(0.02)
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(BUSY)))
        self.end_headers()
        self.wfile.write(BUSY)
    def log_message(self, *words): pass
    def handle_one_request(self):
        try: super().handle_one_request()
        except OSError: self.close_connection = True  # the page has closed

BUSY = sys.argv[1].encode()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy)
threading.Thread(target=server.serve_forever, daemon=True).start()
with browser_page() as page:
    page.goto(f"http://127.0.0.1:{server.server_port}/")
    print("open", flush=True)
    page.wait_for_timeout(6000)
    print("closed", page.said, flush=True)
"""


@pytest.mark.browser
@pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces() or "-")
def test_hosts_that_come_and_go_wait_for_a_page_of_another_test(tmp_path, chromium):
    page = subprocess.Popen(
        [sys.executable, "-c", PAGE, BUSY],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT / "tests/support",
    )
    try:
        assert page.stdout.readline() == "open\n"
        with machines(tmp_path, ["box"]) as net:
            assert net["box"].ssh("hostname").stdout == "box\n"
        assert page.stdout.readline() == "closed []\n"
    finally:
        with suppress(ProcessLookupError):
            page.kill()
        page.wait(60)
