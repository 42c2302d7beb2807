"""The déjà vu audit (Meehan 2023), from images to report."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from memlib.audits.arrangement import check_flow
from memlib.audits.deja_vu.backgrounds import Background, Backgrounds
from memlib.audits.deja_vu.beyond.findings import Beyond
from memlib.audits.deja_vu.beyond.stages import Attributes, Within
from memlib.audits.deja_vu.embedding import PROBED_VIEW, PUBLIC_VIEW, ROLE_OF, Embed, EmbeddedView, View, shown_rows
from memlib.audits.deja_vu.generating import GenerateTrain
from memlib.audits.deja_vu.recipe import DIRECTIONS, Direction, Recipe
from memlib.audits.deja_vu.reconstruction.judging import CLASS, Judge, TrainJudge
from memlib.audits.deja_vu.reconstruction.sampling import IMAGES_PER_PART, Reconstruct, Reconstructions
from memlib.audits.deja_vu.reconstruction.spec import ReconstructSpec
from memlib.audits.deja_vu.searching import Found, Probe, Search
from memlib.audits.deja_vu.stability import Compared, Stability, augment_of, blocks_of
from memlib.audits.deja_vu.stages import Report, Score, ScoreSetting, Searches
from memlib.audits.last_stages import run_id
from memlib.data.given_sets import CompareSets, Difference
from memlib.data.splits import EXTRA, PUBLIC, REFERENCE, SHARED, TARGET
from memlib.data.stages import Decode, DecodeBlock, Shard, Split, TrainingData, class_names_of, decode, members_of
from memlib.errors import UserError
from memlib.identity import derive_seed
from memlib.observe.encoders import ExternalEncoder, encoders_by_side
from memlib.pipeline.stage import AnyStage, Artifact, Runner
from memlib.pipeline.tables import Tables
from memlib.runs.records import RunRecord
from memlib.specs import CropSpec, ModelSpec, TrainingSpec
from memlib.training.fit import Train, TrainedModel

STAGES = (
    DecodeBlock,
    Decode,
    Split,
    CompareSets,
    Attributes,
    Train,
    Embed,
    Search,
    Background,
    Probe,
    Stability,
    GenerateTrain,
    TrainJudge,
    Reconstruct,
    Judge,
    Within,
    ScoreSetting,
    Score,
    Report,
)
_ASKED_FOR: dict[type[AnyStage], Callable[[Recipe], Any]] = {
    Train: lambda recipe: recipe.training,
    Background: lambda recipe: recipe.reference,
    CompareSets: lambda recipe: recipe.split.drawn_at_random or None,
    Stability: lambda recipe: recipe.decode.stability,
    Attributes: lambda recipe: recipe.beyond,
    Within: lambda recipe: recipe.beyond,
    **dict.fromkeys((GenerateTrain, Reconstruct, TrainJudge, Judge), lambda recipe: recipe.reconstruct),
}
LOOKED_ROWS = 1024  # rows per step of the search for an image with a crop
Side = tuple[int, Direction]
Blocks = Sequence[Artifact[Reconstructions]]
Models = Mapping[Side, Artifact[TrainedModel] | ExternalEncoder]


def absent(recipe: Recipe) -> list[type[AnyStage]]:
    """Return the stages that the recipe does not use."""
    return [stage for stage, asked in _ASKED_FOR.items() if asked(recipe) is None]


def audit(runner: Runner, recipe: Recipe) -> RunRecord | None:
    """Run the audit from data to report; return the run's manifest, or None in a plan."""
    shard = decode(runner, recipe.data)
    splits = runner.run(Split(recipe.split, shard))
    _refuse_the_impossible(recipe, splits, shard)
    checks = _checks(runner, recipe, TrainingData(shard, splits))
    attributes = None if recipe.beyond is None else runner.run(Attributes(recipe.data, recipe.beyond.attributes, shard))

    started = _run_all(runner, _starts(recipe, shard, splits))
    training = _training(recipe, shard, splits, started)
    trained = _run_all(runner, training)

    observations = _Observations(runner, recipe, shard, splits, trained or encoders_by_side(recipe.encoders))
    searches, probes, views = observations.searches(), observations.probes(), observations.views()
    last = probes.pop(recipe.last_epoch)
    fine_tuned, by_chance = recipe.fine_tuned, recipe.split.by_chance
    judged, drawn = observations.reconstructions(searches, attributes)
    whole = Score(
        searches, last, splits, class_names_of(splits), recipe.decode, views, fine_tuned, by_chance, checks,
        earlier_probes=probes, beyond=observations.beyond(attributes), judged=judged,
        declared_sets=recipe.split.drawn_at_random,
    )  # fmt: skip
    scores = _score(runner, whole)

    named = {stage.name: trained[side] for side, stage in training.items()}
    named |= {f"start of {training[side].name}": model for side, model in started.items()}
    report = runner.run(Report(recipe, run_id(recipe, scores), scores, searches, shard, splits, named, drawn=drawn))
    runner.evict(observations.embedded)
    return runner.publish(recipe, scores, report, {"shard": shard, "splits": splits, **named})


