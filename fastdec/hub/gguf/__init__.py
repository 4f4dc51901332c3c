"""GGUF files, llama.cpp's format of a model in one file: its tensors, sizes and tokenizer.

  header.py    what a file says about itself, checked against its size
  metadata.py  its fields about the model, and the table of architectures
  config.py    the same in the words of Hugging Face's config.json, with ropes.py
  tensors.py   its tensors by Hugging Face's names
  folder.py    the file as a `Folder`

So the families of Hugging Face's folders read it. `hub.tokenizers.gguf` reads the tokenizer.
"""

from fastdec.hub.gguf.folder import GgufFile, open_file

__all__ = ['GgufFile', 'open_file']
