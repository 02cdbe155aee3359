#!/bin/bash
# sudo ./test.sh [--all | --unit | --long] [pytest arguments]
#
# Installs what is missing (Debian packages, the virtual environment .venv) and runs the tests, and beside them the linters and
# mypy (scripts/lint.sh), unless single tests are asked for. Without root, or without btrfs, the tests that need it are left out, and
# the summary counts them.
# Without arguments it is the gate: ten minutes that prove each protection (tests/beds/gate.py) on a real btrfs. --all runs all tests
# but the long forms, --long only these. --unit is the loop of a minute: what is quick, and needs no root, no btrfs, no server and no
# browser. mypy checks everything with --all; otherwise only the files that have changed, since it takes two minutes where nothing
# is compiled yet.
# The exit status is pytest's, or 1 if only the linters report something.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
# shellcheck source=scripts/ground.sh
. scripts/ground.sh

# Where it is forbidden to keep what was compiled, each of a thousand processes compiles it anew.
unset PYTHONDONTWRITEBYTECODE

[ "${1:-}" = --unit ] || need_apt dev
need_venv dev

# Two for each processor, for the tests often wait: for the kernel, for a second to pass, for a lock. More than six at a time only wait
# for the same disk. `-n0` among the arguments runs them one after the other. Those of --unit never wait.
cores=$(nproc)
export PYTEST_XDIST_AUTO_NUM_WORKERS=$((cores > 3 ? 6 : cores * 2))
[ "${1:-}" != --unit ] || PYTEST_XDIST_AUTO_NUM_WORKERS=$cores
run=("$VENV/bin/python" -m pytest -n auto --dist worksteal)
case "$*" in
"") run+=(--gate) lint=(scripts/lint.sh --changed) ;;
--all) lint=(scripts/lint.sh) ;;
--unit) run+=(--unit) lint=(scripts/lint.sh --changed) ;;
*)
    [ "$1" != --all ] || shift
    exec "${run[@]}" "$@"
    ;;
esac

said=$(mktemp)
trap 'rm -f "$said"' EXIT
nice -n 19 "${lint[@]}" >"$said" 2>&1 &
linting=$!
"${run[@]}" &
testing=$!
trap 'kill -TERM "$linting" "$testing" 2>/dev/null' TERM
trap : INT # a terminal tells them both
# ended PROCESS: waits for it, whatever signals come meanwhile; with its exit status.
ended() {
    local status=0
    while wait "$1" || status=$?; kill -0 "$1" 2>/dev/null; do status=0; done
    return "$status"
}
status=0 linted=0
ended "$testing" || status=$?
ended "$linting" || linted=$?
printf '== %s: exit status %d\n' "${lint[*]}" "$linted"
cat "$said"
[ "$status" -ne 0 ] || status=$linted
exit "$status"