def _score(runner: Runner, whole: Score) -> Artifact[Tables]:
    """Score all settings, in parallel if they are large."""
    return runner.run(replace(whole, parts=tuple(runner.run_all(whole.in_parts()))))


def _checks(runner: Runner, recipe: Recipe, data: TrainingData) -> Artifact[Difference] | None:
    """Compare given sets that were declared to be drawn at random."""
    if not recipe.split.drawn_at_random:
        return None
    return runner.run(CompareSets(recipe.data.source, data, (TARGET, REFERENCE), recipe.decode.seed))


def _refuse_the_impossible(recipe: Recipe, splits: Artifact[pa.Table], shard: Artifact[Shard]) -> None:
    """Refuse, before hours of training, more neighbours than there are public images, and crop modes that no image has."""
    for crop in recipe.crops:
        for role in (TARGET, REFERENCE):
            view = View((role,), crop)
            count = members_of(splits, *view.roles).num_rows
            looks = (shown_rows(splits, shard, view, (at, at + LOOKED_ROWS)) for at in range(0, count, LOOKED_ROWS))
            if not any(shown.members.num_rows for shown in looks):
                raise UserError(f"no audited image has a {crop.mode} crop; remove it from decode.crops")
        if recipe.reference is not None:
            shown = shown_rows(splits, shard, _queries(crop)).members.num_rows
            if shown < 2 * recipe.reference.folds:
                raise UserError(
                    f"{shown} audited images have a {crop.mode} crop, too few for {recipe.reference.folds} folds of at "
                    "least two; lower reference.folds, or raise split.train_per_class"
                )
    public_crops = View((PUBLIC,), recipe.crops[0])
    if recipe.reconstruct is not None and not shown_rows(splits, shard, public_crops).members.num_rows:
        raise UserError(
            f"no public image has a {recipe.crops[0].mode} crop, but reconstruct needs such crops; give public images boxes, "
            "or leave out reconstruct"
        )
    public = members_of(splits, PUBLIC).num_rows
    if max(recipe.decode.k) > public:
        raise UserError(f"decode.k is {max(recipe.decode.k)}, but the public set has only {public} images; lower decode.k")
    if recipe.beyond is not None and recipe.beyond.attributes:
        most = max(one["counts"] for one in pc.value_counts(members_of(splits, PUBLIC)["label"]).to_pylist())
        if recipe.decode.k[0] >= most:
            raise UserError(
                f"decode.k is {recipe.decode.k[0]}, but no class has more than {most} public images, so all of them would "
                "vote on an attribute beyond the class, whatever the crop; lower decode.k"
            )


def _run_all(runner: Runner, stages: Mapping[Side, Train]) -> dict[Side, Artifact[TrainedModel]]:
    return dict(zip(stages, runner.run_all(list(stages.values())), strict=True))


def _starts(recipe: Recipe, shard: Artifact[Shard], splits: Artifact[pa.Table]) -> dict[Side, Train]:
    """Return the stages that pretrain the models, each on its own images, before fine-tuning; empty without fine-tuning."""
    if recipe.training is None or recipe.training.start is None:
        return {}
    return _trainings(recipe, recipe.training.start, recipe.model, "start", ("own",), shard, splits)


