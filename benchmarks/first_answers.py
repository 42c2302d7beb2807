"""Five ways in, as a new user takes them: what is brought, what is typed, how long it takes, and what is printed.

python -m benchmarks.first_answers [--full]

Makes the models and files of five people from real data (MEMLIB_DATA): a network with photos/train and photos/val,
a table in two files with a pipeline of scikit-learn, scores with a column of members, a fine-tuned language model with texts, and
embeddings of two encoders. Then `memlib look` is run in each folder and timed; with --full, also the first two full audits.
"""

import argparse
import json
import lzma
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from torch import nn

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("MEMLIB_DATA", ROOT.parent / "shared" / "data"))
CLASSES = ("cat", "dog", "fish", "frog", "hen", "lamp", "moth", "owl", "seal", "wolf")  # invented names
ADULT = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
]
NETS = """from torch import nn


def build():
    def block(inputs, outputs):
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))

    return nn.Sequential(block(3, 16), block(16, 32), block(32, 64), nn.Flatten(), nn.Linear(4096, 128), nn.ReLU(),
                         nn.Linear(128, 10))
"""
EXPORT = """audit: deja_vu
data: {source: {kind: image_folder, path: photos}, image_size: 64}
split: {train_per_class: 50, public_per_class: 100, crop: {mode: corner}}
encoders: [{a: {kind: embeddings, path: a.parquet}, b: {kind: embeddings, path: b.parquet}}]
decode: {k: [30], layers: [last]}
"""


def photographs(root: Path, folder: Path, parts: dict[str, int]) -> None:
    """Copy photographs of ten classes into folder/<part>/<class>, with names that say nothing."""
    draw = random.Random(5)
    for source, name in zip(sorted(path for path in root.iterdir() if path.is_dir()), CLASSES, strict=False):
        files = sorted(source.rglob("*.JPEG"))
        draw.shuffle(files)
        for part, count in parts.items():
            target = folder / part / name
            target.mkdir(parents=True)
            for file in (files.pop() for _ in range(count)):
                (target / f"img_{draw.randrange(10**9):09d}.jpg").write_bytes(file.read_bytes())


def pixels(path: Path) -> torch.Tensor:
    """Return a picture as a tensor in [0, 1]."""
    values = np.asarray(Image.open(path).convert("RGB").resize((64, 64)))
    return torch.tensor(values).permute(2, 0, 1).float() / 255


def trained(files: list[Path], labels: list[int]) -> nn.Sequential:
    """Return a network that learns pictures by heart."""
    scope: dict[str, object] = {}
    exec(NETS, scope)
    torch.manual_seed(1)
    net: nn.Sequential = scope["build"]()  # type: ignore[operator]
    x, y, optimizer = (
        torch.stack([pixels(file) for file in files]),
        torch.tensor(labels),
        torch.optim.Adam(net.parameters(), 1e-3),
    )
    for _ in range(25):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
    return net.eval()


def network(folder: Path, root: Path) -> str:
    photographs(root, folder / "photos", {"train": 120, "val": 40})
    files = sorted((folder / "photos" / "train").rglob("*.jpg"))
    net = trained(files, [CLASSES.index(file.parent.name) for file in files])
    torch.save({"state_dict": net.state_dict(), "epoch": 25}, folder / "checkpoint.pt")
    (folder / "nets.py").write_text(NETS)
    return "memlib look photos checkpoint.pt nets:build --drawn fixed"


def tables(folder: Path, root: Path) -> str:
    rows = pd.read_csv(DATA / "adult" / "adult.data.xz", names=ADULT, skipinitialspace=True)
    rows = rows.drop(columns=["fnlwgt", "education-num"]).drop_duplicates().sample(8000, random_state=7)
    members, others = rows[:4000], rows[4000:]
    members.to_csv(folder / "members.csv", index=False)
    others.to_csv(folder / "others.csv", index=False)
    texts = [name for name in members if not pd.api.types.is_numeric_dtype(members[name]) and name != "income"]
    encoder = ColumnTransformer([("texts", OneHotEncoder(handle_unknown="ignore"), texts)], remainder="passthrough")
    model = make_pipeline(encoder, RandomForestClassifier(100, random_state=0))
    joblib.dump(model.fit(members.drop(columns="income"), members["income"]), folder / "model.joblib")
    return "memlib look members.csv others.csv model.joblib --drawn fixed"


