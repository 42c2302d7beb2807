"""Membership scores of many examples against the functions of LeakPro and of ml_privacy_meter, on the same arrays.

    python benchmarks/membership_scores.py [--examples 60000] [--models 256] [--peer FOLDER ...]

A peer is a checkout of https://github.com/aidotse/LeakPro or of https://github.com/privacytrustlab/ml_privacy_meter. Peers
are compared where a checkout is named. Their files are loaded as they are, without their packages: modules of LeakPro that
only train and report models are empty stubs, its progress bar is left out, and its attacks get the arrays that they otherwise
read from files.

Signals are random. Half of the models were trained on each example; none on the 10,000 references z of RMIA, because both
peers assume that. Times are CPU seconds of one thread. memlib is measured first, so that its peak memory is its own; its
sizes take turns, and its times are medians. Peers run once.

Prints the time of a plan of 1,000 shadows; for each attack, memlib's time and the exponents of its growth with examples and
models, for one target and for every model as the target once; the time of the probabilities of all log odds alone, without
which there is no RMIA; the peers' times; and the differences between scores on a part of the arrays in float64.
"""

import argparse
import dataclasses
import importlib.util
import logging
import os
import resource
import statistics
import sys
import tempfile
import time
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import scipy.stats
import torch
from numpy.typing import NDArray

import memlib
from memlib.stats.membership import OFFLINE_A, Lira, Rmia, rmia, survey
from memlib.stats.shadows import Moments, Shadows, Side, Values, log_p

REFERENCES = 10_000  # z of RMIA, as many as in the configurations of ml_privacy_meter
SIDES = {True: "online", False: "offline"}
Score = Callable[[], Values]
Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Signals:
    """Random log odds of shadows and of one target; the last rows are those of references that no model was trained on.

    Attributes:
        odds: (num_models, num_examples + num_references).
        inside: the same shape, bool.
        target: (num_examples + num_references,) log odds of the target.
        examples: number of examples.
    """

    odds: Floats
    inside: NDArray[np.bool_]
    target: Floats
    examples: int

    @property
    def everything(self) -> Shadows:
        return Shadows(self.odds[:, None], self.inside)

    @property
    def without_references(self) -> Shadows:
        return Shadows(self.odds[:, None, : self.examples], self.inside[:, : self.examples])

    @property
    def is_reference(self) -> NDArray[np.bool_]:
        return np.arange(len(self.target)) >= self.examples


def draw(examples: int, models: int, references: int, dtype: type[np.floating]) -> Signals:
    """Return signals whose level and spread vary between examples, higher by .7 in members."""
    rng, count = np.random.default_rng(0), examples + references
    inside = np.zeros((models, count), dtype=bool)
    inside[::2, :examples] = True
    inside[:, :examples] = rng.permuted(inside[:, :examples], axis=0)
    level, spread = rng.normal(2, 2, count), rng.uniform(0.5, 1.5, count)
    odds = np.empty((models, count), dtype=dtype)
    for model in range(models):
        odds[model] = level + spread * rng.normal(size=count) + 0.7 * inside[model]
    member = (rng.random(count) < 0.5) & (np.arange(count) < examples)
    return Signals(odds, inside, (level + spread * rng.normal(size=count) + 0.7 * member).astype(dtype), examples)


def lira(signals: Signals, online: bool) -> Values:
    return Lira(online=online)(signals.without_references, signals.target[None, : signals.examples])


def rmia_of(signals: Signals, online: bool) -> Values:
    ratio = Rmia(online=online)(signals.everything, signals.target[None])
    return rmia(ratio, signals.is_reference)[0][: signals.examples]


def every_lira(signals: Signals, online: bool) -> Values:
    return survey(signals.without_references, Lira(online=online))


def every_rmia(signals: Signals, online: bool) -> Values:
    ratios = survey(signals.everything, Rmia(online=online))
    for row in ratios:
        row[:] = rmia(row, signals.is_reference)[0]
    return ratios


