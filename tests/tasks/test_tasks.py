"""Parts as Ray tasks: what is repeated, what ends, what is shown, and with how many threads they compute."""

import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import exceptions as ray_exceptions

from memlib.errors import CorruptArtifact, EngineLost, RunError, UserError
from memlib.recipes.files import validate
from memlib.specs import Resources
from memlib.store import Ref, Store
from tasks import cluster, news, training
from tasks.cluster import Part, calls_on_ray, map_on_ray
from tasks.runtime import Context

TABLE = "ray.experimental.internal_kv"


class Bars:
    """A display that notes what it is told."""

    def __init__(self) -> None:
        self.parts, self.moves = 0, []  # type: ignore[var-annotated]

    def expect(self, parts: int) -> None:
        self.parts = parts

    def move(self, name: str, done: int, total: int, note: str = "") -> None:
        self.moves.append((name, done, total, note))


class TasksHere(types.ModuleType):
    """Ray as far as tasks need it: a task is carried out when its result is asked for; a call may be lost."""

    exceptions = ray_exceptions

    def __init__(self) -> None:
        super().__init__("ray")
        self.options: dict[str, Any] = {}

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 4.0}}]

    def remote(self, **options: Any) -> Any:
        self.options = options
        return lambda function: types.SimpleNamespace(remote=lambda *arguments: Called(function, arguments))

    def wait(self, running: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return running[:1], running[1:]

    def get(self, called: "Called") -> Any:
        try:
            return called.function(*called.arguments)
        except ray_exceptions.RayError:
            raise
        except Exception as error:
            raise ray_exceptions.RayTaskError("function", "Traceback ...", error) from error

    def cancel(self, task: Any, force: bool) -> None:
        pass


class Called:
    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> TasksHere:
    here = TasksHere()
    for module in (cluster, training):
        monkeypatch.setattr(module, "start_ray", lambda context: here)
    return here


@pytest.fixture
def context(tmp_path: Path) -> Callable[..., Context]:
    return lambda **resources: Context(Store(str(tmp_path)), Resources.model_validate(resources))


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, bytes]:
    """Ray's table of keys and values."""
    found: dict[bytes, bytes] = {}

    def put(key: bytes, value: bytes, overwrite: bool, namespace: bytes) -> None:
        found[key] = value

    def delete(prefix: bytes, del_by_prefix: bool, namespace: bytes) -> None:
        for key in [key for key in found if key.startswith(prefix)]:
            del found[key]

    monkeypatch.setattr(f"{TABLE}._internal_kv_put", put)
    monkeypatch.setattr(f"{TABLE}._internal_kv_get", lambda key, namespace: found.get(key))
    monkeypatch.setattr(f"{TABLE}._internal_kv_del", delete)
    return found


def parts_of(count: int) -> list[Part]:
    return [Part(f"part {number}", (number,)) for number in range(count)]


def test_a_part_that_fails_does_not_stop_the_others_and_the_first_error_counts_them(
    ray: TasksHere, context: Callable[..., Context]
) -> None:
    done = []

    def compute(number: int, told: Any, threads: int) -> tuple[list[str], float]:
        done.append(number)
        if number % 2:
            raise RunError(f"no {number}")
        return ["watch out"], 1.0

    with pytest.raises(RunError, match=r"no 1 \(2 of 4 parts failed\)"):
        map_on_ray(context(), "score_nets", compute, parts_of(4), 4, Bars())  # type: ignore[arg-type]
    assert done == [0, 1, 2, 3]
    assert ray.options["max_retries"] == 3
    warnings = map_on_ray(context(), "score_nets", compute, [Part("a", (0,)), Part("b", (2,))], 4, Bars())  # type: ignore[arg-type]
    assert warnings == ["watch out"]


def test_an_unexpected_error_in_a_part_keeps_its_traceback_and_does_not_count_as_a_loss_of_ray(
    ray: TasksHere, context: Callable[..., Context]
) -> None:
    """A scheduler that repeats runs which lost Ray must not repeat this one for ever."""

    def compute(number: int, told: Any, threads: int) -> tuple[list[str], float]:
        raise TypeError("unsupported operand")

    with pytest.raises(TypeError, match="unsupported operand") as caught:
        map_on_ray(context(), "score_nets", compute, parts_of(1), 1, Bars())  # type: ignore[arg-type]
    assert cluster.as_lost(caught.value) is caught.value
    assert "Traceback ..." in caught.value.__notes__[0]
    within = ray_exceptions.RayTaskError("function", "Traceback ...", KeyError("x"))
    assert isinstance(cluster.as_lost(within), KeyError)
    assert isinstance(cluster.as_lost(ray_exceptions.RaySystemError("gone")), EngineLost)


