"""Prefect displays work but cannot lose it, and no work is done twice."""

from collections.abc import Callable, Iterator

import httpx
import pytest
from prefect.exceptions import PrefectHTTPStatusError

from tasks import display
from tasks.display import shown

Work = Callable[[], int]


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bool]]:
    answers = {"answers": True}
    monkeypatch.setattr(display, "_answers", lambda: answers["answers"])
    monkeypatch.setattr(display, "LOOK_SECONDS", 0.0)
    display._gone.clear()
    yield answers
    display._gone.clear()


def test_errors_are_raised_while_the_prefect_server_responds(server: dict[str, bool]) -> None:
    assert shown(lambda work: work() + 1, lambda: 1) == 2
    with pytest.raises(ZeroDivisionError):  # of Prefect's: its server is there, so this is a defect
        shown(lambda work: work() // 0, lambda: 1)


@pytest.mark.parametrize("when", ["before", "after", "never"])
def test_work_runs_once_whenever_the_prefect_server_is_lost(server: dict[str, bool], when: str) -> None:
    done: list[int] = []

    def through_prefect(work: Work) -> int:
        if when == "before":
            server["answers"] = False
            raise ConnectionError("no server")
        found = work()
        if when == "after":
            server["answers"] = False
            raise ConnectionError("no server")
        return found

    def work() -> int:
        done.append(1)
        return 7

    assert shown(through_prefect, work) == 7
    assert done == [1]
    assert shown(lambda _: pytest.fail("asked again"), work) == 7 if when != "never" else True


def test_errors_of_the_work_are_raised_even_if_the_prefect_server_is_gone(server: dict[str, bool]) -> None:
    def work() -> int:
        server["answers"] = False
        raise ValueError("the work's own")

    with pytest.raises(ValueError, match="own"):
        shown(lambda work: work(), work)


def test_a_prefect_server_that_is_slow_once_does_not_count_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, True])
    monkeypatch.setattr(display, "_answers", lambda: next(answers))
    assert not display.is_gone()


def test_display_calls_stop_once_prefect_no_longer_responds(
    server: dict[str, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    display.quietly(told.append, "a")
    server["answers"] = False

    def fails() -> None:
        raise ConnectionError("no server")

    display.quietly(fails)
    assert "no longer responds" in capsys.readouterr().err
    display.quietly(told.append, "b")
    assert told == ["a"]


@pytest.mark.parametrize(("status", "gone"), [(503, True), (500, True), (404, False), (409, False)])
def test_a_server_error_counts_as_gone_and_a_client_error_is_raised(status: int, gone: bool, server: dict[str, bool]) -> None:
    done: list[int] = []

    def through_prefect(work: Work) -> int:
        request = httpx.Request("POST", "http://127.0.0.1/api/flow_runs/")
        raise PrefectHTTPStatusError("said", request=request, response=httpx.Response(status, request=request))

    def work() -> int:
        done.append(1)
        return 7

    if gone:
        assert shown(through_prefect, work) == 7
        assert done == [1]
    else:  # ours to mend
        with pytest.raises(PrefectHTTPStatusError):
            shown(through_prefect, work)
    assert display.gone() == gone
