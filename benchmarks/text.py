"""Time and memory of making a corpus from a text that does not fit in memory.

python benchmarks/text.py --folder FOLDER [--unit character word token] [--model my-model] [--megabytes 64 256 1024]

Text is generated: words from a heavy-tailed distribution, in lines and paragraphs, with numbers among them. Each corpus is
made in its own process (`MakeCorpus`, with canaries; --secrets: with secrets that the text contains), whose seconds and peak
memory are printed, with the exponent at which the seconds grow. The texts stay in FOLDER and are used again; corpora are made
in temporary folders beside them. Tokens are those of a model (python benchmarks/small_gpt2.py my-model). --audit: run a whole
audit of an untrained model on the largest text, on Ray.
"""

import argparse
import contextlib
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

LOOK_SECONDS = 0.2
WORDS, LINE_WORDS, LINES, NUMBERS = 50_000, 12, 6, 0.01
PINS = ("the pin is 314159.", "the pin is 271828.")
AUDIT = """
audit: exposure
title: untrained, on much text
data: {{source: {{kind: text, path: {path}}}, window: 100, validation: 0.0001}}
canaries: {{format: "my number is {{d4}}", insertions: [1], never: 5, together: true}}
model: {{architecture: lstm, width: 16, layers: 1, embedding: 8}}
training: {{objective: {{kind: language}}, epochs: 0, batch_size: 32, augment: null}}
extraction: null
"""


def main() -> None:
    """Print one row per corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--unit", nargs="+", default=["character", "word"], choices=["character", "word", "token"])
    parser.add_argument("--model", help="folder of a causal language model, for tokens")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--secrets", action="store_true")
    parser.add_argument("--audit", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(make_corpus(**json.loads(options.one))))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    paths = {size: write_text(options.folder / f"text_{size}.txt", size) for size in sorted(options.megabytes)}
    print("| unit | text, MB | symbols | seconds | exponent | peak memory, GiB | MB/s |\n|---|---|---|---|---|---|---|")
    for unit in options.unit:
        before = None
        for size, path in paths.items():
            one = {"path": str(path), "unit": unit, "model": options.model, "secrets": options.secrets}
            corpus = in_a_process(one)
            seconds = corpus["seconds"]
            exponent = "" if before is None else f"{math.log(seconds / before[1]) / math.log(size / before[0]):.2f}"
            print(
                f"| {unit} | {size:,} | {corpus['symbols']:,} | {seconds:.1f} | {exponent} | {corpus['gib']:.2f} | {size / seconds:.1f} |",
                flush=True,
            )
            before = (size, seconds)
    if options.audit:
        print(audit(options.folder, list(paths.values())[-1]))


def write_text(path: Path, megabytes: int) -> Path:
    """Write a text of this many megabytes, unless the file exists."""
    if path.exists():
        return path
    rng = np.random.default_rng(megabytes)
    letters = rng.integers(97, 123, size=(WORDS, 8), dtype=np.uint8)
    lengths = rng.integers(2, 9, size=WORDS)
    words = [bytes(row[:length]).decode() for row, length in zip(letters, lengths, strict=True)]
    left = megabytes * 10**6
    with path.open("w") as file:
        while left > 0:
            chosen = np.minimum(rng.zipf(1.3, size=LINES * LINE_WORDS * 1000) - 1, WORDS - 1)
            parts = [words[place] for place in chosen]
            for place in np.flatnonzero(rng.random(len(parts)) < NUMBERS):
                parts[place] = str(rng.integers(10**6))
            for place in rng.integers(len(parts), size=2):
                parts[place] = PINS[rng.integers(2)]
            lines = [" ".join(parts[start : start + LINE_WORDS]) for start in range(0, len(parts), LINE_WORDS)]
            blocks = ["\n".join(lines[start : start + LINES]) for start in range(0, len(lines), LINES)]
            text = "\n\n".join(blocks)[:left]
            left -= file.write(text + "\n\n")
    return path


def in_a_process(one: dict[str, Any]) -> dict[str, Any]:
    """Run `make_corpus` alone in a process; return its measurements."""
    command = [sys.executable, __file__, "--folder", "x", "--one", json.dumps(one)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(process.stderr)
    measurements: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return measurements


def make_corpus(path: str, unit: str, model: str | None, secrets: bool) -> dict[str, Any]:
    """Make one corpus; return its seconds, peak memory in GiB and number of symbols."""
    from memlib.audits.exposure.stages import MakeCorpus
    from memlib.running.runners import PlainRunner
    from memlib.specs import PretrainedSpec, SecretsSpec, TextSpec
    from memlib.store import Store
    from memlib.training.pretrained import TakeOver

    with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder:
        text = TextSpec.model_validate({"source": {"kind": "text", "path": path}, "unit": unit, "window": 100})
        canaries: dict[str, Any] = {"format": "the pin is {d6}.", "never": 20, "together": True}
        if unit == "word":
            canaries |= {"format": "the pin is {d1} {d1} {d1}", "insertions": [1, 4, 16]}
        elif secrets:
            Path(folder, "secrets.txt").write_text("\n".join(PINS) + "\n")
            canaries |= {"file": f"{folder}/secrets.txt", "never": 200}
        runner = PlainRunner(Store(f"{folder}/store"))
        base = None
        if unit == "token":
            base = runner.run(TakeOver(PretrainedSpec.model_validate({"kind": "huggingface", "path": model})))
        started = time.perf_counter()
        corpus = runner.run(MakeCorpus(text, SecretsSpec.model_validate(canaries), base=base))
        seconds = time.perf_counter() - started
        symbols = corpus.content.windows.size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": seconds, "gib": peak, "symbols": symbols}


def audit(folder: Path, path: Path) -> str:
    """Run a whole audit; return a line with its duration and the largest memory that any of its processes used."""
    recipe = folder / "much_text.yaml"
    recipe.write_text(AUDIT.format(path=path))
    started, peak = time.perf_counter(), 0
    with tempfile.TemporaryDirectory(dir=folder) as store:
        command = [sys.executable, "-m", "flows.cli.entry", "run", "exposure", "--recipe", str(recipe), "--store", store]
        running = psutil.Popen(command)
        while running.poll() is None:
            with contextlib.suppress(psutil.Error):
                peak = max([peak, *(process.memory_info().rss for process in [running, *running.children(recursive=True)])])
            time.sleep(LOOK_SECONDS)
        if running.returncode:
            raise SystemExit(running.returncode)
    return f"whole audit of {path.name}: {time.perf_counter() - started:.0f} s, no process above {peak / 2**30:.2f} GiB"


if __name__ == "__main__":
    main()
