"""A causal language model behind HTTP on this machine, in the shapes of vLLM, SGLang and chat services; for trials and tests.

python -m benchmarks.served my-model --port 8321

A trap makes it answer as badly configured services do: see TRAPS. Requests are counted by text under /counts.
"""

import argparse
import math
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from memlib.models.external.language import HuggingFace

TRAPS = {
    "echo_ignored": "returns the log probabilities of generated tokens, whatever echo says",
    "newer_shape": "returns them in the shape of chats",
    "order_dependent": "scores a text otherwise if it was asked before",
    "bos_twice": "begins every text twice",
    "cut": "cuts texts after 24 tokens",
    "zeros": "returns 0 for all log probabilities",
    "marked": "returns -9999 for tokens that are not the likeliest",
    "capped": "refuses log probabilities of the likeliest tokens",
    "refuses_at_times": "answers every third request with 429 and Retry-After",
    "fails_at_times": "answers every third request with 503",
    "changes": "answers as another model from the 100th request on",
    "html": "answers with a page",
    "error_inside": "answers with an error under status 200",
    "unlike_temperature": "scales probabilities by the temperature that is asked for",
    "same_answer": "generates the same text whatever is asked",
    "wrong_key": "refuses every key",
    "redirects": "sends requests on to another host",
    "quotes": "refuses a request, quoting its text and its key",
}
CUT = 24
CHANGES_AT = 100


