"""The secrets of an exposure audit in plain text, for explicit requests (memlib show --reveal)."""

from collections.abc import Mapping
from typing import Any

from memlib.audits.exposure.models import CorpusData
from memlib.audits.exposure.observing import FRONTIER, Search
from memlib.audits.exposure.recipe import Recipe
from memlib.audits.exposure.stages import MakeCorpus
from memlib.observe.extraction import Frontier
from memlib.observe.likelihoods import UNITS_PER_BIT
from memlib.pipeline.stage import Artifact
from memlib.store import Ref, Store
from memlib.training.pretrained import TakeOver


def revealed(store: Store, recipe: Mapping[str, Any], artifacts: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Return the inserted canaries of a run, and the candidates that its searches found, in plain text.

    Args:
        store: store that contains the run.
        recipe, artifacts: recipe and artifacts from the run's manifest.
    """
    audited = Recipe.model_validate(recipe)
    corpus = Artifact(store, Ref.parse(artifacts["corpus"]), MakeCorpus)
    base = Artifact(store, Ref.parse(artifacts["base"]), TakeOver) if "base" in artifacts else None
    data = CorpusData(corpus, audited.data, audited.canaries, audited.trained, base)
    inserted = [
        {"canary": row["canary"], "insertions": row["insertions"], "text": row["text"]}
        for row in data.table.to_pylist()
        if row["insertions"]
    ]
    candidates = []
    for name in (name for name in artifacts if name.startswith("search ")):
        search = Artifact(store, Ref.parse(artifacts[name]), Search)
        row = search.content.to_pylist()[0]  # of the first canary that the search was for
        where = {name: row[name] for name in ("variant", "seed", "known")}
        where |= {"canary": row["canary"]} if row["known"] else {}
        for place, (cost, path) in enumerate(Frontier.load(search.path(FRONTIER)).found, start=1):
            candidates.append({**where, "place": place, "bits": f"{cost / UNITS_PER_BIT:.2f}", "text": data.text_of(path)})
    return {"inserted": inserted, "found by shortest path": candidates}
