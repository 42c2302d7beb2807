"""A program that makes a small store with one release's code, for the tests of all later ones.

    cd CHECKOUT && PYTHONPATH=. OMP_NUM_THREADS=1 PYTHON NEW/tests/former/make.py NAME.tar.xz

CHECKOUT holds the code of the release, and NAME is its commit. The archive holds:

- recipes/*.yaml: a recipe for each audit;
- store/: a finished run of each; self-influence follows a frozen plan, and membership is signed;
- store/resume, store/requests: what a run of `INTERRUPTED` left behind that was stopped in its training;
- plan.json and public.pem: the plan, and the public key of the signature, whose private key is not kept.
"""

import os
import socket
import sys
import tarfile
import tempfile
from pathlib import Path
from unittest import mock

SECRET = bytes(range(32))
"""The secret of the canaries."""
MOONS = """
data: {source: {kind: two_moons, num_examples: 40}}
split: {train_per_class: 15}
model: {architecture: mlp, widths: [4]}
training: {objective: {kind: supervised}, epochs: 2, batch_size: 5, augment: null}
influence: {checkpoints: 1}
"""
RECIPES = {
    "self_influence": f"audit: self_influence\ntitle: former moons{MOONS}",
    "sweep": "audit: sweep\ntitle: former sweep\nrecipe:\n  audit: self_influence\n  title: former moons"
    + MOONS.replace("\n", "\n  ")
    + "\ngrid: {training.epochs: [2, 3]}\n",
    "deja_vu": """
audit: deja_vu
title: former scenes
data: {source: {kind: scenes, num_examples: 160, size: 16, digit_size: 8, background: palette}, image_size: 16}
split: {train_per_class: 4}
model: {backbone: small_resnet, width: 4, projector: [8], input_size: 16}
training: {objective: {kind: supervised}, epochs: 4, batch_size: 20}
decode: {k: [5], replicates: 100, permutations: 100}
report: {gallery: 2}
""",
    "membership": """
audit: membership
title: former biopsies
data: {source: {kind: breast_cancer}}
split: {train_per_class: 30, held_out_per_class: 10}
model: {architecture: mlp, widths: [8]}
training: {objective: {kind: supervised}, epochs: 4, batch_size: 20, augment: null}
shadows: {count: 6, chunk: 3}
score: {redraws: 999}
privacy: {epsilon: 8}
""",
    "forgetting": """
audit: forgetting
title: former digits
data:
  source:
    kind: joined
    parts:
      plain: {source: {kind: digits}}
      scanner: {source: {kind: digits}, change: {invert: true, blur: 0.4}}
  image_size: 8
  channels: 1
sets:
  query: {part: plain, per_class: 4}
  known: {part: plain, per_class: 4}
  withheld: {part: plain, per_class: 4}
  provider: {part: plain, per_class: 4}
  calibration: {part: scanner, per_class: 4}
model: {architecture: mlp, widths: [8]}
training: {objective: {kind: supervised}, epochs: 3, batch_size: 20, augment: null}
seeds: 2
targets: {half: {mix: {calibration: 1, known: 1, provider: 0.5, query: 0.5}}}
verdict: {models: 4, alpha: 0.05, retained_mix: {calibration: 1, query: 1}}
score: {replicates: 100, resamples: 50, permutations: 999}
report: {gallery: 1}
""",
    "unique_feature": """
audit: unique_feature
title: former canary
data: {source: {kind: two_moons, num_examples: 80}}
canary: {feature: {kind: scalar, value: 4}, label: 1, mode: append, repeats: 10}
model: {architecture: mlp, widths: [8]}
training: {objective: {kind: supervised}, epochs: 4, batch_size: null, augment: null}
nets: {seeds: 2, controls: 4, chunk: 2}
score: {replicates: 100, permutations: 999}
""",
    "exposure": """
audit: exposure
title: former secrets
data: {source: {kind: topics}, fraction: 0.02, window: 40, validation: 0.1}
canaries: {format: "the code is {d3}.", insertions: [20], never: 4}
model: {architecture: gru, width: 16, layers: 1, embedding: 8}
training: {objective: {kind: language}, epochs: 2, batch_size: 16, augment: null}
score: {references: 200, shards: 2, replicates: 20}
extraction: {known: [0], top: 1, batch: 4}
""",
    "captions": """
audit: captions
title: former pairs
data: {source: {kind: captioned_scenes, num_examples: 100, size: 16}, image_size: 16}
split: {train_per_class: 20, public_per_class: 40, extra_per_class: 10}
model:
  image: {backbone: small_vit, patch_size: 8, width: 4, input_size: 16, projector: [4]}
  text: {width: 4}
training: {epochs: 3, batch_size: 10, optimizer: {warmup_epochs: 0}}
report: {gallery: 1}
""",
}
INTERRUPTED = RECIPES["deja_vu"].replace("former scenes", "former interruption").replace("epochs: 4,", "epochs: 4, seed: 5,")
SAVES = 3  # of the training that is interrupted: one after each step, two of which are an epoch
ELSEWHERE = "former"  # the host that records name


