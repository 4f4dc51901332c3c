"""Reads how far a draft is right, and what that is worth at other lengths.

python -m examples.reading_acceptance path/to/model path/to/smaller lines.txt
"""

import sys
from pathlib import Path

import numpy as np

import fastdec as fd

folder, draft, lines = sys.argv[1:]
gamma = 4  # tokens drafted a call
g = fd.Generator.load(folder, draft=draft, strategy=f'speculative(gamma={gamma})')
prompts = [line.strip() for line in Path(lines).read_text().splitlines() if line.strip()]

# A block is what one call emitted: the drafts that were right, and one sure token after them. The
# last block of a text may be cut by its end, and the first came with the prompt: neither counts.
written = g(prompts, max_new_tokens=24)
sizes = [len(block) for found in written for block in found.blocks[1:-1]]
if not sizes:
  sys.exit('the texts are too short to judge a draft by: give other prompts')
for place in range(1, gamma + 1):
  share = np.mean([size > place for size in sizes])
  print(f'draft {place} was accepted in {share:.0%} of {len(sizes)} calls')

# alpha of Leviathan et al. 2022: of the drafts that a call came to, the share that it accepted
accepted, refused = sum(sizes) - len(sizes), sum(size <= gamma for size in sizes)
alpha = accepted / max(accepted + refused, 1)
print(f'alpha {alpha:.2f}; measured {np.mean(sizes):.2f} tokens a call')
for length in (1, 2, 4, 8):
  tokens = fd.theory.expected_tokens(alpha, length)
  gain = fd.theory.speedup(alpha, length, c=0.1)  # a draft's call costs a tenth of the model's
  print(f'gamma {length}: {tokens:.2f} tokens a call expected, {gain:.2f} times as fast')
