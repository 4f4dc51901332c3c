"""The launcher that draws where a translation looked: one picture, and a sentence for each
mistake."""

import os

import jax
import matplotlib.image
import numpy as np
import pytest

from fastdec import folders

HOME = os.path.expanduser('~')
MISTAKES = {
  'no folder': (['--model={files}/nowhere', '--text=a dog'], '{files}/nowhere is not a folder'),
  'the home folder': (['--model=~/nowhere/m', '--text=a'], f'{HOME}/nowhere/m is not a folder'),
  'no name': (['--model=', '--text=a'], "no file can be called ''"),
  'no encoder': (['--model={files}/lm', '--text=a dog'],
    'lm is decoder-only and looks at no source'),
  'images': (['--model={files}/images', '--text=a dog'], 'images makes images'),
  'empty': (['--text= '], '--text is empty: give some text'),
  'long': (['--text=' + 'dog ' * 40], "exceeds the model's 32 positions"),
  'long output': (['--text=a dog', '--max_len=40'], "exceeds the model's 32 positions"),
  'another format': (['--text=a dog', '--out={files}/a.pdf'], 'must be a PNG'),
  'nowhere': (['--text=a dog', '--out={files}/none/a.png'],
    'needs the folder {files}/none'),
  'no such layer': (['--text=a dog', '--layer=2'],
    '--layer=2 is not possible: the decoder has 1 layers'),
  'too many': (['--text=a dog', '--strategy=blockwise(k=4)'], 'k=4 is out of range'),
  'no heads': (['--model={model}/../short', '--text=a', '--max_len=2', '--strategy=blockwise'],
    'heads'),
}  # fmt: skip


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  """Folders of models that translate nothing."""
  from fastdec.models.image_transformer import ImageTransformer, ImageTransformerConfig
  from fastdec.models.lm import LM, LMConfig

  place = tmp_path_factory.mktemp('files')
  models = {
    'lm': LM(LMConfig(vocab_size=9, d_model=8, heads=1, d_ff=8, layers=1)),
    'images': ImageTransformer(
      ImageTransformerConfig(d_model=8, heads=1, d_ff=8, encoder_layers=1, decoder_layers=1)
    ),
  }
  for name, model in models.items():
    zeros = jax.tree.map(
      lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(model.init, jax.random.key(0))
    )
    folders.save(model, zeros, place / name)
  return place


@pytest.mark.parametrize('name', MISTAKES)
def test_a_mistake_is_one_sentence_and_leaves_no_picture(launch, translator, files, tmp_path, name):
  words, message = MISTAKES[name]
  words = [word.format(model=translator, files=files) for word in words]
  flags = {'model': translator, 'max_len': 16, 'out': tmp_path / 'a.png'}
  missing = [
    f'--{flag}={value}'
    for flag, value in flags.items()
    if not any(w.startswith(f'--{flag}=') for w in words)
  ]
  ended = launch('attention', *words, *missing)
  assert ended.code == 2 and message.format(model=translator, files=files) in ended.err
  assert (
    ended.err.count('\n') == 1 and 'Traceback' not in ended.err and not list(tmp_path.iterdir())
  )


def test_a_translation_is_drawn_and_printed(launch, translator, tmp_path):
  words = [f'--model={translator}', '--text=a dog runs $5', '--max_len=16']
  ended = launch('attention', *words, f'--out={tmp_path}/layers.png')
  assert ended.code == 0 and 'tokens per call; the picture is in' in ended.out
  one_by_one = launch(
    'attention', *words, '--strategy=greedy', '--layer=1', f'--out={tmp_path}/heads.png'
  )
  assert (
    '1.00 tokens per call' in one_by_one.out
    and one_by_one.out.split('\n')[0] == ended.out.split('\n')[0]
  )
  layers, heads = (
    matplotlib.image.imread(tmp_path / f'{name}.png').shape for name in ('layers', 'heads')
  )
  assert heads[1] > layers[1]  # two heads side by side, one layer
