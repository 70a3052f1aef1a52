from __future__ import annotations

import pytest

from tests.deploy import imaging
from tests.deploy.containers import Containers
from tests.tools.obtain import cache_root

_IMAGES = cache_root().parent / "image"
# It ends up in the names of tests: how much they could prove on this machine.
_WAY = "image" if imaging.why_not_here(_IMAGES) is None else "locked-packages-only"


@pytest.fixture(scope="session", params=[_WAY])
def containers(request: pytest.FixtureRequest) -> Containers:
    """Starts containers of the image, or of what comes nearest to it on this machine."""
    if request.param == "image":
        return Containers.of_image(imaging.build(imaging.CONTEXT, _IMAGES, {}))
    return Containers.of_packages(_IMAGES)
