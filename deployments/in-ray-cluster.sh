#!/usr/bin/env bash
# in-ray-cluster.sh HOST:PORT COMMAND...: joins a Ray cluster as a node without cores and runs the command there.
# A driver sits on a node of its cluster: connections by ray:// do not survive a moment without network. Node and
# command end together, so that a container in which either is lost is started again. Ray's token comes from
# RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH.
set -euo pipefail
head=${1:?the address of the head, HOST:PORT}
shift
: "${1:?the command to run}"
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}

said=$(mktemp)
for try in $(seq 60); do # the head may start at the same time
  ray start --address="$head" --num-cpus=0 --num-gpus=0 --disable-usage-stats --block >"$said" 2>&1 &
  node=$!
  until grep -q "Ray runtime started" "$said" || ! kill -0 "$node" 2>/dev/null; do sleep 0.5; done
  kill -0 "$node" 2>/dev/null && break
  cat "$said" >&2
  if [[ $try == 60 ]]; then
    echo "no Ray cluster at $head for five minutes" >&2
    exit 1
  fi
  sleep 5
done

"$@" &
command=$!
trap 'kill -TERM "$command" 2>/dev/null' TERM INT
wait -n "$node" "$command" || true
status=0
if ! kill -0 "$node" 2>/dev/null; then
  echo "the node of the Ray cluster at $head has ended" >&2
  kill -TERM "$command" 2>/dev/null || true
  status=1
fi
wait "$command" || status=$?
kill -TERM "$node" 2>/dev/null || true
wait "$node" 2>/dev/null || true
exit "$status"
