"""Finds the fastest way to decode with a Hugging Face folder on this machine, and decodes so.

  python -m examples.tuned_folder path/to/model lines.txt [path/to/draft]

lines.txt has a prompt on each line. The draft is a smaller model that reads alike.
"""

import sys
from pathlib import Path

import fastdec as fd

folder, lines, *draft = sys.argv[1:]
plain = fd.Generator.load(folder)
texts = [line.strip() for line in Path(lines).read_text().splitlines() if line.strip()]
prompts = [plain.read(text)[0] for text in texts]

candidates = [fd.PromptLookup(k=4), fd.PromptLookup(k=10), fd.Lookahead()]
if draft:
  candidates += fd.Speculative(fd.load(*draft)).sizes()
tuned = fd.tune(plain.model, plain.params, candidates, prompts, max_len=24, budget=60)
print(tuned)  # every candidate: tokens a call, milliseconds, the ratio to greedy decoding
tuned.save(folder, *draft)

# in another process this is all: fd.Generator.load(folder, strategy='tuned')
fast = fd.Generator.load(folder, *draft, strategy='tuned')
for text, found in zip(texts, fast(texts, max_new_tokens=24), strict=True):
  print(f'{text} >> {found.text}  ({found.tokens_per_call:.1f} tokens a call)')
