"""fairseq's state dicts by their published names, random and tiny, and what the papers compute with
them, in NumPy.

The sums follow Gehring et al. 2017 and Vaswani et al. 2017 as fairseq runs them, weight
normalisation unfolded, one sentence at a time: nothing is padded here.
"""

import numpy as np

PAD, END = 1, 2


class Names:
  """Random tensors by name, made when first asked for by a shape."""

  def __init__(self, seed):
    self.tensors, self._draw = {}, np.random.default_rng(seed)

  def add(self, name, *shape, around=0.0, scale=0.5):
    self.tensors[name] = (around + scale * self._draw.standard_normal(shape)).astype(np.float32)

  def affine(self, name, outputs, inputs):
    self.add(f'{name}.weight', outputs, inputs)
    self.add(f'{name}.bias', outputs)

  def normed(self, name, *shape, axis):
    """With weight normalisation: lengths along one axis."""
    self.add(f'{name}.weight_v', *shape)
    self.add(f'{name}.weight_g', *(n if i == axis else 1 for i, n in enumerate(shape)), around=1.0)
    self.add(f'{name}.bias', shape[0] if len(shape) == 2 else shape[-1])


def fconv(
  words=(13, 11),
  d=6,
  d_out=4,
  encoder=((5, 3), (8, 2)),
  decoder=((7, 3), (4, 2)),
  old=False,
  tied=False,
):
  """Makes the tensors of an FConv with these (channels, kernel width); `old`: as before December
  2017."""
  names = Names(0)
  for side, layers, count in (('encoder', encoder, words[0]), ('decoder', decoder, words[1])):
    names.add(f'{side}.embed_tokens.weight', count, d)
    names.add(f'{side}.embed_positions.weight', 20, d)
    names.normed(f'{side}.fc1', layers[0][0], d, axis=0)
    inputs = layers[0][0]
    for i, (channels, width) in enumerate(layers):
      axis = 0 if old and side == 'decoder' else 2
      names.normed(f'{side}.convolutions.{i}', width, inputs, 2 * channels, axis=axis)
      if inputs != channels:
        names.normed(f'{side}.projections.{i}', channels, inputs, axis=0)
      if side == 'decoder':
        names.normed(f'decoder.attention.{i}.in_projection', d, channels, axis=0)
        names.normed(f'decoder.attention.{i}.out_projection', channels, d, axis=0)
      inputs = channels
    names.normed(f'{side}.fc2', d if side == 'encoder' else d_out, inputs, axis=0)
  if tied:
    names.tensors['decoder.fc3.weight'] = names.tensors['decoder.embed_tokens.weight']
    names.add('decoder.fc3.bias', words[1])
  else:
    names.normed('decoder.fc3', words[1], d_out, axis=0)
  if not old:
    names.tensors['decoder.version'] = np.array([2.0], np.float32)
  return names.tensors


def fconv_logits(tensors, source, target):
  """[t, v] after the target's ids, </s> first."""
  t = {name: x.astype(np.float64) for name, x in tensors.items()}
  depth = lambda side: sum(
    name.startswith(f'{side}.convolutions') and name.endswith('bias') for name in t
  )
  embedded = lambda side, ids: (
    t[f'{side}.embed_tokens.weight'][ids] + t[f'{side}.embed_positions.weight'][2 : 2 + len(ids)]
  )

  def affine(name, x):
    return x @ weight(t, name).T + t[f'{name}.bias']

  def block(side, i, x, is_causal):
    """The gated convolution with its residual and scale."""
    name = f'{side}.convolutions.{i}'
    kernel = weight(t, name)
    width = len(kernel)
    left = width - 1 if is_causal else (width - 1) // 2
    padded = np.pad(x, ((left, width - 1 - left), (0, 0)))
    y = (
      np.array([np.einsum('wi,wio->o', padded[j : j + width], kernel) for j in range(len(x))])
      + t[f'{name}.bias']
    )
    value, gate = np.split(y, 2, axis=1)
    around = f'{side}.projections.{i}'
    return value / (1 + np.exp(-gate)), affine(around, x) if f'{around}.bias' in t else x

  read = embedded('encoder', source)
  x = affine('encoder.fc1', read)
  for i in range(depth('encoder')):
    y, residual = block('encoder', i, x, False)
    x = (y + residual) * 0.5**0.5
  keys = affine('encoder.fc2', x)
  values = (keys + read) * 0.5**0.5
  written = embedded('decoder', target)
  x = affine('decoder.fc1', written)
  for i in range(depth('decoder')):
    y, residual = block('decoder', i, x, True)
    query = (affine(f'decoder.attention.{i}.in_projection', y) + written) * 0.5**0.5
    context = softmax(query @ keys.T) @ values * len(source) ** 0.5
    y = (affine(f'decoder.attention.{i}.out_projection', context) + y) * 0.5**0.5
    x = (y + residual) * 0.5**0.5
  return affine('decoder.fc3', affine('decoder.fc2', x))


def weight(t, name):
  """Returns the weight as it is stored, or computes it from its direction and lengths."""
  if f'{name}.weight' in t:
    return t[f'{name}.weight']
  g, v = t[f'{name}.weight_g'], t[f'{name}.weight_v']
  return (
    g
    * v
    / np.sqrt((v**2).sum(axis=tuple(i for i in range(v.ndim) if g.shape[i] == 1), keepdims=True))
  )


