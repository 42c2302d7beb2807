"""Interface between an audit and the rest of memlib: each package below memlib.audits declares one `Audit`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.attacks import Attack, DataFacts, not_for
from memlib.audits.cells import CellSpec, CellsSpec
from memlib.audits.ranking import Ranking
from memlib.findings import Finding, Findings
from memlib.runs.ledger import Look, look_of
from memlib.runs.records import RunRecord
from memlib.specs import Spec
from memlib.specs.base import Kind
from memlib.specs.question import run_name
from memlib.store import Store
from memlib.tables import Table

if TYPE_CHECKING:
    from memlib.pipeline.tables import Tables
    from memlib.runs.run import Run

Params = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One cell of a sweep, as passed to `Audit.compare`."""

    name: str  #: name of the cell.
    run: RunRecord  #: manifest of the cell's run.
    units: pa.Table  #: first part of the run's units table, which contains the units of the headline.


@dataclass(frozen=True)
class Judgement:
    """A gate's decision about a finding."""

    outcome: Literal["passed", "failed", "undecided"]  #: passed, failed or undecided.
    reason: str  #: the numbers behind the outcome, in words.


@dataclass(frozen=True)
class Trainings:
    """Values of a finding by training: the sample on which a comparison of two runs rests."""

    #: (num_trainings,) the finding's value in each independent training; their mean is the finding's value.
    values: NDArray[np.float64]
    setting: Params  #: params by which another run's finding is the same quantity.
    #: the units that were audited. Runs of other units cannot be compared, because all trainings of a run share its units:
    #: the spread of the trainings does not show how the choice of the units moves the value.
    audited: Hashable


@dataclass(frozen=True)
class Leak:
    """Words for what a test of a headline family shows, which stand alone."""

    clause: str  #: a clause, such as "members can be told from non-members"; {name} stands for a param of the finding.
    advice: str  #: what to do about it, in sentences.


@dataclass(frozen=True)
class Metric:
    """A headline metric, for readers who do not know its name."""

    words: str  #: what it measures, as in "images named only with memory".
    is_share: bool = False  #: whether it is a share, which pages give in per cent.


Revealed = dict[str, list[dict[str, Any]]]


def _none(recipe: Any) -> Iterable[str]:
    return ()


def _nothing_opened(recipe: Any, found: Mapping[type[Any], Any]) -> Iterable[str]:
    return ()


def _recipe_itself(content: Params) -> str:
    return ""


def _unmeasured(findings: Findings) -> None:
    return None


def _unranked(tables: Tables, findings: Findings) -> Sequence[Ranking]:
    return ()


def _untrained(recipe: Any) -> int:
    return 0


def _no_rule(run: Run, row: Finding, limit: float) -> None:
    return None


def _without_cell(facts: DataFacts) -> str:
    return "it has no recipe for any data; name one of your own in the dossier's cells"


@dataclass(frozen=True)
class Exported:
    """The images handed to the owner of external encoders."""

    #: id and pixels, uint8 (height, width, channels), of each image that the audit embeds, read one at a time.
    pictures: Iterable[tuple[str, NDArray[np.uint8]]]
    count: int  #: number of pictures.
    sets: Mapping[str, str]  #: set (A, B, C or X) of each example by id, needed to train the encoders.
    encoders: Mapping[str, str]  #: training sets of each encoder that the audit needs, by the encoder's name in recipes.
    texts: Mapping[str, str] = field(default_factory=dict)  #: id and text of each caption that the audit embeds.


