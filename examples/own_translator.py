"""Trains a small translator with blockwise heads on the corpus of the quickstart, and uses it.

  python -m examples.own_translator out/mine [steps]

Your own text: TextConfig(kind='files', folder='mytext', ...), see docs/own/text.md. If the run is
stopped, the same command continues it.
"""

import sys
from pathlib import Path

import fastdec as fd
from configs import presets
from experiments.lab import train
from experiments.lab.text import TextConfig
from experiments.lab.train import HeadsConfig
from fastdec.training.drafts.trainer import train_heads
from fastdec.training.run import RunConfig
from fastdec.training.stage import stage

root, steps = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 600
data = TextConfig(vocab_size=2000)
run = RunConfig.falling(steps=steps, warmup=steps // 10 + 1, every=max(steps // 4, 1))
sizes = presets.model('translation', width=128, layers=2)
base = stage(root, 'base', train.base, model=sizes, run=run, data=data, seed=0)

# four heads, each a token further ahead, trained together with the base
settings = HeadsConfig(d_ff=256, dropout=0.0, rooted=True, markov=64)
how = dict(run=run, data=data, seed=0, order=1, together=True)
model = stage(root, 'k4', train_heads, base=base, heads=settings, k=4, **how)

plain, blocks = (fd.Generator.load(model, strategy=name) for name in ('greedy', 'blockwise'))
sentence = 'We have booked four rooms in Oslo for ninety guests from Finland.'
one, several = plain(sentence), blocks(sentence)
print(several.text, f'({several.calls} calls instead of {one.calls})')
assert several.text == one.text  # blocks change the calls and nothing else
