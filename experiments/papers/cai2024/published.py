"""What Cai et al. 2024 and its repository publish about Medusa, to stand beside ours."""

# assets/medusa_acc.csv: Medusa-1 on Vicuna, how often head 0, 1, ... has the token among its first
# 1 and its first 5.
ACCURACY = {
  'Vicuna 7B': ((0.560, 0.780), (0.316, 0.563), (0.201, 0.417), (0.147, 0.340), (0.118, 0.300)),
  'Vicuna 13B': ((0.594, 0.816), (0.340, 0.580), (0.216, 0.436), (0.150, 0.354), (0.122, 0.307)),
  'Vicuna 33B': ((0.605, 0.822), (0.356, 0.596), (0.225, 0.446), (0.160, 0.376), (0.137, 0.326)),
}
# Tables 1 and 2: (way of training, model, speed-up, tokens per call, time of a call in those of
# plain decoding).
SPEEDS = (
  ('Medusa-1', 'Vicuna 7B', 2.18, None, None),
  ('Medusa-1', 'Vicuna 13B', 2.33, None, None),
  ('Medusa-2', 'Vicuna 7B', 2.83, 3.47, 1.22),
  ('Medusa-2', 'Vicuna 13B', 2.83, 3.51, 1.23),
  ('Medusa-2', 'Vicuna 33B', 2.35, 3.01, 1.27),
  ('Medusa-2', 'Zephyr 7B', 2.66, 3.14, 1.18),
)
