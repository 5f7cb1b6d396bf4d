"""How the shipped pair was made: corpus, tokenizer, the target's own generations, training of target and drafters."""