@dataclass(frozen=True, eq=False)  # one instance per audit, compared by identity
class Audit:
    """An audit as declared by its package; importing the declaration loads neither torch nor scipy, which are slow to load.

    Attributes:
        name: name of the audit on the command line.
        question: the question that the audit answers, in plain words.
        recipe: schema of the audit's recipes.
        tables: published tables by name.
        headlines: families of tests that decide the word of a run's verdict; see `memlib.findings.word_of`.
        in_brief: function that returns whether short listings include a finding: takes the params of the finding and those of
            the headline.
        limits: function that yields the limitations of a recipe that do not depend on the data, such as tests that are too
            small to reject, or missing controls.
        revealed: function that returns the secrets of a run in plain text, for audits that have secrets: takes the store and
            the recipe and artifacts of the run's manifest, and returns rows by title.
        queried: function that returns the examples on which a model's owner must run the model, for audits that accept
            supplied outputs: takes a runner and the recipe, and returns the stored examples and the row of each by id.
        columns: metrics that a sweep shows side by side; by default the first ones.
        compare: function that compares each pair of sweep cells that audit the same examples, and returns settled findings.
        utility: function that returns an estimate, with an interval, of how well a run's models serve their purpose; None if
            this was not measured.
        exported: function that returns the images for the owner of encoders, for audits that accept supplied embeddings:
            takes a runner and the recipe.
        run_of: function that returns the id of a run, from its recipe as plain JSON and the key of its scores.
        opened: function that returns what is known of a recipe's declarations before anything is trained, from the recipe
            and the artifacts of the stages that read, by stage.
        variants: schemas of recipes on other kinds of data, by name of the variant; `recipe` reads these recipes, too.
        variant_of: function that returns the name of the variant to which a recipe's content belongs; "" for `recipe` itself.
        own_level: level of the audit's verdict, if it is not that of its recipe.
        gate: function that compares a headline finding with a limit: takes the finished run, the finding and the limit;
            returns None for findings on which it has no rule of its own.
        rankings: function that returns the records of a run in the order of its scores: takes the run's tables and findings.
        trainings: function that returns the values of a finding by training: takes the finished run and the finding; returns
            None for findings without such values. None for audits whose tables hold none of independent trainings.
        planned_trainings: function that returns the number of these trainings from a recipe.
        leaks: what each headline family shows, in words.
        metrics: its headline metrics, in plain words.
        attacks: attacks that the audit carries out, and the kinds of data that each applies to.
        cell: function that returns a cell which carries the audit out on data of one of these kinds; or, where more must be
            known than the data and the model, the reason why it cannot.
        not_shown: what the audit does not show, whatever its result, in sentences for pages and model cards.

    Example:
        >>> from memlib.audits import AUDITS
        >>> audit = AUDITS["self-influence"]
        >>> audit.field, "units" in audit.tables, audit.recipe.model_fields["audit"].default
        ('self_influence', True, 'self_influence')
    """

    name: str
    question: str
    recipe: type[Spec]
    tables: Mapping[str, Table]
    in_brief: Callable[[Params, Params], bool]
    headlines: tuple[str, ...] = ()
    limits: Callable[[Any], Iterable[str]] = _none
    revealed: Callable[[Store, Params, Mapping[str, str]], Revealed] | None = None
    queried: Callable[[Any, Any], tuple[NDArray[Any], dict[str, int]]] | None = None
    columns: tuple[str, ...] = ()
    compare: Callable[[Sequence[Cell]], Sequence[Finding]] | None = None
    utility: Callable[[Findings], Finding | None] = _unmeasured
    exported: Callable[[Any, Any], Exported] | None = None
    run_of: Callable[[Params, str], str] = run_name
    opened: Callable[[Any, Mapping[type[Any], Any]], Iterable[str]] = _nothing_opened
    variants: Mapping[str, type[Spec]] = field(default_factory=dict)
    variant_of: Callable[[Params], str] = _recipe_itself
    own_level: float | None = None
    gate: Callable[[Run, Finding, float], Judgement | None] = _no_rule
    rankings: Callable[[Tables, Findings], Sequence[Ranking]] = _unranked
    trainings: Callable[[Run, Finding], Trainings | None] | None = None
    planned_trainings: Callable[[Any], int] = _untrained
    leaks: Mapping[str, Leak] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    attacks: Sequence[Attack] = ()
    cell: Callable[[DataFacts], CellSpec | str] = _without_cell
    not_shown: Sequence[str] = ()

    @property
    def has_cells(self) -> bool:
        """True if the audit joins or compares the runs of other audits."""
        return issubclass(self.recipe, CellsSpec)

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of data that the audit applies to."""
        return frozenset().union(*(attack.kinds for attack in self.attacks))

    def applied_to(self, facts: DataFacts) -> CellSpec | str:
        """Return a cell that carries the audit out on data, or the reason why it does not apply to them."""
        if self.attacks and facts.kind not in self.kinds:
            return not_for(self.kinds, {facts.kind})
        return self.cell(facts)

    @property
    def field(self) -> str:
        """The audit's name in recipes, results and module names."""
        return self.name.replace("-", "_")

    def schema(self, content: Params) -> type[Spec]:
        """Return the schema to which a recipe's content belongs: that of a variant or `recipe`."""
        return self.variants.get(self.variant_of(content), self.recipe)

    def level(self, findings: Findings) -> float | None:
        """Return the level of the tests that decide a run's verdict; None if there is none, or several."""
        if self.own_level is not None:
            return self.own_level
        levels = {row.alpha for row in findings.tests(*self.headlines)}
        return levels.pop() if len(levels) == 1 else None

    def decisive(self, findings: Findings) -> Finding:
        """Return the test of the headline families with the smallest adjusted p-value, else the first finding."""
        tests = findings.tests(*self.headlines) if self.headlines else Findings([])
        return tests.strongest() if tests else findings.head

    def decisive_of(self, run: RunRecord) -> Finding:
        """Return the decisive finding of a run, from those that its manifest repeats."""
        return self.decisive(Findings.of_run(run))

    def leak(self, finding: Finding) -> Leak:
        """Return what a test of a headline family shows, in words."""
        assert finding.family is not None, "only tests of headline families show a leak"
        said = self.leaks[finding.family]
        return replace(said, clause=said.clause.format_map(finding.params))

    def said_of_look(self, look: Look, findings: Findings) -> str:
        """Return a sentence on repeated looks at a run's data and their effect on its result.

        The sentence is "" for a first look if no further looks were planned, and for a run without a test.
        """
        test = self.decisive(findings)
        return look.in_words(test.p_adjusted, test.alpha) if test.is_test else ""

    def is_lost(self, look: Look, findings: Findings) -> bool:
        """Return whether a run shows something only because earlier looks at its data are not allowed for."""
        test = self.decisive(findings)
        return test.is_test and look.is_lost(test.p_adjusted, test.alpha)

    def is_lost_by_looks(self, run: RunRecord) -> bool:
        """Return the same for a run, from the findings that its manifest repeats."""
        return self.is_lost(look_of(run.ledger, self.field), Findings.of_run(run))
