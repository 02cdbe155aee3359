#!/bin/bash
# scripts/lock.sh [--upgrade] [--audit] [--help]
#
# Writes scripts/requirements/*.txt, with the version of each package and the SHA-256 of each of its files, and
# scripts/requirements/sbom.cdx.json, the software bill of materials of an installation by install.sh (CycloneDX).
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
# shellcheck source=scripts/ground.sh
. scripts/ground.sh

usage() {
    cat <<END
usage: scripts/lock.sh [options]

Updates the pins in scripts/requirements after a change of setup.py. A pinned
package keeps its version unless setup.py requires another.

  --upgrade   take the newest versions that setup.py allows
  --audit     check each pinned version for known vulnerabilities, and change
              nothing; exit status 1 if a version has one, or is unknown
  --help      this text
END
}

OLDEST_PYTHON=3.11
LOCKS=scripts/requirements
UPGRADE=() AUDIT=''
for word in "$@"; do
    case $word in
    --upgrade) UPGRADE=(--upgrade) ;;
    --audit) AUDIT=yes ;;
    --help) usage && exit ;;
    *) say "lock.sh: $word is not an option" && say "hint: scripts/lock.sh --help" && exit 2 ;;
    esac
done

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
"$(ground_python)" -m venv "$WORK/tools"
"$WORK/tools/bin/pip" install --quiet --no-input uv pip-audit cyclonedx-bom

if [ -n "$AUDIT" ]; then
    for lock in "$LOCKS"/*.txt; do
        "$WORK/tools/bin/pip-audit" --strict --disable-pip --require-hashes --requirement "$lock"
    done
    exit
fi

# lock NAME [OPTIONS...] SOURCE: the file $LOCKS/NAME.txt, for every Python and machine at once. Only Windows wants colorama.
lock() {
    local name=$1
    shift
    "$WORK/tools/bin/uv" pip compile --quiet --universal --python-version "$OLDEST_PYTHON" --generate-hashes --no-annotate --no-header --no-emit-package colorama \
        "${UPGRADE[@]}" --output-file "$LOCKS/$name.txt" "$@"
}

mkdir -p "$LOCKS"
printf 'setuptools>=77\nwheel\n' >"$WORK/build.in"
sed -n 's/^ *"\(sphinx[^"]*\)",$/\1/p' setup.py >"$WORK/documentation.in"
lock build "$WORK/build.in"
lock install setup.py
lock documentation --constraints "$LOCKS/install.txt" "$WORK/documentation.in"
lock development --extra dev --constraints "$LOCKS/install.txt" --constraints "$LOCKS/documentation.txt" setup.py

"$(ground_python)" -m venv "$WORK/installed"
install_locked "$WORK/installed/bin/python" install
"$WORK/installed/bin/pip" uninstall --quiet --yes pip
# Without addresses: the pip of each machine decides where packages come from.
"$WORK/tools/bin/cyclonedx-py" environment --output-reproducible --output-format JSON "$WORK/installed/bin/python" |
    "$WORK/tools/bin/python" -c 'import json, sys
bom = json.load(sys.stdin)
for component in bom["components"]:
    component.pop("externalReferences", None)
bom["metadata"] = {"component": {"type": "application", "name": "btrkeep", "bom-ref": "btrkeep"}}
print(json.dumps(bom, indent=1, sort_keys=True))' >"$LOCKS/sbom.cdx.json"
