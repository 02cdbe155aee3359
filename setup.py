"""The packages, programs and requirements of an installation. The tools' settings are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

OURS = ["btrkeep", "backupd", "heatmap", "balancer", "web"]
HERE = Path(__file__).resolve().parent


def version() -> str:
    """Returns the version in btrkeep/__init__.py, read without an import, because nothing is installed yet."""
    text = (HERE / "btrkeep" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if not match:
        raise ValueError("btrkeep/__init__.py has no __version__")
    return match[1]


setup(
    name="btrkeep",
    version=version(),
    description="A backup server on btrfs: pulls hosts with rsync into subvolumes, one snapshot per backup",
    author="the btrkeep authors",
    license="GPL-3.0-or-later",
    classifiers=["Operating System :: POSIX :: Linux", "Topic :: System :: Archiving :: Backup", "Typing :: Typed"],
    python_requires=">=3.11",
    packages=find_packages(include=[pattern for name in OURS for pattern in (name, f"{name}.*")]),
    package_data={
        "": ["*.toml"],
        "btrkeep": ["archived.txt", "commit.txt"],
        "backupd.source": ["completion.bash"],
        "web": ["templates/*.html", "templates/**/*.html", "static/*"],
        "btrkeep.catalogue": ["schema/*.sql"],
    },
    entry_points={
        "console_scripts": [
            "backupd = backupd.cli:main",
            "btrfs-balancer = balancer.cli:main",
            "btrfs-heatmap = heatmap.cli:main",
            "btrkeep-web = web.cli:main",
        ]
    },
    install_requires=[
        "apprise>=1.8",
        "argon2-cffi>=23.1",
        "btrfs>=15",
        "click>=8.1",
        "flask>=3.0",
        "flask-wtf>=1.2",
        "markupsafe>=2.1",
        "numpy>=1.24",
        "pillow>=10.1",
        "orjson>=3.9",
        "pydantic>=2.6",
        "rich>=13.7",
        "tomlkit>=0.12",
        "tzdata",
        "waitress>=3.0",
        "werkzeug>=3.0.1",
    ],
    extras_require={
        "dev": [
            "aiosmtpd>=1.4.6",
            "atheris>=3.0; platform_machine == 'x86_64' and python_version < '3.14'",
            "axe-playwright-python>=0.1.4",
            "coverage>=7.6",
            "hypothesis>=6.100",
            "imageio-ffmpeg>=0.5",
            "jsonschema-rs>=0.18",
            "mypy>=1.10",
            "playwright>=1.45",
            "prometheus-client>=0.20",
            "pytest>=8.2",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "pyyaml>=6.0",
            "ruff>=0.5",
            "schemathesis>=4.0",
            "setuptools>=61",
            "sphinx>=7.2",
        ],
    },
    zip_safe=False,
)
