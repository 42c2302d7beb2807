"""Search, embedding and decoding as memlib's stages do them against the plain tools, alternating in one process.

    python benchmarks/plain.py

Plain: one call of FAISS; a PyTorch loop over batches that are read, normalized, embedded and written; threads that open,
resize, write and digest JPEG photos with Pillow. Both sides use the same threads. Prints medians of repeats and the spread
of the ratio; then compares one search with the same search in 3 and 1,000 parts of the public set, and of the queries.
"""

import argparse
import functools
import hashlib
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from memlib.data.datasets import open_source
from memlib.data.images.shards import write_shard
from memlib.models.encoder import Encoder
from memlib.observe.embeddings import embed, search
from memlib.specs import DataSpec, ModelSpec
from memlib.training.augment import normalize
from memlib.training.fit import build_model

SIDE, PHOTO = 64, (500, 375)
Work = Callable[[], Any]


def vectors(count: int, dim: int, seed: int, folder: Path) -> NDArray[np.float32]:
    """Save embeddings that scatter around the centres of 1,000 classes; return the file, memory-mapped: (count, dim) float32."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(1000, dim)).astype(np.float32)
    points = 0.5 * centres[rng.integers(0, 1000, size=count)] + rng.normal(size=(count, dim)).astype(np.float32)
    path = folder / f"vectors-{seed}.npy"
    np.save(path, np.maximum(points, 0).astype(np.float32))
    loaded: NDArray[np.float32] = np.load(path, mmap_mode="r")
    return loaded


def by_turns(repeats: int, plain: Work, ours: Work) -> tuple[float, float, list[float]]:
    """Return the median seconds of both sides and the ratios of the turns, sorted; a first turn is a warm-up."""
    seconds: list[tuple[float, float]] = []
    for turn in range(repeats + 1):
        durations = []
        for work in (plain, ours) if turn % 2 else (ours, plain):
            start = time.perf_counter()
            work()
            durations.append(time.perf_counter() - start)
        seconds.append((durations[0], durations[1]) if turn % 2 else (durations[1], durations[0]))
    a, b = zip(*seconds[1:], strict=True)
    return statistics.median(a), statistics.median(b), sorted(y / x for x, y in zip(a, b, strict=True))


def say(name: str, found: tuple[float, float, list[float]]) -> None:
    plain, ours, ratios = found
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    print(f"{name}: plain {plain:.2f} s, memlib {ours:.2f} s, ratio {statistics.median(ratios):.3f} ({spread})", flush=True)


def compare_search(repeats: int, folder: Path) -> None:
    """Print the times of a large search and of two with few but wide vectors, whose distances are recomputed pair by pair."""
    for asked, among, dim, k in ((8_000, 50_000, 512, 100), (4_000, 4_000, 2048, 100), (4_000, 4_000, 2048, 30)):
        queries, public = vectors(asked, dim, 1, folder), vectors(among, dim, 2, folder)
        plain = functools.partial(faiss.knn, np.asarray(queries), np.asarray(public), k)
        ours = functools.partial(search, queries, [public], k)
        say(f"search, {asked:,} among {among:,}, {dim} numbers, k {k}", by_turns(repeats, plain, ours))


def compare_parts(folder: Path) -> None:
    """Print whether neighbours and distances stay the same when the public set, or the queries, are cut into parts."""
    queries, public, k = vectors(2_000, 256, 3, folder), vectors(20_000, 256, 4, folder), 30
    whole = search(queries, [public], k)
    for parts in (3, 1000):
        of_public = search(queries, np.array_split(public, parts), k)
        results = [search(block, [public], k) for block in np.array_split(queries, parts)]
        of_queries = [np.concatenate(arrays) for arrays in zip(*results, strict=True)]
        for which, other in (("public set", of_public), ("queries", of_queries)):
            same = [np.array_equal(one, two) for one, two in zip(whole, other, strict=True)]
            print(
                f"{parts} parts of the {which}: neighbours equal {same[0]}, distances equal to the last bit {same[1]}",
                flush=True,
            )


def compare_embed(repeats: int, folder: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(folder / "images.npy", rng.integers(0, 256, size=(2048, SIDE, SIDE, 3), dtype=np.uint8))
    images = np.load(folder / "images.npy", mmap_mode="r")
    rows = np.sort(rng.permutation(len(images)))
    spec = ModelSpec(width=32, projector=(64,), input_size=SIDE)
    encoder = build_model({"model": spec.model_dump(mode="json"), "classifier": None, "input_shape": [3, SIDE, SIDE]}, seed=0)
    assert isinstance(encoder, Encoder)

    @torch.inference_mode()
    def plain() -> None:
        model, outputs = encoder.to(memory_format=torch.channels_last).eval(), []
        for start in range(0, len(rows), 256):
            batch = torch.from_numpy(images[rows[start : start + 256]]).permute(0, 3, 1, 2).float() / 255
            outputs.append(dict(model.layers(normalize(batch)))["backbone"].numpy())
        np.save(folder / "plain.npy", np.concatenate(outputs))

    def ours() -> None:
        embed(encoder, images, rows, input_size=SIDE, folder=folder, layers=["backbone"])

    say(f"embed, {len(rows):,} images of {SIDE} x {SIDE}", by_turns(repeats, plain, ours))
    close = np.allclose(np.load(folder / "plain.npy"), np.load(folder / "backbone.npy"), rtol=1e-4, atol=1e-5)
    print(f"    same embeddings: {close}")


def compare_decode(repeats: int, folder: Path, threads: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(1000):
        path = folder / "photos" / f"class-{number % 10}" / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = rng.integers(
            0, 256, size=(PHOTO[1] // 3, PHOTO[0] // 3, 3), dtype=np.uint8
        )  # 110 kB each, like ImageNet's photos
        Image.fromarray(small).resize(PHOTO, Image.Resampling.BICUBIC).save(path, quality=90)
    spec = DataSpec.model_validate({"source": {"kind": "image_folder", "path": str(folder / "photos")}, "image_size": 224})
    source = open_source(spec.source, None)
    source.content_digest()
    paths = sorted((folder / "photos").rglob("*.jpg"))
    (folder / "shard").mkdir(exist_ok=True)

    def plain() -> None:
        stored = np.lib.format.open_memmap(
            folder / "plain-images.npy", mode="w+", dtype=np.uint8, shape=(len(paths), 224, 224, 3)
        )

        digests = [""] * len(paths)

        def read(number: int) -> None:
            with Image.open(io.BytesIO(paths[number].read_bytes())) as image:
                stored[number] = np.asarray(image.convert("RGB").resize((224, 224), Image.Resampling.BICUBIC))
            digests[number] = hashlib.sha256(stored[number]).hexdigest()

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(read, range(len(paths))))
        stored.flush()

    say(f"decode, {len(paths)} photos of {PHOTO[0]} x {PHOTO[1]}, {threads} threads",
        by_turns(repeats, plain, lambda: write_shard(source, spec, folder / "shard", threads=threads)))  # fmt: skip
    same = np.array_equal(np.load(folder / "plain-images.npy"), np.load(folder / "shard" / "images.npy"))
    print(f"    same pixels: {same}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    print(f"{threads} threads", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        compare_search(options.repeats, Path(folder))
        compare_embed(options.repeats, Path(folder))
        compare_decode(options.repeats, Path(folder), threads)
        compare_parts(Path(folder))


if __name__ == "__main__":
    main()
