// The smooth line through a noisy one.

/**
 * An exponential moving average without a pull towards zero at its beginning: weight 0 changes nothing, 0.99 averages over
 * about a hundred exports. Values that are not finite stay and do not spread. `at` are the indices of the exports, so that
 * thinned series weigh like whole ones.
 */
function smoothed(y, at, weight) {
  if (!(weight > 0)) return y;
  let [sum, mass, previous] = [0, 0, null];
  return y.map((value, k) => {
    if (!Number.isFinite(value)) return value;
    const kept = previous === null ? 0 : weight ** (at[k] - previous);
    previous = at[k];
    sum = kept * sum + (1 - weight) * value;
    mass = kept * mass + (1 - weight);
    return sum / mass;
  });
}
