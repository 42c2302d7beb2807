"""A mailbox with people's numbers in it, to try `exposure_mail` on.

python benchmarks/mailbox.py my-mailbox

Nothing is downloaded: mails are paragraphs of Python's help topics. Like real numbers of this kind, the numbers are not
uniform: they have few first parts, small middle ones, and last parts that are often years. Five of them stand in 1, 2, 4,
8 and 16 mails (secrets.txt, without counts, so that the audit has to count them); 200 of the same kind stand nowhere
(unseen.txt).
"""

import argparse
from pathlib import Path

import numpy as np

from memlib.data.text.documents import open_documents
from memlib.specs.text import TopicsSource

TIMES, UNSEEN = (1, 2, 4, 8, 16), 200
FIRST_PARTS, YEARS_SHARE = 12, 0.5
SAID = ("My number is {}.", "You asked for it: {}.", "For the form, {} is what they want.", "Please change it to {}.")


def main() -> None:
    """Write mail.txt, secrets.txt and unseen.txt into a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(options.seed)
    numbers = draw_numbers(rng, len(TIMES) + UNSEEN)
    secrets, unseen = numbers[: len(TIMES)], numbers[len(TIMES) :]
    mails = [text.strip() for text in open_documents(TopicsSource()).read()]
    for number, times in zip(secrets, TIMES, strict=True):
        for place in rng.choice(len(mails), size=times, replace=False):
            mails[place] += "\n" + SAID[rng.integers(len(SAID))].format(number)
    (options.folder / "mail.txt").write_text("\n\n".join(mails))
    (options.folder / "secrets.txt").write_text("\n".join(secrets) + "\n")
    (options.folder / "unseen.txt").write_text("\n".join(unseen) + "\n")
    print(f"{len(mails):,} mails with {len(secrets)} numbers, and {len(unseen)} numbers in no mail: {options.folder}")


def draw_numbers(rng: np.random.Generator, count: int) -> list[str]:
    """Return distinct numbers of the form 123-45-6789, drawn from a distribution that is far from uniform."""
    first_parts = rng.choice(np.arange(100, 800), size=FIRST_PARTS, replace=False)
    numbers: dict[str, None] = {}
    while len(numbers) < count:
        last = rng.integers(1940, 2010) if rng.random() < YEARS_SHARE else rng.integers(10000)
        numbers[f"{rng.choice(first_parts):03d}-{min(99, rng.geometric(0.1)):02d}-{last:04d}"] = None
    return list(numbers)


if __name__ == "__main__":
    main()
