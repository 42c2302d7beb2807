"""A service on this machine with a model of characters that is fitted in an instant."""

import contextlib
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import uvicorn

from benchmarks.served import Served, app_of
from memlib.observe.service_checks import SENTENCES

SYMBOLS = ["<end>", *(chr(code) for code in range(32, 127)), "\n"]
ORDER = 6
LAST = 0.9  # weight of the longest context that was seen


class Characters:
    """An n-gram model of characters with the interface of `HuggingFace`: what was seen often enough comes back."""

    start, window = 0, 4096
    pieces = SYMBOLS

    def __init__(self, texts: Sequence[str]) -> None:
        self.counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for ids in self.encode(texts):
            seen = [self.start, *ids]
            for place in range(1, len(seen)):
                for length in range(min(ORDER, place) + 1):
                    self.counts[tuple(seen[place - length : place])][seen[place]] += 1
        self._rows: dict[tuple[int, ...], Any] = {}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the number of each character."""
        return [[SYMBOLS.index(symbol) for symbol in text] for text in texts]

    def model(self, input_ids: torch.Tensor) -> Any:
        """Return scores of the next character at every place."""
        ids = input_ids[0].tolist()
        rows = [self.row(tuple(ids[max(0, place - ORDER + 1) : place + 1])) for place in range(len(ids))]
        return SimpleNamespace(logits=torch.stack(rows)[None])

    def row(self, context: tuple[int, ...]) -> Any:
        """Return the log probability of each character after a context."""
        if context not in self._rows:
            found = torch.full((len(SYMBOLS),), 1 / len(SYMBOLS))
            for length in range(len(context) + 1):
                seen = self.counts.get(context[len(context) - length :])
                if seen:
                    shares = torch.zeros(len(SYMBOLS))
                    for symbol, count in seen.items():
                        shares[symbol] = count
                    found = (1 - LAST) * found + LAST * shares / shares.sum()
            self._rows[context] = found.log()
        return self._rows[context]


@contextlib.contextmanager
def serving(texts: Sequence[str] = (), *, port: int = 0, **settings: Any) -> Iterator[tuple[Served, dict[str, Any]]]:
    """Serve a model of the sentences of the test and further texts; yield the server, and the recipe's part on it."""
    served = Served(Characters([*SENTENCES, *texts]), **settings)  # type: ignore[arg-type]
    server = uvicorn.Server(uvicorn.Config(app_of(served), host="127.0.0.1", port=port, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive(), "the server starts"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield served, {"kind": "served", "url": f"http://127.0.0.1:{port}/v1", "model": "small", "sends": True}
    finally:
        server.should_exit = True
        thread.join(5)
