"""The resources that a part requests of a node, the number of parts that fit, and the end of waiting."""

import os
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from ray import exceptions as ray_exceptions

from memlib.audits.deja_vu.generating import GenerateTrain
from memlib.errors import RunError, UserError
from memlib.recipes.files import validate
from memlib.running.threads import settings_of
from memlib.specs import Resources
from memlib.store import Store
from tasks import cluster, training
from tasks.cluster import Watch, needs_in_words, needs_of, places
from tasks.runtime import Context
from tasks.training_board import Board


class FakeRay:
    """Nodes by what they have; dead ones too."""

    def __init__(self, *nodes: dict[str, float], dead: int = 0) -> None:
        self.found = [{"Alive": True, "Resources": node} for node in nodes]
        self.found += [{"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}] * dead

    def nodes(self) -> list[dict[str, Any]]:
        return self.found


@pytest.fixture
def context(tmp_path: Path) -> Any:
    def make(**resources: Any) -> Context:
        return Context(Store(str(tmp_path)), Resources.model_validate(resources))

    return make


class StartedRay(types.ModuleType):
    """Ray as far as it is started; it notes the options, and the environment that its workers inherit."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.options: dict[str, Any] = {}
        self.environment: dict[str, str] = {}

    def is_initialized(self) -> bool:
        return bool(self.options)

    def init(self, **options: Any) -> None:
        self.options, self.environment = options, dict(cluster.os.environ)

    def shutdown(self) -> None:
        self.options = {}


@pytest.fixture
def started(context: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The options and the environment with which Ray is started on this machine."""
    ray = StartedRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(cluster, "_job_config", lambda: None)
    monkeypatch.setattr(cluster, "_own_folder", lambda: "/nowhere")
    monkeypatch.setattr(cluster, "_inherited", {})
    monkeypatch.setattr(cluster.os, "environ", {"AWS_PROFILE": "x", "MALLOC_TRIM_THRESHOLD_": "7"})

    def start(**resources: Any) -> tuple[dict[str, Any], dict[str, str]]:
        ray.options = {}
        cluster.start_ray(context(**resources))
        return ray.options, cluster.os.environ

    return start


def test_ray_on_this_machine_exports_no_metrics_and_requires_a_token(started: Any) -> None:
    options, environment = started()
    assert options["include_dashboard"] is False
    assert options["_node_ip_address"] == "127.0.0.1"
    assert environment["AUTOSCALER_METRIC_PORT"] == "-1"
    assert environment["RAY_AUTH_MODE"] == "token"
    assert len(environment["RAY_AUTH_TOKEN"]) == 64
    assert not [name for name in options if "metric" in name]


def test_workers_of_ray_on_this_machine_inherit_their_environment(started: Any) -> None:
    """A process with an environment of its own cannot be one that Ray has already started."""
    _, environment = started()
    needed = cluster.worker_environment(None)
    assert sys.modules["ray"].environment.items() >= needed.items()  # type: ignore[attr-defined]
    assert environment["MALLOC_TRIM_THRESHOLD_"] == "7"
    assert "MALLOC_MMAP_THRESHOLD_" not in environment
    assert cluster.runtime_env(None) == {}
    environment["MEMLIB_LOG"] = "json"
    assert cluster.runtime_env(None) == {"env_vars": {"MEMLIB_LOG": "json"}}
    del environment["MEMLIB_LOG"]
    cluster.stop_ray()
    assert cluster.runtime_env(None) == {"env_vars": needed}  # as in a program that has started Ray itself
    started(ray_address="auto")
    assert cluster.runtime_env("auto") == {"env_vars": cluster.worker_environment("auto")}


def test_ray_that_another_thread_is_starting_is_stopped_when_it_has_started(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is refused meanwhile ends with its own message: Ray would end the process with status 1."""
    ray, begun, may_end, ended = sys.modules["ray"], threading.Event(), threading.Event(), list[str]()

    def init(**options: Any) -> None:
        ray.options = options  # type: ignore[attr-defined]
        begun.set()
        may_end.wait(60)
        ended.append("started")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append("stopped"))
    starting = threading.Thread(target=started)
    starting.start()
    assert begun.wait(60)
    stopping = threading.Thread(target=cluster.stop_ray)
    stopping.start()
    stopping.join(0.2)  # time enough for a stop that does not wait
    may_end.set()
    starting.join()
    stopping.join()
    assert ended == ["started", "stopped"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="loopback has another name")
def test_gradients_stay_on_loopback_even_if_the_program_has_started_ray_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_inherited", {})
    assert cluster.runtime_env(None)["env_vars"].items() >= cluster.LOOPBACK.items()
    assert not cluster.LOOPBACK.keys() & cluster.runtime_env("auto")["env_vars"].keys()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system pins no process to cores")
def test_a_process_that_is_pinned_to_a_core_uses_one() -> None:
    """Under taskset, Ray's CPUs, the number of reading threads and the output of memlib doctor follow the affinity."""
    program = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from pathlib import Path
from unittest import mock
import ray
from flows.cli.start import _looked_at
from memlib.data.images.stored import Encoded
from memlib.specs import Resources
from memlib.store import Store
from tasks import cluster
from tasks.runtime import Context
with mock.patch.object(ray, "init") as init:
    cluster.start_ray(Context(Store("store"), Resources()))
print(init.call_args.kwargs["num_cpus"], Encoded._threads.func(None), next(_looked_at("store"))[1].rpartition(", ")[2])
"""
    environment = {name: value for name, value in os.environ.items() if name not in ("SLURM_CPUS_ON_NODE", "OMP_NUM_THREADS")}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment, cwd=Path.cwd()
    )
    assert ended.stdout.splitlines()[-1:] == ["1 1 1 cores"], ended.stderr


def test_a_part_requests_a_core_and_a_gpu_if_the_cluster_has_gpus(context: Any) -> None:
    cpus, gpus = FakeRay({"CPU": 4}), FakeRay({"CPU": 4}, {"CPU": 8, "GPU": 2})
    assert needs_of(cpus, context(), "score_nets", 1000) == {"CPU": 1}
    assert needs_of(gpus, context(), "score_nets", 1000) == {"CPU": 1, "GPU": 1}
    assert needs_of(gpus, context(gpu=False), "score_nets", 1000) == {"CPU": 1}
    assert needs_of(cpus, context(threads_per_worker=3), "score_nets", 1000) == {"CPU": 3}


def test_a_stage_can_request_its_own_resources(context: Any) -> None:
    asked = {"cpus": 2, "gpus": 0.5, "memory_gb": 4, "accelerator_type": "A100", "custom": {"licence": 1}}
    mine = context(stages={"corpus": asked})
    needs = needs_of(FakeRay({"CPU": 4}), mine, "secret/corpus", 1000)
    assert needs == {"CPU": 2, "GPU": 0.5, "memory": 4 * 2**30, "accelerator_type:A100": 0.001, "licence": 1}
    assert needs_in_words(needs) == "2 CPU and 0.5 GPU and 4 GiB memory and A100 and 1 licence"
    assert needs_of(FakeRay({"CPU": 4}), mine, "train", 1000) == {"CPU": 1}


@pytest.mark.parametrize(
    ("asked", "said"),
    [({"gpus": 1.5}, "above 1 it must be a whole number"), ({"custom": {"CPU": 2}}, "set it with its own key instead")],
)
def test_resources_refuse_amounts_that_ray_does_not_accept(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        validate(Resources, {"stages": {"train": asked}})
    Resources(stages={"train": {"gpus": 0.5, "custom": {"licence": 1}}, "outputs": {"gpus": 2}})


def test_places_are_counted_per_node_and_only_on_live_nodes() -> None:
    ray = FakeRay({"CPU": 3, "GPU": 2}, {"CPU": 3}, {"CPU": 1, "GPU": 1}, dead=2)
    one = Resources()
    assert places(ray, one, {"CPU": 2}) == 2  # the single cores of two nodes make no third place
    assert places(ray, one, {"CPU": 1, "GPU": 1}) == 3
    assert places(ray, one, {"CPU": 1, "GPU": 0.5}) == 4
    assert places(ray, one, {"CPU": 1, "licence": 1}) == 0


def test_models_of_one_worker_share_a_gpu_and_others_do_not(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay({"CPU": 8, "GPU": 1})
    monkeypatch.setattr(training, "start_ray", lambda context: ray)
    half = {"train": {"gpus": 0.5}}
    assert training._groups(ray, context(stages=half), needs_of(ray, context(stages=half), "train", 1000), 10) == 2
    with pytest.raises(UserError, match="train one model together need whole GPUs"):
        training.train_on_ray(context(stages=half, workers_per_model=2), [GenerateTrain.__new__(GenerateTrain)], 1, bars=None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(cluster.time, "monotonic", lambda: now[0])
    return now


def test_waiting_for_a_node_ends_after_the_room_timeout(
    context: Any, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, mine = FakeRay({"CPU": 2}), context(ray_address="auto", room_timeout=60)
    watch = Watch(ray, mine, "train", {"CPU": 1}, parts=2)
    clock[0] = 1000
    watch.look()  # work takes as long as it takes
    lost, ray.found = ray.found, [{"Alive": True, "Resources": {"CPU": 1}}]
    clock[0] = 1050
    noted: list[str] = []
    monkeypatch.setattr(mine.journal, "note", lambda event, stage, *, waits: noted.append(f"{event} {stage}: {waits}"))
    watch.look()
    watch.look()
    assert noted == ["waiting train: a node with room for 2 x 1 CPU"]
    ray.found = lost  # it came back
    clock[0] = 1070
    watch.look()
    assert noted[1:] == ["waiting train: "]
    ray.found = []
    clock[0] = 1131
    with pytest.raises(RunError, match=r"for 60 s .* no room for 2 x 1 CPU, which train needs; add nodes and run"):
        watch.look()


def test_a_stage_has_its_own_time_limit(context: Any, clock: list[float]) -> None:
    mine = context(stages={"train": {"timeout": 30}})
    for stage, ends in (("train", True), ("score_nets", False)):
        clock[0] = 0
        watch = Watch(FakeRay({"CPU": 2}), mine, stage, {"CPU": 1})
        clock[0] = 31
        if ends:
            with pytest.raises(
                RunError, match=r"train was stopped after its time limit of 30 s; raise resources.stages.train.timeout"
            ):
                watch.look()
        else:
            watch.look()


def test_an_autoscaling_cluster_is_asked_for_nodes_and_waited_for(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ray, asked = FakeRay(), []
    monkeypatch.setattr("ray.autoscaler.sdk.request_resources", lambda bundles: asked.append(bundles))

    def sleep(seconds: float) -> None:
        ray.found = [{"Alive": True, "Resources": {"CPU": 64, "GPU": 8}}]

    monkeypatch.setattr(training.time, "sleep", sleep)
    mine = context(ray_address="auto", gpu=True, workers_per_model=4)
    needs = needs_of(ray, mine, "train", 50)
    assert training._groups(ray, mine, needs, 1) == 2
    assert asked == [[{"CPU": 1, "GPU": 1}] * 4, []]  # and nothing more is asked for once it is there
    ray.found = []
    mine.shared.stopped.set()
    with pytest.raises(RunError, match="stopped because its sweep was stopped"):
        training._groups(ray, mine, needs, 1)


def test_an_autoscaling_cluster_is_asked_for_all_models_at_once(
    context: Any, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    ray, asked = FakeRay(), []
    monkeypatch.setattr("ray.autoscaler.sdk.request_resources", lambda bundles: asked.append(len(bundles)))
    nodes = iter([1, 1, 3, 3])

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        ray.found = [{"Alive": True, "Resources": {"CPU": 4}}] * next(nodes, 3)

    monkeypatch.setattr(training.time, "sleep", sleep)
    mine = context(ray_address="auto", gpu=False)
    assert training._groups(ray, mine, needs_of(ray, mine, "train", 50), 50) == 12  # as far as it grew
    assert asked == [50, 0]
    assert training.GROWING_SECONDS < clock[0] < 2 * training.GROWING_SECONDS
    before = clock[0]
    assert training._groups(ray, mine, needs_of(ray, mine, "train", 50), 50) == 12  # what has room is not waited for
    assert clock[0] == before


def test_the_training_queue_hands_out_models_and_counts_failures_per_model() -> None:
    board = Board(["a", "b", "c"], max_failures=1)
    board.begin("first")
    board.begin("first")  # every worker says so
    assert (board.take(0), board.take(1)) == (0, 1)
    assert board.may_start(0, 0)
    assert board.may_start(1, 0)
    assert board.take(1) == 2  # b has ended
    assert board.may_start(2, 0)
    board.begin("second")  # a worker was lost
    assert (board.take(0), board.take(1), board.take(2)) == (0, 2, None)
    assert board.may_start(0, 0)
    assert board.may_start(2, 7)  # c got further
    board.begin("third")
    assert not board.may_start(board.take(0), 0)
    assert board.may_start(board.take(1), 7)
    assert board.take(0) is None
    assert list(board.problems()) == ["a"]
    assert "lost 2 times at step 0" in board.problems()["a"][0]


def test_a_rejected_ray_token_raises_a_one_line_run_error(context: Any) -> None:
    class Ray:
        exceptions = ray_exceptions

        def init(self, **options: Any) -> None:
            raise ray_exceptions.AuthenticationError("")

    with pytest.raises(RunError, match=r"cannot reach the Ray cluster at auto .* requires a token"):
        cluster._connect(Ray(), context(ray_address="auto"))


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RunError("no room")])
def test_cause_of_a_failed_part_is_a_run_error_without_traceback(error: Exception) -> None:
    class Ray:
        exceptions = ray_exceptions

    found = cluster._cause(Ray(), ray_exceptions.RayTaskError("compute_there", "Traceback ...", error))
    assert isinstance(found, RunError)
    assert str(error) in str(found)
    assert "Traceback" not in str(found)


def test_a_thousand_models_with_one_problem_are_one_line() -> None:
    assert training._in_a_line([("target", "no")]) == "target: no"
    assert (
        training._in_a_line([(f"shadow {i}", "no") for i in range(1000)])
        == "shadow 0: no; shadow 1: no; and 998 other models"
    )


@pytest.mark.long
def test_a_background_fit_does_not_delay_process_exit() -> None:
    assert training._begin(lambda word: word, "done").result(timeout=300) == "done"
    with pytest.raises(RunError, match="no"):
        training._begin(cluster._check_address, "127.0.0.1:1").result(timeout=300)
    code = "import time; from tasks.training import _begin; _begin(time.sleep, 3600)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode == 0


class HereRay(FakeRay):
    """Ray whose worker is this process, or that never finds one."""

    is_stuck = False

    def remote(self, **options: Any) -> Any:
        return lambda function: type("Remote", (), {"remote": staticmethod(function)})

    def wait(self, asked: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return ([], asked) if self.is_stuck else (asked, [])

    def get(self, found: str) -> str:
        return found


def test_workers_that_cannot_read_the_store_raise_an_error_before_the_fit(
    context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = context(ray_address="auto")
    with pytest.raises(RunError, match=r"cannot read the store .* \(no store exists at this address\); give the workers"):
        training._check_reach(HereRay({"CPU": 2}), mine, "train")
    mine.store.begin()
    training._check_reach(HereRay({"CPU": 2}), mine, "train")
    monkeypatch.setattr(Store, "marker", lambda self: (_ for _ in ()).throw(PermissionError("no credentials\nmore")))
    with pytest.raises(RunError, match=r"\(PermissionError: no credentials\); give") as caught:
        training._check_reach(HereRay({"CPU": 2}), mine, "train")
    assert "\n" not in str(caught.value)
    training._check_reach(HereRay(), context(), "train")  # all is on this machine


@pytest.mark.parametrize(
    ("stages", "found"),
    [({}, "train"), ({"train": {"gpus": 1}}, "train"), ({"generate_train": {"gpus": 1}}, "generate_train")],
)
def test_generators_use_the_resources_of_all_training_unless_they_have_their_own(stages: Any, found: str) -> None:
    assert settings_of(Resources(stages=stages), GenerateTrain.__new__(GenerateTrain)) == found


def test_the_loss_of_all_nodes_before_a_training_has_begun_ends_it(context: Any, clock: list[float]) -> None:
    ray = HereRay(dead=1)
    ray.is_stuck = True
    mine = context(ray_address="auto", room_timeout=60)
    mine.check_going = lambda: clock.__setitem__(0, clock[0] + 40)
    with pytest.raises(RunError, match=r"for 60 s .* no room for 1 x 1 CPU, which train_pairs needs"):
        training._check_reach(ray, mine, "train_pairs")
