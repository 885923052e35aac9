"""Texts fetched by the machine's own package client: its mirror, its signature checks, no root.

Lists, cache and state of apt are kept in a private folder, so the system does not change. Fetched
files are reused without apt and without a network. Packages are read as streams.
"""

import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lightconv.corpora import Progress
from lightconv.files import lock, new_folder, sync

# Ends with this process, however that ends; Debian always has it.
_TIED = ("/usr/bin/setpriv", "--pdeathsig", "KILL") if Path("/usr/bin/setpriv").exists() else ()
# Larger members of a package are not text.
_MAX_BYTES = 8 << 20
_NO_APT = (
    "`lightconv prepare synthetic-translation` and the other synthetic corpora need no package "
    "mirror"
)
# Hooks could change the system. Sources and keys are the system's.
_CONFIG = """\
#clear APT::Update;
#clear AptCli::Hooks;
#clear Acquire::Languages;
Acquire::Languages {{ {languages} }};
Acquire::IndexTargets::deb::Packages::DefaultEnabled "{packages}";
Acquire::IndexTargets::deb-src::Sources::DefaultEnabled "false";
Dir::State "{folder}/state/";
Dir::State::lists "{folder}/lists/";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache/";
Dir::Cache::archives "{folder}/cache/archives/";
Dir::Log "{folder}/log/";
"""


def fetch_indices(
    cache: Path, languages: Sequence[str], progress: Progress
) -> dict[str, list[Path]]:
    """The files of apt's `Translation-xx` indices for each language, as plain text."""
    homes = _fetch(cache, "indices", languages, progress)
    return {language: sorted(home.iterdir()) for language, home in homes.items()}


def fetch_packages(cache: Path, names: Sequence[str], progress: Progress) -> dict[str, Path]:
    """The .deb files of packages, in the version that apt would install."""
    homes = _fetch(cache, "packages", names, progress)
    return {name: _only_file(home) for name, home in homes.items()}


def _fetch(cache: Path, kind: str, names: Sequence[str], progress: Progress) -> dict[str, Path]:
    """Folders of the named texts; missing ones are fetched, by one process at a time."""
    folder = cache.absolute() / "apt"
    homes = {name: folder / kind / name for name in names}
    waiting = f"waiting for another process that fetches into {folder}"
    with lock(folder / "lock", None, wait=lambda: progress(waiting), inherited=True):
        missing = {name: home for name, home in homes.items() if not home.is_dir()}
        for home in (homes[name] for name in homes if name not in missing):
            progress(f"using {home}, fetched before; remove it to fetch it again")
        if missing:
            apt = _Apt(folder, progress)
            (apt.save_indices if kind == "indices" else apt.download)(missing)
    return homes


def _only_file(folder: Path) -> Path:
    files = sorted(folder.glob("*.deb"))
    if len(files) != 1:
        raise ValueError(f"{folder} has {len(files)} packages, expected one. Remove the folder")
    return files[0]


