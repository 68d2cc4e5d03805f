#!/bin/sh
# Builds the Kubernetes API server of the tests (main.go beside this) from Debian's packages of Kubernetes' own libraries.
#   sh tests/support/kube_api_server/build.sh [PROGRAM]      default: ~/.cache/fsdl_dev_tests/kube-api, where the tests look for it
# Needs a Debian machine with apt (nothing is installed: packages of the suite `sid` are fetched and unpacked into a folder
# of their own), 4 GB of disk and five minutes. Shown with golang-k8s-apiextensions-apiserver-dev 0.36.4 and Go 1.27.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
program=${1:-$HOME/.cache/fsdl_dev_tests/kube-api}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/root" "$work/path/src/kubeapi" "$(dirname "$program")"
: > "$work/status"
# shellcheck disable=SC2016  # apt-get fills in $(SITE)
mirror=$(apt-get indextargets --format '$(SITE)' | grep -m 1 '/debian/*$')
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" > "$work/sources.list"
cat > "$work/apt.conf" <<END
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$work/lists";
Dir::State::status "$work/status";
Dir::Cache::archives "$work/archives";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
APT::Sandbox::User "root";
END
export APT_CONFIG="$work/apt.conf"
apt-get update -qq
apt-get install -qq -y --no-install-recommends --download-only golang-k8s-apiextensions-apiserver-dev golang-k8s-apiserver-dev golang-go > "$work/apt.log" 2>&1 || { tail -3 "$work/apt.log"; exit 1; }
for package in "$work"/archives/golang-*.deb; do dpkg -x "$package" "$work/root"; done
# shellcheck disable=SC2012  # version sort; the names are Debian's
go=$(ls -d "$work"/*/usr/lib/go-*/ | sort -V | tail -n 1)
cp "$here/main.go" "$work/path/src/kubeapi/"
cd "$work"
GOROOT=${go%/} GOPATH="$work/path:$work/root/usr/share/gocode" GO111MODULE=off GOTOOLCHAIN=local GOPROXY=off GOCACHE="$work/cache" CGO_ENABLED=0 \
    nice -n 10 "$go/bin/go" build -ldflags '-s -w' -o "$program" kubeapi
echo "$program"
