#!/usr/bin/env bash
# Fails if the contracts broke with those of the last release, or without one of the previous commit: while a rolling update
# runs, both versions talk to each other.
# usage: protos/breaking.sh BIN
set -euo pipefail
cd "$(dirname "$0")/.."
before=$(git describe --tags --abbrev=0 2>/dev/null || git rev-parse --verify --quiet HEAD^) || {
  echo "the contracts are not compared: there is no earlier commit here"
  exit 0
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git archive "$before" protos | tar -x -C "$work"
"$1/buf" breaking protos --against "$work/protos"