def scores(folder: Path, root: Path) -> str:
    rng = np.random.default_rng(3)
    member = rng.random(1000) < 0.5
    losses = rng.gamma(2.0, 0.5, size=1000) * np.where(member, 0.8, 1.0)
    pd.DataFrame({"id": [f"x{name}" for name in rng.permutation(1000)], "loss": losses, "member": member}).to_csv(
        folder / "scores.csv", index=False
    )
    return "memlib look scores.csv --drawn coins"


def texts(folder: Path, root: Path) -> str:
    import transformers

    sys.path.insert(0, str(ROOT / "tests" / "end_to_end"))
    from small_models import save_trainable

    save_trainable(folder / "base", positions=256)
    with lzma.open(DATA / "ptb" / "ptb.train.txt.xz", "rt") as file:
        lines = [line.strip() for line in file]
    random.Random(1).shuffle(lines)
    documents = [" ".join(lines[3 * place : 3 * place + 2]) for place in range(400)]
    for name, some in (("members", documents[:200]), ("others", documents[200:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "base")
    model = transformers.GPT2LMHeadModel.from_pretrained(folder / "base")
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    torch.manual_seed(0)
    for _ in range(60):
        for batch in torch.randperm(200).split(16):
            words = tokenizer([documents[place] + "<end>" for place in batch], return_tensors="pt", padding=True, truncation=True,
                              max_length=200)  # fmt: skip
            labels = words.input_ids.masked_fill(words.attention_mask == 0, -100)
            optimizer.zero_grad()
            model(**words, labels=labels).loss.backward()
            optimizer.step()
    model.save_pretrained(folder / "tuned")
    tokenizer.save_pretrained(folder / "tuned")
    return "memlib look tuned base members.jsonl others.jsonl --drawn fixed"


def embeddings(folder: Path, root: Path) -> str:
    photographs(root, folder / "photos", {"": 200})
    (folder / "export.yaml").write_text(EXPORT)
    typed("memlib export --recipe export.yaml --output exported", folder)
    sets = {line.rpartition(",")[0]: line[-1] for line in (folder / "exported" / "sets.csv").read_text().splitlines()[1:]}
    pictures = [line.split(",") for line in (folder / "exported" / "images.csv").read_text().splitlines()[1:]]
    shown = torch.stack([pixels(folder / "exported" / file) for _, file in pictures])
    for name, own in (("a", "AC"), ("b", "BC")):
        keys = [key for key, one in sets.items() if one in own]
        net = trained([folder / "photos" / key for key in keys], [CLASSES.index(key.split("/")[0]) for key in keys])
        with torch.no_grad():
            vectors = torch.cat([net[:-1](part) for part in shown.split(256)]).tolist()
        pq.write_table(pa.table({"id": [one for one, _ in pictures], "last": vectors}), folder / f"{name}.parquet")
    return "memlib look exported a.parquet b.parquet"


WAYS = {"a network and photographs": network, "a table in two files": tables, "scores": scores, "a language model": texts,
        "embeddings of two encoders": embeddings}  # fmt: skip


def typed(command: str, folder: Path) -> tuple[float, float, str]:
    """Run a command as it is typed, and return its wall time, its CPU time and what it printed."""
    before, started = os.times(), time.monotonic()
    words = [sys.executable, "-m", "flows.cli.entry", *command.split()[1:]]
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    after = os.times()
    if done.returncode:
        raise SystemExit(f"{command} failed: {done.stderr}")
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return time.monotonic() - started, spent, done.stdout


def main() -> None:
    """Print the table of times, and what each way printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="also run the full audits of the network and of the table")
    options = parser.parse_args()
    rows, outputs = [], []
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(DATA / "tiny-imagenet-50.tar.xz") as archive:
            archive.extractall(Path(place) / "photographs", filter="data")
        root = next((Path(place) / "photographs").rglob("train"))
        for way, make in WAYS.items():
            folder = Path(place) / way.replace(" ", "_").replace("'", "")
            folder.mkdir()
            command = make(folder, root)
            commands = [command]
            if options.full and make in (network, tables):
                commands.append("memlib run membership.yaml --quiet")
            for one in commands:
                seconds, spent, printed = typed(one, folder)
                rows.append(f"| {way} | `{one}` | {seconds:.0f} | {spent:.0f} |")
                verdict = [
                    line for line in printed.splitlines() if line.startswith(("Shown", "Bounded", "Inconclusive", "Desc"))
                ]
                outputs += [f"$ {one}", *(printed.splitlines() if one == command else verdict), ""]
    print("\n".join(["| way | typed | s | CPU s |", "|---|---|---|---|", *rows, "", "```", *outputs, "```"]))


if __name__ == "__main__":
    main()
