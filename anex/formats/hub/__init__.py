"""Models of the Hugging Face hub, fetched by name: `pull`."""

from anex.formats.hub.pull import Download, Progress, Pulled, downloads, folder_of, pull, root_of
from anex.formats.hub.remote import UnreachableError

__all__ = ["Download", "Progress", "Pulled", "UnreachableError", "downloads", "folder_of", "pull", "root_of"]
