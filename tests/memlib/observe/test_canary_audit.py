"""Canaries in plain training loops: pictures and documents, looks at their places, and a test that stops the loop."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import memlib
from memlib.data.canaries.losses import read_losses, score_canaries
from memlib.data.canaries.pictures import ALL_FILE, INSERT_FILE, read_pictures, write_pictures
from memlib.data.canaries.plan import COINS_FILE, PLAN_FILE, read_coins
from memlib.errors import UserError
from memlib.findings import Findings
from memlib.observe.canary_audit import CanaryAudit
from memlib.observe.canary_pictures import unit_pictures
from memlib.stats.canaries import Plan, audit_canaries

SHAPE, CLASSES, COUNT = (8, 8, 3), 4, 80


def made(folder: Path, looks: int, **plan: Any) -> Path:
    write_pictures(folder, COUNT, SHAPE, CLASSES, plan=Plan.of(looks, **plan), secret=b"s" * 32, seed=1)
    return folder


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, CLASSES))


def train(audit: CanaryAudit, folder: Path, *, steps: int, model: nn.Module | None = None, inserted: bool = True) -> int:
    """Train a classifier of pictures in a plain loop; return the step at which it ended."""
    model = network() if model is None else model
    with np.load(folder / INSERT_FILE) as arrays:
        images, labels = unit_pictures(arrays["images"]), torch.from_numpy(arrays["labels"])
    if not inserted:
        images = torch.rand(images.shape, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    audit.begin(model)
    step = 0
    for step in range(1, steps + 1):
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        if audit.look(model, step, of=steps):
            break
    audit.end(model, step)
    return step


def test_a_plain_loop_stops_at_the_first_exact_stop(tmp_path: Path) -> None:
    folder, losses = made(tmp_path / "c", looks=10), tmp_path / "l.parquet"
    audit = CanaryAudit(folder, losses, coins=folder, stop=True)
    with pytest.warns(UserWarning, match=r"look \d of 10: the training remembers its canaries .*; the training is stopped"):
        ended = train(audit, folder, steps=100)
    recorded = read_losses(losses)
    assert ended < 100
    assert recorded.stopped == ended // 10
    assert audit.result is not None
    assert audit.result.looked.stopped == recorded.stopped
    with pytest.warns(UserWarning, match=f"this training was stopped by the test of its canaries at look {recorded.stopped}"):
        CanaryAudit(folder, losses).begin(network(), step=ended)


def test_the_loop_and_its_run_have_the_same_numbers(tmp_path: Path) -> None:
    folder = made(tmp_path / "c", looks=5)
    audit = CanaryAudit(folder, tmp_path / "l.parquet", coins=folder, epsilon=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(audit, folder, steps=50)
    run = memlib.run(audit.recipe, store=str(tmp_path / "store"), quiet=True)
    head, claim = (Findings.of_run(run.record).first(name) for name in ("canary_auc", "privacy_claim"))
    assert audit.result is not None
    assert audit.result.claim is not None
    assert (head.value, head.p_value) == (audit.result.auc, audit.result.looked.p_value)
    assert head.params["stopped"] == audit.result.looked.stopped
    assert claim.p_value == audit.result.claim.p_value
    with pytest.raises(UserError, match="an audit needs the coins"):
        assert CanaryAudit(folder, tmp_path / "m.parquet").recipe


def test_a_loop_that_did_not_see_the_canaries_goes_on(tmp_path: Path) -> None:
    folder, losses = made(tmp_path / "c", looks=10), tmp_path / "l.parquet"
    assert train(CanaryAudit(folder, losses, coins=folder, stop=True), folder, steps=20, inserted=False) == 20
    recorded, coins = read_losses(losses), read_coins(folder)
    assert recorded.looks == {look: 2 * look for look in range(1, 11)}
    scores = score_canaries(recorded.table, coins.canaries, steps=set(recorded.looks.values()))
    found = {look: scores.values[step] for look, step in recorded.looks.items()}
    assert audit_canaries(found, coins.inside, coins.plan, guesses=coins.guesses, seed=coins.seed).looked.stopped is None


def test_the_loop_trains_the_same_weights_with_and_without_looks(tmp_path: Path) -> None:
    folder = made(tmp_path / "c", looks=5)

    class Nothing(CanaryAudit):
        def look(self, model: nn.Module, step: int, *, of: int | None = None, epoch: int | None = None) -> bool:
            return False

    weights = []
    for kind in (CanaryAudit, Nothing):
        model = network()
        train(kind(folder, tmp_path / f"{kind.__name__}.parquet"), folder, steps=10, model=model)
        assert all(module.training for module in model.modules())
        weights.append(torch.cat([one.detach().flatten() for one in model.parameters()]))
    assert torch.equal(*weights)


def test_a_claim_that_is_refuted_stops_at_its_own_looks(tmp_path: Path) -> None:
    folder = made(tmp_path / "c", looks=8)
    calls: list[Any] = []

    def act(result: Any) -> None:
        calls.append(result)

    audit = CanaryAudit(folder, tmp_path / "l.parquet", coins=folder, stop=act, epsilon=0.01)
    assert train(audit, folder, steps=80) == 80  # a function that returns nothing stops nothing
    assert any(result.claim.p_value <= 0.05 for result in calls)
    assert read_losses(tmp_path / "l.parquet").stopped is None


def test_looks_need_the_number_of_steps_and_tokenizer_or_coins_where_they_are_used(tmp_path: Path) -> None:
    folder = made(tmp_path / "c", looks=4)
    audit = CanaryAudit(folder, tmp_path / "l.parquet")
    with pytest.raises(UserError, match="give its number of optimizer steps"):
        audit.look(network(), 1)
    for settings in ({"stop": "warn"}, {"epsilon": 8.0}):
        with pytest.raises(UserError, match="the coins must be at hand"):
            CanaryAudit(folder, tmp_path / "l.parquet", **settings)  # type: ignore[arg-type]
    for settings, said in (
        ({"epsilon": -5.0}, "epsilon is -5"),
        ({"delta": 7.0}, "delta is 7"),
        ({"scope": "foo"}, "scope is 'foo'"),
    ):
        with pytest.raises(UserError, match=said):
            CanaryAudit(folder, tmp_path / "l.parquet", coins=folder, **settings)  # type: ignore[arg-type]
    for place, said in (
        (tmp_path, "cannot read the losses of"),
        (tmp_path / "c" / "all.npz" / "l.parquet", "cannot write the"),
    ):
        with pytest.raises(UserError, match=said):
            CanaryAudit(folder, place).begin(network())
    with pytest.raises(UserError, match="the model returns no scores of 4 classes or more"):
        audit.begin(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)))
    (folder / PLAN_FILE).write_text((folder / PLAN_FILE).read_text().replace('"late"', '"equal"'))
    with pytest.raises(UserError, match="the plan of the looks .* is not that of the coins"):
        CanaryAudit(folder, tmp_path / "l.parquet", coins=folder, stop=True)
    (folder / COINS_FILE).unlink()
    with pytest.raises(UserError, match=r"has no coins.parquet"):
        CanaryAudit(folder, tmp_path / "l.parquet", coins=folder, stop=True)


def test_resumed_loops_keep_the_first_of_each_look_and_say_what_is_missing(tmp_path: Path) -> None:
    folder, losses = made(tmp_path / "c", looks=4), tmp_path / "l.parquet"
    audit, model = CanaryAudit(folder, losses), network()
    audit.begin(model)
    for step in range(1, 4):
        audit.look(model, step, of=4)
    first = read_losses(losses)
    again = CanaryAudit(folder, losses)
    again.begin(model, step=1)
    nn.init.zeros_(model[4].weight)  # type: ignore[arg-type, index]
    for step in range(2, 5):
        again.look(model, step, of=4)
    again.end(model, 4)
    kept = read_losses(losses)
    assert (kept.looks, kept.repeated) == ({1: 1, 2: 2, 3: 3, 4: 4}, (2, 3))
    assert kept.table.filter(kept.table["step"].to_numpy() <= 3).equals(first.table)
    write_pictures(tmp_path / "other", COUNT, SHAPE, CLASSES, plan=Plan.of(4), secret=b"t" * 32, seed=1)
    with pytest.raises(UserError, match="has losses of other canaries, or by another plan"):
        CanaryAudit(tmp_path / "other", losses).begin(model, step=1)
    with pytest.warns(UserWarning, match="its earlier losses are missing"):
        CanaryAudit(folder, tmp_path / "none.parquet").begin(model, step=3)


def test_a_training_that_ends_early_has_the_share_of_the_place_where_it_ended(tmp_path: Path) -> None:
    """Else whoever sees the results could end it where they please. Resumed, it goes on with its own looks."""
    folder, losses = made(tmp_path / "c", looks=10), tmp_path / "l.parquet"
    audit, model = CanaryAudit(folder, losses), network()
    audit.begin(model)
    for step in range(1, 43):
        audit.look(model, step, of=100)
    audit.end(model, 42)
    assert read_losses(losses).looks == {1: 10, 2: 20, 3: 30, 4: 40, 5: 42}
    again = CanaryAudit(folder, losses)
    again.begin(model, step=42)
    for step in range(43, 101):
        again.look(model, step, of=100)
    again.end(model, 100)
    found = read_losses(losses)
    assert found.looks == {1: 10, 2: 20, 3: 30, 4: 40, 5: 42, 6: 60, 7: 70, 8: 80, 9: 90, 10: 100}
    assert found.repeated == (5,)


def test_the_look_that_stopped_keeps_its_losses(tmp_path: Path) -> None:
    """After it, another model may be loaded at the same step, such as the best checkpoint."""
    folder, losses = made(tmp_path / "c", looks=4), tmp_path / "l.parquet"
    audit, model = CanaryAudit(folder, losses), network()
    audit.begin(model)
    audit.look(model, 5, of=20)
    audit.look(model, 5, of=20)  # as loops do that accumulate gradients
    first = read_losses(losses)
    nn.init.zeros_(model[4].weight)  # type: ignore[arg-type, index]
    audit.end(model, 5)
    assert read_losses(losses) == first
    assert first.repeated == ()


def test_a_file_of_another_training_is_kept(tmp_path: Path) -> None:
    folder, losses = made(tmp_path / "c", looks=2), tmp_path / "l.parquet"
    train(CanaryAudit(folder, losses), folder, steps=2)
    with pytest.raises(UserError, match="has the looks of another training, which count once; name another file"):
        CanaryAudit(folder, losses).begin(network())


def test_a_diverged_training_goes_on(tmp_path: Path) -> None:
    folder, losses = made(tmp_path / "c", looks=2), tmp_path / "l.parquet"
    audit, model = CanaryAudit(folder, losses, coins=folder, stop=True), network()
    audit.begin(model)
    nn.init.constant_(model[4].weight, float("nan"))  # type: ignore[arg-type, index]
    assert not audit.look(model, 1, of=2)
    assert audit.result is None
    with pytest.warns(UserWarning, match="2 looks are planned, but only 1 steps"):
        CanaryAudit(folder, tmp_path / "m.parquet").look(network(), 1, of=1)


def test_several_processes_record_once_and_stop_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process measures, the first one writes and decides, and the others are told."""
    folder, told = made(tmp_path / "c", looks=2), [True]
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")
    monkeypatch.setattr(torch.distributed, "broadcast", lambda said, src: said.fill_(int(told[0])))
    audit, model = CanaryAudit(folder, tmp_path / "l.parquet", coins=folder, stop=True), network()
    audit.begin(model)
    with pytest.warns(UserWarning, match="the first process found"):
        assert audit.look(model, 1, of=2)
    assert not (tmp_path / "l.parquet").exists()
    told[0] = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not CanaryAudit(folder, tmp_path / "m.parquet", coins=folder, stop=True).look(model, 1, of=2)


def test_damaged_pictures_are_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "c", looks=1)
    assert read_pictures(folder).images.shape == (COUNT, *SHAPE)
    np.savez(folder / ALL_FILE, images=np.zeros((3, 8, 8), np.uint8), labels=np.zeros(3))
    with pytest.raises(UserError, match="has no pictures with labels"):
        read_pictures(folder)
    np.savez(folder / ALL_FILE, images=np.array([{}], dtype=object), labels=np.zeros(1))
    with pytest.raises(UserError, match=r"cannot read the canaries of .*all.npz"):
        read_pictures(folder)