def _training(
    recipe: Recipe,
    shard: Artifact[Shard],
    splits: Artifact[pa.Table],
    starts: Mapping[Side, Artifact[TrainedModel]],
) -> dict[Side, Train]:
    """Return the stages that train the audited models, by pair and training set; each has its own seed."""
    training = recipe.training
    if training is None:
        return {}
    stages = _trainings(recipe, training.own_part, recipe.audited_model, "model", training.on, shard, splits)
    return {side: replace(stage, parent=starts.get(side), head_alone=training.head_alone) for side, stage in stages.items()}


def _trainings(
    recipe: Recipe,
    training: TrainingSpec,
    model: ModelSpec,
    name: str,
    on: Collection[str],
    shard: Artifact[Shard],
    splits: Artifact[pa.Table],
) -> dict[Side, Train]:
    trainings: dict[Side, Train] = {}
    for pair in range(recipe.pairs):
        for direction in recipe.directions:
            own = (ROLE_OF[direction], SHARED) if "own" in on else ()
            trainings[pair, direction] = Train(
                name=f"{name} {direction}{pair}",
                model=model,
                training=training.model_copy(update={"seed": derive_seed(training.seed, "pair", pair, direction)}),
                num_classes=len(class_names_of(splits)),
                shard=shard,
                splits=splits,
                roles=(*own, *((EXTRA,) if "extra" in on else ())),
            )
    return trainings


