#!/bin/bash
# sudo ./test.sh [--fast] [pytest arguments]
#
# Installs what is missing (Debian packages, the virtual environment .venv) and runs every test, linters and types among them.
# --fast leaves out the slow ones. Without root, or without btrfs, those that need it are left out, and the summary counts them.
# The exit status is pytest's.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
# shellcheck source=scripts/ground.sh
. scripts/ground.sh

need_apt dev
need_venv dev

# Two for each processor, for the tests often wait: for the kernel, for a second to pass, for a lock. More than six at a time only wait
# for the same disk. `-n0` among the arguments runs them one after the other.
cores=$(nproc)
export PYTEST_XDIST_AUTO_NUM_WORKERS=$((cores > 3 ? 6 : cores * 2))
exec "$VENV/bin/python" -m pytest -n auto --dist worksteal "$@"
