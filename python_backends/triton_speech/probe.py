"""What the launcher's probes and the stages agree on."""

PROBE_ID = "triton-speech-probe"
"""The request id of a probe: it is neither counted nor told in the log."""
