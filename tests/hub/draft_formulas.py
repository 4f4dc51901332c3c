"""What published block drafts compute, by the formulas of their authors: float64, in NumPy.

It reads the tensors of a file by their names. What config.json says is given by the caller, so that
a key which the reader ignores shows.
"""

import numpy as np


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def silu(x):
  return x * sigmoid(x)


def softmax(x):
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def rms(x, weight, epsilon):
  return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def turn(x, at, base):
  """Rotates the heads [n, h, p] of rows at positions `at`."""
  half = x.shape[-1] // 2
  angle = np.asarray(at)[:, None, None] / base ** (np.arange(half) / half)
  a, b = x[..., :half], x[..., half:]
  sin, cos = np.sin(angle), np.cos(angle)
  return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


class Block:
  """A block draft on a target of which embeddings and projection are known.

  Args:
    tensors: by their published names.
    embedding, output: [words, width], of the target or of the draft.
    rows: of a block.
    mask: id of the mask.
    sees: (layer, number of the row, position - n of a key) -> true if the row sees the key; the
      root is at 0.
    layers, heads, keys: their numbers.
    epsilon, base: of the norms and the rotations.
    group: channels that share the factors of a convolution.
    scale: of the embeddings.
  """

  def __init__(
    self, tensors, embedding, output, rows, mask, sees, layers=2, heads=2, keys=1, epsilon=1e-5,
    base=1e6, group=4, scale=1.0,
  ):  # fmt: skip
    self.t = {name: np.asarray(x, np.float64) for name, x in tensors.items()}
    self.embedding, self.output = np.float64(embedding), np.float64(output)
    self.rows, self.mask, self.sees, self.layers = rows, mask, sees, layers
    self.heads, self.keys, self.epsilon, self.base = heads, keys, epsilon, base
    self.group, self.scale = group, scale

  def features(self, taps):
    """Returns the context [n, d] of the states [n, taps, width]."""
    if 'hidden_dim_adapter.proj.weight' in self.t:
      taps = taps @ self.t['hidden_dim_adapter.proj.weight'].T
    joined = taps.reshape(len(taps), -1)
    return rms(joined @ self.t['fc.weight'].T, self.t['hidden_norm.weight'], self.epsilon)

  def convolve(self, name, x, z, side):
    """Returns a convolution of z, whose factors depend on x."""
    if f'{name}.base_kernel' not in self.t:
      return z
    base, d = self.t[f'{name}.base_kernel'], x.shape[-1]
    own = x @ self.t[f'{name}.kernel_projection.weight'].T
    own = own.reshape(len(x), 2, base.shape[1], d // self.group)
    y = np.zeros_like(z)
    for t in range(len(z)):
      for o in range(min(base.shape[1], t + 1)):
        y[t] += (base[side, o] + np.repeat(own[t, side, o], self.group)) * z[t - o]
    return y

  def states(self, context, root):
    """Returns the states [rows, d] of a block after n features."""
    n, x = len(context), self.embedding[[root] + [self.mask] * (self.rows - 1)] * self.scale
    at = np.arange(n + self.rows)
    for i in range(self.layers):
      layer = f'layers.{i}.'
      weight = lambda name, layer=layer: self.t[f'{layer}{name}.weight']
      normed = rms(x, weight('input_layernorm'), self.epsilon)
      z = self.convolve(f'{layer}attention_conv', normed, normed, 0)
      split = lambda y, heads: y.reshape(len(y), heads, -1)
      q = split(z @ weight('self_attn.q_proj').T, self.heads)
      both = np.concatenate([context, z])
      k, v = (split(both @ weight(f'self_attn.{name}_proj').T, self.keys) for name in 'kv')
      q = turn(rms(q, weight('self_attn.q_norm'), self.epsilon), at[n:], self.base)
      k = turn(rms(k, weight('self_attn.k_norm'), self.epsilon), at, self.base)
      k, v = (np.repeat(entry, self.heads // self.keys, 1) for entry in (k, v))
      scores = np.einsum('qhp,khp->hqk', q, k) * q.shape[-1] ** -0.5
      seen = [[self.sees(i, r, key - n) for key in at] for r in range(self.rows)]
      weights = softmax(np.where(seen, scores, -np.inf))
      mixed = np.einsum('hqk,khp->qhp', weights, v).reshape(self.rows, -1)
      out = mixed @ weight('self_attn.o_proj').T
      x = x + self.convolve(f'{layer}attention_conv', normed, out, 1)
      normed = rms(x, weight('post_attention_layernorm'), self.epsilon)
      z = self.convolve(f'{layer}mlp_conv', normed, normed, 0)
      inner = silu(z @ weight('mlp.gate_proj').T) * (z @ weight('mlp.up_proj').T)
      out = inner @ weight('mlp.down_proj').T
      x = x + self.convolve(f'{layer}mlp_conv', normed, out, 1)
    return rms(x, self.t['norm.weight'], self.epsilon)

  def logits(self, states):
    return states @ self.output.T


def walk(root, guesses, score):
  """Returns the words of a chain: the best by score(number, the word before, the words so far)."""
  words = [root]
  for i in range(guesses):
    words.append(int(score(i, words[-1], words).argmax()))
  return words[1:]


def gru(block, words, prefix=''):
  """Returns the state of Domino's GRU after some words."""
  wide, own = (block.t[f'{prefix}prefix_gru.weight_{part}_l0'] for part in ('ih', 'hh'))
  state = np.zeros(own.shape[1])
  for word in words:
    ir, iz, new = np.split(wide @ block.embedding[word], 3)
    hr, hz, hn = np.split(own @ state, 3)
    keep = sigmoid(iz + hz)
    state = (1 - keep) * np.tanh(new + sigmoid(ir + hr) * hn) + keep * state
  return state


def domino(block, states, root, first, bare, prefix=''):
  """The first guess is that of row `first`; the first `bare` ones are not corrected."""
  logits = block.logits(states)

  def score(i, before, words):
    if i < bare:
      return logits[first + i]
    both = np.concatenate([states[first + i], gru(block, words, prefix)])
    inner = silu(block.t[f'{prefix}embed_proj.0.weight'] @ both)
    return logits[first + i] + block.t[f'{prefix}embed_proj.2.weight'] @ inner

  return walk(root, block.rows - 1, score)


def dflash2(block, states, root, count, multiplier=1.0, cap=None):
  """`count` candidates of each row; scores are multiplied and capped before edges are added."""
  logits, t = block.logits(states), block.t
  names = ('predecessor_codebook', 'successor_codebook', 'hidden_projection.weight')
  before_of, after_of, gate = (t[f'candidate_selector.{name}'] for name in names)

  def score(i, before, words):
    own = logits[i + 1]
    best = np.argsort(-own)[:count]
    scores = np.full(len(own), -np.inf)
    kept = multiplier * own[best]
    if cap:
      kept = cap * np.tanh(kept / cap)
    scores[best] = kept + after_of[best] @ (before_of[before] * (gate @ states[i + 1]))
    return scores

  return walk(root, block.rows - 1, score)


def lilicorr(block, states, root, context, count, layers, heads, epsilon, scale):
  """`count` candidates of each row, read by a transformer of some `layers` and `heads`."""
  t = {name.removeprefix('lilicorr.'): x for name, x in block.t.items()}
  full = lambda name, x: x @ t[f'{name}.weight'].T + t[f'{name}.bias']
  slots, logits = block.rows - 1, block.logits(states)[1:]
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  ids = np.argsort(-logits, axis=-1)[:, :count]
  logp = np.take_along_axis(log_probs, ids, -1)
  ranks = np.arange(count)
  facts = np.stack(np.broadcast_arrays(
    logp, np.exp(logp), logp - logp.max(-1, keepdims=True), ranks / max(count - 1, 1), ranks == 0
  ), axis=-1)  # fmt: skip
  normed = (facts - facts.mean(-1, keepdims=True)) / np.sqrt(facts.var(-1, keepdims=True) + 1e-5)
  normed = normed * t['feature_mlp.0.weight'] + t['feature_mlp.0.bias']
  x = block.embedding[ids]
  if 'token_proj.weight' in t:
    x = full('token_proj', x)
  x = x + full('pass_hidden_proj', states[1:])[:, None]
  x = x + full('feature_mlp.3', silu(full('feature_mlp.1', normed)))
  x = (x + t['slot_embedding'][0, 0] + t['rank_embedding'][0, 0]).reshape(slots * count, -1)
  slot = np.repeat(np.arange(slots), count)
  apart = slot[:, None] - slot[None]
  bias = t['relative_slot_bias'][:, apart + slots]
  bias = bias + t['same_slot_bias'][:, None, None] * (apart == 0)
  for i in range(layers):
    own = rms(x, t[f'layers.{i}.attn_norm.weight'], block.epsilon)
    qkv = own @ t[f'layers.{i}.attn.in_proj_weight'].T + t[f'layers.{i}.attn.in_proj_bias']
    q, k, v = np.moveaxis(qkv.reshape(len(x), 3, heads, -1), 1, 0)
    weights = softmax(np.einsum('qhp,khp->hqk', q, k) * q.shape[-1] ** -0.5 + bias)
    x = x + full(
      f'layers.{i}.attn.out_proj', np.einsum('hqk,khp->qhp', weights, v).reshape(x.shape)
    )
    own = rms(x, t[f'layers.{i}.mlp_norm.weight'], block.epsilon)
    x = x + full(f'layers.{i}.mlp.2', silu(full(f'layers.{i}.mlp.0', own)))
  x = rms(x, t['output_norm.weight'], block.epsilon).reshape(slots, count, -1)
  root_of = rms(full('context_proj', context[-1]), t['anchor_norm.weight'], block.epsilon)
  beside = np.broadcast_to(root_of, x.shape)
  factor = silu(full('factor_input_proj', np.concatenate([x, beside, x * beside], -1)))
  unit = lambda y: y / np.maximum(np.linalg.norm(y, axis=-1, keepdims=True), epsilon)
  out, into = unit(full('out_head', factor)), unit(full('in_head', factor))
  start = unit(full('anchor_out_head', root_of))

  def score(i, before, words):
    behind = start if i == 0 else out[i - 1, list(ids[i - 1]).index(before)]
    scores = np.full(logits.shape[1], -np.inf)
    scores[ids[i]] = scale * into[i] @ behind
    return scores

  return walk(root, slots, score)