ONE = {"LiRA": lira, "RMIA": rmia_of}
EVERY = {"LiRA": every_lira, "RMIA": every_rmia}
Run = Callable[[Signals, bool], Values]
Times = dict[tuple[str, bool], float]  # by attack and online


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of some work."""
    started = time.process_time()
    work()
    return time.process_time() - started


def peak() -> float:
    """Return the largest memory that this process has had, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def exponent(sizes: list[int], times: list[float]) -> float:
    """Return the slope of log time against log size."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def plan() -> None:
    """Print the time of a plan of 1,000 shadows in parts of 8."""
    with tempfile.TemporaryDirectory() as store:
        changes = {"shadows.count": 1000, "shadows.chunk": 8}
        started = time.perf_counter()
        planned = memlib.plan("membership_smoke", store=store, changes=changes)
        passed = time.perf_counter() - started
        parts = sum(len(list(parts)) for _, parts in planned.by_stage())
    print(
        f"plan of membership_smoke with 1,000 shadows in parts of 8: {parts} artifacts, {passed:.1f} s, peak {peak():.2f} GiB"
    )


def probabilities(odds: Floats) -> None:
    """Compute the probabilities of log odds, some examples at a time so that they stay in a cache."""
    block = max(64, 2**17 // len(odds))
    for start in range(0, odds.shape[1], block):
        1 / (1 + np.exp(-odds[:, start : start + block].astype(np.float64)))


def growth(options: argparse.Namespace, runs: Mapping[str, Run], rounds: int) -> Times:
    """Print memlib's times and exponents, and return the times at full size."""
    examples = [options.examples // part for part in (8, 4, 2, 1)]
    models = [options.models // part for part in (4, 2, 1)]
    sizes = [(count, options.models) for count in examples] + [(options.examples, count) for count in models[:-1]]
    times: dict[tuple[str, bool, int, int], list[float]] = {}
    for size in sizes * rounds:
        signals = draw(*size, options.references * size[0] // options.examples, np.float32)
        for name, run in runs.items():
            for online in SIDES:
                times.setdefault((name, online, *size), []).append(seconds(partial(run, signals, online)))
    median = {key: statistics.median(values) for key, values in times.items()}
    full: Times = {}
    for name in runs:
        for online, side in SIDES.items():
            full[name, online] = median[name, online, options.examples, options.models]
            by_examples = [median[name, online, count, options.models] for count in examples]
            by_models = [median[name, online, options.examples, count] for count in models]
            exponents = f"{line('examples', examples, by_examples)}; {line('models', models, by_models)}"
            print(f"  {name} {side}: {full[name, online]:.3g} s; {exponents}")
    print(f"  peak {peak():.2f} GiB", flush=True)
    return full


def line(kind: str, sizes: list[int], times: list[float]) -> str:
    """Return the exponent of times in words."""
    return f"exponent of {kind} {exponent(sizes, times):.2f} ({', '.join(f'{value:.3g}' for value in times)} s)"


def load(name: str, path: Path) -> types.ModuleType:
    """Load a module from its file, without the packages around it."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class LeakPro:
    """LeakPro's attacks, whose attributes are set as its `prepare_attack` or its constructor does.

    Two logits (phi, 0) stand for those of all classes: their softmax is the probability of log odds phi.
    """

    name = "LeakPro"
    note = "ten classes would need five times as many exponentials"

    def __init__(self, folder: Path) -> None:
        for name, contents in self.stubs().items():
            sys.modules[name] = types.ModuleType(name)
            vars(sys.modules[name]).update(contents)
        load("leakpro.attacks.utils.utils", folder / "leakpro/attacks/utils/utils.py")
        attacks = [load(f"leakpro_{name}", folder / f"leakpro/attacks/mia_attacks/{name}.py") for name in ("lira", "rmia")]
        vars(attacks[0])["tqdm"] = lambda numbers, **_: numbers
        self.lira, self.rmia = attacks[0].AttackLiRA, attacks[1].AttackRMIA

    @staticmethod
    def stubs() -> dict[str, dict[str, object]]:
        """Return the contents of the modules in place of those that train and report models."""
        result = type("MIAResult", (), {"from_full_scores": staticmethod(lambda **parts: parts["signal_values"])})
        handler = type("ShadowModelHandler", (), {"attack_cache_folder_path": ""})
        return {
            "leakpro.attacks.mia_attacks.abstract_mia": {"AbstractMIA": object},
            "leakpro.attacks.utils.shadow_model_handler": {"ShadowModelHandler": handler},
            "leakpro.input_handler.mia_handler": {"MIAHandler": object},
            "leakpro.reporting.mia_result": {"MIAResult": result},
            "leakpro.signals.signal": {"ModelLogits": object},
            "leakpro.signals.signal_extractor": {"PytorchModel": object},
            "leakpro.utils.import_helper": {"Self": typing.Self},
            "leakpro.utils.logger": {"logger": logging.getLogger("leakpro")},
        }

    def scores(self, signals: Signals, attack: str, online: bool) -> Score | None:
        """Return the attack, ready to run."""
        return self.ready_lira(signals, online) if attack == "LiRA" else self.ready_rmia(signals, online)

    def ready(
        self, kind: typing.Any, signals: Signals, configuration: Mapping[str, object], **attributes: object
    ) -> typing.Any:
        attack = kind.__new__(kind)
        attack.configs = kind.AttackConfig(num_shadow_models=len(signals.odds), **configuration)
        everyone = np.arange(signals.examples)
        attack.audit_dataset = {"in_members": everyone, "out_members": everyone[:0]}  # so that scores keep their order
        vars(attack).update(attack.configs.model_dump(), out_indices=~signals.inside[:, : signals.examples], **attributes)
        return attack

    def ready_lira(self, signals: Signals, online: bool) -> Score:
        odds, target = signals.odds[:, : signals.examples], signals.target[: signals.examples]
        arrays = {"shadow_models_logits": odds, "target_logits": target, "fix_var_threshold": 32}
        attack = self.ready(self.lira, signals, {"online": online}, **arrays)
        return lambda: np.ravel(attack.run_attack())

    def ready_rmia(self, signals: Signals, online: bool) -> Score:
        logits = [np.stack([odds, np.zeros_like(odds)], axis=1) for odds in (*signals.odds, signals.target)]
        rows, labels = np.arange(len(signals.target)), np.zeros(len(signals.target), dtype=int)
        handler = types.SimpleNamespace(
            train_indices=rows, test_indices=rows[:0], target_model=None, get_labels=lambda chosen: labels[chosen]
        )
        configuration = {
            "online": online,
            "temperature": 1.0,
            "gamma": 1.0,
            "offline_a": OFFLINE_A,
            "z_data_sample_fraction": 1.0,
        }
        arrays = {
            "logits_theta": logits[-1],
            "logits_shadow_models": logits[:-1],
            "shadow_models": [None] * len(signals.odds),
        }
        attack = self.ready(self.rmia, signals, configuration, **arrays, handler=handler, epsilon=1e-6, load_for_optuna=True)
        attack.ground_truth_indices = labels[: signals.examples]
        attack.attack_data_indices = rows[signals.examples :]

        def run() -> Values:
            attack.prepare_attack()  # with its models given, this computes the ratios of z
            return np.ravel(attack.run_attack())

        return run


class PrivacyMeter:
    """ml_privacy_meter's `run_rmia`, which gets probabilities, one row per example; it has neither RMIA online nor LiRA."""

    name = "ml_privacy_meter"
    note = "its probabilities are computed beforehand"

    def __init__(self, folder: Path) -> None:
        self.run = load("privacy_meter_rmia", folder / "modules/mia/attacks/rmia.py").run_rmia

    def scores(self, signals: Signals, attack: str, online: bool) -> Score | None:
        """Return the attack, ready to run."""
        if attack != "RMIA" or online:
            return None
        p, target, end = np.exp(log_p(signals.odds.T)), np.exp(log_p(signals.target)), signals.examples
        p, target = np.ascontiguousarray(p, dtype=signals.odds.dtype), target.astype(signals.odds.dtype)
        inside = np.ascontiguousarray(signals.inside.T)
        return lambda: self.run(target[:end], p[:end], inside[:end], target[end:], p[end:], OFFLINE_A)


Peer = LeakPro | PrivacyMeter


def open_peer(folder: Path) -> Peer:
    """Return the peer of a checkout."""
    if (folder / "leakpro/attacks/mia_attacks/lira.py").exists():
        return LeakPro(folder)
    if (folder / "modules/mia/attacks/rmia.py").exists():
        return PrivacyMeter(folder)
    sys.exit(f"{folder} is a checkout of neither LeakPro nor ml_privacy_meter")


def compare(peer: Peer, signals: Signals, one: Times, every: Times) -> None:
    """Print the peer's times beside memlib's."""
    for (attack, online), own in one.items():
        score = peer.scores(signals, attack, online)
        if score is None:
            continue
        found, models = seconds(score), len(signals.odds)
        print(
            f"  {attack} {SIDES[online]}: {found:.3g} s, {found / own:.1f} times memlib's; {models} targets one by one "
            f"{found * models:.0f} s (extrapolated), {found * models / every[attack, online]:.0f} times memlib's",
            flush=True,
        )


def population(side: Side) -> Side:
    """Return moments whose variances are numpy's default, with n in place of n - 1 in the denominator, as LeakPro's."""
    return dataclasses.replace(side, squares=side.squares * ((side.count - 1) / side.count))


def lira_as_leakpro(signals: Signals, online: bool) -> Values:
    """Return LiRA with the example's own variance; offline, the left tail as in LeakPro."""
    moments = Moments.of(signals.without_references)
    moments = dataclasses.replace(moments, inner=population(moments.inner), outer=population(moments.outer))
    scores = Lira(online=online, variance="example").score(moments, signals.target[None, : signals.examples])
    return scores if online else np.log1p(-np.exp(-scores))


def parity(peer: Peer, signals: Signals) -> None:
    """Print the differences of scores."""
    for attack, own in {"LiRA": lira_as_leakpro, "RMIA": rmia_of}.items():
        for online in SIDES:
            score = peer.scores(signals, attack, online)
            if score is None:
                continue
            theirs, ours = score(), own(signals, online)
            rank = scipy.stats.spearmanr(theirs, ours).statistic
            print(
                f"  {attack} {SIDES[online]}: largest difference {np.abs(theirs - ours).max():.1e} of scores from "
                f"{theirs.min():.3g} to {theirs.max():.3g}; rank correlation {rank:.6f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=60_000)
    parser.add_argument("--models", type=int, default=256)
    parser.add_argument("--references", type=int, default=REFERENCES)
    parser.add_argument(
        "--rounds", type=int, default=5, help="timings of memlib with one target; half as many with every model as target"
    )
    parser.add_argument("--peer", type=Path, action="append", default=[], help="folder of a checkout")
    options = parser.parse_args()
    peers = [open_peer(folder) for folder in options.peer]
    torch.set_num_threads(1)
    plan()
    print(
        f"{options.examples:,} examples, {options.models} models, {options.references:,} references; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    print("memlib, one target")
    one = growth(options, ONE, options.rounds)
    print("memlib, every model as the target once")
    every = growth(options, EVERY, (options.rounds + 1) // 2)
    if not peers:
        print("no peer compared: --peer names a checkout")
    signals = draw(options.examples, options.models, options.references, np.float32)
    some = draw(options.examples // 10, options.models, options.references // 10, np.float64)
    print(f"probabilities alone: {statistics.median(seconds(partial(probabilities, signals.odds)) for _ in range(5)):.3g} s")
    for peer in peers:
        print(f"{peer.name}, one target ({peer.note})")
        compare(peer, signals, one, every)
        print(f"{peer.name}, differences from memlib, {some.examples:,} examples in float64")
        parity(peer, some)


if __name__ == "__main__":
    main()
