"""The error of all files here; it needs nothing but Python."""

import re


class Unfit(Exception):
    """What can't be used or did not work: what, where, what to do, in one line."""

    def without_folders(self):
        """For files that are published: no folder of this machine in them."""
        return re.sub(r"(?<![\w.])/(?:[^\s:,'\"/]+/)+", "", str(self))
