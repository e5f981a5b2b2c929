"""What Node compiled of pi when the image was built, put where Node looks for it: each start would compile it anew.

Node keeps what it compiled in a folder per version and user, in its temporary folder, which is empty in every box; pi
asks for that. Node takes nothing from there that was made of other code or by another version. A box without any of it
starts its agent all the same.
"""

from __future__ import annotations

import os

MADE = "/opt/pi/compile-cache"
USED = "/tmp/node-compile-cache"  # os.tmpdir() of module.enableCompileCache(), Node's documentation


def lay_out(made: str = MADE, used: str = USED) -> None:
    """Link the files of the image into the folder of this process's user, who may add to it. Raises OSError."""
    for folder in os.listdir(made):  # <version>-<architecture>-<V8's flags>-<user>
        target = os.path.join(used, f"{folder.rpartition('-')[0]}-{os.getuid()}")
        os.makedirs(target)
        for name in os.listdir(os.path.join(made, folder)):
            os.symlink(os.path.join(made, folder, name), os.path.join(target, name))
