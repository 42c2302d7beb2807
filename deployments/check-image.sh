#!/usr/bin/env bash
# check-image.sh: builds the cpu image of the Dockerfile and runs a smoke audit in it, without a container engine or a registry.
# It needs buildah and 30 GB in IMAGE_FOLDER (/var/tmp), freed at the end, and installs nothing. If the base image cannot be
# pulled, mmdebstrap makes a stand-in of Debian's packages. BUILD_OPTIONS are passed to buildah build: --volume, --build-arg.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
read -ra options <<<"${BUILD_OPTIONS:-}"

needs() { # needs PROGRAM WHY
  command -v "$1" >/dev/null || { echo "$1 is missing, $2 (Debian: apt-get install $1); the image was not checked" >&2 && exit 2; }
}
needs buildah "which builds the image"

folder=$(mktemp --directory "${IMAGE_FOLDER:-/var/tmp}/memlib-image.XXXXXX")
export TMPDIR=$folder BUILDAH_ISOLATION=chroot
buildah() { command buildah --root "$folder/images" --runroot "$folder/run" "$@"; }
free() {
  buildah rm --all >/dev/null || true # unmounts them
  rm -rf "$folder"
}
trap free EXIT

base=$(sed -n 's/^ARG BASE=//p' deployments/Dockerfile)
if ! buildah pull --quiet "$base"; then
  needs mmdebstrap "which makes a stand-in for the base image $base"
  packages=ca-certificates,python3,python3-pip,python3-venv,python-is-python3
  # shellcheck disable=SC2016
  mmdebstrap --quiet --variant=apt --include="$packages" --customize-hook='rm "$1"/usr/lib/python3*/EXTERNALLY-MANAGED' bookworm "$folder/base.tar"
  stand_in=$(buildah from scratch)
  buildah add --quiet "$stand_in" "$folder/base.tar" / >/dev/null
  buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$stand_in"
  base=$(buildah commit --quiet --rm "$stand_in" stand-in)
  rm "$folder/base.tar"
  echo "base image: Debian bookworm's packages in place of $(sed -n 's/^ARG BASE=//p' deployments/Dockerfile)"
fi
buildah build --quiet --target cpu --build-arg BASE="$base" "${options[@]}" -t memlib -f deployments/Dockerfile . >/dev/null

container=$(buildah from memlib)
run() {
  echo "$ $*"
  buildah run "$container" -- "$@"
}
run bash -c 'test "$(id --user)" = 1000 && ! test -w /opt/memlib && wget --version >/dev/null' # of KubeRay's probes
run bash -n /opt/memlib/deployments/in-ray-cluster.sh
run python -c 'import flows.deployed' # what a Prefect worker loads
run memlib --help
run memlib run deja-vu --recipe smoke --store /home/memlib/store
run memlib verify --store /home/memlib/store
echo "the image was built and its smoke audit run"
