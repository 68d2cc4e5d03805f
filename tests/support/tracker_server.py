"""A tracker's server on loopback, as far as a run needs it: MLflow's REST API and W&B's, with bad habits."""

import gzip
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "TrackerServer"

    def log_message(self, *ignored) -> None:
        pass

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.set()
        if self.server.habit == "hangs":
            self.server.over.wait(120)
        if self.server.habit != "answers":
            self.close_connection = True
            return self.reply(b"busy", 500)
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        try:
            asked = json.loads(body or b"{}")
        except ValueError:  # a file, or figures of the client's own use
            return self.reply(b"{}")
        path = urlsplit(self.path).path
        if path == "/version":
            return self.reply(b"3.17.2")
        with self.server.lock:
            found = self.wandb(path, asked) if "mlflow" not in path else self.mlflow(path, asked)
        self.reply(json.dumps(found).encode(), 404 if "error_code" in found else 200)

    do_GET = do_POST = do_PUT = do_PATCH = answer

    def reply(self, data: bytes, status: int = 200) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:  # the client has gone
            self.close_connection = True

    def mlflow(self, path: str, asked: dict) -> dict:
        "MLflow's answer; metrics are kept under the run's name."
        verb, runs = path.partition("/mlflow/")[2], self.server.runs
        if verb == "experiments/get-by-name":
            return {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"}
        if verb == "experiments/create":
            return {"experiment_id": "7"}
        if verb == "runs/search":
            return {"runs": [{"info": {"run_id": name, "experiment_id": "7"}, "data": {}} for name in runs]}
        if verb == "runs/create":
            runs[asked["run_name"]] = {"rows": [], "facts": asked["tags"]}
            return {"run": {"info": {"run_id": asked["run_name"], "experiment_id": "7"}, "data": {}}}
        if verb == "runs/log-batch":
            rows = [(one["step"], one["key"], one["value"]) for one in asked.get("metrics", ())]
            runs[asked["run_id"]]["rows"] += rows
            self.server.lags += [time.time() - one["timestamp"] / 1000 for one in asked.get("metrics", ())]
        if verb == "runs/update":
            runs[asked["run_id"]]["status"] = asked["status"]
            return {"run_info": {"run_id": asked["run_id"], "experiment_id": "7"}}
        return {}

    def wandb(self, path: str, asked: dict) -> dict:
        "W&B's answer; a row of the history is kept at its place."
        query, given, runs = asked.get("query", ""), asked.get("variables") or {}, self.server.runs
        if "file_stream" in path:
            sent = (asked.get("files") or {}).get("wandb-history.jsonl")
            if sent:
                rows, at = runs[path.split("/")[4]]["rows"], sent["offset"]
                rows[at : at + len(sent["content"])] = map(json.loads, sent["content"])
            return {"limits": {}}
        model = {"id": "p", "name": "p", "entity": {"id": "e", "name": "ada"}}
        if "upsertBucket" in query:
            run = runs.setdefault(given["name"], {"rows": []})
            run["facts"] = json.loads(given["config"] or "{}")
            own = {"id": "x", "name": given["name"], "config": "{}", "project": model, "historyLineCount": 0}
            return {"data": {"upsertBucket": {"bucket": own, "inserted": True}}}
        if "historyTail" in query:
            rows = runs.get(given["name"], {}).get("rows")
            own = rows and {
                **{"id": "x", "name": given["name"], "historyLineCount": len(rows), "eventsLineCount": 0},
                **{"logLineCount": 0, "historyTail": json.dumps([json.dumps(rows[-1])]), "eventsTail": "[]"},
                **{
                    "summaryMetrics": json.dumps(rows[-1]),
                    "config": "{}",
                    "tags": [],
                    "wandbConfig": '{"t":{}}',
                },
            }
            return {"data": {"model": model | {"bucket": own or None}}}
        if "createRunFiles" in query:
            place = f"http://127.0.0.1:{self.server.server_port}/upload/"
            files = [{"name": name, "uploadUrl": place + name} for name in given["files"]]
            return {"data": {"createRunFiles": {"runID": "x", "uploadHeaders": [], "files": files}}}
        return {"data": {}}


class TrackerServer(ThreadingHTTPServer):
    "Answers, refuses or hangs, as `habit` says, which may change at any time."

    daemon_threads = True

    def __init__(self, habit: str = "answers"):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.habit, self.runs, self.lags = habit, {}, []  # lags: seconds from a row's step to the server
        self.lock, self.asked, self.over = threading.Lock(), threading.Event(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address) -> None:
        "A client that was killed is no fault here."

    def __exit__(self, *ignored) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()
