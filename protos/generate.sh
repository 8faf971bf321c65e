#!/usr/bin/env bash
# Generate the Python stubs of protos/ into the tree, or (--check) compare them with what is committed.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t sources < <(cd protos && find gpuloom -name '*.proto' | sort)

generate() { # folder
  python -m grpc_tools.protoc -Iprotos --python_out="$1" --grpc_python_out="$1" --mypy_out=quiet:"$1" --mypy_grpc_out=quiet:"$1" "${sources[@]/#/protos/}"
}

if [ "${1:-}" != --check ]; then
  generate "${1:-.}"
  exit
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
generate "$scratch"
stale=0
while read -r file; do
  cmp -s "$scratch/$file" "$file" || { echo "$file is not what protos/ gives: run make proto" >&2; stale=1; }
done < <(cd "$scratch" && find gpuloom -type f | sort)
exit $stale
