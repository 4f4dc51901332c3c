"""Folders and files that others publish, as models, heads, drafts and tokenizers of fastdec.

  huggingface.py   a folder of Hugging Face: its model, dtype and parameters
  families.py      its families: llama.py (lm_families, lm_tensors, ropes), gemma.py, bart.py, t5.py
  generation.py    its settings of `generate`
  tensors.py       its tensors by name; weight_files.py: the files that hold them
  gguf/            models in GGUF files
  quantized.py     its quantized matrices; quantized_formats.py, dequantized.py: how they are stored
  drafts.py        draft networks: eagle.py, dflash.py, mtp.py, with draft_parts.py
  medusa.py        Medusa heads
  fairseq/         checkpoints of fairseq
  tokenizers/      tokenizers of all these

Only `text` and `cli` import this room: decoding and training know nothing of its formats.
"""
