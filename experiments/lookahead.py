"""Lookahead decoding (Fu et al. 2024): sizes, pools, beside Jacobi and prompt lookup."""

from experiments.lab import cli

if __name__ == '__main__':
  cli.run_paper('lookahead', 'experiments.fu2024', 'Lookahead', 'lookahead')
