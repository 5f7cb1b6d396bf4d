"""Parts of the training corpus: where text comes from, how it is read, rendered, thinned and divided."""
