"""Word error rate of a served voice; the parts of ``make wer``."""
