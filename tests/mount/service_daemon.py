"""The mount service for tests.

`python -m tests.mount.service_daemon SOCKET IMAGES ALLOW_OTHER LIMITS`, limits as JSON.
"""

import json
import logging
import signal
import sys
from contextlib import closing
from pathlib import Path

from dieselfs.fuse.service.service import MountService, listening_socket
from dieselfs.fuse.service.user_limits import Settings


def main() -> None:
    socket_path, images, allow_other, limits = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    settings = Settings(Path(images), allow_other == "True", **json.loads(limits))
    Path(images).mkdir(mode=0o700)
    with (
        listening_socket(Path(socket_path)) as listener,
        closing(MountService(listener, settings)) as service,
    ):
        signal.signal(signal.SIGTERM, lambda *_: service.stop())
        print("ready", flush=True)
        service.run()


if __name__ == "__main__":
    main()