class _Apt:
    """apt-get and its helpers with a private state in `folder`."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        if shutil.which("apt-get") is None or shutil.which("apt-config") is None:
            raise ValueError(
                "no apt-get on this machine, expected a Debian or Ubuntu system. " + _NO_APT
            )
        if set('"\n\\') & set(str(folder)):
            raise ValueError(f"apt cannot work in {str(folder)!r}: give a cache without quotes")
        self.folder = folder
        self.progress = progress
        self.config = folder / "apt.conf"
        self.complaints: list[str] = []
        for name in ("state", "lists/partial", "cache/archives/partial", "log"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()

    def save_indices(self, homes: dict[str, Path]) -> None:
        self._update(list(homes), packages=False)
        form = "$(LANGUAGE)|$(RELEASE)|$(METAKEY)|$(FILENAME)"
        lines = self._run("apt-get", "indextargets", "--format", form, "Created-By: Translations")
        found: dict[str, list[tuple[str, str]]] = {language: [] for language in homes}
        for line in lines.splitlines():
            language, release, key, file = line.split("|", 3)
            if language in found:
                found[language].append((f"{release}_{key}".replace("/", "_"), file))
        if missing := [language for language, files in found.items() if not files]:
            raise ValueError(
                f"apt-get update brought no Translation-{missing[0]}{self._reason()}. Check the "
                "network and the sources of apt; a mirror may lack a language. " + _NO_APT
            )
        for language, files in found.items():
            with new_folder(homes[language]) as home:
                for number, (name, file) in enumerate(sorted(files)):
                    target = home / f"{number}_{name}"
                    with target.open("xb") as output:  # apt may have compressed the file
                        self._run(self._helper(), "cat-file", file, stdout=output)
                    sync(target)

    def download(self, homes: dict[str, Path]) -> None:
        self._update([], packages=True)
        for name, home in homes.items():
            self.progress(f"apt-get download {name}")
            with new_folder(home) as fresh:
                self._run("apt-get", "-q", "download", name, cwd=fresh)
                _only_file(fresh)

    def _update(self, languages: Sequence[str], *, packages: bool) -> None:
        what = [f"Translation-{language}" for language in languages]
        self.progress(f"apt-get update: {', '.join(what) or 'list of packages'}")
        text = _CONFIG.format(
            languages=" ".join(f'"{language}";' for language in languages) or '"none";',
            packages="true" if packages else "false",
            folder=self.folder,
        )
        self.config.write_text(text, encoding="utf-8")
        # One broken source of several does no harm: missing files are noticed later.
        self._run("apt-get", "-q", "update", check=False)

    def _helper(self) -> str:
        # Prints found='/usr/lib/apt/methods': apt-helper is beside that folder.
        methods = self._run("apt-config", "shell", "found", "Dir::Bin::methods/f")
        path = Path(methods.strip().partition("=")[2].strip("'\""))
        helper = path.parent / "apt-helper"
        if not helper.is_file():
            raise ValueError(f"apt has no {helper}, expected apt 1.1 or newer. {_NO_APT}")
        return str(helper)

    def _run(self, command: str, *arguments: str, check: bool = True, **options: Any) -> str:
        """Output of a command; `options` are those of Popen. ValueError if the command fails."""
        done: Any = subprocess.run(
            [*_TIED, command, "-c", str(self.config), *arguments],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"LC_ALL": "C.UTF-8"},
            check=False,
            **{"stdout": subprocess.PIPE} | options,
        )
        for line in done.stderr.decode("utf-8", "replace").splitlines():
            # Root may download into a folder that only root can enter.
            if line.startswith(("E:", "W:")) and "unsandboxed as root" not in line:
                self.complaints.append(line)
                self.progress(line)
        if check and done.returncode != 0:
            words = " ".join([Path(command).name, *arguments])
            raise ValueError(
                f"`{words[:100]}` failed with code {done.returncode}{self._reason()}. Check the "
                f"network and the sources of apt. {_NO_APT}"
            )
        return str((done.stdout or b"").decode("utf-8", "replace"))

    def _reason(self) -> str:
        """The complaint that is most likely the cause, as the end of a sentence."""
        causes = [line for line in self.complaints if "Failed to fetch" in line]
        errors = [line for line in self.complaints if line.startswith("E:")]
        found = causes + errors + self.complaints
        return f" ({found[0][2:].strip().rstrip('.')})" if found else ""


def read_members(package: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the regular files of a .deb whose names are wanted, as a stream."""
    tool = shutil.which("dpkg-deb")
    if tool is None:
        raise ValueError(f"{package}: reading it needs dpkg-deb, which comes with apt. {_NO_APT}")
    command = [*_TIED, tool, "--fsys-tarfile", str(package)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                for member in archive:
                    name = member.name.removeprefix("./")
                    if member.isreg() and member.size <= _MAX_BYTES and wanted(name):
                        file = archive.extractfile(member)
                        assert file is not None
                        yield name, file.read()
            while process.stdout.read(1 << 16):
                pass
            if process.wait() != 0:
                raise OSError(" ".join(process.stderr.read().decode("utf-8", "replace").split()))
        except (tarfile.TarError, OSError) as error:
            raise ValueError(
                f"{package} cannot be read as a package: {error}. Remove its folder to fetch it "
                "again"
            ) from None
        finally:
            process.kill()
