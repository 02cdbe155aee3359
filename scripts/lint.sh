#!/bin/bash
# scripts/lint.sh [--changed]
#
# Runs the linter, the formatter and mypy on everything; with --changed mypy checks only the files that differ from origin/main
# (without it, from main) or are not committed. It needs the virtual environment that ./test.sh makes. The exit status is 1 if one of
# the tools reports a problem.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
python=.venv/bin/python

# The Python files for mypy, each followed by a zero byte; without setup.py, because setuptools has no types here.
changed() {
    local since
    since=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)
    { git diff -z --name-only --diff-filter=d "$since"; git ls-files -z --others --exclude-standard; } | grep -z '\.py$' | grep -zvx 'setup\.py' | sort -zu
}

case ${1:-} in
'' | --changed) ;;
*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && [ "$1" = --help ] && exit
    exit 2 ;;
esac
status=0
"$python" -m ruff check --output-format=concise . || status=1
"$python" -m ruff format --check . || status=1
case ${1:-} in
--changed)
    mapfile -d '' -t files < <(changed)
    [ "${#files[@]}" -eq 0 ] || "$python" -m mypy "${files[@]}" || status=1
    ;;
*) "$python" -m mypy || status=1 ;;
esac
exit "$status"
