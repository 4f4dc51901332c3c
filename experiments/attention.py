"""Draws where a translation looked: a model's cross-attention, cut where its calls were.

  python -m experiments.attention --model=out/quickstart/k8-finetune --text="A man is riding."

--layer=2 --out=heads.png     one layer, its heads side by side
--k=1                         one token a call
--heads=folder --rule=top-2   heads of another folder

Each panel is a layer, the mean over its heads. Source tokens are across, written tokens down; a
line stands wherever a call of the model ended, so that what lies between two lines was written at
once. Heads that are in the model's folder draft unless --k=1 says otherwise.
"""

from typing import Any

from absl import flags

from experiments.lab import cli

MODEL = flags.DEFINE_string(
  'model', None, 'folder of a translation model, or of a finished run', required=True
)
TEXT = flags.DEFINE_string('text', None, 'the sentence to translate', required=True)
OUT = flags.DEFINE_string('out', 'attention.png', 'the picture, a PNG')
HEADS = flags.DEFINE_string(
  'heads', None, "folder of prediction heads that draft, instead of the model's own"
)
K = flags.DEFINE_integer('k', None, 'tokens a call has at most (all heads)', lower_bound=1)
RULE = flags.DEFINE_string('rule', 'exact', 'exact, top-N or min-N')
LAYER = flags.DEFINE_integer('layer', None, 'draws the heads of this layer, from 1', lower_bound=1)
MAX_LEN = flags.DEFINE_integer(
  'max_len', 64, 'the most tokens of the output', lower_bound=1, upper_bound=100
)


def main(_: list[str]) -> None:
  import pathlib

  import jax.numpy as jnp
  import numpy as np

  import fastdec as fd
  from experiments.pictures import attention_figure
  from experiments.pictures.attention_weights import cross_attention
  from fastdec.evaluation import drawing

  out = cli.picture_path(OUT.value)
  generator = _generator()
  _check_layer(generator)
  model, params, strategy = generator.model, generator.params, generator.strategy
  source = np.array(generator.read(TEXT.value)[0], np.int32)
  decoded = fd.decode(model, params, source[None], strategy, max_len=MAX_LEN.value).checked()
  written = np.asarray(decoded.tokens[0, : decoded.lengths[0]])
  weights = np.asarray(
    cross_attention(model, params, jnp.asarray(source), jnp.asarray(written)), np.float32
  )
  weights, names = _panels(weights)
  tokenizer = generator.tokenizer
  pieces = tokenizer.pieces(written.tolist())
  source_pieces = getattr(tokenizer, 'source_pieces', tokenizer.pieces)(source.tolist())
  title = f'{pathlib.Path(MODEL.value).resolve().name}: {_name(strategy)}, {_worth(decoded)}'
  sizes = np.asarray(decoded.block_sizes[0]).tolist()
  picture = attention_figure.figure(weights, names, source_pieces, pieces, sizes, title)
  drawing.save(picture, out)
  print(
    f'{generator.tokenizer.decode(written.tolist())}\n{_worth(decoded)}; the picture is in {out}'
  )


def _generator() -> Any:
  """The model, and what drafts, once all is possible with the text."""
  import fastdec as fd
  from experiments.pictures.attention_figure import MOST
  from experiments.pictures.attention_weights import check_translates
  from experiments.stern2018.text import rule_of
  from fastdec import folders
  from fastdec.cli import opening
  from fastdec.cli.generate import check_text
  from fastdec.errors import UserError

  rule = rule_of(RULE.value)
  check_text('--text', TEXT.value)
  folder = folders.open(MODEL.value)
  check_translates(folder.model, MODEL.value)
  own = MODEL.value if folder.has_heads else None
  heads = own if HEADS.value is None else HEADS.value
  if heads is None and (K.value or 1) > 1:
    raise UserError(
      f'--k={K.value} needs heads, and {MODEL.value} has none: give --heads=folder,'
      ' or a run with k >= 2'
    )
  if K.value == 1:
    heads = None
  if heads is None and RULE.value != 'exact':
    raise UserError(
      f'the rule {RULE.value} needs heads, and this is a base model: give exact, or a run with'
      ' k >= 2'
    )
  language = opening.unread(MODEL.value, None, [TEXT.value], MAX_LEN.value)
  count = len(language.read(TEXT.value)[0])
  if count > MOST:
    raise UserError(
      f'the text has {count} tokens, and a picture has room for {MOST}: give a shorter sentence'
    )
  if heads is None:
    return fd.Generator.load(MODEL.value)
  strategy = fd.Blockwise(folders.load_heads(heads), K.value, rule)
  return fd.Generator.load(MODEL.value, strategy=strategy)


def _check_layer(generator: Any) -> None:
  """Raises UserError where the decoder has no such layer; found by tracing, before anything is
  compiled."""
  import jax
  import jax.numpy as jnp

  from experiments.pictures.attention_weights import cross_attention
  from fastdec.errors import UserError

  if LAYER.value is not None:
    ids = jnp.zeros(1, jnp.int32)
    layers = jax.eval_shape(
      lambda: cross_attention(generator.model, generator.params, ids, ids)
    ).shape[0]
    if LAYER.value > layers:
      raise UserError(
        f'--layer={LAYER.value} is not possible: the decoder has {layers} layers, so'
        f' give 1 to {layers}'
      )


def _panels(weights: Any) -> tuple[Any, list[str]]:
  """Panels of weights [layers, h, t, s]: matrices, and their names."""
  h = weights.shape[1]
  if LAYER.value is not None:
    return weights[LAYER.value - 1], [f'layer {LAYER.value}, head {i}' for i in range(1, h + 1)]
  mean = f', mean of {h} heads' * (h > 1)
  return weights.mean(axis=1), [f'layer {i}{mean}' for i in range(1, len(weights) + 1)]


def _name(strategy: Any) -> str:
  import fastdec as fd

  return (
    f'blockwise, k = {strategy.k}, {RULE.value}' if isinstance(strategy, fd.Blockwise) else 'greedy'
  )


def _worth(decoded: Any) -> str:
  """Tokens per call, if any call was needed."""
  return (
    f'{decoded.mean_block_size:.2f} tokens per call'
    if int(decoded.calls[0])
    else ('1 token, without a call')
  )


if __name__ == '__main__':
  cli.run(main)
