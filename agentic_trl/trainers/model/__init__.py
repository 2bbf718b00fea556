"""The model at hand: loaded, freed of what others left on it, copied, scored, and checked before the first episode."""
