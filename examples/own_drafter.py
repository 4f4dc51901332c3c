"""A drafter of your own: it guesses, for each token, the one that most often follows it in a text.

python -m examples.own_drafter path/to/model text.txt 'A man in'
"""

import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import fastdec as fd
from fastdec.protocol import Draft, LoopStrategy, Topology, pytree, static


@pytree
class BigramDrafter:
  follows: jnp.ndarray  # int32[v], the likeliest token after each
  nodes: int = static()  # the root and the guesses below it, a chain

  def init(self, target, prefill):
    return ()  # it remembers nothing

  def propose(self, target, state, root, keys):
    chain = [root]
    for _ in range(self.nodes - 1):
      chain.append(self.follows[chain[-1]])
    return Draft(jnp.stack(chain, axis=1), Topology.chain(self.nodes)), state

  def observe(self, target, state, step):
    return state


@pytree
class Bigram(LoopStrategy):
  follows: jnp.ndarray
  k: int = static(default=4)
  rule: fd.Exact = fd.Exact()
  drafter = property(lambda self: BigramDrafter(self.follows, self.k))


def likeliest(ids, vocab_size):
  """Counts which token follows which."""
  pairs, counts = np.unique(np.stack([ids[:-1], ids[1:]], axis=1), axis=0, return_counts=True)
  found = np.zeros(vocab_size, np.int32)
  for i in np.argsort(counts):
    found[pairs[i, 0]] = pairs[i, 1]
  return jnp.asarray(found)


folder, text, prompt = sys.argv[1:]
plain = fd.Generator.load(folder)
follows = likeliest(plain.tokenizer.encode(Path(text).read_text()), plain.model.vocab_size)
own = fd.Generator(plain.model, plain.params, plain.tokenizer, Bigram(follows))
one, several = plain(prompt, max_new_tokens=24), own(prompt, max_new_tokens=24)
print(several.text, f'({several.calls} calls instead of {one.calls})')
assert several.text == one.text  # bad guesses cost time, and never change the text
