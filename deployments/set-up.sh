#!/usr/bin/env bash
# Work pools, deployments and automations on the Prefect server at PREFECT_API_URL. May be run again after a change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
: "${PREFECT_API_URL:?is not set: the URL of the Prefect server, ending in /api}"
: "${MEMLIB_STORE:?is not set: an absolute folder or an s3:// prefix for artifacts, results and reports}"

prefect() { command prefect --no-prompt "$@"; }

prefect work-pool create local-process --type process --overwrite
prefect work-pool create in-ray-cluster --type process --overwrite
prefect work-pool create kubernetes --type kubernetes --base-job-template kubernetes/work-pool.json --overwrite
prefect deploy --all --prefect-file prefect.yaml

# automations have no names that are theirs alone: made twice, they would act twice. Changed ones: delete the old ones first
if ! prefect automation inspect "A run without a heartbeat has crashed" >/dev/null 2>&1; then
  prefect automation create --from-file automations.yaml
fi
if [[ -n ${MEMLIB_ALERT_BLOCK:-} ]] && ! prefect automation inspect "Tell of an audit that failed" >/dev/null 2>&1; then
  alerts=$(mktemp --suffix=.yaml)
  sed "s/MEMLIB_ALERT_BLOCK/$MEMLIB_ALERT_BLOCK/" alerts.yaml >"$alerts"
  prefect automation create --from-file "$alerts"
  rm "$alerts"
fi
