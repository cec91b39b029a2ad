"""Images whose files belong to the user that an agent works as.

Published images have their repository or their working directory owned by root. Nobody is root in our containers, so a
second image is made from each, once: its working directory belongs to the user, and so do some directories that tests and
tools expect at the top. It is found again by what it was made from.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Sequence

from agentgym.environments.containers import BASH, client, failing_as_sandbox, labels, remove
from agentgym.environments.images import REPOSITORY, ensure
from agentgym.environments.leftovers import LABEL
from agentgym.errors import SandboxError

TIMEOUT_S = 600  # a large repository on a slow disk
CHOWN = (
    'for place in "${@:2}"; do mkdir -p -- "$place" || exit; [[ $place == / ]] && all=-h || all=-hR; '
    'chown $all -- "$1" "$place" || exit; done'
)

_making = threading.Lock()


def owned(image: str, places: Sequence[str], user: str) -> str:
    """The id of an image like `image` (an id) in which `places` are there and belong to `user` (uid:gid).

    The container that changes the owners has no network and no other rights. Raises SandboxError.
    """
    if user.partition(":")[0] in ("0", "root"):
        return image
    digest = hashlib.sha256("\0".join([image, user, *places]).encode()).hexdigest()[:12]
    name, tag = f"{REPOSITORY}/owned", digest
    with _making:
        try:
            return ensure(f"{name}:{tag}")
        except SandboxError:
            return _make(image, places, user, name, tag)


def _make(image: str, places: Sequence[str], user: str, name: str, tag: str) -> str:
    api = client().api
    rights = api.create_host_config(
        network_mode="none",
        cap_drop=["ALL"],
        cap_add=["CHOWN", "DAC_OVERRIDE", "FOWNER"],
        security_opt=["no-new-privileges"],
        pids_limit=64,
    )
    with failing_as_sandbox(f"cannot change the owner of files in {image[:20]}"):
        container = str(
            api.create_container(
                image,
                entrypoint=[BASH, "-c", CHOWN, "bash", user, *places],
                command=[],
                user="0:0",
                working_dir="/",
                labels=labels(""),
                host_config=rights,
            )["Id"]
        )
        try:
            api.start(container)
            code = api.wait(container, timeout=TIMEOUT_S)["StatusCode"]
            if code != 0:
                said = api.logs(container, tail=3).decode("utf-8", "replace").strip()
                raise SandboxError(f"cannot change the owner of files in {image[:20]}: {said or f'exit {code}'}")
            # Nobody's: it outlives whoever made it.
            changes = [f'LABEL {LABEL}=""']
            return str(api.commit(container, repository=name, tag=tag, changes=changes)["Id"])
        finally:
            with contextlib.suppress(SandboxError):
                remove(container)
