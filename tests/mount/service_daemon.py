"""The mount service for tests.

`python -m tests.mount.service_daemon SOCKET IMAGES ALLOW_OTHER LIMITS`, limits as JSON.
"""

import json
import logging
import signal
import sys
from pathlib import Path

from dieselfs.fuse.mount_service import MountService, listening_socket
from dieselfs.fuse.mount_service_limits import Limits
from dieselfs.fuse.mount_service_requests import ServiceSettings


def main() -> None:
    socket_path, images, allow_other, limits = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    settings = ServiceSettings(Path(images), allow_other == "True", Limits(**json.loads(limits)))
    Path(images).mkdir(mode=0o700)
    with (
        listening_socket(Path(socket_path)) as listener,
        MountService(listener, settings) as service,
    ):
        signal.signal(signal.SIGTERM, lambda *_: service.stop())
        print("ready", flush=True)
        service.run()


if __name__ == "__main__":
    main()
