"""Table 2 of Stern et al. 2018: super-resolution, mean accepted block sizes and likeness."""

from experiments.lab import cli

if __name__ == '__main__':
  cli.run_paper('celeba', 'experiments.stern2018.images', 'Table2', 'table2')
