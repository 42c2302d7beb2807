#!/usr/bin/env bash
# Work pools, deployments and automations on the Prefect server at PREFECT_API_URL. May be run again after a change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
: "${PREFECT_API_URL:?is not set: the URL of the Prefect server, ending in /api}"
: "${MEMLIB_STORE:?is not set: an absolute folder or an s3:// prefix for artifacts, results and reports}"

prefect() { command prefect --no-prompt "$@" </dev/null; }

prefect work-pool create local-process --type process --overwrite
prefect work-pool create in-ray-cluster --type process --overwrite
prefect work-pool create kubernetes --type kubernetes --base-job-template kubernetes/work-pool.json --overwrite
prefect deploy --all --prefect-file prefect.yaml

replace_automations() { # made twice, they would act twice: names need not be unique
  local name
  while read -r name; do
    while prefect automation inspect "$name" >/dev/null 2>&1; do prefect automation delete "$name"; done
  done < <(sed -n 's/^  - name: //p' "$1")
  prefect automation create --from-file "$1"
}
replace_automations automations.yaml
if [[ -n ${MEMLIB_ALERT_BLOCK:-} ]]; then
  alerts=$(mktemp --suffix=.yaml)
  sed "s/MEMLIB_ALERT_BLOCK/$MEMLIB_ALERT_BLOCK/" alerts.yaml >"$alerts"
  replace_automations "$alerts"
  rm "$alerts"
fi
