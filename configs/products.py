"""What a product of a few rows with a kernel costs, by type, rows and form: what
`models.layers.product` chooses by.

  python -m experiments.benchmark --config=configs/products.py --workdir=out/products
  python -m experiments.benchmark --config=configs/products.py:scale=smoke
  --workdir=out/products-smoke

Expected on 2 cores: ten minutes. Run it on a new kind of machine: where 'to the fastest' is far
above 1, another form than the chosen one is faster there. Beside them stand panels, which `fd.pack`
lays kernels out in before decoding.
"""

from configs.common import locked, parse_arg


def get_config(arg=''):
  """scale=base has the kernels of transformer_base, [*outputs, inputs]; smoke is small, to see it
  runs."""
  choice = parse_arg(arg, scale=('base', 'smoke'))
  is_base = choice.scale == 'base'
  base = ((512, 512), (3, 8, 64, 512), (2048, 512), (512, 2048), (32000, 512))
  return locked(
    task='products',
    kernels=base if is_base else ((32, 16), (3, 2, 4, 16)),
    dtypes=('float32', 'bfloat16', 'int8'),
    rows=(1, 2, 4, 8, 16, 32, 64) if is_base else (1, 2),
    calls=10 if is_base else 2,  # of a round
    rounds=7 if is_base else 2,
    seed=0,
  )
