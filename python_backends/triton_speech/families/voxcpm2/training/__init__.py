"""Makes a small voice in VoxCPM2's checkpoint format from texts and a teacher: ``triton-speech train``."""
