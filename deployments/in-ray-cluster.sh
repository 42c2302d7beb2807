#!/usr/bin/env bash
# in-ray-cluster.sh HOST:PORT COMMAND...: joins a Ray cluster as a node without cores and runs the command there.
# A driver sits on a node of its cluster: connections by ray:// do not survive a moment without network. Meant for a
# container, which ends the node with the command. Ray's token comes from RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH.
set -euo pipefail
head=${1:?the address of the head, HOST:PORT}
shift
: "${1:?the command to run}"
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}

for _ in $(seq 60); do # the head may start at the same time
  if ray start --address="$head" --num-cpus=0 --num-gpus=0 --disable-usage-stats; then
    exec "$@"
  fi
  sleep 5
done
echo "no Ray cluster at $head for five minutes" >&2
exit 1
