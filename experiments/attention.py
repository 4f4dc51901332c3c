"""Draws where a translation looked: a model's cross-attention, cut where its calls were.

  python -m experiments.attention --model=out/quickstart/k8-finetune --text="A man is riding."

--layer=2 --out=heads.png     one layer, its heads side by side
--strategy=greedy             one token a call

Each panel is a layer, the mean over its heads. Source tokens are across, written tokens down. A
line marks the end of each call of the model, so one call wrote all tokens between two lines. Heads
in the model's folder draft, unless --strategy says otherwise.
"""

from absl import flags

from experiments.lab import cli

MODEL = flags.DEFINE_string(
  'model', None, 'folder of a translation model, or of a finished run', required=True
)
TEXT = flags.DEFINE_string('text', None, 'the sentence to translate', required=True)
OUT = flags.DEFINE_string('out', 'attention.png', 'the picture, a PNG')
STRATEGY = flags.DEFINE_string('strategy', None, "in words, such as 'blockwise(k=4)'")
LAYER = flags.DEFINE_integer('layer', None, 'draws the heads of this layer, from 1', lower_bound=1)
MAX_LEN = flags.DEFINE_integer(
  'max_len', 64, 'the most tokens of the output', lower_bound=1, upper_bound=100
)


def main(_: list[str]) -> None:
  import pathlib

  import jax.numpy as jnp
  import numpy as np

  import fastdec as fd
  from experiments.pictures.attention import MOST, check_translates, cross_attention, figure
  from fastdec.cli import opening
  from fastdec.errors import UserError
  from fastdec.evaluation import drawing
  from fastdec.text.load import open_folder

  out = cli.picture_path(OUT.value)
  opening.check_text('--text', TEXT.value)
  folder = open_folder(MODEL.value)
  check_translates(folder.model, MODEL.value)
  language = opening.open_without_weights(MODEL.value, None, [TEXT.value], MAX_LEN.value)
  source = np.array(language.read(TEXT.value)[0], np.int32)
  if len(source) > MOST:
    raise UserError(
      f'the text has {len(source)} tokens, and a picture has room for {MOST}: give a shorter'
      ' sentence'
    )

  words = STRATEGY.value or ('blockwise' if folder.has_heads else 'greedy')
  g = fd.Generator.load(MODEL.value, strategy=words)
  decoded = fd.decode(g.model, g.params, source[None], g.strategy, max_len=MAX_LEN.value).checked()
  written = np.asarray(decoded.tokens[0, : decoded.lengths[0]])
  weights = cross_attention(g.model, g.params, jnp.asarray(source), jnp.asarray(written))
  weights = np.asarray(weights, np.float32)
  layers, heads = weights.shape[:2]
  if (LAYER.value or 1) > layers:
    raise UserError(
      f'--layer={LAYER.value} is not possible: the decoder has {layers} layers, so give 1 to'
      f' {layers}'
    )
  if LAYER.value is None:
    mean = f', mean of {heads} heads' * (heads > 1)
    panels, names = weights.mean(axis=1), [f'layer {i + 1}{mean}' for i in range(layers)]
  else:
    panels = weights[LAYER.value - 1]
    names = [f'layer {LAYER.value}, head {i + 1}' for i in range(heads)]

  pieces = g.tokenizer.pieces(written.tolist())
  source_pieces = getattr(g.tokenizer, 'source_pieces', g.tokenizer.pieces)(source.tolist())
  worth = '1 token, without a call'
  if decoded.calls[0]:
    worth = f'{decoded.mean_block_size:.2f} tokens per call'
  title = f'{pathlib.Path(MODEL.value).resolve().name}: {words}, {worth}'
  sizes = np.asarray(decoded.block_sizes[0]).tolist()
  drawing.save(figure(panels, names, source_pieces, pieces, sizes, title), out)
  print(f'{g.tokenizer.decode(written.tolist())}\n{worth}; the picture is in {out}')


if __name__ == '__main__':
  cli.run(main)
