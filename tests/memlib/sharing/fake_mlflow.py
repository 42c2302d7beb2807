"""A small MLflow server in this process, as far as memlib uses it; it checks what MLflow checks."""

import json
import posixpath
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

VALID = re.compile(r"[/\w.\- ]{1,250}")


@dataclass
class Fake:
    """The server's content, and how it is to misbehave.

    Attributes:
        uri: its address.
        experiments: ids by name.
        runs: runs by id: info, tags, params and metrics.
        artifacts: content by path.
        seen: method, path and headers of each request.
        failures: statuses of the next answers, before the request is looked at, with their headers.
        artifact_root: root of the artifacts' locations.
    """

    uri: str = ""
    experiments: dict[str, str] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    seen: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)
    failures: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    artifact_root: str = "mlflow-artifacts:"

    def answer(self, endpoint: str, body: dict[str, Any]) -> tuple[int, Any]:
        match endpoint:
            case "experiments/get-by-name":
                name = body["experiment_name"]
                if name not in self.experiments:
                    return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no"}
                return 200, {"experiment": {"experiment_id": self.experiments[name], "lifecycle_stage": "active"}}
            case "experiments/create":
                self.experiments[body["name"]] = str(len(self.experiments) + 1)
                return 200, {"experiment_id": self.experiments[body["name"]]}
            case "runs/search":
                (wanted,) = re.findall(r"tags\.`memlib\.run` = '(\w+)'", body["filter"])
                found = [one for one in self.runs.values() if one["tags"].get("memlib.run") == wanted]
                found = [one for one in found if one["info"]["experiment_id"] in body["experiment_ids"]]
                return 200, {"runs": found} if found else {}
            case "runs/create":
                name, place = f"{len(self.runs):032x}", body["experiment_id"]
                info = {
                    "run_id": name,
                    "experiment_id": place,
                    "artifact_uri": f"{self.artifact_root}/{place}/{name}/artifacts",
                }
                tags = {tag["key"]: tag["value"] for tag in body["tags"]}
                self.runs[name] = {"info": info, "tags": tags, "params": {}, "metrics": {}}
                return 200, {"run": self.runs[name]}
            case "runs/log-batch":
                return self._log(self.runs[body["run_id"]], body)
            case "runs/update":
                self.runs[body["run_id"]]["info"] |= body
                return 200, {}
        return 404, {"message": f"no endpoint {endpoint}"}

    def _log(self, run: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
        for kind, most in (("metrics", 1000), ("params", 100), ("tags", 100)):
            assert len(body.get(kind, [])) <= most
            for one in body.get(kind, []):
                key, value = one["key"], one["value"]
                assert VALID.fullmatch(key), key
                assert posixpath.normpath(key) == key
                if kind == "params" and run["params"].get(key, value) != value:
                    message = f"Changing param values is not allowed: {key}\nsecond line"
                    return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": message}
                assert (
                    isinstance(value, float | int) if kind == "metrics" else len(value) <= {"params": 500, "tags": 5000}[kind]
                )
                run[kind][key] = value
        return 200, {}


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    """Serve a fake while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            fake.seen.append((self.command, parts.path, dict(self.headers)))
            headers: dict[str, str] = {}
            if fake.failures:
                (status, headers), answer = fake.failures.pop(0), {}
            elif parts.path.startswith("/api/2.0/mlflow-artifacts/artifacts/"):
                fake.artifacts[unquote(parts.path.partition("/artifacts/")[2])] = content
                status, answer = 200, {}
            else:
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                endpoint = parts.path.removeprefix("/api/2.0/mlflow/")
                status, answer = fake.answer(endpoint, json.loads(content) if content else query)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        do_GET = do_POST = do_PUT = _handle

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    fake.uri = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
