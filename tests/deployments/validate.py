"""Check manifests against the schemas and linters of the tools that read them; `make validate` runs it in its own environment.

compose.yaml: compose-spec's JSON schema. Kubernetes objects, and the pods within KubeRay's and within the work pool's job:
Kubernetes' OpenAPI schemas, strictly. Dockerfile: hadolint. Scripts: shellcheck. All come with packages; nothing is fetched.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

KUBERNETES = "1.33"
SAMPLES = {"command": ["prefect", "flow-run", "execute"], "env": [{"name": "A", "value": "b"}], "labels": {}, "name": "run"}
SAMPLES |= {"image": "memlib", "ray_head": "head:6379"}


def problems(folder: Path) -> Iterator[str]:
    """Yield the problems of a folder of manifests, one line each."""
    yield from _said("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(folder / "compose.yaml"))
    yield from _said("hadolint", str(folder / "Dockerfile"))
    scripts = [*folder.glob("*.sh"), *folder.glob("slurm/*.sbatch")]
    yield from _said("shellcheck", "--shell=bash", "--enable=quote-safe-variables", *map(str, scripts))
    for path in sorted(folder.glob("kubernetes/*.yaml")):
        if not path.stem.endswith("-values"):
            for document in yaml.safe_load_all(path.read_text()):
                yield from _object(path.name, document)
    yield from _object("work-pool.json", _job(json.loads((folder / "kubernetes" / "work-pool.json").read_text())))


def _said(tool: str, *arguments: str) -> Iterator[str]:
    done = subprocess.run([Path(sys.executable).parent / tool, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield f"{tool}: {(done.stdout + done.stderr).strip()}"


def _object(name: str, document: dict[str, Any]) -> Iterator[str]:
    if document["apiVersion"] == "ray.io/v1":
        schema = json.loads(Path(__file__).with_name("kuberay.json").read_text())
        for error in jsonschema.Draft7Validator(schema).iter_errors(document):
            yield f"{name}: {error.json_path}: {error.message}"
        for template in _templates(document):
            yield from _valid(name, {"apiVersion": "v1", "kind": "PodTemplate", "template": template})
    else:
        yield from _valid(name, document)


def _valid(name: str, document: dict[str, Any]) -> Iterator[str]:
    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        yield f"{name}: {error}"


def _templates(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "template":
                yield value
            else:
                yield from _templates(value)
    elif isinstance(node, list):
        for value in node:
            yield from _templates(value)


def _job(pool: dict[str, Any]) -> dict[str, Any]:
    """The job that a worker makes of the pool's template, with the variables' defaults and some samples."""
    variables = pool["variables"]["properties"]
    values = {name: field["default"] for name, field in variables.items() if "default" in field} | SAMPLES

    def filled(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: filled(value) for key, value in node.items()}
        if isinstance(node, list):
            return [filled(value) for value in node]
        if isinstance(node, str) and (whole := re.fullmatch(r"{{ (\w+) }}", node)):
            return values[whole[1]]
        return re.sub(r"{{ (\w+) }}", lambda found: str(values[found[1]]), node) if isinstance(node, str) else node

    job: dict[str, Any] = filled(pool["job_configuration"]["job_manifest"])
    return job


def main() -> int:
    """Prints what is wrong; status 1 if anything is."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "deployments"
    found = list(problems(folder))
    print("\n".join(found) or f"all manifests in {folder.name} are valid")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