@dataclass
class Served:
    """A model in a server.

    Args:
        model: the model.
        level: scores, probabilities or text: what the server gives.
        trap: a name in TRAPS, or "".
        adapters: further models by name, as vLLM serves adapters beside their base.
    """

    model: HuggingFace
    level: str = "scores"
    trap: str = ""
    adapters: dict[str, HuggingFace] = field(default_factory=dict)
    shapes: tuple[str, ...] = ("completions", "generate", "chat")  #: requests that are answered at all.
    asked: Counter[str] = field(default_factory=Counter)
    keys: set[str] = field(default_factory=set)
    begins: bool = True  #: whether a token for the beginning precedes a text.
    requests: int = 0
    noise: float = 0.0
    pause: float = 0.0  #: seconds that an answer takes.
    lock: threading.Lock = field(default_factory=threading.Lock)

    def counted(self, body: dict[str, Any], request: Request) -> Response | None:
        """Count a request; return the refusal of a trap, if it has one."""
        with self.lock:
            self.requests += 1
        self.keys.add(request.headers.get("authorization", ""))
        if self.pause:
            time.sleep(self.pause)
        prompt = str(body.get("prompt") or body.get("text") or body.get("messages") or body.get("input_ids"))
        if self.trap == "refuses_at_times" and self.requests % 3 == 0:
            return JSONResponse({"error": {"message": "slow down"}}, 429, headers={"retry-after": "0.05"})
        if self.trap == "fails_at_times" and self.requests % 3 == 0:
            return JSONResponse({"error": {"message": "overloaded"}}, 503, headers={"retry-after": "0.05"})
        if self.trap == "wrong_key":
            return JSONResponse({"error": {"message": "bad key"}}, 401)
        if self.trap == "redirects":
            return Response(status_code=307, headers={"location": "http://127.0.0.1:9/v1/completions"})
        if self.trap == "quotes":
            said = f"cannot answer {prompt} with {request.headers.get('authorization', '')}"
            return JSONResponse({"error": {"message": said}}, 400)
        if self.trap == "html":
            return HTMLResponse("<html><body>Welcome</body></html>")
        if self.trap == "error_inside":
            return JSONResponse({"error": {"type": "overloaded_error", "message": "no"}})
        with self.lock:
            self.asked[prompt] += 1
        return None

    @property
    def name(self) -> str:
        """The system's fingerprint."""
        return "fp-2" if self.trap == "changes" and self.requests >= CHANGES_AT else "fp-1"

    def of(self, name: str) -> HuggingFace:
        """Return a model by its name."""
        return self.adapters.get(name, self.model)

    def encode(self, prompt: str | list[int], model: HuggingFace) -> tuple[list[int], list[str]]:
        """Return the tokens of a prompt, after one for the beginning of a text, and their texts."""
        beginning = "<end>"
        if not isinstance(prompt, str):
            return list(prompt), [beginning if token == model.start else model.pieces[token] or "" for token in prompt]
        ids = model.encode([prompt])[0]
        pieces = [model.pieces[token] or "" for token in ids]
        if self.begins:
            ids, pieces = [model.start, *ids], [beginning, *pieces]
        if self.trap == "bos_twice":
            ids, pieces = [model.start, *ids], [beginning, *pieces]
        if self.trap == "cut":
            ids, pieces = ids[:CUT], pieces[:CUT]
        return ids, pieces

    @torch.inference_mode()
    def score(
        self, ids: list[int], model: HuggingFace, temperature: float
    ) -> tuple[list[float | None], list[tuple[str, float]]]:
        """Return the log probability of each token after the first, and the likeliest token at each place."""
        scores = model.model(input_ids=torch.tensor([ids])).logits[0, :-1].float()
        if self.trap == "unlike_temperature":
            scores = scores / temperature
        logs = torch.log_softmax(scores, dim=-1)
        own = logs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist() if len(ids) > 1 else []
        best = [
            (model.pieces[token] or "<end>", float(row[token]))
            for row, token in zip(logs, logs.argmax(dim=1).tolist(), strict=True)
        ]
        if self.trap == "order_dependent" and self.asked[str(ids)] > 0:
            own = [value - 0.8 * (place % 2) for place, value in enumerate(own)]
        self.asked[str(ids)] += 1
        if self.noise:
            own = [
                min(-1e-9, value + self.noise * math.sin(self.requests * (place + 1.3))) for place, value in enumerate(own)
            ]
        if self.trap == "zeros":
            own = [0.0] * len(own)
        if self.trap == "marked":
            own = [value if value >= top[1] - 1e-6 else -9999.0 for value, top in zip(own, best, strict=True)]
        if self.trap == "changes" and self.requests >= CHANGES_AT:
            own = [value - 0.3 for value in own]
        return [None, *own], best

    @torch.inference_mode()
    def generate(
        self, ids: list[int], model: HuggingFace, most: int, temperature: float, seed: int | None
    ) -> tuple[str, list[str], list[float]]:
        """Sample a continuation; return its text, its tokens and their log probabilities."""
        if self.trap == "same_answer":
            return "Certainly!", ["Certainly!"], [-0.5]
        rng = torch.Generator().manual_seed(torch.seed() % 2**31 if seed is None else seed)
        seen, pieces, logs = list(ids), [], []
        room = (model.window or len(ids) + most) - len(ids)
        for _ in range(max(1, min(most, room))):
            scores = model.model(input_ids=torch.tensor([seen])).logits[0, -1].float()
            found = torch.log_softmax(scores, dim=0)
            if temperature < 1e-6:
                token = int(found.argmax())
            else:
                token = int(torch.multinomial(torch.softmax(scores / temperature, dim=0), 1, generator=rng))
            if token == model.start:
                break
            seen.append(token)
            pieces.append(model.pieces[token] or "")
            logs.append(float(found[token]))
        return "".join(pieces), pieces, logs


