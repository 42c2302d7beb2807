"""A run in MLflow: aggregates alone unless more is asked for, once however often it is shared, credentials from outside."""

import base64
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from memlib.errors import RunError, UserError
from memlib.runs.run import Run
from memlib.sharing import web
from memlib.sharing.mlflow import LONGEST_NAME, content_of, share, valid_name
from memlib.store import Store

from .conftest import SECRET, publish
from .fake_mlflow import Fake, serving

SLEEP = time.sleep


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    monkeypatch.setattr(web.time, "sleep", lambda seconds: None)


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serving(Fake()) as served:
        yield served


def test_findings_become_metrics_with_interval_and_p_values(fake: Fake, run: Run) -> None:
    share(run, fake.uri)
    (shared,) = fake.runs.values()
    metrics = shared["metrics"]
    assert metrics["headline/value"] == metrics["auc lira/value"] == 0.75
    assert metrics["auc lira/low"] == pytest.approx(0.7)
    assert metrics["auc lira/p"] == 0.001
    assert metrics["auc lira/p_adjusted"] == 0.001
    assert metrics["auc lira/upper_bound"] == 0.79
    assert metrics["auc loss/low"] == 0.55
    assert not {"auc loss/high", "auc loss/p", "true_alarms/value"} & metrics.keys()  # no upper end, no test, no value
    assert shared["tags"]["memlib.verdict"] == "shown"
    assert shared["tags"]["memlib.data"] == "d" * 64
    assert shared["info"]["status"] == "FINISHED"
    assert shared["info"]["run_name"] == "Wards"


def test_nothing_about_single_records_and_no_location_leaves_by_default(run: Run) -> None:
    shared = content_of(run)
    everything = "\n".join(map(str, (shared.metrics, shared.params, shared.tags, shared.files)))
    for private in (SECRET, "/home", "canary", "self_influence", "mine-net", "mine:net", run.store.root, "report.html"):
        assert private not in everything, private
    assert shared.params["split.train_per_class"] == "20"
    assert shared.params["data.source.columns"] == '["age", "town"]'
    assert shared.params["encoders.0.kind"] == "embeddings"
    assert shared.params["target.trained"] == "null"
    assert set(shared.files) == {"memlib/summary.csv", "memlib/card.md"}
    first, second, *others = shared.files["memlib/summary.csv"].decode().splitlines()
    assert first == "finding,value,low,high,p,p_adjusted,upper_bound,n,verdict"
    assert second == "auc lira,0.75,0.7,0.8,0.001,0.001,0.79,400,shown"
    assert len(others) == 2


def test_a_run_that_is_shared_again_updates_the_one_run(fake: Fake, run: Run) -> None:
    first, again = share(run, fake.uri), share(run, fake.uri)
    assert (first.is_new, again.is_new) == (True, False)
    assert first.url == again.url
    changed = publish(run.store, value=0.625, finished=1_700_000_100.0)
    share(changed, fake.uri)
    (shared,) = fake.runs.values()
    assert shared["metrics"]["headline/value"] == 0.625
    share(publish(run.store, "b" * 12), fake.uri)
    assert len(fake.runs) == 2


def test_page_and_tables_are_uploaded_on_request_as_they_were_published(fake: Fake, run: Run) -> None:
    receipt = share(run, fake.uri, extra=("page", "tables"))
    folder = f"1/{0:032x}/artifacts"
    assert fake.artifacts[f"{folder}/memlib/report.html"] == b"<p>page</p>"
    table = f"{folder}/memlib/tables/summary/audit=membership/run={run.id}/part-0.parquet"
    assert fake.artifacts[table] == run.published(f"results/table=summary/audit=membership/run={run.id}/part-0.parquet")
    assert [f"{folder}/{path}" for path in receipt.files] == list(fake.artifacts)
    Path(run.store.root, f"runs/{run.id}/report.html").write_text("changed")
    with pytest.raises(RunError, match=r"report.html differs from what was published"):
        share(run, fake.uri, extra=("page",))


def test_a_server_that_stores_no_artifacts_gets_the_rest(fake: Fake, run: Run) -> None:
    fake.artifact_root = "s3://bucket"
    receipt = share(run, fake.uri)
    assert (receipt.files, fake.artifacts) == ([], {})
    assert receipt.kept_at.startswith("s3://bucket/1/")
    assert next(iter(fake.runs.values()))["info"]["status"] == "FINISHED"
    with pytest.raises(RunError, match="does not store artifacts itself"):
        share(run, fake.uri, extra=("page",))


@pytest.mark.parametrize(
    ("variables", "header"),
    [
        ({"TOKEN": "abc"}, "Bearer abc"),
        ({"USERNAME": "ann", "PASSWORD": "s3cret"}, "Basic " + base64.b64encode(b"ann:s3cret").decode()),
        ({}, None),
    ],
)
def test_credentials_come_from_the_environment(
    fake: Fake, run: Run, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], header: str | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", value)
    share(run, fake.uri)
    assert {headers.get("Authorization") for _, _, headers in fake.seen} == {header}


