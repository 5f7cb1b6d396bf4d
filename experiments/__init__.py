"""Programs that answer a question: train the shipped pair, profile acceptance, calibrate, reproduce a table."""
