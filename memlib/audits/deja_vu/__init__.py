"""Déjà vu: does the model name the object of a training image from its background alone? (Meehan 2023)

A background crop of a training image is embedded; its k nearest public images vote on the object's class. The
target model has trained on the image, the reference model has not, so what the target knows beyond the reference
is memory and not correlation (sections 3.1 and 4):

    score(p) = accuracy of the target on its p % most confident crops - accuracy of the reference on its own

Each example falls into one of four categories (section 4.2): memorized (only the target is right),
misrepresented (only the reference), correlated (both), unassociated (neither). Chance produces memorized and
misrepresented examples alike, so the honest share is memorized - misrepresented. A and B are exchangeable: every
number is taken from both directions together, (A on A + B on B) / 2 against (B on A + A on B) / 2.
"""

from memlib.audits.deja_vu.curves import curves, most_correlated, most_memorized
from memlib.audits.deja_vu.recipe import Config, Recipe, ReportSpec
from memlib.audits.deja_vu.scores import CATEGORIES, DIRECTIONS, Decoding, Direction, categorize, score
from memlib.audits.deja_vu.summary import in_brief, summarize
from memlib.audits.deja_vu.verdict import limits, verdict

__all__ = [
    "CATEGORIES",
    "DIRECTIONS",
    "Config",
    "Decoding",
    "Direction",
    "Recipe",
    "ReportSpec",
    "categorize",
    "curves",
    "in_brief",
    "limits",
    "most_correlated",
    "most_memorized",
    "score",
    "summarize",
    "verdict",
]