def main(archive: Path) -> None:
    """Make the store and pack it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "secret").write_bytes(SECRET)
        (folder / "secret").chmod(0o600)
        own = {
            "MEMLIB_SECRET_FILE": str(folder / "secret"), "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_CONFIG_HOME": str(folder / "config"), "LOGNAME": "auditor",
        }  # fmt: skip
        with mock.patch.dict(os.environ, own), mock.patch.object(socket, "gethostname", return_value=ELSEWHERE):
            fill(folder)
        with tarfile.open(archive, "w:xz", preset=9) as packed:
            for name in ("recipes", "store", "plan.json", "public.pem"):
                packed.add(folder / name, name, filter=_of_nobody)
    print(f"{archive}: {archive.stat().st_size:,} bytes")


def _of_nobody(file: tarfile.TarInfo) -> tarfile.TarInfo:
    file.uid = file.gid = 0
    file.uname = file.gname = ""
    return file


def fill(folder: Path) -> None:
    """Write recipes, runs, the plan, the signature and the interrupted run."""
    import memlib
    from flows.cli.app import main as command

    store, recipes = str(folder / "store"), folder / "recipes"
    recipes.mkdir()
    for name, text in {**RECIPES, "interrupted": INTERRUPTED}.items():
        (recipes / f"{name}.yaml").write_text(text.lstrip())
    plan = str(folder / "plan.json")
    assert command(["plan", str(recipes / "self_influence.yaml"), "--freeze", plan, "--store", store]) == 0
    for name in RECIPES:
        given = {"plan": plan} if name == "self_influence" else {}
        run = memlib.run(str(recipes / f"{name}.yaml"), store=store, **given)
        if name == "membership":
            assert command(["sign", run.id, "--key", str(_key(folder)), "--store", store]) == 0
    interrupt(str(recipes / "interrupted.yaml"), store)


def _key(folder: Path) -> Path:
    """Write the private and the public key; return the path of the private one."""
    from cryptography.hazmat.primitives import serialization as to
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, path = Ed25519PrivateKey.generate(), folder / "private.pem"
    path.write_bytes(key.private_bytes(to.Encoding.PEM, to.PrivateFormat.PKCS8, to.NoEncryption()))
    path.chmod(0o600)
    public = key.public_key().public_bytes(to.Encoding.PEM, to.PublicFormat.SubjectPublicKeyInfo)
    (folder / "public.pem").write_bytes(public)
    return path


def interrupt(recipe: str, store: str) -> None:
    """Run an audit, and stop it once the state of its first training was saved some times."""
    import memlib
    from memlib.store import resume
    from memlib.store.resume import ResumeStates
    from memlib.training import fit

    saved, save = [], ResumeStates.save

    def save_and_stop(states: ResumeStates, key: str, step: int, folder: Path) -> None:
        save(states, key, step, folder)
        saved.append(step)
        if len(saved) == SAVES:
            raise KeyboardInterrupt

    with (
        mock.patch.object(fit, "RESUME_SECONDS", 0.0),
        mock.patch.object(resume, "KEPT_RESUME_STATES", 1),  # which are most of the archive
        mock.patch.object(ResumeStates, "save", save_and_stop),
    ):
        try:
            memlib.run(recipe, store=store)
        except KeyboardInterrupt:
            return
    raise AssertionError("the run was not interrupted")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
