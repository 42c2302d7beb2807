"""Every stage there is: its version, and the modules whose code decides its results.

A change of that code without a higher version is caught by tests/tasks/test_declared.py, which pins a digest of each.
"""

from memlib.provenance import Declared
from memlib.training.fit import TRAIN

_NETS = ("memlib.models", "memlib.objectives", "memlib.training", "memlib.data.shards", "memlib.data.canaries")
_FINDINGS = ("memlib.findings", "memlib.stats")

DECODE = Declared(
    "decode",
    1,
    (
        "memlib.data.datasets",
        "memlib.data.examples",
        "memlib.data.shards",
        "memlib.data.formats",
        "memlib.data.arrays",
        "memlib.data.csv_images",
        "memlib.data.image_folder",
        "memlib.data.joined",
        "memlib.data.parquet",
        "memlib.data.scenes",
        "memlib.data.two_moons",
    ),
)
SPLIT = Declared("split", 1, ("memlib.data.splits", "memlib.data.groups", "memlib.data.crops"))
HOLD_OUT = Declared("hold_out", 1, ("memlib.data.splits", "memlib.data.groups"))
SETS = Declared("sets", 2, ("memlib.data.sets", "memlib.data.groups"))
MIXES = Declared("mixes", 1, ("memlib.data.sets",))
CANARIES = Declared("canaries", 1, ("memlib.data.canaries",))
CORPUS = Declared(
    "secret/corpus", 3, ("memlib.data.text", "memlib.data.pairs", "memlib.data.spelling", "memlib.data.formats")
)

EMBED = Declared("embed", 2, ("memlib.observe.embeddings", "memlib.models", "memlib.data.crops"))
SEARCH = Declared("search", 1, ("memlib.observe.search", "memlib.stats.neighbors"))
OUTPUTS = Declared("outputs", 1, ("memlib.observe.outputs", "memlib.models", "tasks.jobs.outputs", "tasks.jobs.models"))
TRAIN_NETS = Declared("train_nets", 1, (*_NETS, "tasks.jobs.nets"))
SCORE_NETS = Declared(
    "score_nets",
    2,
    (
        "memlib.observe.outputs",
        "memlib.audits.unique_feature.scoring",
        "memlib.data.canaries",
        "memlib.models",
        "tasks.jobs.scores",
        "tasks.jobs.models",
    ),
)
GRADIENT_NORMS = Declared("gradient_norms", 1, ("memlib.observe.gradients", "memlib.models", "tasks.jobs.gradients"))
PERPLEXITIES = Declared(
    "perplexities", 1, ("memlib.observe.likelihoods", "memlib.models", "tasks.exposure_jobs", "tasks.exposure_models")
)
RANKS = Declared("ranks", 1, PERPLEXITIES.modules)
EXTRACT = Declared("secret/extract", 2, (*PERPLEXITIES.modules, "memlib.observe.extraction"))

PROBE = Declared("probe", 1, ("memlib.stats.probe", "tasks.scoring"))
SCORE_DEJA_VU = Declared("score", 4, ("memlib.audits.deja_vu", *_FINDINGS, "tasks.scoring"))
SCORE_UNIQUE_FEATURE = Declared("score", 6, ("memlib.audits.unique_feature", *_FINDINGS, "tasks.unique_feature"))
SCORE_OWN = Declared("score_own", 2, SCORE_UNIQUE_FEATURE.modules)
SELF_INFLUENCE = Declared("self_influence", 2, ("memlib.audits.self_influence", *_FINDINGS, "tasks.influence"))
SCORE_FORGETTING = Declared(
    "score_forgetting", 3, ("memlib.audits.forgetting", *_FINDINGS, "memlib.observe.given", "tasks.forgetting")
)
SCORE_EXPOSURE = Declared("score_exposure", 4, ("memlib.audits.exposure", *_FINDINGS, "tasks.exposure"))

_PAGE = ("memlib.report.page", "memlib.report.figures")
REPORT_DEJA_VU = Declared("report", 2, (*_PAGE, "memlib.report.deja_vu", "tasks.deja_vu_report"))
REPORT_UNIQUE_FEATURE = Declared("report", 4, (*_PAGE, "memlib.report.unique_feature", "tasks.unique_feature_report"))
REPORT_SELF_INFLUENCE = Declared("report", 4, (*_PAGE, "memlib.report.self_influence", "tasks.influence_report"))
REPORT_FORGETTING = Declared("report", 2, (*_PAGE, "memlib.report.forgetting", "tasks.forgetting_report"))
REPORT_EXPOSURE = Declared("report", 4, (*_PAGE, "memlib.report.exposure", "tasks.exposure_report"))

ALL = {name: value for name, value in {**globals(), "TRAIN": TRAIN}.items() if isinstance(value, Declared)}
