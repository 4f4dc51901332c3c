"""Figure 4 of Stern et al. 2018: speed-up against mean accepted block size, on the test set."""

from experiments.lab import cli

if __name__ == '__main__':
  cli.run_paper('wmt14', 'experiments.stern2018.text', 'Translation', 'figure4')
