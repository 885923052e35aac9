"""A package client for tests without a network: scripts that a test puts into PATH.

The mirror is a folder: LANG/RELEASE.gz are translations, NAME.deb packages. What is called is
written to a log, one line each. Files named `no-network`, `broken-source` and `broken-index` in
the mirror make it fail.
"""

import gzip
import json
import shutil
import stat
import sys
from pathlib import Path

_APT_GET = r"""
import gzip, json, os, re, shutil, sys
from pathlib import Path
mirror, log = Path(MIRROR), Path(LOG)
arguments = sys.argv[1:]
with log.open("a") as file:
    file.write(json.dumps([Path(sys.argv[0]).name, *arguments, os.environ["LC_ALL"]]) + "\n")
config = Path(arguments[arguments.index("-c") + 1]).read_text()
lists = Path(re.search('Dir::State::lists "(.*)"', config)[1])
languages = re.findall('"([a-z]+)"', re.search("Acquire::Languages {(.*)}", config)[1])
if "update" in arguments:
    if (mirror / "no-network").exists():
        print("W: Target Packages is configured multiple times", file=sys.stderr)
        print("W: Failed to fetch index  Temporary failure resolving 'mirror'", file=sys.stderr)
        print("W: Some index files failed to download.", file=sys.stderr)
        sys.exit(0)
    for language in languages:
        for file in sorted(mirror.glob(f"{language}/*.gz")):
            shutil.copy(file, lists / f"{language}-{file.name}")
    print("W: Download is performed unsandboxed as root as file could not ...", file=sys.stderr)
    if (mirror / "broken-source").exists():
        print("E: The repository 'third' is not signed.", file=sys.stderr)
        sys.exit(100)
elif "indextargets" in arguments:
    assert arguments[-1] == "Created-By: Translations", arguments
    form = arguments[arguments.index("--format") + 1]
    for file in sorted(lists.glob("*.gz")):
        language, release = file.name.removesuffix(".gz").split("-", 1)
        values = {
            "LANGUAGE": language,
            "RELEASE": release,
            "METAKEY": f"main/i18n/Translation-{language}",
            "FILENAME": str(file),
        }
        print(re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], form))
elif "download" in arguments:
    found = mirror / f"{arguments[-1]}.deb"
    if not found.exists():
        print(f"E: Unable to locate package {arguments[-1]}", file=sys.stderr)
        sys.exit(100)
    shutil.copy(found, Path.cwd() / f"{arguments[-1]}_4%3a1.0_all.deb")
"""
_APT_CONFIG = r"""
import sys
assert sys.argv[3:] == ["shell", "found", "Dir::Bin::methods/f"], sys.argv
print(f"found='{METHODS}'")
"""
_APT_HELPER = r"""
import gzip, sys
from pathlib import Path
if (Path(MIRROR) / "broken-index").exists():
    print("E: Read error", file=sys.stderr)
    sys.exit(100)
assert sys.argv[1] == "-c" and sys.argv[3] == "cat-file", sys.argv
sys.stdout.buffer.write(gzip.open(sys.argv[4]).read())
"""


class FakeApt:
    """A mirror to put texts into, and the log of what was called."""

    def __init__(self, folder: Path) -> None:
        self.mirror = folder / "mirror"
        self.log = folder / "log"
        self.bin = folder / "bin"
        self.mirror.mkdir()
        self.bin.mkdir()
        methods = folder / "lib" / "methods"
        methods.mkdir(parents=True)
        names = {"MIRROR": self.mirror, "LOG": self.log, "METHODS": methods}
        lines = [f"#!{sys.executable} -IS", *(f"{k} = {str(v)!r}" for k, v in names.items())]
        scripts = {
            self.bin / "apt-get": _APT_GET,
            self.bin / "apt-config": _APT_CONFIG,
            methods.parent / "apt-helper": _APT_HELPER,
        }
        for path, text in scripts.items():
            path.write_text("\n".join(lines) + text)
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        if tool := shutil.which("dpkg-deb"):
            (self.bin / "dpkg-deb").symlink_to(tool)

    def publish(self, language: str, text: str, release: str = "stable") -> None:
        """Puts an index onto the mirror."""
        file = self.mirror / language / f"{release}.gz"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(gzip.compress(text.encode()))

    def calls(self) -> list[list[str]]:
        """What apt-get was called with, without the configuration."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [[word for word in json.loads(line) if word[0] != "/"] for line in lines]
