"""Check manifests against the schemas and linters of the tools that read them; `make validate` runs it in its own environment.

compose.yaml: compose-spec's JSON schema. Kubernetes objects, and the pods within KubeRay's: Kubernetes' OpenAPI schemas,
strictly; KubeRay's: its own definitions, too (kuberay.py). The work pool: Prefect's Kubernetes worker makes the job of each
deployment, which Kubernetes' schema must accept. Dockerfile: hadolint. Scripts: shellcheck. All come with packages; nothing is
fetched.
"""

import asyncio
import copy
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml
from prefect.client.schemas.objects import Flow, FlowRun
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

KUBERNETES = "1.33"
IGNORED = ("parallelism", "completions")  # keys of a Job that Prefect's worker requires in its pods; Kubernetes drops them


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
    yield from _jobs(folder)


def _said(tool: str, *arguments: str) -> Iterator[str]:
    done = subprocess.run([Path(sys.executable).parent / tool, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield f"{tool}: {(done.stdout + done.stderr).strip()}"


def _object(name: str, document: dict[str, Any]) -> Iterator[str]:
    if document["apiVersion"] == "ray.io/v1":
        definitions = json.loads(Path(__file__).with_name("kuberay.json").read_text())["definitions"]
        schema = {**definitions[document["kind"]], "definitions": definitions}
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


def _jobs(folder: Path) -> Iterator[str]:
    pool = json.loads((folder / "kubernetes" / "work-pool.json").read_text())
    for deployment in yaml.safe_load((folder / "prefect.yaml").read_text())["deployments"]:
        if deployment["work_pool"]["name"] == "kubernetes":
            name = f"work-pool.json, deployment {deployment['name']}"
            try:
                job = asyncio.run(_job(pool, deployment["work_pool"]["job_variables"]))
            except (ValueError, jsonschema.ValidationError) as error:
                yield f"{name}: {error}"
            else:
                yield from _object(name, job)


async def _job(pool: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
    """Return the Job that Prefect's worker makes of the pool's template for a run of a deployment."""
    jsonschema.validate(variables, pool["variables"])  # as the server does
    template, no_server = copy.deepcopy(pool), object()
    made = await KubernetesWorkerJobConfiguration.from_template_and_values(template, variables, client=no_server)
    made.prepare_for_flow_run(FlowRun(flow_id=uuid.uuid4(), name="a-run"), flow=Flow(name="audit"))
    for name in IGNORED:
        del made.job_manifest["spec"]["template"]["spec"][name]
    return made.job_manifest


def main() -> int:
    """Prints what is wrong; status 1 if anything is."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "deployments"
    found = list(problems(folder))
    print("\n".join(found) or f"all manifests in {folder.name} are valid")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