@pytest.mark.parametrize("kind", ["raylet", "gcs_server"])
@pytest.mark.parametrize("moment", ["asked for", "submitted", "failed"])
def test_ray_that_dies_at_any_moment_is_lost_even_while_it_still_lists_its_node(
    kind: str, moment: str, ray: TasksHere, context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    dead: list[tuple[str, None]] = [(kind, None)] if moment == "asked for" else []
    node = types.SimpleNamespace(dead_processes=lambda: dead)
    monkeypatch.setattr("ray._private.worker._global_node", node)

    def compute(number: int, told: Any, threads: int) -> tuple[list[str], float]:
        if moment == "failed":
            dead.append((kind, None))
            raise ray_exceptions.WorkerCrashedError
        return [], 1.0

    if moment == "submitted":
        monkeypatch.setattr(cluster, "LOOK_SECONDS", 0)
        monkeypatch.setattr(ray, "wait", lambda running, **options: (dead.append((kind, None)), ([], running))[1])
    with pytest.raises(EngineLost, match="Ray died during the run"):
        map_on_ray(context(), "score_nets", compute, parts_of(2), 2, Bars())  # type: ignore[arg-type]
    other = context(ray_address="somewhere:1")  # whose processes are not here
    assert cluster.live_nodes(ray, other.resources)


def test_a_part_whose_worker_was_lost_is_repeated_as_often_as_it_may_be(
    ray: TasksHere, context: Callable[..., Context]
) -> None:
    tries: list[int] = []

    def compute(number: int, told: Any, threads: int) -> tuple[list[str], float]:
        tries.append(number)
        if number == 1:
            raise ray_exceptions.WorkerCrashedError()
        if number == 2:
            raise RunError("diverged")
        return [], 1.0

    _, failures = calls_on_ray(
        context(), "train", compute, parts_of(4), 4, Bars(), may_repeat=lambda number: tries.count(number) < 3  # type: ignore[arg-type]
    )  # fmt: skip
    assert ray.options["max_retries"] == 0
    assert [tries.count(number) for number in range(4)] == [1, 3, 1, 1]
    assert failures.keys() == {1, 2}
    assert str(failures[2]) == "diverged"


LIVE, DYING, DEAD = (
    {"Alive": True, "Resources": {"CPU": 4.0}},
    {"Alive": True, "Resources": {}},
    {"Alive": False, "Resources": {"CPU": 4.0}},
)


@pytest.mark.parametrize(
    "listed", [[LIVE], [DEAD], [DYING], [LIVE, DEAD], [LIVE, DYING], [LIVE, LIVE, DEAD]], ids=lambda nodes: len(nodes)
)
def test_the_loss_of_ray_on_this_machine_ends_the_run_at_once(
    ray: TasksHere, context: Callable[..., Context], listed: list[dict[str, Any]]
) -> None:
    """A task's error may tell, or the list of nodes at any moment; the user is never asked to lower a demand."""

    def compute(number: int, told: Any, threads: int) -> tuple[list[str], float]:
        raise ray_exceptions.LocalRayletDiedError()

    ray.nodes = lambda: [listed.pop(0) if len(listed) > 1 else listed[0]]  # type: ignore[method-assign]
    with pytest.raises(EngineLost, match=r"Ray died during the run .* run the same command again"):
        calls_on_ray(context(), "train", compute, parts_of(2), 2, Bars(), may_repeat=lambda number: True)  # type: ignore[arg-type]


@pytest.mark.parametrize(("parts", "threads"), [(1, 8), (2, 4), (3, 2), (8, 1), (50, 1)])
def test_threads_follow_from_the_parts_of_the_whole_step_and_not_from_those_that_are_missing(
    ray: TasksHere, context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch, parts: int, threads: int
) -> None:
    monkeypatch.setattr("memlib.specs.resources.cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    ray.nodes = lambda: [{"Alive": True, "Resources": {"CPU": 8.0}}]  # type: ignore[method-assign]
    given = []

    def compute(number: int, told: Any, granted: int) -> tuple[list[str], float]:
        given.append(granted)
        return [], 0.0

    calls_on_ray(context(), "train", compute, parts_of(1), parts, Bars())  # type: ignore[arg-type]
    calls_on_ray(context(threads_per_worker=3), "train", compute, parts_of(1), parts, Bars())  # type: ignore[arg-type]
    calls_on_ray(context(stages={"train": {"cpus": 2}}), "train", compute, parts_of(1), parts, Bars())  # type: ignore[arg-type]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    calls_on_ray(context(threads_per_worker=3), "train", compute, parts_of(1), parts, Bars())  # type: ignore[arg-type]
    assert given == [threads, 3, 2, 1]
    assert ray.options["num_cpus"] == 3  # the limit of threads leaves the cores that are reserved as they are
    assert context(ray_address="auto").resources.threads("train", parts) == 1


def test_workers_tell_their_progress_and_the_time_they_take(
    ray: TasksHere, context: Callable[..., Context], table: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver looks while parts are under way, and counts only what it has not counted yet."""
    monkeypatch.setattr(news, "NEWS_SECONDS", 0.0)
    bars, spent = Bars(), []
    with news.hearing(["a", "b"], bars, lambda workers, seconds: spent.append(seconds)) as heard:  # type: ignore[arg-type]
        told = heard.of(0)
        tell = told.reporter()
        tell(3, 10, "loss 1")
        (key,) = table
        table[key] = json.dumps(json.loads(table[key]) | {"seconds": 2.0}).encode()
        heard.look([0, 1])
        heard.end(0, 5.0)
        heard.end(1, 1.0)
    assert bars.moves == [("a", 3, 10, "loss 1"), ("a", 10, 10, ""), ("b", 10, 10, "")]
    assert spent == [2.0, 3.0, 1.0]
    assert not table


def test_the_time_of_a_lost_worker_is_counted_once(table: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last entry, of 100 s, is still in the table while its successor, which takes 7 s, has told nothing yet."""
    monkeypatch.setattr(news, "NEWS_SECONDS", 0.0)
    spent: list[float] = []
    with news.hearing(["a"], Bars(), lambda workers, seconds: spent.append(seconds)) as heard:  # type: ignore[arg-type]
        table[heard.of(0).key] = json.dumps({"done": 3, "total": 10, "note": "", "seconds": 100.0}).encode()
        heard.look([0])
        heard.of(0)
        heard.look([0])
        heard.end(0, 7.0)
    assert spent == [100.0, 7.0]
    assert not table


def test_a_table_that_does_not_answer_stops_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError

    for name in ("put", "get", "del"):
        monkeypatch.setattr(f"{TABLE}._internal_kv_{name}", fail)
    monkeypatch.setattr(news, "NEWS_SECONDS", 0.0)
    bars = Bars()
    with news.hearing(["a"], bars, lambda workers, seconds: None) as heard:  # type: ignore[arg-type]
        heard.of(0).reporter()(1, 2)
        heard.look([0])
    assert bars.moves == []


class Job:
    """A model as far as its training is told: a name, and the step that it has saved."""

    def __init__(self, name: str, outcomes: list[Any]) -> None:
        self.name, self.outcomes, self.step = name, outcomes, 0
        self.identity = types.SimpleNamespace(inputs={})

    def record(self, reads: dict[str, str]) -> dict[str, Any]:
        return {}


def train(monkeypatch: pytest.MonkeyPatch, ray: TasksHere, context: Context, *jobs: Job) -> list[Any]:
    def train_there(job: Job, making: Any, resume_seconds: float, told: Any, threads: int) -> tuple[list[str], float]:
        outcome = job.outcomes.pop(0)
        if isinstance(outcome, int):  # gets as far as this step, then its worker is killed
            job.step = outcome
            raise ray_exceptions.WorkerCrashedError()
        if outcome is not None:
            raise outcome
        return [], 1.0

    monkeypatch.setattr(training, "train_there", train_there)
    monkeypatch.setattr(training, "saved_step", lambda job: job.step)
    return training._by_tasks(ray, context, jobs, len(jobs), Bars(), {"CPU": 1.0}, "train")  # type: ignore[arg-type]


def test_a_model_is_given_up_after_losses_without_any_progress_in_between(
    ray: TasksHere, context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, stuck = Job("slow", [1, 2, 3, 4, 5, None]), Job("stuck", [7, 7, 7, None])
    problems = train(monkeypatch, ray, context(max_failures=1), slow, stuck)
    assert slow.outcomes == []  # five losses, each further than the one before
    assert [name for name, _ in problems] == ["stuck"]
    assert "its workers were lost 2 times at step 7 (resources.max_failures)" in problems[0][1][0]
    assert stuck.outcomes == [None]


def test_a_model_that_diverges_or_reads_damage_is_named_and_does_not_stop_the_others(
    ray: TasksHere, context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = Ref("decode", "0" * 32)
    jobs = Job("a", [RunError("the loss is not finite")]), Job("b", [CorruptArtifact("damaged", ref)]), Job("c", [None])
    problems = train(monkeypatch, ray, context(), *jobs)
    assert jobs[2].outcomes == []
    assert problems == [("a", ("the loss is not finite", None)), ("b", ("damaged", ref))]


@pytest.mark.parametrize(
    ("resources", "needs", "tasks"),
    [
        ({}, {"CPU": 1}, True),
        ({}, {"CPU": 1, "GPU": 1}, False),
        ({"workers_per_model": 2}, {"CPU": 1}, False),
        ({"ray_address": "auto"}, {"CPU": 1}, False),
        ({"elastic": True}, {"CPU": 1}, False),
        ({"trainer": "train"}, {"CPU": 1}, False),
        ({"trainer": "tasks", "ray_address": "auto"}, {"CPU": 1, "GPU": 1}, True),
    ],
)
def test_a_model_that_one_cpu_worker_of_this_machine_trains_is_a_task(
    resources: dict[str, Any], needs: dict[str, float], tasks: bool
) -> None:
    assert training.uses_tasks(Resources.model_validate(resources), needs) is tasks


def test_a_task_trains_a_model_alone() -> None:
    with pytest.raises(
        UserError, match="workers_per_model is 2, but with trainer tasks one worker trains a model; set trainer"
    ):
        validate(Resources, {"trainer": "tasks", "workers_per_model": 2})
