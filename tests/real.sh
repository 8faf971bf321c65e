#!/usr/bin/env bash
# Tests that need more than Python, part by part, and a summary of which parts ran. Parts that use different things run side
# by side in two lanes; what a lane prints is shown when it ends.
# usage: tests/real.sh BIN [pytest arguments]
set -uo pipefail
cd "$(dirname "$0")/.."
bin=$1
shift
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
# What our accounts do on every real API server below, for the last part.
export GPULOOM_RIGHTS_DIR=${GPULOOM_RIGHTS_DIR:-$PWD/.cache/rights}
rm -rf "$GPULOOM_RIGHTS_DIR"

part() { # name command…
  local name=$1 at=$SECONDS
  shift
  echo "--- $name"
  if "$@"; then
    echo "ran      $name ($((SECONDS - at)) s)" >>"$results/summary"
  else
    echo "FAILED   $name ($((SECONDS - at)) s)" >>"$results/summary"
    touch "$results/failed"
  fi
}

absent() { # name reason
  echo "NOT RUN  $1: $2" >>"$results/summary"
}

lane() { # name function arguments…: its parts one after the other, beside those of other lanes
  local name=$1
  shift
  ("$@") >"$results/$name.log" 2>&1 &
  lanes[$name]=$!
}

wait_for_lanes() {
  local name
  for name in "${!lanes[@]}"; do
    wait "${lanes[$name]}"
    echo "=== lane $name"
    cat "$results/$name.log"
  done
}
declare -A lanes=()

newer_python() { # another interpreter than the oldest supported one, if this machine has it
  local candidate
  for candidate in python3.13 "$(command -v pyenv >/dev/null && ls -d "$(pyenv root)"/versions/3.13*/bin/python 2>/dev/null | tail -1)"; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))' 2>/dev/null; then
      echo "$candidate"
      return 0
    fi
  done
  return 1
}

at_full_effort() { # pytest
  GPULOOM_TEST_EFFORT=full "$1" -q -n 2 --dist worksteal -m "not real" tests/unit tests/contract tests/mesh
}

on_newer_python() { # interpreter
  local venv=.cache/venv-3.13
  [ -x "$venv/bin/python" ] || "$1" -m venv "$venv" || return 1
  "$venv/bin/pip" install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' || return 1
  at_full_effort "$venv/bin/pytest"
}

a_run() { # the product as a newcomer starts it
  "$bin/gpuloom" run --headless --duration 30s --dir .cache/real-run
}

part "gpuloom run, 12 simulated nodes" a_run
if python=$(newer_python); then
  part "property tests at full effort, on Python 3.13" on_newer_python "$python"
else
  part "property tests at full effort" at_full_effort "$bin/pytest"
  absent "the tests on Python 3.13" "no python3.13 found"
fi
if [ -n "${GPULOOM_DATA:-}" ]; then
  part "recorded calls of kube-scheduler" "$bin/pytest" -q tests/unit/scheduler_extender/verbs/test_recorded_calls.py "$@"
else
  absent "recorded calls of kube-scheduler" "GPULOOM_DATA is not set"
fi

on_machines() { # pytest arguments
  part "scenarios that take minutes: costs while everything is killed 50 times, nodes that come and go" \
    "$bin/pytest" -q -m real tests/scenarios "$@"

  if command -v cc >/dev/null || [ "${GPULOOM_REQUIRE_REAL:-}" = 1 ]; then
    part "NVML, through a compiled stand-in of the library" "$bin/pytest" -q -m real tests/nvml "$@"
  else
    absent "NVML, through a compiled stand-in of the library" "no C compiler"
  fi

  if command -v apt-get >/dev/null || [ "${GPULOOM_REQUIRE_REAL:-}" = 1 ]; then
    part "the exporter and a mesh, scraped by a real Prometheus; dashboards, rules and alerts" "$bin/pytest" -q -m real tests/prometheus "$@"
  else
    absent "the exporter and a mesh, scraped by a real Prometheus; dashboards, rules and alerts" "no apt-get to fetch it with"
  fi
  if command -v chromium >/dev/null || [ -n "${CHROMIUM:-}" ] || [ "${GPULOOM_REQUIRE_REAL:-}" = 1 ]; then
    part "the web console in a real Chromium" "$bin/pytest" -q -s -m real tests/browser "$@"
  else
    absent "the web console in a real Chromium" "no chromium"
  fi
  if has_cluster; then
    part "real nodes: kubelet and containerd, delivery by NRI, NVIDIA's device plugin" "$bin/pytest" -q -m real "${on_nodes[@]}" "$@"
  fi
}

on_control_planes() { # pytest arguments
  has_cluster || return 0
  part "charts: rendered by helm, taken by a real API server, setup jobs" "$bin/pytest" -q -m real tests/charts "$@"
  part "contract suites on a real API server and a real PostgreSQL" "$bin/pytest" -q -m real tests/contract "$@"
  part "real control plane: accounts, configuration, end to end with kube-scheduler" \
    "$bin/pytest" -q -m real tests/cluster "${on_nodes[@]/#/--ignore=}" "$@"
}

cluster_programs() { # where the Kubernetes programs are, or nothing
  "$bin/python" -c 'import os; from tests.cluster.binaries import find_binaries; find_binaries(os.environ)' 2>/dev/null
}

on_nodes=(tests/cluster/nodes tests/cluster/network tests/cluster/install tests/cluster/test_real_nodes.py tests/cluster/test_delivery.py
  tests/cluster/test_delivery_chain.py tests/cluster/test_force_deletion.py tests/cluster/test_nvidia_mode.py
  tests/cluster/test_mig_on_demand.py tests/cluster/test_real_chaos.py)
has_cluster() {
  cluster_programs || [ "${GPULOOM_REQUIRE_REAL:-}" = 1 ]
}

if ! has_cluster; then
  absent "the tests on a real Kubernetes cluster" "no programs; run make kube-assets ARGS='--nodes --network --helm', or set KUBE_ASSETS"
fi
lane machines on_machines "$@"
lane control-planes on_control_planes "$@"
wait_for_lanes
if has_cluster; then
  part "rights: none was refused to a service${GPULOOM_RIGHTS_FULL:+, none was used by nothing}" \
    "$bin/python" -m tests.cluster.rights "$GPULOOM_RIGHTS_DIR" ${GPULOOM_RIGHTS_FULL:+--full}
fi

if { docker info && docker compose version; } >/dev/null 2>&1 || [ "${GPULOOM_REQUIRE_REAL:-}" = 1 ]; then
  part "images, and the mesh of docker compose with every container killed" "$bin/pytest" -q -s -m real tests/containers "$@"
else
  absent "images, and the mesh of docker compose" "no Docker engine with the compose plugin"
fi

echo "--- real parts"
cat "$results/summary"
[ ! -e "$results/failed" ]