def app_of(served: Served) -> FastAPI:
    """Return the server."""
    app = FastAPI()

    @app.get("/counts")
    def counts() -> dict[str, Any]:
        return {"requests": served.requests, "texts": dict(served.asked)}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model"} for name in ("small", *served.adapters)]}

    @app.post("/v1/completions", response_model=None)
    async def completions(request: Request) -> Any:
        body = await request.json()
        return await _in_thread(completion, body, request)

    @app.post("/generate", response_model=None)
    async def generate(request: Request) -> Any:
        body = await request.json()
        return await _in_thread(native, body, request)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request) -> Any:
        body = await request.json()
        return await _in_thread(turn, body, request)

    def completion(body: dict[str, Any], request: Request) -> Any:
        if "completions" not in served.shapes:
            return JSONResponse({"error": {"message": "not here"}}, 404)
        if (refusal := served.counted(body, request)) is not None:
            return refusal
        if served.trap == "capped" and body.get("logprobs"):
            return JSONResponse({"error": {"message": "logprobs must be 0"}}, 400)
        model = served.of(body["model"])
        ids, pieces = served.encode(body["prompt"], model)
        text, made, logs = served.generate(
            ids, model, body.get("max_tokens", 16), body.get("temperature", 1.0), body.get("seed")
        )
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(made), "total_tokens": len(ids) + len(made)}
        head = {"model": body["model"], "system_fingerprint": served.name, "usage": usage}
        if served.level == "scores" and body.get("echo") and served.trap not in ("echo_ignored", "newer_shape"):
            own, best = served.score(ids, model, body.get("temperature", 1.0))
            found: Any = {
                "tokens": [*pieces, *made], "token_logprobs": [*own, *logs],
                "top_logprobs": [None, *({piece: value} for piece, value in best), *({p: v} for p, v in zip(made, logs, strict=True))],
                "text_offset": [0] * (len(pieces) + len(made)),
            }  # fmt: skip
        elif served.level == "text" or not body.get("logprobs"):
            found = None
        elif served.trap == "newer_shape":
            found = {"content": [{"token": piece, "logprob": value} for piece, value in zip(made, logs, strict=True)]}
        else:
            found = {"tokens": made, "token_logprobs": logs, "top_logprobs": None, "text_offset": [0] * len(made)}
        return {**head, "choices": [{"index": 0, "text": text, "logprobs": found, "finish_reason": "length"}]}

    def native(body: dict[str, Any], request: Request) -> Any:
        if "generate" not in served.shapes:
            return JSONResponse({"error": {"message": "not here"}}, 404)
        if (refusal := served.counted(body, request)) is not None:
            return refusal
        model, how = served.model, body["sampling_params"]
        ids, pieces = served.encode(body["text"] if "text" in body else body["input_ids"], model)
        text, made, _ = served.generate(ids, model, how.get("max_new_tokens", 16), how.get("temperature", 1.0), None)
        meta: dict[str, Any] = {"prompt_tokens": len(ids), "completion_tokens": len(made)}
        if body.get("return_logprob") and served.level == "scores":
            own, best = served.score(ids, model, how.get("temperature", 1.0))
            meta["input_token_logprobs"] = [list(row) for row in zip(own, ids, pieces, strict=True)]
            meta["input_top_logprobs"] = [None, *([[value, 0, piece]] for piece, value in best)]
        return {"text": text, "meta_info": meta}

    def turn(body: dict[str, Any], request: Request) -> Any:
        if "chat" not in served.shapes:
            return JSONResponse({"error": {"message": "not here"}}, 404)
        if (refusal := served.counted(body, request)) is not None:
            return refusal
        model, prompt = served.of(body["model"]), body["messages"][-1]["content"]
        ids, _ = served.encode(prompt, model)
        text, _, _ = served.generate(ids, model, body.get("max_tokens", 16), body.get("temperature", 1.0), body.get("seed"))
        return {
            "model": body["model"], "system_fingerprint": served.name,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "logprobs": None}],
        }  # fmt: skip

    return app


async def _in_thread(work: Any, *arguments: Any) -> Any:
    import asyncio

    return await asyncio.to_thread(work, *arguments)


def main() -> None:
    """Serve a folder until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8321)
    parser.add_argument("--level", choices=("scores", "probabilities", "text"), default="scores")
    parser.add_argument("--shapes", nargs="+", default=["completions", "generate", "chat"])
    parser.add_argument("--trap", choices=tuple(TRAPS), default="")
    parser.add_argument("--adapter", action="append", default=[], help="NAME=FOLDER of a further model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    adapters = {name: HuggingFace(folder, None).eval() for name, folder in (one.split("=", 1) for one in options.adapter)}
    served = Served(
        HuggingFace(str(options.folder), None).float(), options.level, options.trap, adapters, tuple(options.shapes)
    )
    uvicorn.run(app_of(served), host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
