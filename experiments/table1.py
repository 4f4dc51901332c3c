"""Table 1 of Stern et al. 2018: translation by every k, regime and rule."""

from experiments.lab import cli

if __name__ == '__main__':
  cli.run_paper('wmt14', 'experiments.stern2018.text', 'Translation', 'table1')
