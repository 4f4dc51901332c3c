"""A cell as if it had been measured."""

from experiments.papers.stern2018.cells import BlockwiseCell

CONDITIONS = {
  'device': 'cpu',
  'dtype': 'float32',
  'batch': 1,
  'seed': 0,
  'commit': 'abc',
  'config': 'c.py:scale=tiny',
}


def a_cell(k=4, regime='finetune', rule='exact', **fields):
  measured = {
    'bleu': 30.0 + k / 10,
    'bleu_signature': 'nrefs:1|tok:13a',
    'mean_block_size': 1 + k / 4,
    'calls_per_output': 9.0,
    'ms_per_output': 10.0,
    'greedy_ms_per_output': 25.0,
    'speedup': 2.5,
    'compile_seconds': 3.0,
    'head_accuracy': tuple(0.9**i for i in range(k)),
    'outputs': 500,
    'split': 'dev',
    'conditions': CONDITIONS,
  }
  return BlockwiseCell(k, regime, rule, **{**measured, **fields})


def an_image_cell(k=4, regime='finetune', rule='distance-2', **fields):
  measured = {
    'bits_per_dimension': 3.2,
    'psnr': 24.5 - k / 10,
    'ssim': 0.81,
    'psnr_to_greedy': 30.0,
    'mean_block_size': 1 + k / 4,
    'ms_per_output': 500.0,
    'greedy_ms_per_output': 1250.0,
    'speedup': 2.5,
    'same_as_greedy': 0.125,
    'head_accuracy': tuple(0.5**i for i in range(k)),
    'outputs': 64,
    'split': 'dev',
    'conditions': CONDITIONS,
  }
  return BlockwiseCell(k, regime, rule, **{**measured, **fields})
