"""Neighbours and votes by embeddings stored in float16, compared with those in float32.

Two networks are trained for a few epochs on photographs, an image folder; their pooled features are searched in float32, as they
are and after rounding to float16. Prints the shares of neighbours and votes that stay the same, and accuracies.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

from memlib.stats.neighbors import nearest_neighbors, vote

SIDE, EPOCHS, QUERIES, BATCH = 32, 3, 0.1, 128  # QUERIES: share of the images that ask the others
NEIGHBORS = (5, 20, 100)
CASES = (("resnet18", 20_000), ("resnet50", 4_000))


def features(name: str, images: datasets.ImageFolder) -> NDArray[np.float32]:
    """Train a network on all images, and return its pooled features (num_images, dim)."""
    torch.manual_seed(0)
    network: nn.Module = models.get_model(name, weights=None, num_classes=len(images.classes))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for _ in range(EPOCHS):
        for shown, labels in DataLoader(images, BATCH, shuffle=True):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(network(shown), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    network.fc = nn.Identity()
    network.eval()
    with torch.inference_mode():
        return np.concatenate([network(shown).numpy() for shown, _ in DataLoader(images, BATCH)])


def main() -> None:
    """Print a row for each network and number of neighbours."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=Path, help="image folder, a folder for each class")
    read = transforms.Compose([transforms.Resize((SIDE, SIDE)), transforms.ToTensor()])
    whole = datasets.ImageFolder(str(parser.parse_args().images), read)
    print(
        "| network | vectors | k | neighbours kept | votes kept | accuracy in float32 | in float16 |\n|---|---|---|---|---|---|---|"
    )
    for name, count in CASES:
        rng = np.random.default_rng(0)
        order = rng.permutation(len(whole))[:count]
        whole.samples, targets = [whole.samples[place] for place in order], np.array(whole.targets)[order]
        vectors, asked = features(name, whole), int(QUERIES * count)
        rows = np.arange(count - asked)
        for k in NEIGHBORS:
            found = []
            for stored in (vectors, vectors.astype(np.float16).astype(np.float32)):
                found.append(nearest_neighbors(stored[:asked], [(rows, stored[asked:])], k)[0])
            named = [vote(targets[asked:][near])[0] for near in found]
            kept = np.mean([len(set(one) & set(other)) / k for one, other in zip(*found, strict=True)])
            right = [float((one == targets[:asked]).mean()) for one in named]
            same = float((named[0] == named[1]).mean())
            print(
                f"| {name} | {count:,} x {vectors.shape[1]} | {k} | {kept:.4f} | {same:.4f} | {right[0]:.4f} | {right[1]:.4f} |",
                flush=True,
            )
        whole = datasets.ImageFolder(whole.root, read)


if __name__ == "__main__":
    main()
