"""Looks at canaries while a model trains: losses are recorded at planned places and, with the coins at hand, tested at once.

Any training loop can make them (see `CanaryAudit`); callbacks of trainers call the same functions. The training itself is the
same as without: the model's mode and all random states are restored. Nothing is written that depends on the coins but the
stop itself, as a training that sees p-values could react to them.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import nn

from memlib.data.canaries.documents import digest_of, read_documents
from memlib.data.canaries.losses import BASE_STEP, LOSSES, Recorded, read_losses, replace_losses, score_canaries
from memlib.data.canaries.pictures import is_of_pictures, read_pictures
from memlib.data.canaries.plan import Coins, coins_beside, read_plan
from memlib.errors import UserError
from memlib.observe.canary_likelihoods import BATCH, EncodedCanary, encode_canaries, measure_losses
from memlib.observe.canary_pictures import Prepare, measure_pictures, unit_pictures
from memlib.stats.canaries import CanaryResult, Scope, audit_canaries, check_claim

Stop = bool | Literal["warn"] | Callable[[CanaryResult], bool | None]


class CanaryAudit:
    """The audit of canaries in a training loop of any kind.

    Args:
        canaries: folder of `memlib canaries make`, or its all.jsonl or all.npz; its plan says when to look.
        losses: file of the losses; a training that resumes continues it.
        tokenizer: the model's tokenizer, for documents.
        prepare: function that turns pictures (n, height, width, channels) uint8 into the model's inputs, for pictures; by
            default values in [0, 1], channels first.
        coins: folder with coins.parquet, only for trainers that are trusted; None: losses are recorded for a later audit.
        stop: whether a test that stops says so to the loop (True), warns, or calls a function, whose True stops the training.
        epsilon, delta: the claimed privacy of the training for one record, which can stop it as well.
        scope: what the claim is about: the training with all its checkpoints, or its last model alone.
        batch_size: number of canaries per forward pass.

    Example:
        audit = CanaryAudit("canaries", "losses.parquet", tokenizer=tokenizer, coins="canaries", stop=True)
        audit.begin(model)
        for step, batch in enumerate(batches, start=1):
            train_on(batch)
            if audit.look(model, step, of=len(batches)):
                break
        audit.end(model, step)
    """

    def __init__(
        self,
        canaries: str | os.PathLike[str],
        losses: str | os.PathLike[str],
        *,
        tokenizer: Any = None,
        prepare: Prepare | None = None,
        coins: str | os.PathLike[str] | None = None,
        stop: Stop = False,
        epsilon: float | None = None,
        delta: float = 0.0,
        scope: Scope = "checkpoints",
        batch_size: int = BATCH,
    ) -> None:
        self.place = Path(canaries).expanduser()
        self.file, self.plan = Path(losses).expanduser(), read_plan(self.place)
        self._pictures = read_pictures(self.place) if is_of_pictures(self.place) else None
        self._documents = read_documents(self.place) if self._pictures is None else []
        self.encoded: list[EncodedCanary] = []
        self._prepare, self._batch_size, self._stop = prepare or unit_pictures, batch_size, stop
        self._claim = {"claimed": epsilon, "delta": delta, "scope": scope}
        self._home = None if coins is None else Path(coins).expanduser()
        self._coins = None if self._home is None else self._of_these(self._home)
        self._check_settings(epsilon, delta, scope)
        content = digest_of(self._documents) if self._pictures is None else self._pictures.digest
        self.recorded = Recorded(LOSSES.arrow.empty_table(), canaries=content, plan=self.plan.digest)
        self.result: CanaryResult | None = None  #: result of the test at the last look; None without coins.
        self._told: set[str] = set()  # what was said
        self._own: set[int] = set()  # looks of this process
        self._stops = False
        self._steps: int | None = None
        self._epoch: int | None = None
        if tokenizer is not None:
            self.encode(tokenizer)

    def _check_settings(self, epsilon: float | None, delta: float, scope: Scope) -> None:
        check_claim(epsilon, delta)
        if scope not in ("checkpoints", "last"):
            raise UserError(f"scope is {scope!r}; choose checkpoints or last")
        if (self._stop or epsilon is not None) and self._coins is None:
            raise UserError(
                "to stop a training, or to test its claim, the coins must be at hand: give coins, the folder with "
                "coins.parquet"
            )

    @property
    def names(self) -> list[str]:
        """Ids of the canaries."""
        return [one.canary for one in self._documents] if self._pictures is None else list(self._pictures.canaries)

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe of the audit of what was recorded, for `memlib.run`.

        Raises:
            UserError: without coins.
        """
        if self._home is None:
            raise UserError("an audit needs the coins: give coins, the folder with coins.parquet")
        epsilon, privacy = self._claim["claimed"], {name: self._claim[name] for name in ("delta", "scope")}
        claim = None if epsilon is None else {"epsilon": epsilon, **privacy}
        return {"audit": "canaries", "canaries": str(self._home), "losses": str(self.file), "privacy": claim}

    def encode(self, tokenizer: Any) -> None:
        """Encode documents as a tokenizer's tokens; pictures need none."""
        if self._documents and not self.encoded:
            self.encoded = encode_canaries(self._documents, tokenizer)

    def begin(self, model: nn.Module, step: int = BASE_STEP) -> None:
        """Record the losses of the model before the training, or continue the file of a training that resumes at a step.

        Raises:
            UserError: when the file has losses of another training, or of other canaries.
        """
        found = read_losses(self.file) if self.file.exists() else None
        if found is not None and (found.canaries, found.plan) not in (("", ""), (self.recorded.canaries, self.plan.digest)):
            raise UserError(f"{self.file} has losses of other canaries, or by another plan; name another file")
        if step == BASE_STEP:
            if found is not None and found.looks:
                raise UserError(f"{self.file} has the looks of another training, which count once; name another file")
            self._record(model, BASE_STEP)
            return
        if found is None:
            warnings.warn(f"the training resumes without {self.file}: its earlier losses are missing", stacklevel=2)
            return
        self.recorded = found
        if found.stopped is not None:
            warnings.warn(f"this training was stopped by the test of its canaries at look {found.stopped}", stacklevel=2)

    def look(self, model: nn.Module, step: int, *, of: int | None = None, epoch: int | None = None) -> bool:
        """Make the look that is due after an optimizer step, if one is; return whether the training is to stop.

        Args:
            model: the model in training.
            step: number of optimizer steps so far.
            of: number of optimizer steps of the whole training.
            epoch: number of the epoch that has just ended; None within epochs. Needed for looks by epochs.
        """
        if of is not None and of < self.plan.looks and self._steps is None:
            warnings.warn(f"{self.plan.looks} looks are planned, but only {of} steps: the others are missed", stacklevel=2)
        self._steps, self._epoch = of or self._steps, epoch or self._epoch
        number = self._due(step, of, epoch)
        if number is not None and self._is_new(number):
            self._record(model, step, number)
            self._test()
        return self._stops

    def end(self, model: nn.Module, step: int) -> None:
        """Make the look at the end, at the trained model, which need not be that of the last step.

        It is the last one of the plan, or the next one if the training ended before its planned end.
        """
        if step == BASE_STEP:
            return
        number = self.plan.look_at_end(step, self._steps, self._epoch)
        if step in self.recorded.looks.values():
            return  # of the same step: a look counts once
        is_new = self._is_new(number)
        self._record(model, step, number if is_new else None)  # of a training that went on after its end, no look
        if is_new:
            self._test()

    def _due(self, step: int, steps: int | None, epoch: int | None) -> int | None:
        """Return the number of the look that is due; None if none is, as the last one is made at the end."""
        if self.plan.every_epochs is not None:
            number, rest = divmod(epoch or 0, self.plan.every_epochs)
            return number if epoch and not rest and number < self.plan.looks else None
        if steps is None:
            raise UserError("looks are spaced over the training: give its number of optimizer steps, as in look(..., of=900)")
        return next((look for look in range(1, self.plan.looks) if self.plan.step_of(look, steps) == step < steps), None)

    def _is_new(self, number: int) -> bool:
        """Return whether a look was not made before; of a look that is passed again after a resume, the first one counts."""
        if number not in self.recorded.looks:
            return True
        if number not in self.recorded.repeated and number not in self._own:
            self._keep(replace(self.recorded, repeated=(*self.recorded.repeated, number)))
        return False

    def _record(self, model: nn.Module, step: int, look: int | None = None) -> None:
        """Measure the losses of the model; all processes do, as the shards of a model need all, and the first one writes."""
        rest = self.recorded.table.filter(pc.not_equal(self.recorded.table["step"], step))
        table = pa.concat_tables([rest, self._measured(model, step)])
        self._own |= set() if look is None else {look}
        looks = dict(self.recorded.looks) | ({} if look is None else {look: step})
        self._keep(replace(self.recorded, table=table, looks=looks))

    def _measured(self, model: nn.Module, step: int) -> pa.Table:
        if self._pictures is not None:
            return measure_pictures(model, self._pictures, self._prepare, step=step, batch_size=self._batch_size)
        if not self.encoded:
            raise UserError("give the model's tokenizer, as in CanaryAudit(..., tokenizer=tokenizer)")
        return measure_losses(model, self.encoded, step=step, batch_size=self._batch_size)

    def _keep(self, recorded: Recorded) -> None:
        self.recorded = recorded
        if _is_first_process():
            replace_losses(self.file, recorded)

    def _test(self) -> None:
        """Test the looks so far, if the coins are at hand, and act on a test that stops and on a claim that is refuted."""
        if self._coins is None:
            return
        remembers = refuted = False
        if _is_first_process() and (result := self._judged(self._coins)) is not None:
            self.result = result
            remembers = result.looked.stopped is not None
            refuted = result.claim is not None and result.claim.p_value <= self.plan.alpha
        for what, found in (("memory", _agreed(remembers)), ("claim", _agreed(refuted))):
            if found and (what not in self._told or callable(self._stop)) and not self._stops:
                self._told.add(what)
                self._act(what)

    def _judged(self, coins: Coins) -> CanaryResult | None:
        """Return the result of the looks so far; None if no loss is a finite number yet."""
        steps = self.recorded.looks
        try:
            scores = score_canaries(self.recorded.table, coins.canaries, steps=set(steps.values())).values
            return audit_canaries(
                {look: scores[step] for look, step in steps.items()}, coins.inside, coins.plan, guesses=coins.guesses,
                repeats=coins.repeats, seed=coins.seed, **self._claim,  # type: ignore[arg-type]
            )  # fmt: skip
        except UserError:  # the training goes on, and the audit says so
            return None

    def _act(self, what: str) -> None:
        said = self._said(what)
        if callable(self._stop):
            self._stops = _agreed(self.result is not None and bool(self._stop(self.result)))
        elif self._stop == "warn":
            warnings.warn(said, stacklevel=5)
        elif self._stop:
            self._stops = True
            warnings.warn(f"{said}; the training is stopped", stacklevel=5)
        if self._stops:
            self._keep(replace(self.recorded, stopped=max(self.recorded.looks)))

    def _said(self, what: str) -> str:
        if self.result is None:
            return "the first process found that the training remembers its canaries, or is less private than claimed"
        if what == "memory":
            return (
                f"look {self.result.looked.stopped} of {self.plan.looks}: the training remembers its canaries (p = "
                f"{self.result.looked.p_value:.4g}, all planned looks allowed for)"
            )
        return f"the claim of epsilon {self._claim['claimed']:g} for one record is refuted at level {self.plan.alpha:g}"

    def _of_these(self, folder: Path) -> Coins:
        coins = coins_beside(folder, self.names)
        if coins is None:
            raise UserError(f"{folder} has no coins.parquet; give the folder that memlib canaries make wrote")
        if coins.plan != self.plan:
            raise UserError(f"the plan of the looks in {self.place} is not that of the coins; use the folder as it was made")
        return coins


def _is_first_process() -> bool:
    return not _is_distributed() or torch.distributed.get_rank() == 0


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _agreed(found: bool) -> bool:
    """Return what the first process found, in every process: if only some stopped, the others would wait for them forever."""
    if not _is_distributed():
        return found
    device = torch.device("cuda" if torch.distributed.get_backend() == "nccl" else "cpu")
    said = torch.tensor([int(found)], device=device)
    torch.distributed.broadcast(said, src=0)
    return bool(said.item())