def transformer(
  words=(13, 11), d=8, d_ff=(10, 12), layers=(1, 2), last_norm=False, learned=False, joined=False
):
  """Makes the tensors of a Transformer by the newest names.

  `joined`: both sides share an embedding, which is the output too. `learned`: positions are
  learned, and the embeddings have a norm.
  """
  names = Names(1)
  for side, width, depth, count in zip(('encoder', 'decoder'), d_ff, layers, words, strict=True):
    names.add(f'{side}.embed_tokens.weight', count, d)
    names.add(f'{side}.version', 1)
    if learned:
      names.add(f'{side}.embed_positions.weight', 20, d)
    else:
      names.add(f'{side}.embed_positions._float_tensor', 1)
    for i in range(depth):
      attentions = ('self_attn', 'encoder_attn')[: 1 + (side == 'decoder')]
      for attention in attentions:
        for part in ('q_proj', 'k_proj', 'v_proj', 'out_proj'):
          names.affine(f'{side}.layers.{i}.{attention}.{part}', d, d)
      names.affine(f'{side}.layers.{i}.fc1', width, d)
      names.affine(f'{side}.layers.{i}.fc2', d, width)
      for norm in (*attentions, 'final'):
        _norm(names, f'{side}.layers.{i}.{norm}_layer_norm', d)
    if last_norm:
      _norm(names, f'{side}.layer_norm', d)
    if learned:
      _norm(names, f'{side}.layernorm_embedding', d)
  if joined:
    names.tensors['encoder.embed_tokens.weight'] = names.tensors['decoder.embed_tokens.weight']
    names.tensors['decoder.output_projection.weight'] = names.tensors['decoder.embed_tokens.weight']
  else:
    names.add('decoder.output_projection.weight', words[1], d)
  return names.tensors


def _norm(names, name, d):
  names.add(f'{name}.weight', d, around=1.0)
  names.add(f'{name}.bias', d)


def older(tensors):
  """A Transformer's state dict by the names of 2018."""
  renamed = {}
  for name, tensor in tensors.items():
    side, _, rest = name.partition('.')
    for number, norm in enumerate(('self_attn', *['encoder_attn'] * (side == 'decoder'), 'final')):
      rest = rest.replace(f'.{norm}_layer_norm', f'.layer_norms.{number}')
    renamed[f'{side}.{rest}'.replace('output_projection.weight', 'embed_out')] = tensor
  for name in [name for name in renamed if name.endswith('.q_proj.weight')]:
    prefix = name.removesuffix('q_proj.weight')
    for part in ('weight', 'bias'):
      renamed[f'{prefix}in_proj_{part}'] = np.concatenate(
        [renamed.pop(f'{prefix}{x}_proj.{part}') for x in 'qkv']
      )
  return renamed


def transformer_logits(tensors, source, target, heads):
  """[t, v] after the target's ids, </s> first."""
  t = {name: x.astype(np.float64) for name, x in tensors.items()}
  depth = lambda side: sum(
    name.startswith(f'{side}.layers') and name.endswith('fc1.bias') for name in t
  )
  affine = lambda name, x: x @ t[f'{name}.weight'].T + t[f'{name}.bias']
  is_pre = 'encoder.layer_norm.weight' in t

  def norm(name, x):
    x = x - x.mean(-1, keepdims=True)
    return (
      x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * t[f'{name}.weight'] + t[f'{name}.bias']
    )

  def embedded(side, ids):
    table = t[f'{side}.embed_tokens.weight']
    d = table.shape[1]
    if f'{side}.embed_positions.weight' in t:
      signal = t[f'{side}.embed_positions.weight'][2 : 2 + len(ids)]
    else:
      angles = np.arange(2, 2 + len(ids))[:, None] * np.exp(
        -np.arange(d // 2) * np.log(1e4) / (d // 2 - 1)
      )
      signal = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    x, name = table[ids] * d**0.5 + signal, f'{side}.layernorm_embedding'
    return norm(name, x) if f'{name}.weight' in t else x

  def attention(name, x, memory, mask):
    split = lambda y: y.reshape(len(y), heads, -1).swapaxes(0, 1)
    q, k, v = (
      split(affine(f'{name}.{part}_proj', y))
      for part, y in (('q', x), ('k', memory), ('v', memory))
    )
    weights = softmax(np.where(mask, q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5, -np.inf))
    return affine(f'{name}.out_proj', (weights @ v).swapaxes(0, 1).reshape(x.shape))

  def around(name, x, sublayer):
    name = f'{name}_layer_norm'
    return x + sublayer(norm(name, x)) if is_pre else norm(name, x + sublayer(x))

  def layer(name, x, seen, memory):
    x = around(f'{name}.self_attn', x, lambda y: attention(f'{name}.self_attn', y, y, seen))
    if memory is not None:
      x = around(
        f'{name}.encoder_attn', x, lambda y: attention(f'{name}.encoder_attn', y, memory, True)
      )
    return around(
      f'{name}.final', x, lambda y: affine(f'{name}.fc2', np.maximum(affine(f'{name}.fc1', y), 0))
    )

  def stack(side, ids, memory=None):
    x = embedded(side, ids)
    seen = np.tri(len(ids), dtype=bool) if side == 'decoder' else True
    for i in range(depth(side)):
      x = layer(f'{side}.layers.{i}', x, seen, memory)
    return norm(f'{side}.layer_norm', x) if is_pre else x

  return (
    stack('decoder', target, stack('encoder', source)) @ t['decoder.output_projection.weight'].T
  )


def softmax(x):
  x = np.exp(x - x.max(-1, keepdims=True))
  return x / x.sum(-1, keepdims=True)
