"""A stand-in for a Kubernetes API server on loopback: `start_api(folder)`.

It answers the requests of the engine and of the tests' controllers from memory, and refuses a field that the
published model of a kind does not have. It has no users, no defaults and no controllers of its own.
"""

import json
import re
import threading
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from kube_schemas import CUSTOM, problems


@dataclass
class Api:
    "A running API."

    url: str
    kubeconfig: Path
    server: object

    def request(self, method: str, path: str, body: dict | None = None) -> dict:
        "A request as a controller makes it. Raises urllib's HTTPError."
        asked = urllib.request.Request(
            self.url + path,
            json.dumps(body).encode() if body is not None else None,
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(asked, timeout=90) as answer:
            return json.loads(answer.read() or b"{}")

    def items(self, path: str) -> list[dict]:
        "A list's objects."
        return self.request("GET", path).get("items") or []

    def update(self, path: str, change, status: bool = True) -> dict | None:
        """Read an object, let `change` edit it, write it back; once more where somebody was quicker.

        None where it is gone.
        """
        for _ in range(50):
            try:
                found = self.request("GET", path)
                change(found)
                custom = any(f"/{plural}/" in path for plural in CUSTOM)
                return self.request("PUT", f"{path}/status" if status and custom else path, found)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code != 409:
                    raise
        raise AssertionError(f"{path} changes all the time")

    def install(self, *plurals: str) -> None:
        "Make custom resources known."
        self.server.groups |= {CUSTOM[plural][0] for plural in plurals}

    def stop(self) -> None:
        "End what was started."
        self.server.shutdown()
        self.server.server_close()


def _kubeconfig(path: Path, url: str) -> Path:
    "A kubeconfig for the API."
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "clusters": [{"name": "test", "cluster": {"server": url}}],
                "users": [{"name": "test", "user": {}}],
                "contexts": [
                    {"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "team"}}
                ],
            }
        )
    )
    return path


def start_api(folder: Path) -> Api:
    "Start the stand-in."
    folder.mkdir(parents=True, exist_ok=True)
    server = _StandIn(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    return Api(url, _kubeconfig(folder / "kubeconfig", url), server)


class _StandIn(ThreadingHTTPServer):
    "Objects in memory, by the same requests."

    daemon_threads = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.objects, self.groups, self.lock, self.count = {}, {"batch"}, threading.RLock(), 0
        # functions of (method, path) that give an HTTP status and a Status, or None: what a test puts in the
        # way
        self.refuse: list = []


class _Answers(BaseHTTPRequestHandler):
    "One request."

    protocol_version = "HTTP/1.1"
    _PATH = re.compile(
        r"(?P<base>/api/v1|/apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>\w+))?\Z"
    )

    def log_message(self, *_):
        pass

    def _say(self, status: int, body) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, status: int, reason: str, message: str) -> None:
        self._say(
            status,
            {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": status},
        )

    def _handle(self) -> None:
        url, length = urlsplit(self.path), int(self.headers.get("Content-Length") or 0)
        body, query, server = json.loads(self.rfile.read(length) or b"null"), parse_qs(url.query), self.server
        for refuse in server.refuse:
            if answer := refuse(self.command, url.path):
                return self._say(*answer)
        found = self._PATH.match(url.path)
        if group := re.fullmatch(r"/apis/([^/]+)", url.path):
            known = [
                (version, CUSTOM[plural][0])
                for plural in CUSTOM
                for version in CUSTOM[plural][1]
                if CUSTOM[plural][0] == group[1]
            ]
            if group[1] not in server.groups:
                return self._refuse(404, "NotFound", "the server could not find the requested resource")
            versions = sorted({version for version, _ in known} or {"v1"})
            return self._say(
                200,
                {
                    "kind": "APIGroup",
                    "name": group[1],
                    "versions": [{"version": version} for version in versions],
                    "preferredVersion": {"version": versions[-1]},
                },
            )
        if not found or (found["group"] and found["group"] not in server.groups):
            return self._refuse(404, "NotFound", "the server could not find the requested resource")
        with server.lock:
            self._object(found, body, query)

    do_GET = do_POST = do_PUT = do_DELETE = _handle

    def _object(self, found, body, query) -> None:  # noqa: C901  one branch for each verb
        "A request for an object or a list, under the lock."
        server, place, name = self.server, (found["base"], found["plural"]), found["name"]
        key = (*place, found["namespace"], name)
        if self.command == "GET" and not name:
            wanted = [part.split("=") for part in (query.get("labelSelector") or [""])[0].split(",") if part]
            items = [
                item
                for (*where, namespace, _), item in server.objects.items()
                if tuple(where) == place
                and found["namespace"] in (None, namespace)
                and all(
                    (
                        (item["metadata"].get("labels") or {}).get(pair[0]) == pair[1]
                        if len(pair) == 2
                        else pair[0] in (item["metadata"].get("labels") or {})
                    )
                    for pair in wanted
                )
            ]
            return self._say(200, {"kind": "List", "metadata": {}, "items": items})
        if self.command == "POST":
            if wrong := problems(body):
                return self._refuse(400, "BadRequest", f"strict decoding error: {wrong[0]}")
            key = (*place, found["namespace"], body["metadata"]["name"])
            if key in server.objects:
                return self._refuse(409, "AlreadyExists", f"{place[1]} {key[3]!r} already exists")
            if place[1] in CUSTOM:
                body.pop("status", None)
            else:
                body.setdefault("status", {})
            body["metadata"] |= {
                "uid": str(uuid.uuid4()),
                "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                **({"namespace": found["namespace"]} if found["namespace"] else {}),
            }
            return self._say(201, self._keep(key, body))
        if key not in server.objects:
            return self._refuse(404, "NotFound", f"{place[1]} {name!r} not found")
        item = server.objects[key]
        if self.command == "GET":
            return self._say(200, item)
        if self.command == "PUT":
            if body["metadata"].get("resourceVersion") not in (None, item["metadata"]["resourceVersion"]):
                return self._refuse(
                    409,
                    "Conflict",
                    "the object has been modified; please apply your changes to the latest version and try"
                    " again",
                )
            fresh = {**item, "status": body.get("status", {})} if found["sub"] == "status" else body
            if (
                fresh["metadata"].get("deletionTimestamp")
                and not fresh["metadata"].get("finalizers")
                and place[1] != "pods"
            ):
                return self._say(200, server.objects.pop(key))
            return self._say(200, self._keep(key, fresh))
        period = (body or {}).get("gracePeriodSeconds")
        if place[1] == "pods" and item["spec"].get("nodeName") and period != 0:
            item["metadata"].setdefault("deletionTimestamp", "now")
        elif place[1] != "pods" and (body or {}).get("propagationPolicy") == "Foreground":
            item["metadata"] |= {"deletionTimestamp": "now", "finalizers": ["foregroundDeletion"]}
        else:
            server.objects.pop(key)
        return self._say(200, item)

    def _keep(self, key: tuple, item: dict) -> dict:
        "Keep an object under a new version."
        self.server.count += 1
        item["metadata"]["resourceVersion"] = str(self.server.count)
        self.server.objects[key] = json.loads(json.dumps(item))
        return item
