"""Chat templates of GGUF files and Hugging Face folders, rendered in a limited child process."""

from anex.models.chat.child import Limits
from anex.models.chat.find import read_template
from anex.models.chat.template import ChatTemplate, Message, builtin, builtin_source, prompt_ids

__all__ = ["ChatTemplate", "Limits", "Message", "builtin", "builtin_source", "prompt_ids", "read_template"]