class _Observations:
    """Embeddings, searches and probes of all models; the parts of each step are submitted together."""

    def __init__(
        self, runner: Runner, recipe: Recipe, shard: Artifact[Shard], splits: Artifact[pa.Table], models: Models
    ) -> None:
        self.runner, self.recipe, self.shard, self.splits, self.models = runner, recipe, shard, splits, models
        self.layers = recipe.model_layers
        self._probed = recipe.probed_layers
        self._searched = tuple(layer for layer in self._probed if layer in recipe.layers)
        self._views = self._embed()

    def _embed(self) -> dict[tuple[Side, int, View], EmbeddedView]:
        """Embed every view with every model, once per run, however many layers and searches use it."""
        epochs, probed = self.recipe.epochs, [(epoch, PROBED_VIEW) for epoch in self.recipe.probed_epochs]
        wanted = [(epoch, view) for epoch in epochs for view in (*map(_queries, self.recipe.crops), PUBLIC_VIEW)]
        wanted += [(self.recipe.last_epoch, view) for view in self._public_crops]
        stages = {
            (side, epoch, view): Embed(
                model,
                epoch,
                view,
                self.shard,
                self.splits,
                self.layers,
                dtype=self.recipe.decode.embeddings,
                precision=self.recipe.decode.precision,
            ).in_parts((*(self._probed if view == PROBED_VIEW else self.recipe.layers), *self._represented(epoch)))
            for side, model in self.models.items()
            for epoch, view in dict.fromkeys([*wanted, *probed])
        }
        self.embedded = self.runner.run_all([part for parts in stages.values() for part in parts])
        artifacts = iter(self.embedded)
        return {key: EmbeddedView([next(artifacts) for _ in parts]) for key, parts in stages.items()}

    def _represented(self, epoch: int) -> tuple[str, ...]:
        """Return the layers that generators read at an epoch; empty except at the last one."""
        return self.recipe.represented_layers if epoch == self.recipe.last_epoch else ()

    @property
    def _public_crops(self) -> list[View]:
        """The view of public crops whose representations generators read, in a list; empty without reconstructions."""
        spec = self.recipe.reconstruct
        return [View((PUBLIC,), self.recipe.crops[0])] if spec is not None and spec.crops else []

    def searches(self) -> list[Searches]:
        """Search every layer, epoch, crop and pair; the headline's setting comes first."""
        recipe, k = self.recipe, max(self.recipe.decode.k)
        storage: Any = "float16" if self.runner.resources.index_float16 else "float32"
        settings = [
            (pair, layer, epoch, crop)
            for epoch in recipe.epochs
            for crop in recipe.crops
            for layer in recipe.layers
            for pair in range(recipe.num_pairs)
        ]
        backgrounds, directions = self._backgrounds(), self.recipe.directions
        stages = {
            (setting, direction): [
                Search(part, self._views[(pair, direction), epoch, PUBLIC_VIEW], layer, k, storage)
                for part in self._views[(pair, direction), epoch, _queries(crop)].parts
            ]
            for setting in settings
            for pair, layer, epoch, crop in [setting]
            for direction in directions
        }
        artifacts = iter(self.runner.run_all([part for parts in stages.values() for part in parts]))
        found = {key: Found([next(artifacts) for _ in parts]) for key, parts in stages.items()}
        return [
            Searches(
                pair, layer, epoch, crop.mode,
                tuple(found[setting, direction] for direction in directions),
                self._views[(pair, directions[0]), epoch, PUBLIC_VIEW],
                backgrounds.get(crop),
            )
            for setting in settings
            for pair, layer, epoch, crop in [setting]
        ]  # fmt: skip

    def _backgrounds(self) -> dict[CropSpec, Backgrounds]:
        """Fit the background classifiers that replace second models, by crop; empty if the recipe has no reference."""
        reference = self.recipe.reference
        if reference is None:
            return {}
        stages = {
            (crop, fold): Background(reference, fold, _queries(crop), self.shard, self.splits)
            for crop in self.recipe.crops
            for fold in range(reference.folds)
        }
        parts = dict(zip(stages, self.runner.run_all(list(stages.values())), strict=True))
        return {
            crop: Backgrounds(reference.kind, [part for (key, _), part in parts.items() if key == crop])
            for crop in self.recipe.crops
        }

    def probes(self) -> dict[int, list[Artifact[pa.Table]]]:
        """Probe what the backbone and last layer of each model know about whole images, by checkpoint."""
        stages = {
            (epoch, side): Probe(
                self._views[side, epoch, PROBED_VIEW],
                self._views[side, epoch, PUBLIC_VIEW],
                self.splits,
                side[1],
                side[0],
                self._probed,
                self._searched,
            )
            for epoch in self.recipe.probed_epochs
            for side in self.models
        }
        probes = dict(zip(stages, self.runner.run_all(list(stages.values())), strict=True))
        return {epoch: [probes[epoch, side] for side in self.models] for epoch in self.recipe.probed_epochs}

    def views(self) -> list[Compared]:
        """Measure distances between views of each image under both models of each pair, if the recipe includes them."""
        wanted, training, last = self.recipe.decode.stability, self.recipe.training, self.recipe.last_epoch
        if wanted is None:
            return []
        augment = augment_of(wanted, None if training is None else training.augment)
        stages = {
            (side, roles, rows): Stability(
                model, last, roles, rows, self.shard, self.splits, self.recipe.layers, wanted, augment
            )
            for side, model in self.models.items()
            for roles, rows in blocks_of(self.splits, wanted)
        }
        parts = dict(zip(stages, self.runner.run_all(list(stages.values())), strict=True))
        by_model = {side: [part for (key, *_), part in parts.items() if key == side] for side in self.models}
        return [
            Compared(pair, (by_model[pair, DIRECTIONS[0]], by_model[pair, DIRECTIONS[1]]))
            for pair in range(self.recipe.num_pairs)
        ]

    def beyond(self, attributes: Artifact[pa.Table] | None) -> Beyond | None:
        """Search each class by itself at the headline's setting, if the recipe asks what is remembered beyond the class."""
        recipe, asked = self.recipe, self.recipe.beyond
        if asked is None or attributes is None:
            return None
        layer, epoch, crop, k = recipe.layers[0], recipe.last_epoch, recipe.crops[0], recipe.decode.k[0]
        stages = {
            side: [
                Within(
                    part, self._views[side, epoch, _queries(crop)], self._views[side, epoch, PUBLIC_VIEW],
                    self._views[side, epoch, PROBED_VIEW], self.splits, layer, k, asked.candidates, asked.seed,
                )
                for part in self._views[side, epoch, _queries(crop)].parts
            ]
            for side in self.models
        }  # fmt: skip
        artifacts = iter(self.runner.run_all([part for parts in stages.values() for part in parts]))
        found = {side: [next(artifacts) for _ in parts] for side, parts in stages.items()}
        return Beyond(
            {"layer": layer, "epoch": epoch, "crop": crop.mode, "k": k},
            attributes,
            tuple(asked.attributes),
            [(found[pair, DIRECTIONS[0]], found[pair, DIRECTIONS[1]]) for pair in range(recipe.num_pairs)],
            self._views[(0, DIRECTIONS[0]), epoch, PUBLIC_VIEW],
        )

    def reconstructions(
        self, searches: Sequence[Searches], attributes: Artifact[pa.Table] | None
    ) -> tuple[list[Artifact[pa.Table]], list[Blocks]]:
        """Train generators on public images, draw the first images with them, and judge the pictures.

        Returns:
            the measures of each pair, and the pictures of the first pair by model; empty lists without reconstructions.
        """
        spec, recipe = self.recipe.reconstruct, self.recipe
        if spec is None:
            return [], []
        sides = [(pair, direction) for pair in range(spec.pairs) for direction in DIRECTIONS]
        generators, judges = self._generators(spec, sides, attributes)
        of_pair = {s.pair: s.by_model for s in searches[: recipe.num_pairs]}  # the headline's setting comes first
        crops = {side: self._views[side, recipe.last_epoch, _queries(recipe.crops[0])] for side in sides}
        count = min(spec.images, shown_rows(self.splits, self.shard, _queries(recipe.crops[0])).members.num_rows)
        stages = {
            (side, start): Reconstruct(
                f"model {side[1]}{side[0]}",
                *generators[side],
                crops[side],
                of_pair[side[0]][DIRECTIONS.index(side[1])],
                self._views[side, recipe.last_epoch, PUBLIC_VIEW],
                self._views[side, recipe.last_epoch, PROBED_VIEW],
                self.splits,
                recipe.represented_layers,
                spec,
                (start, min(start + IMAGES_PER_PART, count)),
            )
            for side in sides
            for start in range(0, count, IMAGES_PER_PART)
        }
        parts = dict(zip(stages, self.runner.run_all(list(stages.values())), strict=True))
        drawn: list[Blocks] = [[part for (of, _), part in parts.items() if of == side] for side in sides]
        judged = [
            Judge(
                pair, (drawn[2 * pair], drawn[2 * pair + 1]), of_pair[pair], judges, self.shard, self.splits, spec, attributes
            )
            for pair in range(spec.pairs)
        ]  # fmt: skip
        return self.runner.run_all(judged), drawn[:2]

    def _generators(
        self, spec: ReconstructSpec, sides: Sequence[Side], attributes: Artifact[pa.Table] | None
    ) -> tuple[dict[Side, tuple[Artifact[TrainedModel], Artifact[TrainedModel] | None]], dict[str, Artifact[TrainedModel]]]:
        """Train a generator and a decoder for each encoder, all from the same seeds, and the judges, on public images."""
        last, layers = self.recipe.last_epoch, self.recipe.represented_layers
        data: dict[str, Any] = {
            "num_classes": len(class_names_of(self.splits)),
            "shard": self.shard,
            "splits": self.splits,
            "roles": (PUBLIC,),
        }
        wanted = {"generator": spec.generator} | ({"decoder": spec.baseline} if spec.baseline else {})
        stages: dict[Any, Train] = {
            (side, kind): GenerateTrain(
                name=f"{kind} {side[1]}{side[0]}",
                model=settings.model if kind == "generator" else settings.model.model_copy(update={"input_size": spec.side}),
                training=settings.training,
                conditions=tuple(self._views[side, last, view] for view in (PUBLIC_VIEW, *self._public_crops)),
                layers=layers,
                **data,
            )
            for side in sides
            for kind, settings in wanted.items()
        }
        named = () if self.recipe.beyond is None else tuple(self.recipe.beyond.attributes)
        judging: dict[str, Any] = {"model": spec.judging_model, "training": spec.judge.training, "crop": self.recipe.crops[0]}
        judges = {CLASS: TrainJudge(name=f"judge of {CLASS}", **judging, **data)} | {
            name: TrainJudge(
                name=f"judge of {name}", attribute=name, attributes=attributes, **judging, **(data | {"num_classes": 0})
            )
            for name in named
        }
        trained = dict(zip(stages, self.runner.run_all(list(stages.values())), strict=True))
        generators = {side: (trained[side, "generator"], trained.get((side, "decoder"))) for side in sides}
        return generators, dict(zip(judges, self.runner.run_all(list(judges.values())), strict=True))


def _queries(crop: CropSpec) -> View:
    return View((TARGET, REFERENCE), crop)


def __getattr__(name: str) -> Any:
    """Build the Prefect flow `deja_vu` when it is asked for."""
    check_flow("deja_vu", name)
    from flows.deployed import audit_flow

    return audit_flow("deja_vu")
