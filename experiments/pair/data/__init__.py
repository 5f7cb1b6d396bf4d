"""Parts of the training corpus: sources and their readers, rendering, deduplication, splits; generations on disk."""
