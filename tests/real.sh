#!/usr/bin/env bash
# Tests that need more than Python, part by part, and a summary of which parts ran.
# usage: tests/real.sh BIN [pytest arguments]
set -uo pipefail
cd "$(dirname "$0")/.."
bin=$1
shift
summary=() failed=0

part() { # name command…
  local name=$1 at=$SECONDS
  shift
  echo "--- $name"
  if "$@"; then
    summary+=("ran      $name ($((SECONDS - at)) s)")
  else
    summary+=("FAILED   $name ($((SECONDS - at)) s)")
    failed=1
  fi
}

absent() { # name reason
  summary+=("NOT RUN  $1: $2")
}

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

if command -v cc >/dev/null || [ "${GPULOOM_REQUIRE_REAL:-}" = 1 ]; then
  part "NVML, through a compiled stand-in of the library" "$bin/pytest" -q -m real tests/nvml "$@"
else
  absent "NVML, through a compiled stand-in of the library" "no C compiler"
fi

if command -v apt-get >/dev/null || [ "${GPULOOM_REQUIRE_REAL:-}" = 1 ]; then
  part "the exporter, scraped by a real Prometheus" "$bin/pytest" -q -m real tests/prometheus "$@"
else
  absent "the exporter, scraped by a real Prometheus" "no apt-get to fetch it with"
fi

cluster_programs() { # where the Kubernetes programs are, or nothing
  "$bin/python" -c 'import os; from tests.cluster.binaries import find_binaries; find_binaries(os.environ)' 2>/dev/null
}

on_nodes=(tests/cluster/nodes tests/cluster/test_real_nodes.py tests/cluster/test_delivery.py
  tests/cluster/test_delivery_chain.py tests/cluster/test_force_deletion.py tests/cluster/test_nvidia_mode.py
  tests/cluster/test_real_chaos.py)
if cluster_programs || [ "${GPULOOM_REQUIRE_REAL:-}" = 1 ]; then
  part "contract suites on a real API server and a real PostgreSQL" "$bin/pytest" -q -m real tests/contract "$@"
  part "real control plane: accounts, configuration, end to end with kube-scheduler" \
    "$bin/pytest" -q -m real tests/cluster "${on_nodes[@]/#/--ignore=}" "$@"
  part "real nodes: kubelet and containerd, delivery by NRI, NVIDIA's device plugin" "$bin/pytest" -q -m real "${on_nodes[@]}" "$@"
else
  absent "the tests on a real Kubernetes cluster" "no programs; run make kube-assets ARGS=--nodes, or set KUBE_ASSETS"
fi

echo "--- real parts"
printf '%s\n' "${summary[@]}"
exit $failed