def test_addresses_with_credentials_and_refused_credentials_raise_user_errors(fake: Fake, run: Run) -> None:
    for uri in (fake.uri.replace("//", "//ann:s3cret@"), "file:///etc/passwd", "localhost:5000", "http://", "http://a b"):
        with pytest.raises(UserError, match="the address of the MLflow server") as said:
            share(run, uri)
        assert "s3cret" not in str(said.value)
    fake.failures = [(401, {})]
    with pytest.raises(UserError, match="answered 401: it refuses the credentials; set MLFLOW_TRACKING_TOKEN"):
        share(run, fake.uri)


def test_passing_failures_are_repeated_and_others_are_one_line(fake: Fake, run: Run) -> None:
    fake.failures = [(503, {"Retry-After": "1"}), (502, {}), (429, {})]
    share(run, fake.uri)
    assert len(fake.runs) == 1
    next(iter(fake.runs.values()))["params"]["split.train_per_class"] = "21"
    with pytest.raises(RunError, match=r"answered 400: Changing param values is not allowed: split.train_per_class$"):
        share(run, fake.uri)
    fake.failures = [(503, {})] * 9
    with pytest.raises(RunError, match="answered 503$"):
        share(run, fake.uri)
    assert len(fake.failures) == 9 - 1 - len(web.WAITS)


def test_the_creation_of_a_run_is_not_repeated_if_the_server_may_have_acted(fake: Fake, run: Run) -> None:
    share(run, fake.uri)
    other = publish(run.store, "b" * 12)
    before = len(fake.seen)
    fake.failures = []

    class Lost(list):  # type: ignore[type-arg]
        def __bool__(self) -> bool:
            return fake.seen[-1][1].endswith("runs/create")

    fake.failures = Lost([(502, {}), (502, {})])
    with pytest.raises(RunError, match="answered 502"):
        share(other, fake.uri)
    assert sum(path.endswith("runs/create") for _, path, _ in fake.seen[before:]) == 1


def test_a_redirection_is_not_followed_with_credentials(fake: Fake, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abc")
    with serving(Fake()) as other:
        fake.failures = [(302, {"Location": f"{other.uri}/api"})]
        with pytest.raises(RunError, match="answered 302 .it redirects"):
            share(run, fake.uri)
        assert other.seen == []


def test_a_server_without_mlflow_or_without_an_answer_is_reported_in_one_line(run: Run) -> None:
    with serving(Fake()) as fake:
        fake.answer = lambda endpoint, body: (200, [])  # type: ignore[method-assign]
        with pytest.raises(RunError, match="does not answer as MLflow does"):
            share(run, fake.uri)
    with pytest.raises(RunError, match=r"^http://127.0.0.1:\d+ cannot be reached \(.*refused.*\)$"):
        share(run, fake.uri)


def test_metric_names_are_valid_distinct_and_short() -> None:
    assert valid_name("auc lira", "/p") == "auc lira/p"
    odd = [valid_name(name, "/value") for name in ("p < 5 %", "p > 5 %", "é", "..", "a/../b", "x" * 400, "x" * 401)]
    assert len(set(odd)) == len(odd)
    for name in odd:
        assert len(name) <= LONGEST_NAME
        assert set(name.removesuffix("/value")) <= set("abcdefghijklmnopqrstuvwxyz0123456789 -.")


def test_long_values_are_cut_to_the_limits_of_the_server(fake: Fake, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "long"))
    store.check_writable()
    recipe = {"audit": "membership", "title": "t", "widths": list(range(2000)), **{f"k{n}": n for n in range(250)}}
    share(publish(store, recipe=recipe, title="t" * 9000), fake.uri)
    (shared,) = fake.runs.values()
    assert len(shared["params"]) == 252
    assert len(shared["params"]["widths"]) == 500


@contextlib.contextmanager
def answering(answer: bytes, *, pause: float = 0.0) -> Iterator[str]:
    """Serve one answer to every request, byte by byte if there is a pause."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with contextlib.suppress(OSError), connection:
                    connection.recv(65536)
                    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
                    for piece in [bytes([one]) for one in head + answer] if pause else [head + answer]:
                        connection.sendall(piece)
                        SLEEP(pause)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):  # a connection that is closed before all was read is reset
                        pass

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"{}", b"[" * 200_000, b'{"experiment": null}', b'{"experiment": {"experiment_id": "1"}, "runs": null}',
        b'{"experiment": {"experiment_id": "1"}, "runs": [{"info": 5}]}', b'{"experiment": {"experiment_id": "1"}, "runs": [{}]}',
        b'{"experiment": {"experiment_id": "1"}, "runs": [{"info": {"run_id": 5, "artifact_uri": "x"}}]}',
    ],
)  # fmt: skip
def test_answers_that_are_not_those_of_mlflow_are_one_line(run: Run, answer: bytes) -> None:
    with answering(answer) as uri, pytest.raises(RunError, match="the server does not answer as MLflow does"):
        share(run, uri)


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for() -> None:
    with answering(b"{}" * 5000, pause=0.05) as uri, pytest.raises(web.WebError, match="has not answered within 1 s"):
        web.send("GET", uri, waits=(), timeout=0.5)
