"""A stage's work inside a Ray task; apart from the tasks, so that its process loads neither Prefect nor FAISS."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from memlib.store import Attempt, Ref, Store


def compute_there(
    store: Store, ref: Ref, record: Mapping[str, Any], compute: Callable[[Attempt, torch.device], None], threads: int
) -> None:
    """Fills an artifact; what it makes goes to the store from there."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(threads)
    with store.write(ref, **record) as attempt:
        compute(attempt, device)
